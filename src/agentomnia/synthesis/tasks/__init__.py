"""Task synthesis: initial states, tool DAGs, grounding, queries, the task gate (paper, section 4.4)."""

"""Environment synthesis: state space, tool set, compilation, correction, gate (paper, section 4.2)."""

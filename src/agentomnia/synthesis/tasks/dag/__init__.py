"""DAG-based task synthesis (paper, section 4.4.1)."""

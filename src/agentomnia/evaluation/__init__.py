"""Evaluation: scores with intervals, by the axes of the taxonomy (paper, section 7)."""

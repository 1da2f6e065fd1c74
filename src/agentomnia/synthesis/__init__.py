"""Synthesis of environments, tasks and trajectories (paper, section 4)."""

"""Trajectories: a teacher that plays tasks, the words it reasons in, and the checks a trajectory must pass."""

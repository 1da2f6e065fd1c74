"""Tasks `τ = (E, s0, D, R)`, their criteria, grading, and trajectories (paper, section 4.1)."""

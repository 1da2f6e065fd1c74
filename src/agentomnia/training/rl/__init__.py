"""Reinforcement learning with rollback curriculum, as pure functions (paper, section 5.2.4).

Only `loss` imports torch; `advantage`, `filtering` and `rollback` are arithmetic over rewards.
"""

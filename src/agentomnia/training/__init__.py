"""Training of a policy: samples, supervised fine-tuning, reinforcement learning (paper, section 5)."""

"""The local engine: a small Qwen3 policy, trained and sampled on CPU or one GPU."""

"""Room `llm`: see docs/architecture.md."""

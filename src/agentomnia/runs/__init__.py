"""Room `runs`: see docs/architecture.md."""

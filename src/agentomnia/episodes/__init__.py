"""Room `episodes`: see docs/architecture.md."""

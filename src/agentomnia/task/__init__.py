"""Room `task`: see docs/architecture.md."""

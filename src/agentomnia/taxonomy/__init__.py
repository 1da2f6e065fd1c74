"""Room `taxonomy`: see docs/architecture.md."""

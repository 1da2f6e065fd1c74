"""Room `synthesis/tasks`: see docs/architecture.md."""

"""Room `export`: see docs/architecture.md."""

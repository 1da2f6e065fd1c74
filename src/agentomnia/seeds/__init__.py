"""Room `seeds`: see docs/architecture.md."""

"""Room `report`: see docs/architecture.md."""

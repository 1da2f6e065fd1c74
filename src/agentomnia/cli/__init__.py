"""The `omnia` command: one file a command group, no logic."""

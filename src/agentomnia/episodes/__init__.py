"""Agents and episodes: one agent, one task, one trajectory."""

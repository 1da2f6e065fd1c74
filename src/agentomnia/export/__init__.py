"""Exports: one small pure function for each target."""

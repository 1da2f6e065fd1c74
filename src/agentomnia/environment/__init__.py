"""Executable environments `E = (S, T)`: specification, program, instance, result protocol (paper, section 4.2)."""

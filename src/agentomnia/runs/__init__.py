"""Run directories: stages, journal, resume, manifest, progress (DESIGN: a run on disk)."""

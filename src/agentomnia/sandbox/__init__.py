"""Live environments for many callers: isolated workers, one instance API, and the faces that people's tools speak."""

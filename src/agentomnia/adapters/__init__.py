"""Adapters: live environments behind the interfaces of other people's trainers.

One file for each trainer. A file that imports its trainer at the top (`verl`, `skyrl`, `verifiers`, `gymnasium`) is
imported by users of that trainer only; nothing else in this package imports it, and none is a dependency.
"""

"""AgentOmnia: environments, proved tasks and verified trajectories for agents that use tools.

The package is a set of rooms; `docs/architecture.md` says what each holds and which may import which.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]

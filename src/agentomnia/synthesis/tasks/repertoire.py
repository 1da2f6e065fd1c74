"""A repertoire: the few tools of an environment that tasks for a small policy are about.

A policy of a million weights that sees a few thousand demonstrations can learn some dozen things to do, not the five
hundred of a dozen environments. So its tasks are about a few tools of each environment; the other tools are there all
the same, as distractors.
"""

from __future__ import annotations

from random import Random

from agentomnia.environment.spec import EnvironmentSpec, Tool
from agentomnia.synthesis.tasks.dag.generate import askable


def repertoire(
    spec: EnvironmentSpec, seed: str, changes: int = 4, readers: int = 2, parameters: int = 3
) -> frozenset[str]:
    """Draw tools that a person would ask for and that need few arguments.

    Args:
        spec: the environment.
        seed: names the drawing.
        changes: tools that modify.
        readers: tools that questions are asked of, first those of the records that the changes are about.
        parameters: required parameters of a change at most.
    """
    rng = Random(f"{seed}/repertoire")
    fitting = [t for t in spec.tools if t.kind == "modify" and askable(spec, t) and _required(t) <= parameters]
    chosen = rng.sample(fitting, min(changes, len(fitting)))
    targets = {spec.target(p.carries) for t in chosen for p in t.parameters if p.binds}
    asked = [t for t in spec.tools if t.kind == "query" and _entity(t) is not None]
    rng.shuffle(asked)
    asked.sort(key=lambda t: _entity(t) not in targets)
    return frozenset(t.name for t in (*chosen, *asked[:readers]))


def _required(tool: Tool) -> int:
    return sum(1 for p in tool.parameters if p.required)


def _entity(tool: Tool) -> str | None:
    """The entity that a lookup or a search reads."""
    return tool.action.entity if tool.action.type in ("lookup", "search") else None

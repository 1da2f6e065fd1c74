"""Which of an environment's tools a task shows: the needed ones among distractors.

A model with a long context gets every tool. One with a short context gets 8 to 12: those that the reference calls,
the ones named most like them, which make the choice hard, and some others, in random order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from rapidfuzz import fuzz

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.synthesis.tasks.dag.generate import Candidate


@dataclass(frozen=True)
class Exposure:
    """How many tools are shown."""

    fewest: int = 8
    most: int = 12
    look_alikes: int = 3
    """Of the distractors, those drawn among the ones named most like a needed tool."""


def expose(candidate: Candidate, spec: EnvironmentSpec, exposure: Exposure, seed: str) -> Candidate:
    """The candidate with a list of tools; the needed ones are all in it, however many."""
    rng = Random(f"{seed}/exposure")
    needed = tuple(dict.fromkeys(call.tool for call in candidate.private.calls))
    others = tuple(t.name for t in spec.tools if t.name not in needed)
    alike = _by_likeness(others, needed)[: 3 * exposure.look_alikes]
    drawn = [*rng.sample(alike, min(len(alike), exposure.look_alikes)), *rng.sample(others, len(others))]
    room = max(0, rng.randint(exposure.fewest, exposure.most) - len(needed))
    shown = [*needed, *list(dict.fromkeys(drawn))[:room]]
    rng.shuffle(shown)
    return replace(candidate, public=candidate.public.model_copy(update={"tools": tuple(shown)}))


@lru_cache(maxsize=1024)
def _by_likeness(others: tuple[str, ...], needed: tuple[str, ...]) -> tuple[str, ...]:
    """Names, those most like a needed one first; kept, since a domain's tasks need the same few tools."""
    return tuple(sorted(others, key=lambda name: (-_likeness(name, needed), name)))


def _likeness(name: str, needed: tuple[str, ...]) -> float:
    return max((fuzz.token_sort_ratio(name.replace("_", " "), n.replace("_", " ")) for n in needed), default=0.0)

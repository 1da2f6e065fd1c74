"""Names of evaluations: `POLICY@SUITE`, a policy on a part of the tasks.

An evaluation of all tasks of a run has no `@` and no suite. Floors are agents that know nothing: a score says
something only beside theirs. The reference plays the stored solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["floor", "agent", "reference"]

FLOORS = ("null", "apology", "random")
REFERENCE = "scripted"
POLICIES = ("base", "sft", "rl", "evolved")
"""Stages of the policy in the order of the loop; other names come after them."""
SUITES = ("held_out", "held_out_greedy", "held_out_target", "held_out_domains", "diagnosis", "hard", "rl", "sft")
"""Unseen tasks of training domains, of domains that the second round is aimed at, of domains no round has seen; what
the diagnosis reads; training tasks."""
UNSEEN = ("held_out", "held_out_greedy", "held_out_target", "held_out_domains")
"""Suites of which no task was trained on."""


@dataclass(frozen=True)
class Named:
    """The two parts of the name of an evaluation."""

    policy: str
    suite: str | None


def parse_name(name: str) -> Named:
    """Take the name of an evaluation apart; without `@` it has no suite."""
    policy, at, suite = name.partition("@")
    return Named(policy, suite if at else None)


def role_of(agent: str) -> Role:
    """Whether an agent is a floor, plays the reference, or is what is measured."""
    if agent in FLOORS:
        return "floor"
    return "reference" if agent == REFERENCE else "agent"


def policy_order(policy: str) -> tuple[int, int, str]:
    """A sort key: floors, then policies in the order of the loop, then other names, the reference last."""
    role = role_of(policy)
    known = FLOORS if role == "floor" else POLICIES
    return (("floor", "agent", "reference").index(role), known.index(policy) if policy in known else len(known), policy)


def suite_order(suite: str) -> tuple[int, str]:
    """A sort key: unseen tasks first, then training tasks, then other suites by name."""
    return (SUITES.index(suite) if suite in SUITES else len(SUITES), suite)

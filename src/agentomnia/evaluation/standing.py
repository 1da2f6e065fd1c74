"""Policies side by side on each suite, with the floors beside every score.

The harder half of a suite is the same for all policies: it is taken of every task that some policy was tried on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentomnia.evaluation.outcome import harder_half
from agentomnia.evaluation.reliability import Reliability, reliability
from agentomnia.evaluation.suite import Role, parse_name, policy_order, role_of, suite_order
from agentomnia.evaluation.summary import Score, score
from agentomnia.row import Row
from agentomnia.task.trajectory import Trajectory


class Standing(Row):
    """One policy on one suite."""

    suite: str
    policy: str
    role: Role
    overall: Score
    harder: Score | None
    """The half of the suite with more reference calls (a heuristic, see `harder_half`); `None` when not known."""
    floor: float | None
    """The highest Pass@1 of a floor on this suite; `None` where no floor was run."""
    reliability: tuple[Reliability, ...]
    """pass^k and pass@k for every `k` that the trials allow."""


def standings(
    found: Mapping[str, Iterable[Trajectory]], calls: Mapping[str, int] | None = None
) -> tuple[Standing, ...]:
    """The standing of every policy on every suite, floors first.

    Args:
        found: episodes by the name of their evaluation, `POLICY@SUITE`; evaluations without a suite are left out.
        calls: number of reference calls by task id, for the harder half.

    Raises:
        InputError: a task has two rows with one seed in one evaluation.
    """
    suites: dict[str, dict[str, list[Trajectory]]] = {}
    for name, episodes in found.items():
        named = parse_name(name)
        if named.suite is not None:
            suites.setdefault(named.suite, {})[named.policy] = list(episodes)
    return tuple(row for suite in sorted(suites, key=suite_order) for row in _standings(suite, suites[suite], calls))


def _standings(
    suite: str, found: Mapping[str, list[Trajectory]], calls: Mapping[str, int] | None
) -> Iterable[Standing]:
    scores = {policy: score([t for t in found[policy] if t.reward is not None]) for policy in found}
    floors = [s.pass_at_1 for p, s in scores.items() if role_of(p) == "floor" and s.pass_at_1 is not None]
    tried = dict.fromkeys(t.task for rows in found.values() for t in rows)
    harder = frozenset(harder_half({task: calls[task] for task in tried if task in calls})) if calls else frozenset()
    for policy in sorted(found, key=policy_order):
        yield Standing(
            suite=suite,
            policy=policy,
            role=role_of(policy),
            overall=scores[policy],
            harder=score([t for t in found[policy] if t.task in harder and t.reward is not None]) if harder else None,
            floor=max(floors, default=None),
            reliability=reliability(found[policy]),
        )

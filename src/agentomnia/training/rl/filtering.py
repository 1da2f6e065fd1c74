"""Dynamic filtering of rollouts before their rewards are compared (paper, section 5.2.4, "dynamic filtering").

1. Corrupted by what is not the policy (environment, user, judge, infrastructure, no reward): strictly dropped.
2. Truncated (context length, turns, calls) and passing the low-level validity checks: dropped, since the outcome
   is unidentifiable and the policy did nothing visibly wrong.
3. Truncated otherwise: kept with a negative reward, so that length is not a way around a bad outcome.
4. The rest: kept as rewarded.

Rule 2 has a cap here, which the paper does not have. A policy can drift into endless turns made of calls that are
each valid and new: where they are all dropped, nothing ever punishes the drift, and the truncated share grows from
step to step (measured in a toy: 0.28 to 0.58 in 30 steps). Above the cap the excess earns the negative reward too,
the longest first, since length is what must not grow; an alarm says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentomnia.row import canonical_json
from agentomnia.task.trajectory import Owner, StopReason, Trajectory

RolloutStop = StopReason | Literal["length"]
"""How a rollout ended: as an episode does, or because the context was full."""

VerdictKind = Literal["keep", "dropped_corrupted", "dropped_truncated", "negative"]

NEGATIVE_REWARD = -1.0
"""The paper says "negative rewards" and gives no number; failures earn 0 and successes 1."""

TRUNCATED_CAP = 0.25
CORRUPTED_ALARM = 0.25
"""Shares of a batch: truncated rollouts dropped at most; corrupted ones from which to raise the alarm. Ours."""

TRUNCATIONS: frozenset[RolloutStop] = frozenset(("length", "max_turns", "max_tool_calls"))
FAULTS: frozenset[RolloutStop] = frozenset(("environment_fault", "infrastructure_error"))
EXTRINSIC: frozenset[Owner] = frozenset(("environment", "infrastructure", "judge", "user"))
MALFORMED: frozenset[str] = frozenset(("malformed_arguments", "unknown_tool", "invalid_argument"))
"""Errors of a call that could be seen without the state: no JSON object, no such tool, missing or ill-typed
arguments (the tool-call anomalies of section 5.2.3)."""


class Call(NamedTuple):
    """One tool call of a rollout."""

    tool: str
    arguments: str
    """Canonical JSON, so that equal arguments are equal texts."""
    error: str | None = None
    """`None` where the call was accepted, else its error code (`Step.error`)."""


@dataclass(frozen=True)
class RolloutOutcome:
    """What filtering needs to know of a rollout."""

    reward: float | None
    stop: RolloutStop
    owner: Owner | None = None
    """Whose failure it is, as `Trajectory.failure_owner`."""
    calls: tuple[Call, ...] = ()
    tokens: int = 0
    """Length in tokens, to rank truncated rollouts; without it the number of calls ranks them."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a rollout."""

    kind: VerdictKind
    reward: float | None
    """What enters the group; `None` where the rollout was dropped."""


@dataclass(frozen=True)
class FilterReport:
    """What filtering did to one batch, in numbers of rollouts."""

    rollouts: int
    corrupted: int
    """Dropped under rule 1."""
    truncated: int
    """Dropped under rule 2."""
    negative: int
    """Punished: under rule 3, and above the cap."""
    capped: int
    """Of those, the ones above the cap."""
    alarm: str | None

    @property
    def corrupted_share(self) -> float:
        """Share of the batch dropped as corrupted."""
        return self.corrupted / max(self.rollouts, 1)

    @property
    def truncated_share(self) -> float:
        """Share of the batch dropped as truncated."""
        return self.truncated / max(self.rollouts, 1)


def outcome_of(trajectory: Trajectory, *, tokens: int = 0) -> RolloutOutcome:
    """The outcome of an episode.

    Args:
        trajectory: the episode.
        tokens: its length in tokens.
    """
    calls = tuple(Call(s.tool, canonical_json(s.arguments), s.error) for s in trajectory.steps)
    return RolloutOutcome(trajectory.reward, trajectory.stop_reason, trajectory.failure_owner, calls, tokens)


def passes_validity(calls: Sequence[Call]) -> bool:
    """Whether calls pass the low-level validity checks: none malformed, none repeated.

    The paper names the checks ("redundant or repeated tool calls") without defining them. Here a call is malformed
    by its error code (`MALFORMED`), and repeated, or redundant, where an earlier call of the rollout had the same
    tool and equal arguments. A refusal that depends on the state (`not_found`, …) is neither. A heuristic: reading
    again after a change counts as repeated; that costs only rollouts which were also cut off. A rollout without
    calls passes.
    """
    asked = [(c.tool, c.arguments) for c in calls]
    return len(set(asked)) == len(asked) and not any(c.error in MALFORMED for c in calls)


def judge(outcome: RolloutOutcome, *, negative: float = NEGATIVE_REWARD) -> Verdict:
    """Rules 1 to 4 for one rollout, without the cap.

    A truncated rollout's own reward is not read, whatever it is: the outcome is unidentifiable. One without a
    reward that was neither truncated nor anyone's failure could not be judged: it counts as corrupted. Streaks of
    refused calls and unreadable answers are the policy's own endings and keep their reward.
    """
    if outcome.owner in EXTRINSIC or outcome.stop in FAULTS:
        return Verdict("dropped_corrupted", None)
    if outcome.stop in TRUNCATIONS:
        valid = passes_validity(outcome.calls)
        return Verdict("dropped_truncated", None) if valid else Verdict("negative", negative)
    if outcome.reward is None:
        return Verdict("dropped_corrupted", None)
    return Verdict("keep", outcome.reward)


def filter_batch(
    outcomes: Sequence[RolloutOutcome],
    *,
    cap: float = TRUNCATED_CAP,
    negative: float = NEGATIVE_REWARD,
    corrupted_alarm: float = CORRUPTED_ALARM,
) -> tuple[tuple[Verdict, ...], FilterReport]:
    """Rules 1 to 4 over the rollouts of one step, with at most ⌊cap · batch⌋ of them dropped as truncated.

    Args:
        outcomes: all rollouts of the step, of all groups.
        cap: largest share of the batch dropped as truncated; 1 switches the cap off.
        negative: the negative reward.
        corrupted_alarm: share of corrupted rollouts above which the alarm is set.

    Returns:
        A verdict for each rollout, in order, and what was done. Above the cap the longest rollouts (tokens, then
        calls, then place in the batch) are punished first.
    """
    verdicts = [judge(o, negative=negative) for o in outcomes]
    dropped = [i for i, v in enumerate(verdicts) if v.kind == "dropped_truncated"]
    allowed = math.floor(cap * len(outcomes) + 1e-9)  # 0.29 · 100 is 28.999…
    by_length = sorted(dropped, key=lambda i: (-outcomes[i].tokens, -len(outcomes[i].calls), i))
    excess = by_length[: max(0, len(dropped) - allowed)]
    for i in excess:
        verdicts[i] = Verdict("negative", negative)
    return tuple(verdicts), _report(verdicts, len(excess), cap, corrupted_alarm)


def _report(verdicts: Sequence[Verdict], capped: int, cap: float, corrupted_alarm: float) -> FilterReport:
    kinds = [v.kind for v in verdicts]
    corrupted = kinds.count("dropped_corrupted")
    texts: list[str] = []
    if capped:
        texts.append(
            f"{capped} valid truncated rollouts of {len(kinds)} got the negative reward, above the cap of {cap:g}: the "
            "policy drifts into endless turns; lower the learning rate, or raise the limits of an episode"
        )
    if corrupted > corrupted_alarm * len(kinds):
        texts.append(
            f"{corrupted} of {len(kinds)} rollouts were corrupted by other causes than the policy; read their "
            "failures and repair the environment, judge or server"
        )
    return FilterReport(
        rollouts=len(kinds),
        corrupted=corrupted,
        truncated=kinds.count("dropped_truncated"),
        negative=kinds.count("negative"),
        capped=capped,
        alarm="; ".join(texts) or None,
    )

"""A failed rollout beside a golden one, call by call, with the place where they part.

The golden side is the teacher's trajectory of the task where there is one, else the reference calls, of which nobody
recorded an answer. Calls are put side by side by a longest common subsequence. Where the episode was diagnosed, the
two part at the turn of its first failure. Otherwise where they part is a heuristic: the first call of the rollout that
the golden side never makes with these arguments, or, where it makes all of them, the first golden call that the
rollout lacks. An independent call in another order does not count; a harmless look-up that the golden side did
without does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from agentomnia.evaluation.outcome import passes
from agentomnia.report.episode import one_line
from agentomnia.report.loop_rows import DiagnosisRow, rows_of_trajectories
from agentomnia.row import canonical_json
from agentomnia.task.task import PrivateTask, answer_message
from agentomnia.task.trajectory import Trajectory

PAIRS = 6
_TEXT = 1_200
"""Characters of a text or an answer that are shown."""
_PREVIEW = 120


@dataclass(frozen=True)
class Side:
    """One call on one side, with what was said before it and what was seen after it."""

    number: int
    turn: int
    """The assistant turn that made it, from 0."""
    said: str
    tool: str
    arguments: str
    ok: bool | None
    """`None` where the call was never made, only written down."""
    error: str
    preview: str
    answer: str

    @property
    def key(self) -> str:
        """Equal for calls that are the same."""
        return f"{self.tool}({self.arguments})"


@dataclass(frozen=True)
class PairRow:
    """Calls that stand beside each other."""

    left: Side | None
    right: Side | None
    parts: bool
    """Whether the two part here."""


@dataclass(frozen=True)
class PairView:
    """A failed rollout beside a golden one."""

    anchor: str
    task: str
    policy: str
    suite: str
    query: str
    golden: str
    """What the golden side is."""
    reward: float | None
    stop_reason: str
    failures: tuple[str, ...]
    rows: tuple[PairRow, ...]
    left_end: str
    right_end: str
    ends_apart: bool
    """Whether the two part at the final message only."""
    diagnosis: DiagnosisRow | None

    @property
    def short(self) -> str:
        """The query on one line of a list."""
        return one_line(self.query)


def rollout_pairs(
    run_path: Path,
    chosen: Sequence[tuple[str, str]],
    private: Mapping[str, PrivateTask],
    diagnoses: Mapping[str, DiagnosisRow],
) -> tuple[PairView, ...]:
    """Put failed rollouts, at even distances over a file, beside the golden ones.

    Args:
        run_path: the run.
        chosen: suite and policy of evaluations in the order of preference. The first with a diagnosed failure is
            shown; where nothing was diagnosed, the first with a failure.
        private: the privileged part of every task.
        diagnoses: task-level diagnoses by trajectory id.
    """
    files = [(s, p, run_path / "evaluations" / f"{p}@{s}" / "results.jsonl") for s, p in chosen]
    found = [(s, p, failed) for s, p, path in files if (failed := _failed(path, private))]
    for suite, policy, failed in sorted(found, key=lambda f: not any(t.id in diagnoses for t in f[2])):
        shown = min(PAIRS, len(failed))
        picked = [failed[i * len(failed) // shown] for i in range(shown)]
        golden = _golden(run_path, {t.task for t in picked})
        return tuple(
            _pair(i, (policy, suite), t, golden.get(t.task), private[t.task], diagnoses.get(t.id))
            for i, t in enumerate(picked, 1)
        )
    return ()


def _failed(path: Path, private: Mapping[str, PrivateTask]) -> list[Trajectory]:
    """One failed episode of each task."""
    failed = (t for t in rows_of_trajectories(path) if t.reward is not None and not passes(t.reward))
    return list({t.task: t for t in failed if t.task in private}.values())


def _golden(run_path: Path, tasks: set[str]) -> dict[str, Trajectory]:
    found: dict[str, Trajectory] = {}
    for row in rows_of_trajectories(run_path / "trajectories.jsonl"):
        if row.task in tasks and passes(row.reward):
            found.setdefault(row.task, row)
    return found


def _pair(
    number: int,
    where: tuple[str, str],
    found: Trajectory,
    golden: Trajectory | None,
    private: PrivateTask,
    diagnosis: DiagnosisRow | None,
) -> PairView:
    left = list(sides(found))
    right = list(sides(golden)) if golden is not None else list(_reference_sides(private))
    at = parting(left, right) if diagnosis is None else _diagnosed(left, diagnosis)
    return PairView(
        anchor=f"pair-{number}",
        task=found.task,
        policy=where[0],
        suite=where[1].replace("_", " "),
        query=next((m.content or "" for m in found.messages if m.role == "user"), ""),
        golden=f"trajectory of {golden.agent}" if golden is not None else "reference calls",
        reward=found.reward,
        stop_reason=found.stop_reason.replace("_", " "),
        failures=found.failures,
        rows=tuple(pair_rows(left, right, at)),
        left_end=_last_words(found),
        right_end=_last_words(golden) if golden is not None else answer_message(private.answer),
        ends_apart=at is None,
        diagnosis=diagnosis,
    )


def _diagnosed(left: Sequence[Side], diagnosis: DiagnosisRow) -> Side | None:
    """The first call of the turn at which the episode was lost; none where that is the final message."""
    return next((s for s in left if s.turn >= diagnosis.failures[0].turn), None)


def sides(found: Trajectory) -> Iterator[Side]:
    """Every call of an episode, in order."""
    answers = {m.tool_call_id: m.content or "" for m in found.messages if m.role == "tool"}
    steps = {s.call_id: s for s in found.steps}
    number, turn = 0, -1
    for message in found.messages:
        turn += message.role == "assistant"
        said = "\n".join(t for t in (message.reasoning_content, message.content) if t)
        for call in message.tool_calls:
            number += 1
            step = steps.get(call.id)
            answer = answers.get(call.id, "")
            yield Side(
                number=number,
                turn=turn,
                said=_cut(said),
                tool=call.name,
                arguments=_canonical(call.arguments),
                ok=None if step is None else step.ok,
                error="" if step is None else step.error or "",
                preview=answer[:_PREVIEW],
                answer=_cut(answer),
            )
            said = ""


def _reference_sides(private: PrivateTask) -> Iterator[Side]:
    for number, call in enumerate(private.calls, 1):
        yield Side(number, number - 1, "", call.tool, canonical_json(call.arguments), None, "", "", "")


def _canonical(arguments: str) -> str:
    """Arguments in one form, so that equal ones look equal; what is no JSON stays as it is."""
    try:
        return canonical_json(json.loads(arguments))
    except ValueError:
        return arguments


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(text):,} characters in full)"


def _last_words(found: Trajectory) -> str:
    last = next((m for m in reversed(found.messages) if m.role == "assistant"), None)
    return "" if last is None or last.tool_calls else _cut(last.content or "")


def pair_rows(left: Sequence[Side], right: Sequence[Side], at: Side | None) -> Iterator[PairRow]:
    """Put two sequences of calls beside each other and mark the call at which they part."""
    matcher = SequenceMatcher(None, [s.key for s in left], [s.key for s in right], autojunk=False)
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        for step in range(max(i_end - i, j_end - j)):
            one = left[i + step] if i + step < i_end else None
            other = right[j + step] if j + step < j_end else None
            yield PairRow(one, other, parts=at is not None and (at is one or at is other))


def parting(left: Sequence[Side], right: Sequence[Side]) -> Side | None:
    """The call at which the rollout leaves the golden way, if it does (a heuristic, see above)."""
    golden, made = {s.key for s in right}, {s.key for s in left}
    strange = next((s for s in left if s.key not in golden), None)
    return strange or next((s for s in right if s.key not in made), None)

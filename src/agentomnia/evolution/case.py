"""One failed episode with everything that the rules of task-level analysis look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.evolution.matching import Alignment, Attempt, Reference, align, differences
from agentomnia.task.grade import find_answer, meets
from agentomnia.task.task import PrivateTask
from agentomnia.task.trajectory import Trajectory

FailureKind = Literal[
    "unknown_tool", "wrong_tool", "malformed_call", "bad_argument", "wrong_entity", "missing_step", "wrong_order",
    "premature_stop", "loop", "constraint_broken", "extra_change", "wrong_answer",
]  # fmt: skip

Evidence = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Found:
    """A failure with its place in time."""

    kind: FailureKind
    at: tuple[int, int]
    """Sorts failures: the attempt at which it shows, and a rank among those that show there."""
    turn: int
    evidence: Evidence
    failed: str
    expected: str
    tool: str | None = None
    called: str | None = None
    parameter: str | None = None
    reading: bool = False


@dataclass(frozen=True)
class Case:
    """One failed episode with everything the rules look at."""

    trajectory: Trajectory
    reference: Reference
    alignment: Alignment

    @classmethod
    def of(cls, trajectory: Trajectory, private: PrivateTask, spec: EnvironmentSpec) -> Case:
        """Align an episode with its reference."""
        reference = Reference.of(spec, private)
        return cls(trajectory, reference, align(reference, trajectory))

    @property
    def end(self) -> int:
        """The place behind the last attempt."""
        return len(self.alignment.attempts)

    @property
    def last_turn(self) -> int:
        """The last assistant turn."""
        return max(0, sum(1 for m in self.trajectory.messages if m.role == "assistant") - 1)

    @property
    def cut_off(self) -> bool:
        """Whether a limit ended the episode."""
        return self.trajectory.stop_reason in ("max_turns", "max_tool_calls", "invalid_streak")

    @cached_property
    def last_text(self) -> str:
        """The final message, where the agent wrote one."""
        last = self.trajectory.messages[-1]
        return (last.content or "") if last.role == "assistant" else ""

    @cached_property
    def given(self) -> dict[str, Any] | None:
        """The answers in the final message."""
        return find_answer(self.last_text, set(self.reference.private.criterion.answers))

    @cached_property
    def wrong_answers(self) -> tuple[str, ...]:
        """Names of the answers that are wrong or absent."""
        answers = self.reference.private.criterion.answers
        return tuple(n for n, e in answers.items() if self.given is None or not meets(e, self.given[n]))

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Reference changes that were not made, and readings that a wrong answer should have come from."""
        reference, made = self.reference, self.alignment.made
        changes = {i for i, c in enumerate(reference.calls) if reference.modifies(c.tool)}
        readings = set(reference.answering()) if self.wrong_answers else set()
        return tuple(i for i in sorted(changes | readings) if i not in made and i not in self.otherwise)

    @cached_property
    def otherwise(self) -> frozenset[int]:
        """Reference changes whose records the grader is content with: reached some other way.

        A heuristic: it knows changed and deleted records by key, created ones only all together.
        """
        failures = self.trajectory.failures
        if any(f.startswith("created records differ") for f in failures) or not self.trajectory.steps:
            return frozenset()
        places = {c.key: f"{c.container}/{c.key}" for c in self.reference.private.criterion.changes}
        found = set()
        for index, call in enumerate(self.reference.calls):
            touched = [places[k] for k in self.reference.keys(call.tool, call.arguments) if k in places]
            if self.reference.modifies(call.tool) and touched and not any(p in f for p in touched for f in failures):
                found.add(index)
        return frozenset(found)

    @cached_property
    def wanted(self) -> tuple[Mapping[str, Any], ...]:
        """The arguments wanted of each reference call, in order."""
        return tuple(self.alignment.wanted[i] for i in range(len(self.reference.calls)))

    @cached_property
    def too_much(self) -> bool:
        """Whether the final state may hold changes that nobody asked for.

        False only where the grader names records that lack a change, and none that has one too many.
        """
        lines = [f for f in self.trajectory.failures if not f.startswith("answer ")]
        lacking = any(f.endswith(("was not changed", "was not deleted")) for f in lines)
        excess = any(f.endswith(("was changed", "was deleted")) or " is " in f for f in lines)
        return excess or not lacking or any(f.startswith("created records differ") for f in lines)

    @cached_property
    def pairs(self) -> dict[int, Attempt]:
        """For missing reference calls, the attempt that was made in their place; see `_score`."""
        open_calls = [i for i in self.missing if i not in self.alignment.refused]
        scored = sorted(
            (-score, attempt.index, index)
            for index in open_calls
            for attempt in self.alignment.rest
            if (score := self._score(index, attempt)) > 0
        )
        found: dict[int, Attempt] = {}
        for _, place, index in scored:
            if index not in found and all(a.index != place for a in found.values()):
                found[index] = self.alignment.attempts[place]
        return found

    def _score(self, index: int, attempt: Attempt) -> float:
        """How well an attempt fits a missing call: same tool before same records before same place; 0: not at all."""
        call = self.reference.calls[index]
        if attempt.tool == call.tool and self._may_stand_for(index, attempt):
            wanted, given = self.alignment.wanted[index], attempt.step.arguments or {}
            same = len({*wanted, *given}) - len(differences(self.reference, call.tool, wanted, given))
            return 100 + same + 0.5 * self.in_place(index, attempt)
        if attempt.step.error == "unknown_tool":
            return 10 * self.in_place(index, attempt)
        if not (self.reference.modifies(attempt.tool) and self.reference.modifies(call.tool)):
            return 0
        keys = self.reference.keys(attempt.tool, attempt.step.arguments or {})
        wanted_keys = [self.reference.keys(c.tool, w) for c, w in zip(self.reference.calls, self.wanted)]
        if any(c.tool == attempt.tool and keys & k for c, k in zip(self.reference.calls, wanted_keys)):
            return 0  # a first try at that other call, not a slip in this one
        shared = len(keys & wanted_keys[index])
        return 20 + shared if shared else 0

    def _may_stand_for(self, index: int, attempt: Attempt) -> bool:
        """A question is asked after the changes it looks at; a reading before them was made to find something."""
        before = [self.alignment.made.get(i, ()) for i in self.reference.changes_before(index)]
        return not self.reads(index) or all(made and made[0].index < attempt.index for made in before)

    def in_place(self, index: int, attempt: Attempt) -> bool:
        """Whether an attempt stands between the reference calls that surround the missing one."""
        before = [i for i, a in self.alignment.made.items() if a[0].index < attempt.index]
        after = [i for i, a in self.alignment.made.items() if a[0].index > attempt.index]
        return max(before, default=-1) < index < min(after, default=len(self.reference.calls))

    def reads(self, index: int) -> bool:
        """Whether a reference call only reads."""
        return not self.reference.modifies(self.reference.calls[index].tool)

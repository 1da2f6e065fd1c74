"""What an agent did beside what the reference does: the calls of an episode aligned with the reference DAG.

A criterion asks for outcomes, so the order of independent calls is free and readers may be chosen freely. Keys of
records that an episode creates depend on the order of its calls: where the reference takes a key from the answer of
one of its own changes, the key that the episode was shown there is the wanted one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentomnia.environment.spec import EnvironmentSpec, Parameter, Tool
from agentomnia.task.render import same_value
from agentomnia.task.task import PrivateTask, ReferenceCall
from agentomnia.task.trajectory import Step, Trajectory


@dataclass(frozen=True)
class Attempt:
    """One call of an episode."""

    index: int
    """Its place among the calls of the episode, from 0."""
    turn: int
    """The assistant turn that made it, from 0."""
    message: int
    """Index of the message that made it."""
    reply: int
    """Index of the message that answered it."""
    text: str
    """`tool(arguments)`, the arguments as the agent wrote them."""
    observation: str
    step: Step
    changed: bool
    """Whether the state was another one afterwards."""

    @property
    def tool(self) -> str:
        """The name called."""
        return self.step.tool


def call_text(name: str, arguments: str) -> str:
    """A call as diagnoses quote it."""
    return f"{name}({arguments})"


def attempts_of(trajectory: Trajectory) -> tuple[Attempt, ...]:
    """The calls of an episode that were answered, in order."""
    replies = [i for i, m in enumerate(trajectory.messages) if m.role == "tool"]
    calls = list(_calls(trajectory))
    found, before = [], trajectory.initial_digest
    for index, (step, reply, (turn, message, text)) in enumerate(zip(trajectory.steps, replies, calls)):
        observation = trajectory.messages[reply].content or ""
        changed = step.digest != before
        found.append(Attempt(index, turn, message, reply, text, observation, step, changed))
        before = step.digest
    return tuple(found)


def _calls(trajectory: Trajectory) -> Iterator[tuple[int, int, str]]:
    turn = -1
    for index, message in enumerate(trajectory.messages):
        if message.role == "assistant":
            turn += 1
            for call in message.tool_calls:
                yield turn, index, call_text(call.name, call.arguments)


@dataclass(frozen=True)
class Reference:
    """The reference solution of a task with the tools of its environment."""

    spec: EnvironmentSpec
    private: PrivateTask
    tools: Mapping[str, Tool]

    @classmethod
    def of(cls, spec: EnvironmentSpec, private: PrivateTask) -> Reference:
        """The reference of a task in an environment."""
        return cls(spec, private, {t.name: t for t in spec.tools})

    @property
    def calls(self) -> tuple[ReferenceCall, ...]:
        """The reference calls."""
        return self.private.calls

    def modifies(self, tool: str) -> bool:
        """Whether a tool changes the state; an unknown one does not."""
        return tool in self.tools and self.tools[tool].kind == "modify"

    def target(self, tool: str, parameter: str) -> str | None:
        """The entity whose keys an argument takes, if any."""
        found = next((p for p in self.tools[tool].parameters if p.name == parameter), None)
        return self.spec.target(found.carries) if found is not None else None

    def keys(self, tool: str, arguments: Mapping[str, Any]) -> set[str]:
        """The record keys among the arguments of a call."""
        if tool not in self.tools:
            return set()
        return {v for p, v in arguments.items() if isinstance(v, str) and self.target(tool, p) is not None}

    def changes_before(self, index: int) -> set[int]:
        """Reference changes that must come before a call: the closure of `after` and of the sources."""
        found: set[int] = set()
        open_calls = [index]
        while open_calls:
            call = self.calls[open_calls.pop()]
            shown = {s.call for s in call.sources.values() if s.call is not None}
            new = ({*call.after} | shown) - found
            found |= new
            open_calls += sorted(new)
        return {i for i in found if self.modifies(self.calls[i].tool)}

    def answering(self) -> tuple[int, ...]:
        """Reference readings that an answer is taken from: what the augmented DAG ends in."""
        edges = self.private.dag.edges
        onward = {source for source, _ in edges}
        feeds = {source for source, target in edges if target not in onward}
        return tuple(
            i for i, c in enumerate(self.calls)
            if not self.modifies(c.tool) and (f"call:{i}" in feeds or f"call:{i}" not in onward)
        )  # fmt: skip


@dataclass(frozen=True)
class Alignment:
    """The calls of an episode, each beside the reference call that it makes, if any."""

    attempts: tuple[Attempt, ...]
    made: Mapping[int, tuple[Attempt, ...]]
    """Accepted attempts by reference call: one of a change, perhaps several of a reading."""
    refused: Mapping[int, Attempt]
    """First refused attempt of a reference call that was tried as wanted and never accepted."""
    rest: tuple[Attempt, ...]
    """Attempts that are no reference call."""
    wanted: Mapping[int, Mapping[str, Any]]
    """Arguments of each reference call, with the keys that this episode was shown."""


def align(reference: Reference, trajectory: Trajectory) -> Alignment:
    """Align an episode with the reference, call by call in the order of time."""
    attempts = attempts_of(trajectory)
    made: dict[int, list[Attempt]] = {}
    tried: dict[int, Attempt] = {}
    rest = []
    for attempt in attempts:
        index = _reference_of(reference, attempt, made)
        if index is None:
            rest.append(attempt)
        elif attempt.step.ok:
            made.setdefault(index, []).append(attempt)
        else:
            tried.setdefault(index, attempt)
    wanted = {i: wanted_arguments(reference, i, made) for i in range(len(reference.calls))}
    refused = {i: a for i, a in tried.items() if i not in made}
    return Alignment(attempts, {i: tuple(a) for i, a in made.items()}, refused, tuple(rest), wanted)


def _reference_of(reference: Reference, attempt: Attempt, made: Mapping[int, list[Attempt]]) -> int | None:
    """The reference call that an attempt makes: one not made yet, or a reading made again."""
    if attempt.step.arguments is None:
        return None
    fitting = [
        i for i, call in enumerate(reference.calls)
        if call.tool == attempt.tool
        and not differences(reference, call.tool, wanted_arguments(reference, i, made), attempt.step.arguments)
    ]  # fmt: skip
    open_calls = [i for i in fitting if i not in made]
    again = [i for i in fitting if not reference.modifies(attempt.tool)]
    return next(iter(open_calls or again), None)


def wanted_arguments(reference: Reference, index: int, made: Mapping[int, list[Attempt]]) -> dict[str, Any]:
    """The arguments of a reference call; keys of created records as the episode was shown them."""
    call = reference.calls[index]
    wanted = dict(call.arguments)
    for name, source in call.sources.items():
        if source.call is None or not reference.modifies(reference.calls[source.call].tool):
            continue
        for attempt in made.get(source.call, ())[:1]:
            wanted[name] = _at(attempt.observation, source.path, wanted.get(name))
    return wanted


def _at(observation: str, path: tuple[str | int, ...], default: Any) -> Any:
    """The value at a path of an answer's data, or a default where the answer was cut."""
    try:
        value = json.loads(observation)["data"]
        for part in path:
            value = value[part]
    except (ValueError, KeyError, IndexError, TypeError):
        return default
    return value


def differences(
    reference: Reference, tool: str, wanted: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the arguments that differ in a way the criterion would notice; an absent one has its default."""
    declared = {p.name: p for p in reference.tools[tool].parameters}
    names = dict.fromkeys([*declared, *given])
    return tuple(n for n in names if not _agree(reference.spec, declared.get(n), n, wanted, given))


def _agree(
    spec: EnvironmentSpec, parameter: Parameter | None, name: str, wanted: Mapping[str, Any], given: Mapping[str, Any]
) -> bool:
    if parameter is None:
        return False  # an argument that the tool does not have
    left, right = wanted.get(name, parameter.default), given.get(name, parameter.default)
    if isinstance(left, str) and isinstance(right, str):
        kind = spec.field(parameter.carries).type if parameter.carries else "string"
        if kind == "text":
            return bool(left.strip()) == bool(right.strip())
        return _folded(left) == _folded(right) if kind == "string" else left == right
    return same_value(left, right)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def shown(attempts: tuple[Attempt, ...], value: Any, before: int) -> bool:
    """Whether an accepted call before the given one showed a text value.

    A heuristic: the value is looked for as a JSON string anywhere in the observations; numbers, which would turn up
    by accident, always count as shown.
    """
    if not isinstance(value, str):
        return True
    text = json.dumps(value, ensure_ascii=False)
    return any(a.step.ok and text in a.observation for a in attempts[:before])

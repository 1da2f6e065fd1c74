"""One episode as a conversation to read: who said what, which calls were made, what each one showed.

What is longer than `LIMIT` characters is cut, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from agentomnia.llm.message import Message, ToolCall
from agentomnia.task.trajectory import Step, Trajectory

LIMIT = 6_000
_PREVIEW = 160


@dataclass(frozen=True)
class Observation:
    """What the agent saw of a call."""

    ok: bool
    error: str
    preview: str
    text: str
    characters: int
    cut: bool
    changed: bool
    """Whether the call changed the state."""


@dataclass(frozen=True)
class Call:
    """A call that the agent made."""

    number: int
    tool: str
    arguments: str
    observation: Observation | None


@dataclass(frozen=True)
class Turn:
    """One message; tool messages stand with the calls that they answer."""

    speaker: str
    text: str
    reasoning: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class EpisodeView:
    """An episode, ready to be read."""

    id: str
    anchor: str
    task: str
    evaluation: str
    """The evaluation it is from; "" for a reference trajectory."""
    agent: str
    reward: float | None
    stop_reason: str
    owner: str
    failures: tuple[str, ...]
    calls: int
    refused: int
    tools: int
    turns: tuple[Turn, ...]

    @property
    def request(self) -> str:
        """What the user said first."""
        return next((t.text for t in self.turns if t.speaker == "user"), "")

    @property
    def short(self) -> str:
        """The request on one line of a list."""
        return one_line(self.request)


def one_line(text: str, limit: int = 70) -> str:
    """A text cut to one line of a list."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip(" .,;:") + "…"


def episode_view(found: Trajectory, evaluation: str, anchor: str) -> EpisodeView:
    """Arrange an episode for reading.

    Args:
        found: the episode.
        evaluation: the evaluation it is from, or "" for a reference trajectory.
        anchor: its anchor in the page.
    """
    return EpisodeView(
        id=found.id,
        anchor=anchor,
        task=found.task,
        evaluation=evaluation,
        agent=found.agent,
        reward=found.reward,
        stop_reason=found.stop_reason.replace("_", " "),
        owner=found.failure_owner or "",
        failures=found.failures,
        calls=len(found.steps),
        refused=sum(1 for s in found.steps if not s.ok),
        tools=len(found.tools),
        turns=tuple(_turns(found)),
    )


def _turns(found: Trajectory) -> Iterator[Turn]:
    answers = {m.tool_call_id: m for m in found.messages if m.role == "tool"}
    steps = {s.call_id: (s, before) for s, before in zip(found.steps, _digests_before(found))}
    number = 0
    for message in found.messages:
        if message.role == "tool":
            continue
        calls = []
        for call in message.tool_calls:
            number += 1
            calls.append(_call(number, call, answers.get(call.id), steps.get(call.id)))
        yield Turn(message.role, _cut(message.content or ""), _cut(message.reasoning_content or ""), tuple(calls))


def _cut(text: str) -> str:
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}… ({len(text):,} characters in full)"


def _digests_before(found: Trajectory) -> list[str]:
    return [found.initial_digest, *(s.digest for s in found.steps)]


def _call(number: int, call: ToolCall, answer: Message | None, step: tuple[Step, str] | None) -> Call:
    seen = None if answer is None else _observation(answer.content or "", step)
    return Call(number, call.name, _cut(call.arguments), seen)


def _observation(content: str, step: tuple[Step, str] | None) -> Observation:
    text = _laid_out(content)
    return Observation(
        ok=step is not None and step[0].ok,
        error="" if step is None else step[0].error or "",
        preview=content[:_PREVIEW],
        text=text[:LIMIT],
        characters=len(text),
        cut=len(text) > LIMIT,
        changed=step is not None and step[0].digest != step[1],
    )


def _laid_out(content: str) -> str:
    """JSON with one value a line."""
    try:
        return json.dumps(json.loads(content), indent=2, ensure_ascii=False)
    except ValueError:
        return content

"""The builtin teacher: plays a task from its privileged part, and says only what it has seen (paper, section 4.5).

It knows what to do (the reference calls, their order, the source of every argument) and does it as somebody would who
does not: it looks things up right before it needs them, takes every argument from the request or from what it
observed, and gives answers from its own observations. Guidance shapes what it does and never what it says; whether
that holds is for `quality.check_quality` to prove.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentomnia.environment.spec import EnvironmentSpec, Tool
from agentomnia.errors import ModelOutputError
from agentomnia.llm.message import Message, ToolCall
from agentomnia.row import canonical_json
from agentomnia.synthesis.trajectories.plan import Reading, order_by_need, resolve
from agentomnia.synthesis.trajectories.reasoning import ReasoningWriter, done_words
from agentomnia.task.task import PrivateTask, ReferenceCall, Task


class TeacherAgent:
    """Plays one task."""

    name = "teacher"

    def __init__(self, task: Task, private: PrivateTask, spec: EnvironmentSpec, seed: int = 0) -> None:
        """Play the reference of a task by need.

        Args:
            task: the public part; its query is what may be cited.
            private: the privileged part.
            spec: the environment, for the names of things.
            seed: varies the words, never the calls.
        """
        self._reading = Reading(task, private, spec)
        self._writer = ReasoningWriter(self._reading, Random(f"{seed}/{task.id}/words"))
        self._order = order_by_need(private.calls, private.dag)
        self._made = 0
        self._observed: dict[int, Any] = {}
        self._given: dict[int, dict[str, Any]] = {}

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The next call with its reasons, or the end.

        Raises:
            ModelOutputError: the last message answers no call of this teacher.
        """
        refused = self._observe(messages[-1]) if self._made else None
        previous = self._order[self._made - 1] if self._made else None
        if refused is not None and previous is not None:
            return _says(self._writer.after_refusal(previous, refused), f"I could not do that: {refused}")
        if self._made == len(self._order):
            return self._finish(previous)
        index = self._order[self._made]
        arguments = bound(self._reading.calls[index], self._observed)
        reasoning = self._writer.before_call(index, arguments, self._observed, previous)
        self._made += 1
        self._given[index] = arguments
        text = json.dumps(arguments, ensure_ascii=False)
        call = ToolCall(id=f"call_{self._made}", name=self._reading.calls[index].tool, arguments=text)
        return Message(role="assistant", content=None, reasoning_content=reasoning, tool_calls=(call,))

    def _observe(self, message: Message) -> str | None:
        """Take in the answer to the last call; the environment's words where it was refused."""
        if message.role != "tool" or not message.content:
            raise ModelOutputError("the teacher's call was not answered: answer each call before the next turn")
        answer = json.loads(message.content)
        self._observed[self._order[self._made - 1]] = answer.get("data")
        return None if answer.get("ok") else str(answer.get("error", {}).get("message", "no reason was given"))

    def _finish(self, previous: int | None) -> Message:
        answers = self._reading.answers(self._observed)
        changed = [
            (tool, self._key_of(index, tool))
            for index in self._order
            if (tool := self._reading.spec.tool(self._reading.calls[index].tool)).kind == "modify"
        ]
        told = f"Done: I {done_words(changed)}." if changed else "Here is what you asked for."
        content = f"{told} {canonical_json(answers)}" if answers else told
        return _says(self._writer.at_end(self._observed, previous, answers), content)

    def _key_of(self, index: int, tool: Tool) -> str | None:
        """The record a change was about: the first that its answer shows, or else its first key argument."""
        data = self._observed.get(index)
        for value in data.values() if isinstance(data, dict) else ():
            if isinstance(value, dict) and value and isinstance(first := next(iter(value.values())), str):
                return first
        keys = [p.name for p in tool.parameters if p.binds]
        return next((str(self._given[index][k]) for k in keys if k in self._given[index]), None)


def bound(call: ReferenceCall, observed: Mapping[int, Any]) -> dict[str, Any]:
    """A call's arguments, those with an observed source read anew from the live observation.

    Args:
        call: the reference call.
        observed: data of the answers so far, by reference call.

    Returns:
        Arguments in the reference's order. The reference's own value stands where the observation has nothing at the
        source's path; the quality check finds such a value unless it was seen elsewhere.
    """
    arguments = dict(call.arguments)
    for name, source in call.sources.items():
        if name in arguments and source.origin == "observation":
            try:
                arguments[name] = resolve(source, observed)
            except (KeyError, IndexError, TypeError):
                continue
    return arguments


def _says(reasoning: str, content: str) -> Message:
    return Message(role="assistant", content=content, reasoning_content=reasoning)

"""An episode of text at a live session: for interfaces in which the model's text comes in and text goes back.

The turns are those of `episodes.loop`: calls are made in their order and answered with JSON, a message without a call
ends the episode and is graded, an episode that runs out of turns earns 0. What is not the agent's fault rises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentomnia.adapters.connection import OpenSession
from agentomnia.environment.result import Result, failure
from agentomnia.errors import ModelOutputError
from agentomnia.llm.message import Message, ToolCall

MOST_TURNS = 60
"""Turns of the assistant in an episode, where the trainer does not say."""


class Dialogue:
    """One episode."""

    def __init__(self, session: OpenSession, most_turns: int = MOST_TURNS) -> None:
        """Begin at the session's state.

        Args:
            session: opened for a task.
            most_turns: messages of the assistant after which the episode is cut off.
        """
        self.session, self.most_turns = session, most_turns
        self.turns = 0
        self.calls = 0
        self.refused = 0
        """Calls that were answered with an error."""
        self.reward: float | None = None
        """Set when the episode is over."""
        self.completed = False
        """Whether the agent ended it."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.reward is not None

    def take(self, message: Message) -> list[str]:
        """Take the assistant's message.

        Returns:
            The observations as JSON, in the order of the calls.

        Raises:
            EnvironmentFault: a tool let an exception escape, or ran past its time.
            InfrastructureError: the session cannot be reached any more.
        """
        self.turns += 1
        observations = [json.dumps(self._answer(call), ensure_ascii=False) for call in message.tool_calls]
        if not message.tool_calls:
            self.completed = True
            self.reward = self.session.score(message.content or "").reward
        elif self.turns >= self.most_turns:
            self.reward = 0.0
        return observations

    def metrics(self) -> dict[str, float]:
        """What happened, in numbers."""
        return {"turns": self.turns, "calls": self.calls, "refused": self.refused, "completed": float(self.completed)}

    def _answer(self, call: ToolCall) -> Result:
        self.calls += 1
        try:
            arguments: Mapping[str, Any] = call.parse_arguments()
        except ModelOutputError as fault:
            answer = failure("invalid_argument", str(fault), "Give one JSON object.")
        else:
            answer = self.session.call(call.name, arguments)
        self.refused += not answer["ok"]
        return answer

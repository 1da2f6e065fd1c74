"""Agents: who answers in an episode.

An agent sees messages and tools and answers with one message; nothing else reaches it. Five come with the
package: `null`, `apology`, `random`, `scripted` and `chat`. The floors (null, apology, random) stand beside
every score; the scripted agent plays the reference and so proves that a task can be done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from agentomnia.environment.instance import Instance
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.llm.client import ChatClient
from agentomnia.llm.message import Message, ToolCall
from agentomnia.task.task import PrivateTask, answer_message

APOLOGY = "I am sorry, but I cannot help with that."

AGENT_NAMES = ("null", "apology", "random", "scripted", "chat")


class Agent(Protocol):
    """Answers one turn after another; one object an episode."""

    name: str

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The next assistant message.

        Args:
            messages: the conversation so far, the system message first.
            tools: the tools in OpenAI function form.

        Raises:
            ModelOutputError: the answer cannot be read.
            InfrastructureError: no answer came.
        """
        ...


class NullAgent:
    """Says nothing and does nothing."""

    name = "null"

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """An empty message."""
        return Message(role="assistant", content="")


class ApologisingAgent:
    """Apologises and does nothing."""

    name = "apology"

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """An apology."""
        return Message(role="assistant", content=APOLOGY)


class RandomAgent:
    """Calls random tools with valid arguments; sees the live state, so that its calls are often accepted."""

    name = "random"

    def __init__(self, instance: Instance, rng: Random, calls: int) -> None:
        """Make `calls` calls on the instance's records, then stop."""
        self._instance = instance
        self._sampler = ArgumentSampler(instance.program, rng)
        self._rng = rng
        self._left = calls

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """A random valid call, or the end."""
        if self._left == 0:
            return Message(role="assistant", content="Done.")
        self._left -= 1
        name = self._rng.choice([t["function"]["name"] for t in tools])
        arguments = self._sampler.sample(name, self._instance.live_state)
        return _calling(f"call_{self._left}", name, arguments)


class ScriptedAgent:
    """Plays the reference solution of a task, then gives its answer."""

    name = "scripted"

    def __init__(self, private: PrivateTask) -> None:
        """Play the calls of the privileged part."""
        self._private = private
        self._next = 0

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The next reference call, or the answer."""
        if self._next < len(self._private.calls):
            call = self._private.calls[self._next]
            self._next += 1
            return _calling(f"call_{self._next}", call.tool, call.arguments)
        return Message(role="assistant", content=answer_message(self._private.answer))


class ChatAgent:
    """A model behind an OpenAI-compatible endpoint."""

    name = "chat"

    def __init__(self, client: ChatClient, attempt: int = 0) -> None:
        """Ask the client's model; `attempt` separates repeated episodes of one task in the ledger."""
        self._client = client
        self._attempt = attempt
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The model's message."""
        completion = await self._client.complete(messages, tools, attempt=self._attempt)
        self.usage["prompt_tokens"] += completion.usage.prompt_tokens
        self.usage["completion_tokens"] += completion.usage.completion_tokens
        return completion.message


def _calling(call_id: str, tool: str, arguments: dict[str, Any]) -> Message:
    text = json.dumps(arguments, ensure_ascii=False)
    return Message(role="assistant", content=None, tool_calls=(ToolCall(id=call_id, name=tool, arguments=text),))

"""A trajectory `ξ`: everything that happened in one episode, in OpenAI wire form (paper, section 4.1).

The reward is `None` where the episode says nothing about the agent: an infrastructure failure, an
environment fault. Such rows are kept, counted, and never enter a mean.
"""

from __future__ import annotations

from typing import Any, Literal

from agentomnia.llm.message import Message
from agentomnia.row import Row
from agentomnia.taxonomy.coordinate import Coordinate

StopReason = Literal[
    "completed", "max_turns", "max_tool_calls", "invalid_streak", "model_output_error", "environment_fault",
    "infrastructure_error",
]  # fmt: skip
Owner = Literal["agent", "user", "environment", "judge", "infrastructure"]


class Step(Row):
    """One tool call: what was asked, what was seen, and the state it left."""

    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    """`None` where the agent's text was no JSON object."""
    ok: bool
    error: str | None = None
    """The protocol's error code, or `unknown_tool` and `malformed_arguments` before the environment."""
    digest: str
    """SHA-256 of the state after the call."""


class Trajectory(Row):
    """One episode."""

    schema_version: Literal[1] = 1
    id: str
    task: str
    environment: str
    state: str
    agent: str
    seed: int = 0
    coordinate: Coordinate
    tools: tuple[dict[str, Any], ...] = ()
    """The tools shown, in OpenAI function form; left out of evaluation results, where the environment has them."""
    messages: tuple[Message, ...]
    steps: tuple[Step, ...] = ()
    stop_reason: StopReason
    reward: float | None
    failure_owner: Owner | None = None
    """Whose failure a reward below 1, or none, is."""
    failures: tuple[str, ...] = ()
    initial_digest: str
    usage: dict[str, int] = {}

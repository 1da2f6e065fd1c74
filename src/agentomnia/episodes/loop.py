"""The episode loop: one agent on one task, until it answers, gives up or hits a limit.

What goes wrong has one owner. A wrong tool, bad arguments and refused calls are the agent's, and it
sees them as observations. An exception that escapes a tool is the environment's; a server that does not answer is
infrastructure's: both end the episode with reward `None`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.result import Result, failure
from agentomnia.environment.state import State
from agentomnia.episodes.agent import Agent
from agentomnia.errors import EnvironmentFault, InfrastructureError, ModelOutputError
from agentomnia.llm.message import Message, ToolCall
from agentomnia.row import digest
from agentomnia.task.grade import grade
from agentomnia.task.render import moment_in_words
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Owner, Step, StopReason, Trajectory


@dataclass(frozen=True)
class Limits:
    """When an episode is cut off."""

    turns: int = 60
    tool_calls: int = 100
    invalid_streak: int = 8
    """Refused calls in a row."""
    observation_characters: int = 30_000
    """Longer observations are cut, say so, and stay JSON."""


@dataclass(frozen=True)
class Stage:
    """Where an episode takes place."""

    task: Task
    private: PrivateTask
    program: Program
    state: State
    introduction: str
    policies: tuple[str, ...] = ()


@dataclass
class _Record:
    messages: list[Message]
    steps: list[Step] = field(default_factory=list)
    streak: int = 0


async def run_episode(
    stage: Stage, agent: Agent, instance: Instance, *, seed: int = 0, limits: Limits | None = None
) -> Trajectory:
    """Run one episode and grade it.

    Args:
        stage: the task and where it takes place.
        agent: who answers.
        instance: a fresh instance of the stage's environment at its initial state.
        seed: told apart in the trajectory's id.
        limits: when to cut off.

    Returns:
        The trajectory, graded; `reward` is `None` where the episode says nothing about the agent.
    """
    tools = tool_list(stage)
    record = _Record(
        [Message(role="system", content=system_prompt(stage)), Message(role="user", content=stage.task.query)]
    )
    initial = instance.digest()
    stop, problem = await _converse(record, agent, instance, tools, limits or Limits())
    reward, owner, failures = _judge(stage, instance, record, stop, problem)
    return Trajectory(
        id=f"{stage.task.id}-{agent.name}-{seed}-{digest([m.to_wire() for m in record.messages])[:8]}",
        task=stage.task.id,
        environment=stage.task.environment,
        state=stage.task.state,
        agent=agent.name,
        seed=seed,
        coordinate=stage.task.coordinate,
        tools=tuple(tools),
        messages=tuple(record.messages),
        steps=tuple(record.steps),
        stop_reason=stop,
        reward=reward,
        failure_owner=owner,
        failures=failures,
        initial_digest=initial,
    )


def tool_list(stage: Stage) -> list[dict[str, Any]]:
    """The tools that the task exposes, in OpenAI function form."""
    names = stage.task.tools or tuple(stage.program.tools)
    return [stage.program.tools[name].to_openai() for name in names]


def system_prompt(stage: Stage) -> str:
    """What the agent is told before the query."""
    lines = [
        "You help a person by calling tools. Call tools to find out what you need, never guess identifiers, "
        "change nothing that was not asked for, and write a final message without a call when you are done.",
        "",
        stage.introduction,
    ]
    if stage.policies:
        lines += ["", "House rules:", *(f"- {policy}" for policy in stage.policies)]
    if "clock" in stage.state:
        lines += ["", f"It is now {moment_in_words(stage.state['clock']['now'])}."]
    if stage.task.answer:
        lines += ["", "End with a message that contains one JSON object with these fields:"]
        lines += [f"- {a.name} ({a.type}): {a.description}" for a in stage.task.answer]
    return "\n".join(lines)


async def _converse(
    record: _Record, agent: Agent, instance: Instance, tools: Sequence[dict[str, Any]], limits: Limits
) -> tuple[StopReason, str | None]:
    exposed = {t["function"]["name"] for t in tools}
    shown = copy.deepcopy(list(tools))  # the agent's own: what it does to them reaches neither record nor program
    for _ in range(limits.turns):
        try:
            message = await agent.respond(tuple(record.messages), shown)
        except ModelOutputError as error:
            return "model_output_error", str(error)
        except InfrastructureError as error:
            return "infrastructure_error", str(error)
        record.messages.append(message)
        if not message.tool_calls:
            return "completed", None
        for call in message.tool_calls:
            try:
                _answer_call(record, call, instance, exposed, limits)
            except EnvironmentFault as error:
                return "environment_fault", str(error)
            if len(record.steps) >= limits.tool_calls:
                return "max_tool_calls", None
            if record.streak >= limits.invalid_streak:
                return "invalid_streak", None
    return "max_turns", None


def _answer_call(record: _Record, call: ToolCall, instance: Instance, exposed: set[str], limits: Limits) -> None:
    """Make one call and append what the agent sees of it."""
    arguments: dict[str, Any] | None = None
    error: str | None = None
    try:
        arguments = call.parse_arguments()
    except ModelOutputError as fault:
        error, answer = (
            "malformed_arguments",
            failure("invalid_argument", str(fault), "Give one JSON object."),
        )
    if error is None and call.name not in exposed:
        error, answer = (
            "unknown_tool",
            failure("not_found", f"There is no tool {call.name!r}.", "Use a listed tool."),
        )
    if error is None:
        answer = instance.call(call.name, arguments or {})
        error = None if answer["ok"] else answer["error"]["code"]
    record.streak = 0 if answer["ok"] else record.streak + 1
    record.steps.append(
        Step(
            call_id=call.id,
            tool=call.name,
            arguments=arguments,
            ok=bool(answer["ok"]),
            error=error,
            digest=instance.digest(),
        )
    )
    record.messages.append(
        Message.tool_result(call.id, _shortened(answer, limits.observation_characters), name=call.name)
    )


def _shortened(answer: Result, limit: int) -> Result:
    """An answer that fits; lists lose their tail, and the cut is told."""
    text = json.dumps(answer, ensure_ascii=False)
    if len(text) <= limit:
        return answer
    data = answer.get("data")
    if isinstance(data, dict):
        longest = max(data, key=lambda k: len(json.dumps(data[k], ensure_ascii=False)))
        rows = data[longest]
        while isinstance(rows, list) and rows and len(text) > limit:
            rows = rows[: len(rows) // 2]
            shortened: Result = {
                "ok": True,
                "data": {**data, longest: rows},
                "cut": f"{len(text)} characters in full",
            }
            if len(json.dumps(shortened, ensure_ascii=False)) <= limit:
                return shortened
    start = text[: max(0, limit // 2 - 40)]  # quoting doubles it at most
    return {"ok": answer["ok"], "cut": f"{len(text)} characters in full", "start": start}


def _judge(
    stage: Stage, instance: Instance, record: _Record, stop: StopReason, problem: str | None
) -> tuple[float | None, Owner | None, tuple[str, ...]]:
    if stop == "infrastructure_error":
        return None, "infrastructure", (problem or "",)
    if stop == "environment_fault":
        return None, "environment", (problem or "",)
    if stop == "model_output_error":
        return 0.0, "agent", (problem or "",)
    last = record.messages[-1]
    text = last.content or "" if last.role == "assistant" else ""
    result = grade(stage.private.criterion, stage.state, instance.live_state, text)
    cut_off = () if stop == "completed" else (f"stopped by {stop}",)
    reward = result.reward if stop == "completed" else 0.0
    return reward, None if reward == 1.0 else "agent", (*cut_off, *result.failures)

"""The episode loop: one agent on one task, until it answers, gives up or hits a limit.

What goes wrong has one owner. A wrong tool, bad arguments and refused calls are the agent's, and it
sees them as observations. An exception that escapes a tool is the environment's; a server that does not answer is
infrastructure's: both end the episode with reward `None`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.result import Result, failure
from agentomnia.environment.state import State
from agentomnia.episodes.agent import Agent
from agentomnia.errors import EnvironmentFault, InfrastructureError, ModelOutputError
from agentomnia.llm.message import Message, ToolCall
from agentomnia.row import digest
from agentomnia.task.criterion import AnswerField
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


class Episode:
    """One episode without its agent: takes the agent's messages, gives back what follows.

    Who answers, one agent over a network or a policy that plays many episodes at once, is the caller's matter.
    """

    def __init__(self, stage: Stage, instance: Instance, limits: Limits | None = None) -> None:
        """Begin with the system prompt and the query.

        Args:
            stage: the task and where it takes place.
            instance: an instance of the stage's environment at its initial state.
            limits: when to cut off.
        """
        self.stage, self.instance, self.limits = stage, instance, limits or Limits()
        self.messages = [
            Message(role="system", content=_opening(stage)),
            Message(role="user", content=stage.task.query),
        ]
        self.steps: list[Step] = []
        self.stop: StopReason | None = None
        """Why the episode is over; `None` while it goes on."""
        self._problem: str | None = None
        self._exposed = frozenset(stage.task.tools or stage.program.tools)
        self._turns = 0
        self._refused = 0
        self._initial = instance.digest()

    def take(self, message: Message) -> tuple[Message, ...]:
        """Take the agent's message and make its calls, in call order.

        Returns:
            The observations; the episode is over where `stop` is set.
        """
        self.messages.append(message)
        self._turns += 1
        before = len(self.messages)
        if not message.tool_calls:
            self.stop = "completed"
        for call in message.tool_calls:
            self._answer(call)
            if self.stop is not None:
                break
        if self.stop is None and self._turns >= self.limits.turns:
            self.stop = "max_turns"
        return tuple(self.messages[before:])

    def abandon(self, stop: StopReason, problem: str) -> None:
        """End the episode for a reason outside it: no answer came, or none that can be read."""
        self.stop, self._problem = stop, problem

    def _answer(self, call: ToolCall) -> None:
        """Make one call and append what the agent sees of it."""
        arguments, error, answer = _refusal(call, self._exposed)
        if answer is None:
            try:
                answer = self.instance.call(call.name, arguments or {})
            except EnvironmentFault as fault:
                self.abandon("environment_fault", str(fault))
                return
            error = None if answer["ok"] else answer["error"]["code"]
        self._refused = 0 if answer["ok"] else self._refused + 1
        ok, state = bool(answer["ok"]), self.instance.digest()
        self.steps.append(Step(call_id=call.id, tool=call.name, arguments=arguments, ok=ok, error=error, digest=state))
        shown = _shortened(answer, self.limits.observation_characters)
        self.messages.append(Message.tool_result(call.id, shown, name=call.name))
        if len(self.steps) >= self.limits.tool_calls:
            self.stop = "max_tool_calls"
        elif self._refused >= self.limits.invalid_streak:
            self.stop = "invalid_streak"

    def trajectory(self, agent: str, seed: int = 0) -> Trajectory:
        """The finished episode, graded; `reward` is `None` where it says nothing about the agent."""
        assert self.stop is not None, "the episode goes on"
        reward, owner, failures = self._judge()
        task = self.stage.task
        return Trajectory(
            id=f"{task.id}-{agent}-{seed}-{digest([m.to_wire() for m in self.messages])[:8]}",
            task=task.id,
            environment=task.environment,
            state=task.state,
            agent=agent,
            seed=seed,
            coordinate=task.coordinate,
            tools=tuple(tool_list(self.stage)),
            messages=tuple(self.messages),
            steps=tuple(self.steps),
            stop_reason=self.stop,
            reward=reward,
            failure_owner=owner,
            failures=failures,
            initial_digest=self._initial,
        )

    def _judge(self) -> tuple[float | None, Owner | None, tuple[str, ...]]:
        if self.stop == "infrastructure_error":
            return None, "infrastructure", (self._problem or "",)
        if self.stop == "environment_fault":
            return None, "environment", (self._problem or "",)
        if self.stop == "model_output_error":
            return 0.0, "agent", (self._problem or "",)
        last = self.messages[-1]
        text = last.content or "" if last.role == "assistant" else ""
        result = grade(self.stage.private.criterion, self.stage.state, self.instance.live_state, text)
        cut_off = () if self.stop == "completed" else (f"stopped by {self.stop}",)
        reward = result.reward if self.stop == "completed" else 0.0
        return reward, None if reward == 1.0 else "agent", (*cut_off, *result.failures)


async def run_episode(
    stage: Stage, agent: Agent, instance: Instance, *, seed: int = 0, limits: Limits | None = None
) -> Trajectory:
    """Run one episode with one agent, and grade it.

    Args:
        stage: the task and where it takes place.
        agent: who answers.
        instance: a fresh instance of the stage's environment at its initial state.
        seed: told apart in the trajectory's id.
        limits: when to cut off.

    Returns:
        The trajectory, graded; `reward` is `None` where the episode says nothing about the agent.
    """
    episode = Episode(stage, instance, limits)
    # the agent's own copy: what it does to the tools reaches neither record nor program
    shown = copy.deepcopy(tool_list(stage))
    while episode.stop is None:
        try:
            message = await agent.respond(tuple(episode.messages), shown)
        except ModelOutputError as error:
            episode.abandon("model_output_error", str(error))
        except InfrastructureError as error:
            episode.abandon("infrastructure_error", str(error))
        else:
            episode.take(message)
    return episode.trajectory(agent.name, seed)


def tool_list(stage: Stage) -> list[dict[str, Any]]:
    """The tools that the task exposes, in OpenAI function form."""
    names = stage.task.tools or tuple(stage.program.tools)
    return [stage.program.tools[name].to_openai() for name in names]


def _opening(stage: Stage) -> str:
    return system_prompt(stage.introduction, stage.policies, stage.state, stage.task.answer)


def system_prompt(introduction: str, policies: Sequence[str], state: State, answer: Sequence[AnswerField] = ()) -> str:
    """What an agent is told before the query.

    Args:
        introduction: of the environment.
        policies: house rules.
        state: the initial state, for the clock.
        answer: what the final message must contain.
    """
    lines = [
        "You help a person by calling tools. Call tools to find out what you need, never guess identifiers, "
        "change nothing that was not asked for, and write a final message without a call when you are done.",
        "",
        introduction,
    ]
    if policies:
        lines += ["", "House rules:", *(f"- {policy}" for policy in policies)]
    if "clock" in state:
        lines += ["", f"It is now {moment_in_words(state['clock']['now'])}."]
    if answer:
        lines += ["", "End with a message that contains one JSON object with these fields:"]
        lines += [f"- {a.name} ({a.type}): {a.description}" for a in answer]
    return "\n".join(lines)


def _refusal(call: ToolCall, exposed: frozenset[str]) -> tuple[dict[str, Any] | None, str | None, Result | None]:
    """A call's arguments, and why it never reaches the environment: the error's name and the answer to it."""
    try:
        arguments = call.parse_arguments()
    except ModelOutputError as fault:
        return None, "malformed_arguments", failure("invalid_argument", str(fault), "Give one JSON object.")
    if call.name not in exposed:
        answer = failure("not_found", f"There is no tool {call.name!r}.", "Use a listed tool.")
        return arguments, "unknown_tool", answer
    return arguments, None, None


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

"""Gymnasium: a run's tasks as one environment of text.

    import gymnasium
    from agentomnia.adapters.gymnasium import register

    register()
    env = gymnasium.make("agentomnia/Omnia-v0", source="http://127.0.0.1:8321")
    observation, info = env.reset(seed=0)  # info: system prompt, tools, environment, task
    env.step('{"name": "search_clients", "arguments": {"name_contains": "Zoe"}}')
    env.step("Done.")  # any other text is the final message: the episode ends with its grade

An action may also be a list of calls, or Qwen3's `<tool_call>` text. Imports Gymnasium.
"""

from __future__ import annotations

import json
import string
from typing import Any, ClassVar, SupportsFloat

import gymnasium
from gymnasium.spaces import Text

from agentomnia.adapters.connection import connect
from agentomnia.adapters.dialogue import MOST_TURNS, Dialogue
from agentomnia.errors import InputError
from agentomnia.llm.message import Message, parse_json
from agentomnia.row import encodes
from agentomnia.training.chat import CALL_CLOSE, CALL_OPEN, parse_assistant

ENV_ID = "agentomnia/Omnia-v0"


def register() -> None:
    """Make `OmniaEnv` known to `gymnasium.make`; a second time does nothing."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(id=ENV_ID, entry_point="agentomnia.adapters.gymnasium:OmniaEnv")


class AnyText(Text):  # type: ignore[misc,unused-ignore]
    """Texts of any characters up to a length; samples are short and printable."""

    def __init__(self, max_length: int) -> None:
        """Set the bound, in characters."""
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether a value is a text within the bound, and can be written as UTF-8."""
        return isinstance(x, str) and len(x) <= self.max_length and encodes(x)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of at most 100 characters; masks and probabilities are as in `Text`."""
        if mask is None and probability is None:
            mask = (int(self.np_random.integers(0, min(self.max_length, 100) + 1)), None)
        return str(super().sample(mask=mask, probability=probability))


class OmniaEnv(gymnasium.Env[str, str]):  # type: ignore[misc,unused-ignore]
    """Episodes of a run's tasks; the seed of `reset` draws one, or `options={"task": ID}` names it."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        source: str,
        environment: str | None = None,
        split: str | None = None,
        max_turns: int = MOST_TURNS,
        render_mode: str | None = None,
    ) -> None:
        """Look up the tasks.

        Args:
            source: address of a server, or path of a run.
            environment: only tasks of this environment.
            split: only tasks of this split.
            max_turns: actions after which an episode is truncated.
            render_mode: there is nothing to draw; only `None`.

        Raises:
            InputError: there is no such task.
        """
        self._link = connect(source)
        self._tasks = {t.id: t.environment for t in self._link.tasks(environment=environment, split=split)}
        if not self._tasks:
            raise InputError(f"{source} has no task for environment {environment} and split {split}; choose others")
        self._max_turns = max_turns
        self._dialogue: Dialogue | None = None
        self.render_mode = render_mode
        self.action_space = AnyText(2**16)
        self.observation_space = AnyText(2**24)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: of the generator that draws tasks.
            options: may name the `task`.

        Returns:
            The query, and what an agent is told beside it: `system`, `tools`, `environment`, `task`.

        Raises:
            InputError: the run has no such task.
        """
        super().reset(seed=seed)
        self.close()
        drawn = list(self._tasks)[int(self.np_random.integers(len(self._tasks)))]
        task = (options or {}).get("task", drawn)
        if task not in self._tasks:
            raise InputError(f"there is no task {task!r} here; choose one of the {len(self._tasks)} tasks")
        session = self._link.open(task=task)
        self._dialogue = Dialogue(session, self._max_turns)
        tools = json.loads(json.dumps(session.info.tools))  # callers may keep and change what they are given
        info = {"system": session.info.prompt, "tools": tools, "environment": self._tasks[task], "task": task}
        return session.info.query or "", info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Make calls, or end the episode with a final message.

        Returns:
            The observations, one JSON text a line; the reward; whether the agent has ended the episode; whether it ran
            out of turns; numbers about the episode.

        Raises:
            EnvironmentFault: a tool let an exception escape, or ran past its time.
            InfrastructureError: the session cannot be reached any more.
        """
        if self._dialogue is None or self._dialogue.done:
            raise InputError("the episode is over, or has not begun; reset the environment")
        dialogue = self._dialogue
        observations = dialogue.take(read_action(action, dialogue.turns))
        cut_off = dialogue.done and not dialogue.completed
        return "\n".join(observations), dialogue.reward or 0.0, dialogue.completed, cut_off, dict(dialogue.metrics())

    def close(self) -> None:
        """End the session; a second time does nothing."""
        if self._dialogue is not None:
            self._dialogue.session.close()
            self._dialogue = None


def read_action(action: str, turn: int = 0) -> Message:
    """The message that an action stands for.

    An object with just `name` and `arguments`, or a list of such objects, is calls; `<tool_call>` text is read as Qwen3
    writes it; everything else is a final message, a JSON answer too.

    Args:
        action: the agent's text.
        turn: number of the action; makes the ids of its calls unique.
    """
    if CALL_OPEN in action:
        return parse_assistant(action, turn)
    try:
        value = parse_json(action)
    except ValueError:
        value = None
    asked = value if isinstance(value, list) else [value]
    if not asked or not all(isinstance(c, dict) and c.keys() == {"name", "arguments"} for c in asked):
        return parse_assistant(action, turn)
    return parse_assistant("\n".join(f"{CALL_OPEN}\n{json.dumps(c)}\n{CALL_CLOSE}" for c in asked), turn)

"""SkyRL: a task of a run as a `BaseTextEnv` of skyrl-gym, with calls in Qwen3's (Hermes') form.

    from agentomnia.adapters import skyrl as omnia

    omnia.register()  # before the trainer is made, in the entry point and in each Ray task that makes environments
    rows = omnia.dataset_rows("http://127.0.0.1:8321")  # to Parquet, for `data.train_data`
    # settings: environment.env_class=omnia  environment.skyrl_gym.omnia.source=http://127.0.0.1:8321

The prompt lists the tools as Qwen3's chat template does, since SkyRL renders prompts without tools; observations stand
in a user's turn inside `<tool_response>` tags, which is how that template writes them. Imports skyrl-gym.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import (
    BaseTextEnv,
    BaseTextEnvStepOutput,
)

from agentomnia.adapters.connection import connect, opening
from agentomnia.adapters.dialogue import MOST_TURNS, Dialogue
from agentomnia.errors import InputError
from agentomnia.training.chat import RESPONSE_CLOSE, RESPONSE_OPEN, TOOLS_FOOTER, TOOLS_HEADER, parse_assistant

ENV_CLASS = "omnia"
"""The id under which the environment is registered."""


def register() -> None:
    """Make `OmniaTextEnv` known to skyrl-gym; a second time does nothing."""
    if ENV_CLASS not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=ENV_CLASS, entry_point="agentomnia.adapters.skyrl:OmniaTextEnv")


def dataset_rows(source: str, *, environment: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
    """Rows of a training set in SkyRL's form.

    Args:
        source: address of a server, or path of a run.
        environment: only tasks of this environment.
        split: only tasks of this split.
    """
    link = connect(source)
    return [
        {
            "prompt": opening(link, task),
            "env_class": ENV_CLASS,
            "data_source": "agentomnia",
            "reward_spec": {"method": "rule", "ground_truth": ""},
            "extra_info": {"environment": task.environment, "task": task.id},
        }
        for task in link.tasks(environment=environment, split=split)
    ]


class OmniaTextEnv(BaseTextEnv):  # type: ignore[misc,unused-ignore]
    """One episode of one task."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        """Say where the task is; the session opens with `init`.

        Args:
            env_config: has `source`, the address of a server or the path of a run.
            extras: a row of `dataset_rows`; `max_turns` beside it is the trainer's limit of turns.

        Raises:
            InputError: `source` or the task is missing.
        """
        super().__init__()
        place = extras.get("extra_info") or {}
        if "source" not in env_config or "task" not in place:
            raise InputError(
                "an environment needs environment.skyrl_gym.omnia.source, and extra_info.task in its row; "
                "make the rows with agentomnia.adapters.skyrl.dataset_rows"
            )
        self._source = str(env_config["source"])
        self._environment, self._task = str(place["environment"]), str(place["task"])
        self.max_turns = int(extras.get("max_turns", MOST_TURNS))
        self._dialogue: Dialogue | None = None

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Open the session.

        Args:
            prompt: the row's conversation; the session's own replaces it.

        Returns:
            The conversation with the tools listed, and the names of environment and task.
        """
        session = connect(self._source).open(task=self._task)
        self._dialogue = Dialogue(session, self.max_turns)
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in session.info.tools)
        system = f"{session.info.prompt}\n\n{TOOLS_HEADER}{listed}{TOOLS_FOOTER}"
        conversation = [{"role": "system", "content": system}, {"role": "user", "content": session.info.query or ""}]
        return conversation, {"environment": self._environment, "task": self._task}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take what the model wrote.

        Raises:
            EnvironmentFault: a tool let an exception escape, or ran past its time.
            InfrastructureError: the session cannot be reached any more.
        """
        assert self._dialogue is not None, "init comes before the first step"
        dialogue = self._dialogue
        observations = dialogue.take(parse_assistant(action, self.turns))
        self.turns += 1
        told = "\n".join(f"{RESPONSE_OPEN}\n{text}\n{RESPONSE_CLOSE}" for text in observations)
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": told}] if told and not dialogue.done else [],
            reward=dialogue.reward or 0.0,
            done=dialogue.done,
            metadata={"environment": self._environment, "task": self._task},
        )

    def close(self) -> None:
        """End the session; a second time does nothing."""
        if self._dialogue is not None:
            self._dialogue.session.close()

    def get_metrics(self) -> dict[str, Any]:
        """Turns, calls, refused calls, and whether the agent ended the episode."""
        return self._dialogue.metrics() if self._dialogue is not None else {}

"""verifiers (v1): a run's tasks as a taskset, with the tools at each rollout's own MCP address.

A taskset is a package of its own name for verifiers, so put one line into a module, for example `omnia_tasks.py`:

    from agentomnia.adapters.verifiers import *

and name it, `--env.taskset.id omnia-tasks --env.taskset.task.url http://127.0.0.1:8321`. The environment beside it
opens a session for each rollout, gives the harness the address `URL/i/SESSION/mcp`, and closes it afterwards; the
reward is the session's grade. What fails for a reason that is not the agent's is an error of the episode or the trace,
never a reward. Imports verifiers; needs a server.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Self

import verifiers.v1 as vf

from agentomnia.adapters.connection import connect, connect_async, opening
from agentomnia.errors import InputError
from agentomnia.sandbox.client import AsyncRemoteSession

__all__ = ["OmniaEnv", "OmniaTaskset"]


class OmniaTaskConfig(vf.TaskConfig):  # type: ignore[misc,unused-ignore]
    """Where the tasks are played."""

    url: str = "http://127.0.0.1:8321"
    """Address of a server, as `omnia serve RUN` prints it."""
    tools: vf.ToolsetConfig = vf.ToolsetConfig()
    """Where the tools are; the environment sets it for each rollout."""


class OmniaConfig(vf.TasksetConfig):  # type: ignore[misc,unused-ignore]
    """Which tasks."""

    environment: str | None = None
    """Only tasks of this environment."""
    split: str | None = None
    """Only tasks of this split."""
    task: OmniaTaskConfig = OmniaTaskConfig()


class OmniaData(vf.TaskData):  # type: ignore[misc,unused-ignore]
    """A task, as traces record it."""

    environment: str
    """Id of the environment."""
    task: str
    """Id of the task."""


class OmniaToolset(vf.Toolset[vf.ToolsetConfig]):  # type: ignore[misc,unused-ignore]
    """The tools of a session; they are served by the gateway, under their own names."""

    TOOL_PREFIX = None


class OmniaTask(vf.Task[OmniaData, vf.State, OmniaTaskConfig]):  # type: ignore[misc,unused-ignore]
    """A task, bound to a session while it is played."""

    session: AsyncRemoteSession | None = None

    @classmethod
    def toolsets(cls, config: OmniaTaskConfig) -> list[vf.Toolset]:
        """The session's tools, at their address."""
        return [OmniaToolset(config.tools)]

    def bound(self, session: AsyncRemoteSession) -> Self:
        """A copy of the task that is played at a session."""
        clone = copy.copy(self)
        tools = vf.ToolsetConfig(url=f"{self.config.url.rstrip('/')}/i/{session.id}/mcp")
        clone.config, clone.session = self.config.model_copy(update={"tools": tools}), session
        return clone

    @vf.reward  # type: ignore[untyped-decorator,unused-ignore]
    async def grade(self, trace: vf.Trace) -> float:
        """The grade of the session; 0 where the agent was cut off before a final message."""
        if self.session is None:
            raise InputError("the task is not bound to a session; play it with agentomnia.adapters.verifiers.OmniaEnv")
        last = trace.assistant_messages[-1] if trace.assistant_messages else None
        if trace.is_truncated or last is None or last.tool_calls:
            return 0.0
        return float((await self.session.score(trace.last_reply)).reward)


class OmniaTaskset(vf.Taskset[OmniaTask, OmniaConfig]):  # type: ignore[misc,unused-ignore]
    """The tasks of a server."""

    def load(self) -> Iterator[OmniaTask]:
        """The tasks in the server's order."""
        config = self.config
        link = connect(config.task.url)
        for task in link.tasks(environment=config.environment, split=config.split):
            system, user = (message["content"] for message in opening(link, task))
            data = OmniaData(
                id=task.id, name=task.id, prompt=user, system_prompt=system, environment=task.environment, task=task.id
            )
            yield OmniaTask(data, config.task)


class OmniaEnv(vf.SingleAgentEnv):  # type: ignore[misc,unused-ignore]
    """A session for each rollout."""

    async def run(self, task: OmniaTask, agents: vf.Agents) -> None:
        """Open a session, let the agent play, have it graded, close the session."""
        session = await connect_async(task.config.url).open(task.data.environment, task=task.data.task)
        try:
            await agents.agent.run(task.bound(session))
        finally:
            await session.close()

"""verl: a run's tasks through an agent loop of verl's, or through tools of verl's alone.

    from agentomnia.adapters import verl as omnia

    url = "http://127.0.0.1:8321"
    Path("omnia_loop.yaml").write_text(omnia.agent_loop_config(url))
    Dataset.from_list(omnia.dataset_rows(url)).to_parquet("train.parquet")
    # actor_rollout_ref.rollout.agent.agent_loop_config_path=omnia_loop.yaml  data.train_files=train.parquet
    # actor_rollout_ref.rollout.multi_turn.format=hermes  data.return_raw_chat=True

`OmniaAgentLoop` is verl's `ToolAgentLoop` with one session for each trajectory: it shows the tools that the task
exposes, makes the calls of a turn in their order, and gives the grade as the trajectory's reward. It is the way to use:
the tool loop of verl 0.9 makes and releases a tool's instance around every single call and never asks for a reward, so
no tool alone can keep a state there. `OmniaTool` is for loops that keep an instance for a trajectory, and what the
agent loop stands on.

An episode that fails for a reason that is not the agent's is played again from its start, and after the last attempt
the error rises: verl knows no rollout without a reward. Imports verl; needs a server and aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import yaml
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import (
    AgentData,
    AgentState,
    ToolAgentLoop,
)
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import (
    OpenAIFunctionToolSchema,
    ToolResponse,
)

from agentomnia.adapters.connection import connect, connect_async, opening
from agentomnia.errors import EnvironmentFault, InfrastructureError, InputError
from agentomnia.sandbox.client import AsyncRemoteSession
from agentomnia.training.chat import parse_assistant

AGENT_NAME = "omnia_agent"
ATTEMPTS = 3
"""How often a trajectory is played where something else than the agent fails."""

_ANY_TYPE = ["string", "number", "boolean", "object", "array", "null"]
_log = logging.getLogger(__name__)


def dataset_rows(source: str, *, environment: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
    """Rows of a training set in verl's form.

    Args:
        source: address of a server.
        environment: only tasks of this environment.
        split: only tasks of this split.
    """
    link = connect(source)
    return [
        {
            "prompt": opening(link, task),
            "agent_name": AGENT_NAME,
            "data_source": "agentomnia",
            "ability": "tool_use",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "environment": task.environment, "task": task.id},
        }
        for index, task in enumerate(link.tasks(environment=environment, split=split))
    ]


def agent_loop_config(source: str) -> str:
    """The YAML for `rollout.agent.agent_loop_config_path`.

    Args:
        source: address of a server.
    """
    return str(yaml.safe_dump([{"name": AGENT_NAME, "_target_": f"{__name__}.OmniaAgentLoop", "source": source}]))


def tool_config(source: str, environment: str) -> str:
    """The YAML for `rollout.multi_turn.tool_config_path`: every tool of an environment as an `OmniaTool`.

    Args:
        source: address of a server.
        environment: id of the environment.
    """
    tools = [
        {
            "class_name": f"{__name__}.OmniaTool",
            "config": {"type": "native", "source": source},
            "tool_schema": _readable(tool),
        }
        for tool in connect(source).environment(environment)["tools"]
    ]
    return str(yaml.safe_dump({"tools": tools}, sort_keys=False, allow_unicode=True))


@dataclass
class _Held:
    """A session that the tools of a trajectory share."""

    opening: asyncio.Future[AsyncRemoteSession]
    users: int = 0
    failure: Exception | None = None
    """What went wrong that is not the agent's fault."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lets one call through at a time, first come first served."""


_HELD: dict[str, _Held] = {}
"""Sessions by instance id; all tools of a process share them."""


class OmniaTool(BaseTool):  # type: ignore[misc,unused-ignore]
    """One tool of an environment; the tools of a trajectory share the session of its instance id."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        """Keep where the server is.

        Args:
            config: has `source`, the address of a server.
            tool_schema: what the model is shown.
        """
        # not the base class's: it prints the schema, and there is one tool object for each trajectory and tool
        self.config, self.tool_schema = config, tool_schema
        self.name = tool_schema.function.name

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Open the session of an instance id, or join the one that another tool has opened for it.

        Args:
            instance_id: of the trajectory; a new one where it is `None`.
            kwargs: `environment` and `task`, or `create_kwargs` that hold them; an `instance_id` may stand there too.

        Raises:
            InfrastructureError: no session can be opened.
        """
        place = {**kwargs, **(kwargs.get("create_kwargs") or {})}
        name = instance_id or place.get("instance_id") or uuid4().hex
        held = _HELD.get(name)
        if held is None:
            held = _HELD[name] = _Held(asyncio.ensure_future(_open(self.config["source"], place)))
        held.users += 1
        try:
            await asyncio.shield(held.opening)
        except Exception:
            _HELD.pop(name, None)
            raise
        return name, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Call the tool; a refused call is an answer, anything else that fails rises.

        Args:
            instance_id: of the trajectory.
            parameters: the arguments by name.
            kwargs: not used.
        """
        held = _held(instance_id)
        async with held.turn:
            if held.failure is not None:
                raise held.failure
            try:
                result = await held.opening.result().call(self.name, parameters)
            except (EnvironmentFault, InfrastructureError, InputError) as error:
                held.failure = error
                raise
        return ToolResponse(text=json.dumps(result, ensure_ascii=False)), 0.0, {"ok": float(result["ok"])}

    async def calc_reward(self, instance_id: str, message: str = "", **kwargs: Any) -> float:
        """The grade of the state, and of the last message where the loop gives it.

        Args:
            instance_id: of the trajectory.
            message: the agent's last message.
            kwargs: not used.
        """
        return float((await _held(instance_id).opening.result().score(message)).reward)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Leave the session; the last tool to leave closes it.

        Args:
            instance_id: of the trajectory.
            kwargs: not used.
        """
        held = _HELD.get(instance_id)
        if held is None:
            return
        held.users -= 1
        if held.users == 0:
            del _HELD[instance_id]
            await _close(held.opening.result())


class OmniaAgentLoop(ToolAgentLoop):  # type: ignore[misc,unused-ignore]
    """One trajectory of one task; verl makes an object for each."""

    def __init__(self, *args: Any, source: str, **kwargs: Any) -> None:
        """Keep where the server is.

        Args:
            args: verl's.
            source: address of a server.
            kwargs: verl's.
        """
        super().__init__(*args, **kwargs)
        self._source = source
        self._instance = ""
        self._data: AgentData | None = None

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Play the trajectory and grade it.

        Args:
            sampling_params: verl's.
            priority: verl's.
            kwargs: a row of `dataset_rows`.

        Raises:
            InfrastructureError: every attempt failed for reasons that are not the agent's.
            EnvironmentFault: as above, and the last reason was an exception that escaped a tool.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._play(sampling_params, priority, kwargs)
            except (EnvironmentFault, InfrastructureError) as error:
                if attempt == ATTEMPTS:
                    raise
                _log.warning("attempt %d at task %s is dropped: %s", attempt, kwargs["extra_info"]["task"], error)
        raise AssertionError("the last attempt returns or raises")

    async def _play(self, sampling_params: dict[str, Any], priority: int, row: Mapping[str, Any]) -> AgentLoopOutput:
        session = await _open(self._source, row["extra_info"])
        opened: asyncio.Future[AsyncRemoteSession] = asyncio.get_running_loop().create_future()
        opened.set_result(session)
        self._instance = uuid4().hex
        held = _HELD[self._instance] = _Held(opened, users=1)
        try:
            output = await super().run(sampling_params, priority=priority, **row)
            if held.failure is not None:
                raise held.failure
            output.reward_score = await self._reward(session)
            return output
        finally:
            del _HELD[self._instance]
            await _close(session)

    async def _reward(self, session: AsyncRemoteSession) -> float:
        """The grade; 0 where the trajectory was cut off before a final message."""
        assert self._data is not None
        last = self._data.messages[-1]
        if last["role"] != "assistant" or last.get("tool_calls"):
            return 0.0
        return float((await session.score(parse_assistant(last["content"]).content or "")).reward)

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Show the tools of this task instead of those of the configuration."""
        session = _HELD[self._instance].opening.result()
        tools = {t["function"]["name"]: t for t in session.info.tools}
        self._data = agent_data
        agent_data._active_tool_schemas = list(tools.values())
        agent_data._active_tools = {n: OmniaTool({"source": self._source}, _schema(t)) for n, t in tools.items()}
        joined = {"create_kwargs": {"instance_id": self._instance}}
        agent_data.tools_kwargs = dict.fromkeys(tools, joined)
        return await super()._handle_pending_state(agent_data, sampling_params)


async def _open(source: str, place: Mapping[str, Any]) -> AsyncRemoteSession:
    if "environment" not in place or "task" not in place:
        raise InputError("a trajectory needs `environment` and `task`; make the rows with dataset_rows")
    return await connect_async(source).open(str(place["environment"]), task=str(place["task"]))


async def _close(session: AsyncRemoteSession) -> None:
    try:
        await session.close()
    except (InfrastructureError, InputError) as error:
        _log.warning("session %s was left to the end of its lease: %s", session.id, error)


def _held(instance_id: str) -> _Held:
    found = _HELD.get(instance_id)
    if found is None:
        raise InputError(f"there is no instance {instance_id[:80]!r}; create it before it is used")
    return found


def _schema(tool: Mapping[str, Any]) -> OpenAIFunctionToolSchema:
    return OpenAIFunctionToolSchema.model_validate(_readable(tool))


def _readable(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI form as verl's own schema can hold it: each parameter with a type."""
    function = tool["function"]
    parameters = function["parameters"]
    properties = {n: {"type": _ANY_TYPE, **s} for n, s in parameters.get("properties", {}).items()}
    held = {"type": "object", "properties": properties, "required": list(parameters.get("required", ()))}
    return {"type": "function", "function": {**function, "parameters": held}}

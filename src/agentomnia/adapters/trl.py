"""TRL: a run's environments as `environment_factory`, its tasks as rows, its grades as rewards.

    from agentomnia.adapters import trl as omnia

    source = "http://127.0.0.1:8321"  # what `omnia serve RUN` prints; a path of a run plays in this process
    trainer = GRPOTrainer(
        model=model, args=args, processing_class=tokenizer,
        train_dataset=Dataset.from_list(omnia.dataset_rows(source)),
        environment_factory=omnia.factories(source),
        reward_funcs=omnia.episode_reward,
    )

TRL makes tools of the public methods of a class, so a class is made for every environment, and for every selection
of its tools that tasks expose. Refused calls are tool responses. What is not the agent's fault raises; TRL shows the
model the message of an exception and goes on, so such an episode is remembered and has the reward `None`, which
takes it out of the group's baseline and of the loss. Nothing here imports TRL.
"""

from __future__ import annotations

import inspect
import json
import keyword
import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, Union

from agentomnia.adapters.connection import OpenSession, connect, opening
from agentomnia.errors import EnvironmentFault, InfrastructureError, InputError, InstanceError
from agentomnia.row import digest
from agentomnia.task.task import Task

Scored = Literal["message", "state"]
"""What a reward looks at.

`message`: the state and the last message, through `episode_reward`. `state`: the state alone, through a method
`get_reward` of the environment, for trainers that show reward functions no environments (`AsyncGRPOTrainer`); only
tasks that ask for no answer can be scored so.
"""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset({"reset", "get_reward"})
_SCALARS = (str, int, float, bool, type(None))
_HINTS = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict, "null": type(None)}
_LIMITS = {
    "format": "format {}", "pattern": "pattern {}", "minimum": "at least {}", "maximum": "at most {}",
    "minLength": "at least {} characters", "maxLength": "at most {} characters",
    "minItems": "at least {} items", "maxItems": "at most {} items", "default": "default {}",
}  # fmt: skip
"""How the limits of a JSON Schema are told in words: TRL makes its schemas of type hints, which cannot say them."""

_log = logging.getLogger(__name__)


def dataset_rows(
    source: str, *, environment: str | None = None, split: str | None = None, scored: Scored = "message"
) -> list[dict[str, Any]]:
    """Rows of a training set: `prompt`, `environment` (a key of `factories`) and `task`.

    Args:
        source: address of a server, or path of a run.
        environment: only tasks of this environment.
        split: only tasks of this split.
        scored: as given to `factories`; tasks that cannot be scored so are left out.
    """
    link = connect(source)
    tasks = _tasks(source, environment, split, scored)
    return [{"prompt": opening(link, t), "environment": environment_name(t), "task": t.id} for t in tasks]


def factories(
    source: str, *, environment: str | None = None, split: str | None = None, scored: Scored = "message"
) -> dict[str, partial[TrainedEnvironment]]:
    """The value of `environment_factory` for the rows that `dataset_rows` makes with the same arguments.

    Every factory is a module's function with its arguments, so it can be pickled.

    Raises:
        InputError: a tool or a parameter has a name that Python or TRL cannot take.
    """
    kinds = {environment_name(t): (t.environment, t.tools) for t in _tasks(source, environment, split, scored)}
    return {name: partial(make_environment, source, *kind, scored) for name, kind in kinds.items()}


def environment_name(task: Task) -> str:
    """The key of a task's factory: its environment, and which of its tools are exposed where it is a selection."""
    return f"{task.environment}#{digest(list(task.tools))[:8]}" if task.tools else task.environment


def episode_reward(
    completions: Sequence[Sequence[Mapping[str, Any]]], environments: Sequence[TrainedEnvironment], **_: object
) -> list[float | None]:
    """The reward function: each episode's grade under its task's criterion.

    An episode that was cut off in the middle of a call earns 0; one that says nothing about the agent is `None`.
    """
    return [e._reward(final_message(c)) for e, c in zip(environments, completions)]


def final_message(completion: Sequence[Mapping[str, Any]]) -> str | None:
    """What the agent said last, or `None` where it was cut off before it said anything."""
    last = completion[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    return str(last.get("content") or "")


def make_environment(source: str, environment: str, tools: tuple[str, ...], scored: Scored) -> TrainedEnvironment:
    """An environment for TRL's pool; it opens a session when it is first reset."""
    return environment_class(source, environment, tools, scored)()


@cache
def environment_class(
    source: str, environment: str, tools: tuple[str, ...] = (), scored: Scored = "message"
) -> type[TrainedEnvironment]:
    """The class of an environment, with its tools as typed and documented methods.

    Args:
        source: address of a server, or path of a run.
        environment: id of the environment.
        tools: names of the tools that agents see; all where none is named.
        scored: whether it has a method `get_reward`.

    Raises:
        InputError: a tool or a parameter has a name that Python or TRL cannot take.
    """
    known = {t["function"]["name"]: t["function"] for t in connect(source).environment(environment)["tools"]}
    members: dict[str, Any] = {n: _method(environment, known[n]) for n in tools or known}
    members |= {"_source": source, "_environment": environment}
    if scored == "state":
        members["get_reward"] = _get_reward
    return type(f"Environment_{re.sub(r'[^A-Za-z0-9_]', '_', environment)}", (TrainedEnvironment,), members)


class TrainedEnvironment:
    """What TRL wants of an environment; `environment_class` adds the tools.

    Instances are used again and again: a reset to the task that was played before resets the session, and any other
    opens a new one. The last session is closed with the instance, or at the end of the process.
    """

    _source: str
    _environment: str

    def __init__(self) -> None:
        """Begin without a session."""
        self._session: OpenSession | None = None
        self._ending: weakref.finalize[..., TrainedEnvironment] | None = None
        self._task = ""
        self._failure: Exception | None = None

    def reset(self, *, task: str, **_: object) -> None:
        """Start an episode; a failure of the infrastructure rises here and stops the trainer.

        Args:
            task: id of the task, a column of the row; other columns are for others.
        """
        if self._session is not None and self._task == task and self._failure is None and self._restarts():
            return
        self._close()
        self._session = connect(self._source).open(task=task)
        # TRL never says that it is done with an environment: its session ends with it, or with the process
        self._ending = weakref.finalize(self, _end, self._session, task)
        self._task, self._failure = task, None

    def _restarts(self) -> bool:
        """Put the session back to its start; false where its lease has ended."""
        assert self._session is not None
        try:
            self._session.reset()
        except InstanceError:
            return False
        return True

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        if self._failure is not None:
            raise self._failure
        if self._session is None:
            raise InputError(f"{self._environment} was called before its first reset; reset it with a task")
        try:
            return json.dumps(self._session.call(tool, arguments), ensure_ascii=False)
        except (EnvironmentFault, InfrastructureError, InstanceError) as error:
            self._failure = error
            raise

    def _reward(self, message: str | None) -> float | None:
        """The grade; `None` where the episode failed for a reason that is not the agent's."""
        if self._failure is None and self._session is not None:
            if message is None:
                return 0.0
            try:
                return self._session.score(message).reward
            except (EnvironmentFault, InfrastructureError, InstanceError) as error:
                self._failure = error
        _log.warning("an episode of task %s counts for nothing: %s", self._task, self._failure)
        return None

    def _close(self) -> None:
        """Close the session, if there is one."""
        self._session = None
        if self._ending is not None:
            self._ending()


def _end(session: OpenSession, task: str) -> None:
    """Close a session; one that the server has lost is closed already."""
    try:
        session.close()
    except (InfrastructureError, InstanceError) as error:
        _log.warning("a session of task %s was left to the end of its lease: %s", task, error)


def _get_reward(self: TrainedEnvironment) -> float | None:
    """The grade of the state."""
    return self._reward("")


def _tasks(source: str, environment: str | None, split: str | None, scored: Scored) -> list[Task]:
    tasks = connect(source).tasks(environment=environment, split=split)
    return [t for t in tasks if scored == "message" or not t.answer]


def _method(environment: str, function: Mapping[str, Any]) -> Callable[..., str]:
    """A tool as a method, with the signature and the docstring of which TRL makes its schema.

    The method takes any arguments: what the model gives reaches the environment as it is, which refuses it in its
    own words.
    """
    name, schema = function["name"], function["parameters"]
    properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
    _check_names(environment, name, properties)

    def tool(self: TrainedEnvironment, /, **arguments: object) -> str:
        return self._call(name, arguments)

    hints = {p: _hint(s) for p, s in properties.items()}
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    empty, keyword_only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(p, keyword_only, default=empty if p in required else None, annotation=hint)
        for p, hint in hints.items()
    ]
    tool.__name__ = tool.__qualname__ = name
    tool.__annotations__ = hints
    tool.__doc__ = _docstring(function.get("description") or name, properties)
    tool.__signature__ = inspect.Signature([receiver, *parameters])  # type: ignore[attr-defined]
    return tool


def _check_names(environment: str, tool: str, parameters: Mapping[str, Any]) -> None:
    if _NAME.fullmatch(tool) is None or tool in _RESERVED:
        raise InputError(f"{environment}: TRL cannot offer a tool called {tool!r}; leave it out of the task's tools")
    for parameter in parameters:
        if not parameter.isidentifier() or keyword.iskeyword(parameter) or parameter == "self":
            raise InputError(
                f"{environment}.{tool}: a parameter called {parameter!r} cannot be one of a Python method; "
                "leave the tool out of the task's tools"
            )


def _hint(schema: Mapping[str, Any]) -> Any:
    """The type hint that TRL turns back into a schema; what no hint can say is left to the words."""
    if "enum" in schema and all(isinstance(value, _SCALARS) for value in schema["enum"]):
        return Literal[tuple(schema["enum"])]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return Union[tuple(_hint(s) for s in alternatives)]  # noqa: UP007 - made of a tuple
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(_hint({**schema, "type": k}) for k in kind)]  # noqa: UP007
    if kind == "array":
        return list[_hint(schema["items"])] if isinstance(schema.get("items"), dict) else list  # type: ignore[misc]
    return _HINTS.get(str(kind), Any)


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_one_line(description)]
    if properties:
        lines += ["", "Args:", *(f"    {name}: {_told(name, schema)}" for name, schema in properties.items())]
    return "\n".join(lines)


def _told(name: str, schema: Mapping[str, Any]) -> str:
    """A parameter in words: its description, then its limits."""
    limits = [words.format(repr(schema[key])) for key, words in _LIMITS.items() if key in schema]
    described = _one_line(schema.get("description") or name)
    return _one_line(f"{described} ({', '.join(limits)})") if limits else described


def _one_line(text: object) -> str:
    """A text of others as one line that no reader of docstrings takes for a section or a list of choices."""
    told = " ".join(str(text).split())
    return re.sub(r"(?i)(args|returns|raises|choices):", r"\1 -", told)

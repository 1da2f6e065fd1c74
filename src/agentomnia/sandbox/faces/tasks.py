"""What OpenEnv and ORS share: environments, splits and tasks as clients list them, and the grade at an episode's end.

OpenEnv took these routes from ORS: `/{env}/splits`, `/tasks`, `/num_tasks`, `/task`, `/task_range`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentomnia.errors import InputError
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.task.task import Task

TASK_ROUTES = frozenset(("tasks", "num_tasks", "task", "task_range"))
"""What `task_answer` answers."""


def find_environment(sandbox: Sandbox, name: str) -> EnvironmentInfo | None:
    """An environment by its id; names of URLs may be in any case."""
    found = sandbox.environments.get(name)
    if found is not None:
        return found
    folded = name.casefold()
    return next((info for id, info in sandbox.environments.items() if id.casefold() == folded), None)


def split_rows(info: EnvironmentInfo) -> list[dict[str, str]]:
    """The splits of an environment; those that ORS has no type for are told as `validation`."""
    types = ("train", "validation", "test")
    return [{"name": name, "type": name if name in types else "validation"} for name in info.splits]


def split_tasks(info: EnvironmentInfo, split: Any) -> tuple[str, ...]:
    """Ids of the tasks of a split.

    Raises:
        Refusal: there is no such split; status 400.
    """
    ids = info.splits.get(split) if isinstance(split, str) else None
    if ids is None:
        raise Refusal(400, f"{info.id} has no split {str(split)[:80]!r}; it has {', '.join(info.splits) or 'none'}")
    return ids


def split_task(info: EnvironmentInfo, split: Any, index: Any) -> str:
    """The id of a task by its place in a split.

    Raises:
        Refusal: no such split or place; status 400.
    """
    ids = split_tasks(info, split)
    if type(index) is not int or not 0 <= index < len(ids):
        raise Refusal(400, f"split {split} of {info.id} has tasks 0 to {len(ids) - 1}, not {str(index)[:20]}")
    return ids[index]


def task_row(task: Task) -> dict[str, Any]:
    """What a client is told of a task; flat, since trainers make table columns of it."""
    place = task.coordinate
    return {
        "id": task.id,
        "environment": task.environment,
        "state": task.state,
        "kind": task.kind,
        "mode": task.mode,
        "query": task.query,
        "domain": place.domain,
        "capabilities": list(place.capabilities),
        "difficulty": list(place.difficulty),
        "primary": place.primary,
    }


def task_answer(sandbox: Sandbox, info: EnvironmentInfo, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one of the task routes, which OpenEnv has too: `tasks`, `num_tasks`, `task`, `task_range`.

    Raises:
        Refusal: no such split or index.
    """
    ids = split_tasks(info, body.get("split"))
    if route == "num_tasks":
        return {"num_tasks": len(ids)}
    if route == "task":
        task = split_task(info, body["split"], body.get("index"))
        return {"task": task_row(sandbox.task(task)), "env_name": info.id}
    if route == "task_range":
        ids = ids[slice(_bound(body, "start"), _bound(body, "stop"))]
    return {"tasks": [task_row(sandbox.task(task)) for task in ids], "env_name": info.id}


def _bound(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and type(value) is not int:
        raise Refusal(422, f"{name} must be a whole number or null, not {str(value)[:20]}")
    return value


async def final_grade(session: Session, message: str) -> tuple[float | None, dict[str, Any]]:
    """The reward of an episode that ends now, with what trainers may want to know of it.

    The reward is `None` where nobody here can judge: the session has no task, or the task has its own harness.
    """
    try:
        grade = await session.score(message)
    except InputError as error:
        return None, {"unscored": str(error)}
    return grade.reward, {"failures": list(grade.failures)}

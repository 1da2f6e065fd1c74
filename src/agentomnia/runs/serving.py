"""From a run directory, an environment package or an import to a catalog that a sandbox can open."""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State, state_problems
from agentomnia.errors import InputError
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.run import read_jsonl
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source, TaskEntry
from agentomnia.sandbox.cluster import ClusterPlaces, NodeAddress
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.link import Endpoint
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.sandbox.node import read_token
from agentomnia.sandbox.places import Places
from agentomnia.synthesis.environments.cache import CompiledEnvironment, compiled_environment
from agentomnia.synthesis.environments.package import read_spec

_REST = "all"
"""The split of tasks that no suite names."""


def catalog_of(path: Path, *, isolate: bool = False) -> Catalog:
    """What a path offers.

    Args:
        path: a run directory, the folder of an import, or one environment package.
        isolate: run also proved environments in isolated workers.

    Raises:
        InputError: nothing under the path can be opened.
    """
    if (path / "environment.py").exists():
        return Catalog({path.name: _source(path, {}, isolate)})
    tasks = _tasks(path)
    splits = _splits(path, tasks)
    folders = sorted(p.parent for p in _folder(path).glob("*/environment.py"))
    if not folders:
        raise InputError(f"{path}: no environment in it; give a run, an import or an environment package")
    return Catalog({f.name: _source(f, splits.get(f.name, {}), isolate) for f in folders}, tasks)


def host_of(
    catalog: Catalog,
    settings: HostSettings | None = None,
    *,
    unsafe: bool = False,
    nodes: Sequence[NodeAddress] = (),
    keep: Path | None = None,
) -> Host:
    """A host whose instances live on this machine, or on node agents.

    Args:
        catalog: what it opens.
        settings: how much at once.
        unsafe: run untrusted code also where neither Landlock nor seccomp can hold it.
        nodes: agents that run (`python -m agentomnia.sandbox.node`).
        keep: file by which sessions outlive the process.
    """
    places: Places = ClusterPlaces(nodes) if nodes else LocalPlaces(LocalSettings(unsafe=unsafe))
    return Host(catalog, settings, places) if keep is None else KeptHost(catalog, settings, places, keep)


class KeptHost(Host):
    """A host whose sessions outlive its process: written to a file when it closes, read from it by the next one."""

    def __init__(self, catalog: Catalog, settings: HostSettings | None, places: Places, file: Path) -> None:
        """Keep sessions in a file."""
        super().__init__(catalog, settings, places)
        self._file = file

    def begin(self) -> None:
        """Take over what the file holds, if it is there; to be called in the event loop.

        Raises:
            InputError: the file is no file of sessions, or they are of other environments.
        """
        if not self._file.exists():
            return
        try:
            self.adopt(self._file.read_bytes())
        except InputError as error:
            raise InputError(f"{self._file}: {error}; move the file away to start without its sessions") from None
        self._file.unlink()

    async def close(self) -> None:
        """Write the sessions down, whole or not at all, and stop."""
        saved = await self.save()
        partial = self._file.with_name(f".{self._file.name}.partial")
        partial.write_bytes(saved)
        partial.replace(self._file)
        await super().close()


def node_addresses(endpoints: Sequence[str], token_file: Path | None) -> tuple[NodeAddress, ...]:
    """Agents as a person names them.

    Args:
        endpoints: `HOST:PORT` or `unix:PATH` of each.
        token_file: holds the token of all of them.

    Raises:
        InputError: an endpoint is none, or there is no token.
    """
    if not endpoints:
        return ()
    if token_file is None:
        raise InputError("node agents ask for a token; give the file that they were started with: --node-token FILE")
    token = read_token(token_file)
    return tuple(NodeAddress(Endpoint.parse(text), token) for text in endpoints)


def read_tokens(path: Path) -> dict[str, str]:
    """Tenants by token, from lines `TOKEN TENANT`; empty lines and lines that begin with # do not count.

    Raises:
        InputError: the file cannot be read, holds no token, or has a line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; write a file of lines `TOKEN TENANT`") from None
    found = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 2:
            raise InputError(f"{path} line {number}: not `TOKEN TENANT`; give both, separated by a space")
        found[parts[0]] = parts[1]
    if not found:
        raise InputError(f"{path}: holds no token, so nobody could ask; write lines `TOKEN TENANT`")
    return found


def _folder(path: Path) -> Path:
    return path / "environments" if (path / "environments").is_dir() else path


def _tasks(path: Path) -> dict[str, TaskEntry]:
    if not (path / "tasks.jsonl").exists():
        return {}
    return {task.id: TaskEntry(task, private.criterion) for task, private in read_tasks(path)}


def _splits(path: Path, tasks: dict[str, TaskEntry]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Ids of tasks by environment and split."""
    suites = path / "splits.jsonl"
    named = {row["task"]: row["suite"] for row in read_jsonl(suites)} if suites.exists() else {}
    found: dict[str, dict[str, list[str]]] = {}
    for name, entry in tasks.items():
        split = named.get(name, _REST)
        found.setdefault(entry.task.environment, {}).setdefault(split, []).append(name)
    return {env: {split: tuple(ids) for split, ids in splits.items()} for env, splits in found.items()}


def _source(path: Path, splits: dict[str, tuple[str, ...]], isolate: bool) -> Source:
    states = tuple(sorted(p.stem for p in (path / "states").glob("*.json")))
    if (path / "spec.json").exists():
        return _proved(path, states, splits, isolate)
    return _imported(path, states)


@dataclass(frozen=True)
class _Package:
    """A proved package, read as far as somebody asks."""

    path: Path

    @cached_property
    def compiled(self) -> CompiledEnvironment:
        return compiled_environment(self.path)

    @cached_property
    def spec(self) -> EnvironmentSpec:
        return read_spec(self.path / "spec.json")

    def problem(self, state: State) -> str | None:
        return next(state_problems(self.spec, state), None)

    def state(self, name: str) -> State:
        state = _read_state(self.path, name)
        problem = self.problem(state)
        if problem is not None:
            raise InputError(f"{self.path}/states/{name}.json: {problem}; make the state again")
        return state


def _proved(path: Path, states: tuple[str, ...], splits: dict[str, tuple[str, ...]], isolate: bool) -> Source:
    package = _Package(path)
    compiled = package.compiled
    info = EnvironmentInfo(
        path.name, compiled.name, compiled.introduction, compiled.policies, compiled.tools, states, not isolate, splits
    )
    return Source(
        info=info,
        class_name=compiled.name,
        text=lambda: compiled.source,
        state=package.state,
        program=None if isolate else compiled.program,
        code=lambda: marshal.dumps(compiled.code),
        problem=package.problem,
    )


def _imported(path: Path, states: tuple[str, ...]) -> Source:
    """A class of somebody else's: read as text, run in an isolated worker only."""
    told = _read_object(path / "import.json")
    tools = {t.name: t for t in _imported_tools(path / "tools.json")}
    name = str(told.get("class"))
    policies = tuple(str(p) for p in told.get("policies", ()))
    info = EnvironmentInfo(path.name, name, str(told.get("introduction", "")), policies, tools, states, False)
    return Source(
        info=info,
        class_name=name,
        text=lambda: (path / "environment.py").read_text(encoding="utf-8"),
        state=lambda state: _read_state(path, state),
        foreign=True,
    )


def _imported_tools(path: Path) -> Iterator[ToolSchema]:
    for row in _read(path):
        yield ToolSchema(row["name"], row["kind"], row["description"], row["parameters"])


def _read_state(path: Path, name: str) -> State:
    known = path / "states" / f"{name}.json"
    if not name or Path(name).name != name or not known.is_file():
        raise InputError(f"{path.name} has no state {name[:80]!r}; list its states and choose one")
    return _read_object(known)


def _read_object(path: Path) -> dict[str, Any]:
    value = _read(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no JSON object; make the file again")
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; import the environment again") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); the file may be half-written, make it again") from None

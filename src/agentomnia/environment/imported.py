"""Class-based environments of others, as OmniaBench packs them: read as data, run only when trusted.

A file is a JSON array of task objects. Each carries its environment, in `env_item` or flat (`env_class_code`,
`candidate_tools`): one Python class as text, its tools in OpenAI form, an introduction, rules, and the values that
are set on an instance before the first call (`init_config`). What an agent may know becomes an `ImportedTask`; the
user's hidden script, rubrics, verifier and ground truth become an `ImportedPrivate` row of the same id.

`read_omniabench` executes nothing: classes are looked at as syntax trees. `load_imported` runs the class, in this
process, and refuses to unless it is trusted. Whatever an import leaves out or changes is listed: tools that only
their harness answers, tools without a method, schemas that had to be patched, attributes that no state can hold.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.environment.replay import Call, trace
from agentomnia.environment.schema import unstorable
from agentomnia.environment.spec import ToolKind
from agentomnia.environment.state import State
from agentomnia.errors import InfrastructureError, InputError, OmniaError
from agentomnia.row import Row, canonical_json, digest

Route = Literal["route1", "route2", "route3", "route4"]

_ROUTES: tuple[tuple[Route, int, int], ...] = (
    ("route1", 1, 999_999),
    ("route2", 1_000_000, 1_999_999),
    ("route3", 2_000_000, 2_999_999),
    ("route4", 3_000_000, 3_999_999),
)
"""Which ids belong to which route: DAG, Solver, Program, DAG in a single turn."""

_HARNESS_TOOLS = frozenset(
    ("fs_list_dir", "fs_read_file", "fs_write_file", "fs_move_path", "python_executor", "chat_with_user")
)
_PYTHON_NAMES = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object",
}  # fmt: skip
_PLAIN_BASES = frozenset(("object", "ABC", "Generic", "Protocol"))
_ENVIRONMENT_FIELDS = frozenset(
    ("env_item", "env_class_code", "env_class_name", "candidate_tools", "tools", "environment_introduction",
     "constraints_rules", "operation_list", "strategy_injected_operations")
)  # fmt: skip
_TASK_FIELDS = frozenset(
    ("global_id", "task_id", "env_id", "batch", "lang", "task", "init_config", "persona", "persona_card_md",
     "persona_idx", "rubrics", "rubric_items", "rubrics_text", "ground_truth_answer", "verifier_code",
     "checklist_with_func")
)  # fmt: skip


class Unsupported(Row):
    """Something of the original that the import cannot do."""

    what: str
    reason: str


class ImportedTool(Row):
    """A tool as the agent is told of it."""

    name: str
    kind: ToolKind
    description: str
    parameters: dict[str, Any]


class ImportedEnvironment(Row):
    """A class as text with its tools; equal contents have equal ids, whatever the file called them."""

    schema_version: Literal[1] = 1
    class_name: str
    source: str
    introduction: str
    policies: tuple[str, ...]
    tools: tuple[ImportedTool, ...]
    unsupported: tuple[Unsupported, ...] = ()
    patches: tuple[str, ...] = ()
    """Where schemas were changed so that they say what the methods take."""

    @cached_property
    def id(self) -> str:
        """A short stable name: the class and the head of the identity."""
        return f"{self.class_name}-{self.identity[:8]}"


class ImportedTask(Row):
    """What an agent may know of an imported task, and where it takes place."""

    schema_version: Literal[1] = 1
    id: str
    route: Route
    mode: Literal["single_turn", "multi_turn"]
    lang: Literal["cn", "en"]
    task_id: str
    env_id: str
    """Their name of the environment, which several environments may share."""
    environment: ImportedEnvironment
    state: dict[str, Any]
    """What is set on an instance before the first call."""
    query: str = ""
    """Empty in a conversation: there the user says it, from the private script."""
    unsupported: tuple[Unsupported, ...] = ()

    @property
    def state_name(self) -> str:
        """A name for the initial state, the same for equal states."""
        return f"s-{digest(self.state)[:8]}"

    def public_json(self) -> dict[str, Any]:
        """The row with environment and state by name, as it is stored."""
        row = self.model_dump(mode="json", exclude={"environment", "state"})
        return {**row, "environment": self.environment.id, "state": self.state_name}


class Rubric(Row):
    """One item that a judge decides, with its points."""

    tag: str
    category: Literal["general", "task_specific"]
    points: int
    text: str


class ImportedPrivate(Row):
    """The privileged part of an imported task: never for the agent."""

    schema_version: Literal[1] = 1
    id: str
    script: str = ""
    """In a conversation: what the user wants."""
    persona: str = ""
    rubrics: tuple[Rubric, ...] = ()
    ground_truth: Any = None
    verifier: str = ""
    checklist: tuple[Any, ...] = ()
    extra: dict[str, Any] = {}
    """Fields that this reader does not know; they may hold traces of a solution."""


@dataclass(frozen=True)
class Imported:
    """What a file holds: tasks, their privileged parts in the same order, and what could not be read."""

    tasks: tuple[ImportedTask, ...]
    private: tuple[ImportedPrivate, ...]
    left_out: tuple[Unsupported, ...]

    @property
    def environments(self) -> dict[str, ImportedEnvironment]:
        """The environments by id, in the order of first use."""
        return {t.environment.id: t.environment for t in self.tasks}


def read_omniabench(path: Path) -> Imported:
    """Read a file of task objects; executes nothing of it.

    Raises:
        InputError: the file cannot be read, is not JSON, or holds no task that can be used.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is the path right?") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); the file may be cut off, fetch it again") from None
    items = [values] if isinstance(values, dict) else values
    if not isinstance(items, list):
        raise InputError(f"{path}: holds a {type(items).__name__}, not an array of tasks; give a routeN.json")
    known: dict[str, ImportedEnvironment] = {}
    tasks: dict[str, tuple[ImportedTask, ImportedPrivate]] = {}
    left_out = []
    for number, item in enumerate(items):
        read = _read_item(item, path.stem, known)
        if isinstance(read, str):
            left_out.append(Unsupported(what=f"task {number}", reason=read))
        elif read[0].id in tasks:
            left_out.append(Unsupported(what=f"task {number}", reason=f"its id {read[0].id} came before"))
        else:
            tasks[read[0].id] = read
    if not tasks:
        reason = left_out[0].reason if left_out else "the array is empty"
        raise InputError(f"{path}: no task can be used ({reason}); is it a task file of OmniaBench?")
    return Imported(tuple(t for t, _ in tasks.values()), tuple(p for _, p in tasks.values()), tuple(left_out))


def _read_item(
    item: Any, stem: str, known: dict[str, ImportedEnvironment]
) -> tuple[ImportedTask, ImportedPrivate] | str:
    """A task with its privileged part, or why there is none."""
    if not isinstance(item, dict):
        return f"a {type(item).__name__}, not an object"
    problem = unstorable(item)
    if problem is not None:
        return f"it must hold {problem}"
    state = item.get("init_config") or {}
    if not isinstance(state, dict):
        return "its init_config is no object"
    environment = _environment(item)
    if isinstance(environment, str):
        return environment
    environment = known.setdefault(environment.id, environment)  # equal environments are kept once
    route = _route(item, stem)
    conversation = route == "route1"
    text = _text(item.get("task"))
    rubrics, discarded = _rubrics(item)
    task = ImportedTask(
        id=_task_id(item),
        route=route,
        mode="multi_turn" if conversation else "single_turn",
        lang="en" if item.get("lang") == "en" else "cn",
        task_id=_text(item.get("task_id")),
        env_id=_text(item.get("env_id")),
        environment=environment,
        state=state,
        query="" if conversation else text,
        unsupported=(*_file_inputs(item), *discarded),
    )
    checklist = item.get("checklist_with_func")
    private = ImportedPrivate(
        id=task.id,
        script=text if conversation else "",
        persona=_text(item.get("persona_card_md")) or _text(item.get("persona")),
        rubrics=rubrics,
        ground_truth=item.get("ground_truth_answer"),
        verifier=_text(item.get("verifier_code")),
        checklist=tuple(checklist) if isinstance(checklist, list) else (),
        extra={k: v for k, v in item.items() if k not in _TASK_FIELDS | _ENVIRONMENT_FIELDS},
    )
    return task, private


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _task_id(item: Mapping[str, Any]) -> str:
    """Their global id is the only unique one; without it, the task's contents name it."""
    number = item.get("global_id")
    return str(number) if type(number) is int else f"task-{digest(item)[:12]}"


def _route(item: Mapping[str, Any], stem: str) -> Route:
    """By id, else by the file's name, else by shape."""
    number = item.get("global_id")
    for route, first, last in _ROUTES:
        if (type(number) is int and first <= number <= last) or (type(number) is not int and stem == route):
            return route
    if "env_item" not in item:
        return "route3" if "verifier_code" in item or "ground_truth_answer" in item else "route4"
    return "route1" if "fs_inputs" in item or "fs_runtime_bootstrap" in item else "route2"


def _file_inputs(item: Mapping[str, Any]) -> Iterator[Unsupported]:
    if item.get("fs_inputs") or item.get("fs_runtime_bootstrap"):
        yield Unsupported(what="fs_inputs", reason="files beside the environment; only their harness lays them out")


_RUBRIC_LINE = re.compile(r"\s*([A-Za-z]+\d+)\s*\|\s*(-?\d+)[^|\d]*\|\s*(.+)")


def _rubrics(item: Mapping[str, Any]) -> tuple[tuple[Rubric, ...], tuple[Unsupported, ...]]:
    """The rubric items that count, and those that their harness discards too."""
    given: Any = next((item[k] for k in ("rubrics", "rubric_items", "rubrics_text") if item.get(k)), [])
    rows = list(_rubric_lines(given)) if isinstance(given, str) else given if isinstance(given, list) else []
    kept, discarded = [], []
    for number, row in enumerate(rows):
        rubric = _rubric(row)
        if rubric is None:
            reason = "no points, no category or no text; their harness discards it too"
            discarded.append(Unsupported(what=f"rubric item {number}", reason=reason))
        else:
            kept.append(rubric)
    return tuple(kept), tuple(discarded)


def _rubric(row: Any) -> Rubric | None:
    if not isinstance(row, dict):
        return None
    category = re.sub(r"[\s-]+", "_", _text(row.get("category") or row.get("section")).strip().lower())
    points, text = row.get("points"), _text(row.get("text") or row.get("criteria"))
    if category not in ("general", "task_specific") or type(points) is not int or points <= 0 or not text:
        return None
    tag = str(row.get("tag") or row.get("id") or "")
    return Rubric(tag=tag, category="general" if category == "general" else "task_specific", points=points, text=text)


def _rubric_lines(text: str) -> Iterator[dict[str, Any]]:
    """Items of the text form: headings, then lines `G1 | 2 | criterion`."""
    for line in text.splitlines():
        found = _RUBRIC_LINE.match(line)
        if found:
            tag, points, criterion = found.groups()
            category = "general" if tag.upper().startswith("G") else "task_specific"
            yield {"tag": tag, "category": category, "points": int(points), "text": criterion.strip()}


def _environment(item: Mapping[str, Any]) -> ImportedEnvironment | str:
    """The task's environment, or why it cannot be used."""
    nested = item.get("env_item")
    fields = {**item, **nested} if isinstance(nested, dict) else item
    source = _text(fields.get("env_class_code"))
    if not source.strip():
        return "it carries no env_class_code"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"its class does not parse: {error}"
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    name = _text(fields.get("env_class_name")) or next(reversed(classes), "")
    if name not in classes:
        return f"its source defines no class {name!r}"
    listed = fields.get("tools") or fields.get("candidate_tools")
    reader = _ToolReader(_methods(name, classes), _operations(fields))
    tools = reader.read(listed if isinstance(listed, list) else [])
    if not tools:
        return "none of its tools can be used"
    rules = fields.get("constraints_rules")
    return ImportedEnvironment(
        class_name=name,
        source=source,
        introduction=_text(fields.get("environment_introduction")),
        policies=tuple(str(r) for r in rules) if isinstance(rules, list) else tuple(filter(None, [_text(rules)])),
        tools=tools,
        unsupported=tuple(reader.unsupported),
        patches=tuple(reader.patches),
    )


def _operations(fields: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What the file says of operations beyond their schemas, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for key in ("operation_list", "strategy_injected_operations"):
        listed = fields.get(key)
        for operation in listed if isinstance(listed, list) else []:
            if isinstance(operation, dict):
                found[_text(operation.get("operation_name"))] = operation
    return found


@dataclass(frozen=True)
class _Method:
    """The arguments of a method, from its syntax tree."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    any_name: bool


def _methods(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, _Method] | None:
    """The methods of a class, inherited ones too; `None` where a base is not in the source."""
    found: dict[str, _Method] = {}
    for base in classes[name].bases:
        head = base.value if isinstance(base, ast.Subscript) else base
        known = head.id if isinstance(head, ast.Name) else head.attr if isinstance(head, ast.Attribute) else ""
        if known in classes and known != name:
            inherited = _methods(known, {k: v for k, v in classes.items() if k != name})
            if inherited is None:
                return None
            found |= inherited
        elif known not in _PLAIN_BASES:
            return None
    assigned = [n.targets[0] for n in classes[name].body if isinstance(n, ast.Assign)]
    found |= {t.id: _Method((), (), any_name=True) for t in assigned if isinstance(t, ast.Name)}
    return found | {n.name: _method(n) for n in classes[name].body if isinstance(n, ast.FunctionDef)}


def _method(node: ast.FunctionDef) -> _Method:
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)][0 if static else 1 :]
    optional = set(positional[len(positional) - len(node.args.defaults) :]) if node.args.defaults else set()
    keyword = [a.arg for a in node.args.kwonlyargs]
    optional |= {a for a, default in zip(keyword, node.args.kw_defaults) if default is not None}
    names = (*positional, *keyword)
    return _Method(names, tuple(n for n in names if n not in optional), node.args.kwarg is not None)


class _ToolReader:
    """Reads the tools of one environment and lists what it cannot use or had to change."""

    def __init__(self, methods: dict[str, _Method] | None, operations: Mapping[str, Mapping[str, Any]]) -> None:
        self._methods = methods
        self._operations = operations
        self.unsupported: list[Unsupported] = []
        self.patches: list[str] = []

    def read(self, listed: Sequence[Any]) -> tuple[ImportedTool, ...]:
        found: dict[str, ImportedTool] = {}
        for number, given in enumerate(listed):
            inner = given.get("function") if isinstance(given, dict) else None
            tool = inner if isinstance(inner, dict) else given
            name = _text(tool.get("name")) if isinstance(tool, dict) else ""
            reason = self._refusal(name) if name not in found else "listed twice; the first one counts"
            if reason is not None:
                self.unsupported.append(Unsupported(what=name or f"tool {number}", reason=reason))
            else:
                found[name] = self._tool(name, tool)
        return tuple(found.values())

    def _refusal(self, name: str) -> str | None:
        operation = self._operations.get(name, {})
        implemented = self._methods is None or name in self._methods
        if not name.isidentifier() or name.startswith("_"):
            return "its name is missing, private or no method's"
        if name == "chat_with_user" or operation.get("adapter_backed") or operation.get("system_tool_kind"):
            return "answered by their harness, not by the class"
        if name in _HARNESS_TOOLS or (name.startswith("fs_") and not implemented):
            return "answered by their harness, not by the class"
        return None if implemented else "the class has no such method"

    def _tool(self, name: str, given: Mapping[str, Any]) -> ImportedTool:
        says_query = self._operations.get(name, {}).get("operation_type") == "query"
        return ImportedTool(
            name=name,
            kind="query" if says_query else "modify",
            description=_text(given.get("description")),
            parameters=self._parameters(name, given.get("parameters")),
        )

    def _parameters(self, tool: str, given: Any) -> dict[str, Any]:
        """A closed object of the arguments that the method takes, each with a schema that validates."""
        schema = given if isinstance(given, dict) else {}
        listed = schema.get("properties")
        properties = {
            name: self._property(f"{tool}.{name}", part)
            for name, part in (listed.items() if isinstance(listed, dict) else ())
        }
        wanted = schema.get("required")
        required = [n for n in (wanted if isinstance(wanted, list) else []) if n in properties]
        method = (self._methods or {}).get(tool)
        if method is not None:
            for name in [n for n in properties if n not in method.names and not method.any_name]:
                self.patches.append(f"{tool}.{name}: left out, since the method does not take it")
                del properties[name]
            for name in [n for n in method.required if n not in required]:
                self.patches.append(f"{tool}.{name}: required, since the method has no default for it")
                properties.setdefault(name, {})
                required.append(name)
        closed = {"type": "object", "properties": properties}
        kept = [n for n in required if n in properties]
        return {**closed, **({"required": kept} if kept else {}), "additionalProperties": False}

    def _property(self, place: str, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            self.patches.append(f"{place}: no schema, so any value is let through")
            return {}
        patched = self._patched(place, given)
        if not _usable(patched):
            self.patches.append(f"{place}: not a usable JSON Schema, so any value is let through")
            return {"description": _text(given["description"])} if "description" in given else {}
        return patched

    def _patched(self, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Python's type names read as JSON's, arrays without `items` as arrays of strings, formats only told."""
        found = dict(schema)
        kind = found.get("type")
        if isinstance(kind, str) and kind in _PYTHON_NAMES:
            found["type"] = _PYTHON_NAMES[kind]
            self.patches.append(f"{place}: type {kind!r} read as {_PYTHON_NAMES[kind]!r}")
        if isinstance(found.get("format"), str):
            # their harness checks no format, and classes have their own way of writing a date
            found["description"] = f"{_text(found.get('description'))} ({found.pop('format')})".strip()
        if found.get("type") == "array" and "items" not in found:
            found["items"] = {"type": "string"}
            self.patches.append(f"{place}: array without items, taken as strings")
        if isinstance(found.get("items"), dict):
            found["items"] = self._patched(f"{place}[]", found["items"])
        if isinstance(found.get("properties"), dict):
            inner = found["properties"].items()
            found["properties"] = {k: self._patched(f"{place}.{k}", v) if isinstance(v, dict) else v for k, v in inner}
        return found


def _usable(schema: dict[str, Any]) -> bool:
    """Whether a schema validates; references would point into the whole that it is cut from."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return '"$ref"' not in canonical_json(schema)


def json_problem(value: Any) -> str | None:
    """The type of the first thing in a value that JSON does not have, or `None`; tuples and subclasses count."""
    kind = type(value)
    if kind is dict:
        odd = next((type(k).__name__ for k in value if type(k) is not str), None)
        return f"{odd} as a key" if odd else next(filter(None, map(json_problem, value.values())), None)
    if kind is list:
        return next(filter(None, map(json_problem, value)), None)
    if kind in (str, float, int):
        return f"not {problem}" if (problem := unstorable(value)) is not None else None
    return None if value is None or kind is bool else kind.__name__


@dataclass(frozen=True)
class LoadedImport:
    """A trusted class, ready to run, with the state it starts in."""

    program: Program
    state: State
    notes: tuple[Unsupported, ...]
    """Attributes that no state can hold, attributes that share values, tools without a method."""


def load_imported(task: ImportedTask, *, trust: bool = False) -> LoadedImport:
    """Run the class of a task and build its first state as the original harness does.

    Args:
        task: a task that was read.
        trust: whether the class may run in this process, with everything this process can do.

    Raises:
        InputError: the class is not trusted.
        SpecError: the source does not load.
        EnvironmentFault: the class cannot be built over the task's values.
    """
    environment = task.environment
    if not trust:
        raise InputError(
            f"{environment.id}: its class is somebody else's program and would run in this process; read the source, "
            "then pass --trust (trust=True), best where there is no network and nothing to lose"
        )
    cls = load_class(environment.source, environment.class_name)
    tools = {t.name: ToolSchema(t.name, t.kind, t.description, t.parameters) for t in environment.tools}
    program = Program(environment.class_name, environment.source, cls, tools, foreign=True)
    lost = sorted(tools.keys() - program.methods.keys())
    attributes = vars(program.build(copy.deepcopy(task.state)))
    opaque = {name: problem for name, value in attributes.items() if (problem := json_problem(value)) is not None}
    notes = [Unsupported(what=name, reason="the class has no such method") for name in lost]
    notes += [
        Unsupported(what=f"attribute {name}", reason=f"holds what JSON does not have ({why}); no part of the state")
        for name, why in opaque.items()
    ]
    state = {name: value for name, value in attributes.items() if name not in opaque}
    notes += [
        Unsupported(what=f"attributes {one} and {other}", reason="share a value; a restored state keeps them apart")
        for one, other in _shared(state)
    ]
    program = replace(program, tools={k: v for k, v in tools.items() if k not in lost}, opaque=frozenset(opaque))
    return LoadedImport(program, copy.deepcopy(state), tuple(notes))


def _shared(state: State) -> Iterator[tuple[str, str]]:
    """Pairs of attributes that reach the same list or dictionary."""
    owner: dict[int, str] = {}
    for name, value in state.items():
        others = {owner.setdefault(id(part), name) for part in _containers(value)} - {name}
        yield from ((other, name) for other in sorted(others))


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)


def traces_elsewhere(
    walks: Sequence[tuple[ImportedTask, Sequence[Call]]], seconds: float = 600.0
) -> list[list[str] | str]:
    """What `replay.trace` gives for every walk, computed in one other process with a hash seed of its own.

    Returns:
        Digests by walk, or why there are none.

    Raises:
        InfrastructureError: the other process did not end in time.
    """
    lines = [json.dumps({"task": t.model_dump(mode="json"), "calls": calls}) for t, calls in walks]
    command = [sys.executable, "-m", "agentomnia.environment.imported"]
    try:
        done = subprocess.run(
            command,
            input="\n".join(lines),
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "4242"},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"the replay did not end in {seconds:.0f} s; import fewer tasks at once") from None
    answers: list[list[str] | str] = [json.loads(line) for line in done.stdout.splitlines()]
    return answers + ["the other process died"] * (len(walks) - len(answers))


def _serve(requests: Iterable[str]) -> Iterator[str]:
    """Answer replay requests, one line each; only ever given tasks that the caller trusts."""
    for line in requests:
        request = json.loads(line)
        try:
            with redirect_stdout(sys.stderr):  # standard output is for answers, whatever the class prints
                loaded = load_imported(ImportedTask.model_validate(request["task"]), trust=True)
                answer: Any = trace(loaded.program, loaded.state, [(n, a) for n, a in request["calls"]])
        except (OmniaError, TypeError, ValueError) as error:
            answer = str(error)
        yield json.dumps(answer)


if __name__ == "__main__":
    for mark in _serve(sys.stdin):
        print(mark, flush=True)

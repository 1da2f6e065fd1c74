"""One task in full: the request, its labels with their evidence, what earns the reward, the reference.

Records are named as people name them wherever the initial state is on disk, and an updated field is shown
with the value it had before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State
from agentomnia.errors import InputError
from agentomnia.report.coverage import domain_words
from agentomnia.report.episode import one_line
from agentomnia.report.figures import Dag, Node
from agentomnia.report.layers import Edge, layers
from agentomnia.synthesis.environments.package import read_spec
from agentomnia.task.criterion import AnswerField, Change, Comparison, Criterion, Expected
from agentomnia.task.task import Evidence, PrivateTask, ReferenceCall, Source, Task
from agentomnia.taxonomy.axes import capability, difficulty

_COMPARISONS: dict[Comparison, str] = {
    "exact": "exactly",
    "number": "as a number",
    "text": "but for case and spaces",
    "free": "any text will do",
    "created": "the record created",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of the request; `used` where an argument of the reference comes from it."""

    text: str
    used: bool


@dataclass(frozen=True)
class LabelView:
    """A difficulty label with the measures behind it."""

    name: str
    primary: bool
    threshold: str
    measures: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FieldView:
    """A field that the criterion speaks of."""

    name: str
    before: str | None
    value: str
    label: str
    comparison: str


@dataclass(frozen=True)
class ChangeView:
    """One record that must be created, changed or deleted."""

    kind: str
    container: str
    key: str
    label: str
    fields: tuple[FieldView, ...]


@dataclass(frozen=True)
class AnswerView:
    """A value that the final message must hold."""

    name: str
    description: str
    value: str
    comparison: str


@dataclass(frozen=True)
class ArgumentView:
    """An argument of a reference call with its source."""

    name: str
    value: str
    label: str
    origin: str
    source: str


@dataclass(frozen=True)
class CallView:
    """A reference call."""

    number: int
    tool: str
    arguments: tuple[ArgumentView, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class TaskView:
    """A task, ready to be read."""

    id: str
    anchor: str
    query: str
    pieces: tuple[Piece, ...]
    environment: str
    state: str
    kind: str
    mode: str
    lineage: str
    domain: str
    capabilities: tuple[str, ...]
    labels: tuple[LabelView, ...]
    changes: tuple[ChangeView, ...]
    answers: tuple[AnswerView, ...]
    verifier: bool
    calls: tuple[CallView, ...]
    depth: int
    dag: Dag

    @property
    def short(self) -> str:
        """The request on one line of a list."""
        return one_line(self.query)


class Site:
    """The records around the tasks of one run: specifications and initial states, each read once."""

    def __init__(self, environments: Path) -> None:
        """Look in a run's folder of packages."""
        self._folder = environments
        self._specs: dict[str, EnvironmentSpec] = {}
        self._states: dict[tuple[str, str], State] = {}

    def spec(self, environment: str) -> EnvironmentSpec:
        """The specification of an environment."""
        if environment not in self._specs:
            self._specs[environment] = read_spec(self._folder / environment / "spec.json")
        return self._specs[environment]

    def state(self, environment: str, name: str) -> State:
        """An initial state.

        Raises:
            InputError: the file is missing or is not JSON.
        """
        if (environment, name) not in self._states:
            self._states[(environment, name)] = _read_state(self._folder / environment / "states" / f"{name}.json")
        return self._states[(environment, name)]


def _read_state(path: Path) -> State:
    try:
        state: State = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; make the tasks again") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); the file may be half-written, make it again") from None
    return state


def task_view(task: Task, private: PrivateTask, site: Site, anchor: str) -> TaskView:
    """Arrange a task for reading.

    Args:
        task: the public part.
        private: the privileged part.
        site: where its records are.
        anchor: its anchor in the page.

    Raises:
        InputError: the environment or the initial state of the task cannot be read.
    """
    records = _Records(site.spec(task.environment), site.state(task.environment, task.state))
    z = task.coordinate
    return TaskView(
        id=task.id,
        anchor=anchor,
        query=task.query,
        pieces=query_pieces(task.query, _words_used(private.calls)),
        environment=task.environment,
        state=task.state,
        kind=task.kind,
        mode=task.mode,
        lineage=task.lineage,
        domain=domain_words(z.domain),
        capabilities=tuple(capability(c).name for c in z.capabilities),
        labels=tuple(_label(atom, z.primary, private.evidence) for atom in z.difficulty),
        changes=tuple(_change(c, records) for c in private.criterion.changes),
        answers=tuple(_answers(task.answer, private.criterion)),
        verifier=private.criterion.verifier is not None,
        calls=tuple(_call(i, c, records) for i, c in enumerate(private.calls)),
        depth=call_depth(private),
        dag=_dag(private),
    )


@dataclass(frozen=True)
class _Records:
    """The records of one initial state by key."""

    spec: EnvironmentSpec
    state: State

    def label(self, container: str, key: str) -> str:
        """The name that people give a record, or "" where it has none."""
        entity = next((e for e in self.spec.entities if e.plural == container), None)
        if entity is None or entity.label is None:
            return ""
        return str(self.state.get(container, {}).get(key, {}).get(entity.label, ""))

    def label_of_key(self, value: object) -> str:
        """The name of the record whose key a value is, whatever its container."""
        if not isinstance(value, str):
            return ""
        home = next((e.plural for e in self.spec.entities if value in self.state.get(e.plural, {})), "")
        return self.label(home, value)

    def before(self, change: Change, field: str) -> str | None:
        """The value of a field in the initial state, as JSON; `None` for records that are not there."""
        record = self.state.get(change.container, {}).get(change.key)
        return None if record is None or field not in record else _json(record[field])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _words_used(calls: Sequence[ReferenceCall]) -> list[str]:
    return [s.text for c in calls for s in c.sources.values() if s.origin == "query" and s.text]


def query_pieces(query: str, used: Iterable[str]) -> tuple[Piece, ...]:
    """The request cut where the words that arguments come from begin and end."""
    marked = [False] * len(query)
    for words in used:
        start = query.find(words)
        while start >= 0:
            marked[start : start + len(words)] = [True] * len(words)
            start = query.find(words, start + len(words))
    pieces: list[Piece] = []
    begin = 0
    for at in range(1, len(query) + 1):
        if at == len(query) or marked[at] != marked[begin]:
            pieces.append(Piece(query[begin:at], marked[begin]))
            begin = at
    return tuple(pieces) if query else ()


def _label(atom: str, primary: str | None, evidence: Iterable[Evidence]) -> LabelView:
    found = next((e for e in evidence if e.label == atom), None)
    return LabelView(
        name=difficulty(atom).name,
        primary=atom == primary,
        threshold=found.threshold if found is not None else "",
        measures=tuple(found.measures.items()) if found is not None else (),
    )


def _change(change: Change, records: _Records) -> ChangeView:
    label = "" if change.kind == "created" else records.label(change.container, change.key)
    fields = tuple(
        FieldView(
            name=name,
            before=records.before(change, name) if change.kind == "updated" else None,
            value=_wanted(expected),
            label=records.label_of_key(expected.value),
            comparison=_COMPARISONS[expected.comparison],
        )
        for name, expected in change.values.items()
    )
    return ChangeView(change.kind, change.container, change.key, label, fields)


def _wanted(expected: Expected) -> str:
    return str(expected.value) if expected.comparison == "created" else _json(expected.value)


def _answers(fields: Iterable[AnswerField], criterion: Criterion) -> Iterable[AnswerView]:
    told = {f.name: f.description for f in fields}
    for name, expected in criterion.answers.items():
        yield AnswerView(name, told.get(name, ""), _wanted(expected), _COMPARISONS[expected.comparison])


def _call(index: int, call: ReferenceCall, records: _Records) -> CallView:
    arguments = tuple(
        ArgumentView(
            name=name,
            value=_json(value),
            label=records.label_of_key(value),
            origin=call.sources[name].origin if name in call.sources else "",
            source=_source(call.sources.get(name)),
        )
        for name, value in call.arguments.items()
    )
    return CallView(index + 1, call.tool, arguments, tuple(i + 1 for i in call.after))


def _source(source: Source | None) -> str:
    """Where an argument comes from, in words."""
    if source is None:
        return "no source is recorded"
    match source.origin:
        case "query":
            return f"the request says “{source.text}”"
        case "observation":
            shown = (source.call or 0) + 1
            return f"call {shown} shows it at {_way(source.path)}" if source.path else f"call {shown} shows it"
        case "clock":
            return "the clock"
        case _:
            return f"computed: {source.text}" if source.text else "computed"


def _way(path: Sequence[str | int]) -> str:
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return words.removeprefix(".")


def call_depth(private: PrivateTask) -> int:
    """Calls on the longest chain of calls of which each needs the one before."""
    calls = {f"call:{i}" for i in range(len(private.calls))}
    edges = [*private.dag.edges, *_order_edges(private)]
    nodes = [*sorted(calls), *(v.id for v in private.dag.virtual)]
    layer = layers(nodes, edges)
    longest: dict[str, int] = {}
    before = _before(edges)
    for node in sorted(nodes, key=lambda n: layer[n]):
        longest[node] = (node in calls) + max((longest[b] for b in before.get(node, ())), default=0)
    return max(longest.values(), default=0)


def _before(edges: Iterable[Edge]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for first, then in edges:
        found.setdefault(then, []).append(first)
    return found


def _order_edges(private: PrivateTask) -> list[Edge]:
    return [(f"call:{e}", f"call:{i}") for i, c in enumerate(private.calls) for e in c.after]


def _dag(private: PrivateTask) -> Dag:
    """The DAG to draw; an order that other edges imply is not drawn."""
    calls = [Node(f"call:{i}", "call", c.tool) for i, c in enumerate(private.calls)]
    thoughts = [Node(v.id, "virtual", v.type, v.note) for v in private.dag.virtual]
    flow = tuple(private.dag.edges)
    edges = (*flow, *_order_edges(private))
    follows = _reachable(edges)
    implied = {(a, last) for a, b in edges for last in follows.get(b, ())}
    order = tuple(e for e in _order_edges(private) if e not in implied and e not in flow)
    return Dag(tuple(calls + thoughts), flow, order)


def _reachable(edges: Sequence[Edge]) -> Mapping[str, frozenset[str]]:
    """For each node everything that follows it."""
    after: dict[str, set[str]] = {}
    for first, then in edges:
        after.setdefault(first, set()).add(then)
    found: dict[str, frozenset[str]] = {}
    for start in after:
        seen: set[str] = set()
        left = [start]
        while left:
            fresh = after.get(left.pop(), set()) - seen
            seen |= fresh
            left += sorted(fresh)
        found[start] = frozenset(seen)
    return found

"""Initial states: believable records that keep every rule (paper, section 4.4.1 "Initial-state construction").

Records are made entity by entity, referenced entities first. What a derived field says, and which optional
fields are present, is computed from the records; a record that breaks a rule is made again, and one that
cannot be made is left out. The result is checked whole before anyone sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import networkx as nx

from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec
from agentomnia.environment.state import State, state_problems
from agentomnia.errors import SpecError
from agentomnia.synthesis.environments.expression import Kind, Scope, translate
from agentomnia.synthesis.environments.makers import make_value

_ROUNDS = 40
_ATTEMPTS = 8


def empty_state(spec: EnvironmentSpec) -> State:
    """The state with no records."""
    state: State = {"clock": {"now": spec.clock}, "counters": {e.plural: 0 for e in spec.entities}}
    return state | {e.plural: {} for e in spec.entities}


def add_record(state: State, entity: Entity, values: dict[str, Any]) -> str:
    """Put a record into a state under the next key.

    Returns:
        The key.
    """
    state["counters"][entity.plural] += 1
    key = f"{entity.prefix}-{state['counters'][entity.plural]:04d}"
    state[entity.plural][key] = {entity.key: key, **{a.name: values[a.name] for a in entity.attributes}}
    return key


class StateMaker:
    """Makes valid initial states of one specification."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Prepare the expressions of rules, derived fields and presence.

        Raises:
            ExpressionError: one of them is outside the language.
        """
        self.spec = spec
        self.order = creation_order(spec)
        present = [_expression(spec, e, a.name, a.present_if) for e, a in _fields(spec) if a.present_if is not None]
        derived = [_expression(spec, e, a.name, a.derive) for e, a in _fields(spec) if a.derive is not None]
        self._present = frozenset((e.plural, e.name) for e in present)
        self._presence = frozenset(present)
        doubled = self._present & {(e.plural, e.name) for e in derived}
        self._entangled = any(e.reads(*place) for place in doubled for e in (*present, *derived))
        # what a derived field says stands, whether it is present or not
        alone = present if self._entangled else [e for e in present if (e.plural, e.name) not in doubled]
        self._computed = (*alone, *derived)
        self._rules = tuple(_expression(spec, spec.entity(r.entity), r.name, r.predicate) for r in spec.rules)

    def make(self, seed: str, scale: float = 1.0) -> State:
        """Make one state.

        Args:
            seed: names the state; equal seeds give equal states.
            scale: multiplies each entity's ordinary number of records.

        Raises:
            SpecError: no valid state was found; says which check fails.
        """
        problem: str | None = None
        for attempt in range(_ATTEMPTS):
            state = self._attempt(Random(f"{seed}/{attempt}"), scale)
            problem = next(state_problems(self.spec, state), None) or next(iter(self.broken(state)), None)
            if problem is None:
                return state
        raise SpecError(f"no valid initial state of {self.spec.name}: {problem}; loosen the card's makers or rules")

    def _attempt(self, rng: Random, scale: float) -> State:
        state = empty_state(self.spec)
        for name in self.order:
            entity = self.spec.entity(name)
            for _ in range(max(2, round(entity.count * scale))):
                values = self.draw(entity, state, rng)
                if values is not None:
                    add_record(state, entity, values)
        self.settle(state, rng)
        return state

    def draw(
        self, entity: Entity, state: State, rng: Random, fixed: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Values for a new record, or `None` where a reference has nothing to point to or a value cannot be unique."""
        values: dict[str, Any] = {}
        for attribute in entity.attributes:
            if fixed is not None and attribute.name in fixed:
                values[attribute.name] = fixed[attribute.name]
                continue
            made = self._draw_value(entity, attribute, state, rng)
            if made is _IMPOSSIBLE:
                return None
            values[attribute.name] = made
        return values

    def _draw_value(self, entity: Entity, attribute: Attribute, state: State, rng: Random) -> Any:
        if attribute.type == "reference":
            keys = list(state[self.spec.entity(attribute.target or "").plural])
            if attribute.unique:
                used = {r[attribute.name] for r in state[entity.plural].values()}
                keys = [k for k in keys if k not in used]
            if not keys:
                return None if attribute.nullable else _IMPOSSIBLE
            return None if self._left_null(entity, attribute, rng) else rng.choice(keys)
        if self._left_null(entity, attribute, rng):
            return None
        if not attribute.unique:
            return make_value(attribute, self.spec.clock, rng)
        used = {r[attribute.name] for r in state[entity.plural].values()}
        for _ in range(_ROUNDS):
            value = make_value(attribute, self.spec.clock, rng)
            if value not in used:
                return value
        return _IMPOSSIBLE

    def _left_null(self, entity: Entity, attribute: Attribute, rng: Random) -> bool:
        return attribute.nullable and (entity.plural, attribute.name) not in self._present and rng.random() < 0.3

    def settle(self, state: State, rng: Random) -> None:
        """Compute presence and derived fields, then remake or leave out records until every rule holds."""
        stale = _Stale((*self._computed, *self._rules), always=self._entangled)
        known: dict[_Expression, list[str]] = {}
        self._derive(state, stale)
        for round_number in range(_ROUNDS):
            broken = self._offenders(state, stale, known)
            if not broken:
                return
            for entity_name, key in broken:
                entity = self.spec.entity(entity_name)
                self._remake(state, entity, key, rng, give_up=round_number > _ROUNDS // 2)
                stale.touch(entity.plural)
            self._derive(state, stale)

    def derive(self, state: State) -> None:
        """Set optional fields to null where absent, and derived fields to what their records say."""
        self._derive(state, _Stale(self._computed, always=self._entangled))

    def _derive(self, state: State, stale: _Stale) -> None:
        view = _View(self.spec, state)
        for expression in self._computed:
            if not stale.take(expression):
                continue
            field, changed = expression.name, False
            with _blaming(expression):
                for record in state[expression.plural].values():
                    value = expression.function(view, record)
                    if expression in self._presence:
                        value = record[field] if value else None
                    changed = changed or type(value) is not type(record[field]) or value != record[field]
                    record[field] = value
            if changed:
                stale.touch(expression.plural, field)

    def _offenders(self, state: State, stale: _Stale, known: dict[_Expression, list[str]]) -> list[tuple[str, str]]:
        """Records that break a rule; `known` holds what was found before, by rule."""
        view = _View(self.spec, state)
        for rule in self._rules:
            if stale.take(rule):
                records = state[rule.plural].items()
                with _blaming(rule):
                    known[rule] = [key for key, record in records if not rule.function(view, record)]
        return list(dict.fromkeys((rule.entity, key) for rule in self._rules for key in known[rule]))

    def broken(self, state: State) -> Iterable[str]:
        """Names of broken rules with the record that breaks them."""
        view = _View(self.spec, state)
        for rule in self._rules:
            with _blaming(rule):
                for key, record in state[rule.plural].items():
                    if not rule.function(view, record):
                        yield f"{key} breaks {rule.name}"

    def broken_by(self, state: State, entity: Entity, record: dict[str, Any], field: str) -> bool:
        """Whether a rule is broken after one field of one record changed, in a state that kept every rule before."""
        view = _View(self.spec, state)
        for rule in self._rules:
            if rule.reads(entity.plural, field):
                records = (record,) if rule.local else state[rule.plural].values()
                with _blaming(rule):
                    if not all(rule.function(view, r) for r in records):
                        return True
        return False

    def _remake(self, state: State, entity: Entity, key: str, rng: Random, give_up: bool) -> None:
        container = state[entity.plural]
        old = container.pop(key, None)
        if old is None:
            return
        referenced = self._referenced(state, entity, key)
        if give_up and not referenced:
            return
        values = self.draw(entity, state, rng)
        container[key] = {entity.key: key, **values} if values is not None else old
        state[entity.plural] = dict(sorted(container.items()))

    def _referenced(self, state: State, entity: Entity, key: str) -> bool:
        return any(
            record[attribute.name] == key
            for other in self.spec.entities
            for attribute in other.attributes
            if attribute.target == entity.name
            for record in state[other.plural].values()
        )


_IMPOSSIBLE = object()


class _View:
    """The containers of a state under the names that translated expressions use."""

    def __init__(self, spec: EnvironmentSpec, state: State) -> None:
        self.clock = state["clock"]
        for entity in spec.entities:
            self.__dict__[entity.plural] = state[entity.plural]


@dataclass(frozen=True, eq=False)
class _Expression:
    """A compiled expression over the records of one entity: a rule, a derived field, or whether a field is present."""

    entity: str
    plural: str
    name: str
    """The rule's, or the field's."""
    function: Callable[[Any, dict[str, Any]], Any]
    tables: frozenset[str]
    """Containers that it looks into."""
    words: frozenset[str]
    """Every word of its source: a field that is not among them has no influence on it."""

    @property
    def local(self) -> bool:
        """Whether its value for a record follows from that record alone."""
        return len(self.tables) == 1 and "self" not in self.words

    def reads(self, plural: str, field: str) -> bool:
        """Whether a change of that field of a record of that container may change its value."""
        return plural in self.tables and field in self.words


class _Stale:
    """Which expressions may have another value than when they were last evaluated.

    Expressions are pure, so evaluating another one again would give what it gave before.
    """

    def __init__(self, expressions: Iterable[_Expression], *, always: bool) -> None:
        self._all = tuple(expressions)
        self._stale = set(self._all)
        self._always = always

    def take(self, expression: _Expression) -> bool:
        """Whether it must be evaluated; it counts as evaluated from here on."""
        if self._always:
            return True
        found = expression in self._stale
        self._stale.discard(expression)
        return found

    def touch(self, plural: str, field: str | None = None) -> None:
        """A field of some records of a container has changed, or whole records have."""
        for expression in self._all:
            if plural in expression.tables if field is None else expression.reads(plural, field):
                self._stale.add(expression)


@contextmanager
def _blaming(expression: _Expression) -> Iterator[None]:
    """Name the expression that fails: it is the author's mistake, and no fault of this program."""
    try:
        yield
    except Exception as error:
        raise SpecError(
            f"no initial state: {expression.entity}, {expression.name} fails ({type(error).__name__}: {error}); "
            "guard the expression against what may be absent"
        ) from error


def _fields(spec: EnvironmentSpec) -> Iterator[tuple[Entity, Attribute]]:
    return ((entity, attribute) for entity in spec.entities for attribute in entity.attributes)


def _expression(spec: EnvironmentSpec, entity: Entity, name: str, text: str) -> _Expression:
    """Compile an expression over `it` to a function of a view and a record."""
    from agentomnia.synthesis.environments import compiler

    source = translate(text, Scope(spec, {"it": Kind(entity.name)}, f"{spec.name}, {entity.name}"), None).source
    function = compiler.evaluate_with_helpers(f"lambda self, it: {source}")
    tables = frozenset((entity.plural, *re.findall(r"\bself\.(\w+)", source)))
    return _Expression(entity.name, entity.plural, name, function, tables, frozenset(re.findall(r"\w+", source)))


def creation_order(spec: EnvironmentSpec) -> tuple[str, ...]:
    """Entities, referenced ones first; references that close a circle are filled only where nullable."""
    graph = nx.DiGraph()
    graph.add_nodes_from(e.name for e in spec.entities)
    links = [(a, e.name) for e in spec.entities for a in e.attributes if a.target not in (None, e.name)]
    graph.add_edges_from((a.target, name) for a, name in links if not a.nullable)
    if not nx.is_directed_acyclic_graph(graph):
        circle = " → ".join(a for a, _ in nx.find_cycle(graph))
        raise SpecError(f"{spec.name}: entities need each other in a circle ({circle}); make one reference nullable")
    for attribute, name in links:
        if attribute.nullable and not nx.has_path(graph, name, attribute.target):
            graph.add_edge(attribute.target, name)
    names = [e.name for e in spec.entities]
    return tuple(nx.lexicographical_topological_sort(graph, key=names.index))

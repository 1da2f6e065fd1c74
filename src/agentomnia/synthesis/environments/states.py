"""Initial states: believable records that keep every rule (paper, section 4.4.1 "Initial-state construction").

Records are made entity by entity, referenced entities first. What a derived field says, and which optional
fields are present, is computed from the records; a record that breaks a rule is made again, and one that
cannot be made is left out. The result is checked whole before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def add_record(spec: EnvironmentSpec, state: State, entity: Entity, values: dict[str, Any]) -> str:
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
        self._present = self._compiled("present_if")
        self._derived = self._compiled("derive")
        self._rules = [(rule.entity, rule.name, _predicate(spec, rule.entity, rule.predicate)) for rule in spec.rules]

    def _compiled(self, which: str) -> dict[tuple[str, str], Any]:
        found = {}
        for entity in self.spec.entities:
            for attribute in entity.attributes:
                text = attribute.present_if if which == "present_if" else attribute.derive
                if text is not None:
                    found[(entity.name, attribute.name)] = _predicate(self.spec, entity.name, text)
        return found

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
                    add_record(self.spec, state, entity, values)
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
        return attribute.nullable and (entity.name, attribute.name) not in self._present and rng.random() < 0.3

    def settle(self, state: State, rng: Random) -> None:
        """Compute presence and derived fields, then remake or leave out records until every rule holds."""
        self.derive(state)
        for round_number in range(_ROUNDS):
            broken = self._offenders(state)
            if not broken:
                return
            for entity_name, key in broken:
                self._remake(state, self.spec.entity(entity_name), key, rng, give_up=round_number > _ROUNDS // 2)
            self.derive(state)

    def derive(self, state: State) -> None:
        """Set optional fields to null where absent, and derived fields to what their records say."""
        view = _View(self.spec, state)
        for (entity_name, field), function in (*self._present.items(), *self._derived.items()):
            present = (entity_name, field) in self._present and function is self._present[(entity_name, field)]
            for record in state[self.spec.entity(entity_name).plural].values():
                if not present:
                    record[field] = function(view, record)
                elif not function(view, record):
                    record[field] = None

    def _offenders(self, state: State) -> list[tuple[str, str]]:
        view = _View(self.spec, state)
        found: dict[tuple[str, str], None] = {}
        for entity_name, _, predicate in self._rules:
            for key, record in state[self.spec.entity(entity_name).plural].items():
                if not predicate(view, record):
                    found[(entity_name, key)] = None
        return list(found)

    def broken(self, state: State) -> Iterable[str]:
        """Names of broken rules with the record that breaks them."""
        view = _View(self.spec, state)
        for entity_name, name, predicate in self._rules:
            for key, record in state[self.spec.entity(entity_name).plural].items():
                if not predicate(view, record):
                    yield f"{key} breaks {name}"

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


def _predicate(spec: EnvironmentSpec, entity: str, text: str) -> Any:
    """Compile an expression over `it` to a function of a view and a record."""
    from agentomnia.synthesis.environments import compiler

    source = translate(text, Scope(spec, {"it": Kind(entity)}, f"{spec.name}, {entity}"), None).source
    return compiler.evaluate_with_helpers(f"lambda self, it: {source}")


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

"""Hard initial states (paper, section 11.1): seven operators that add records to a valid state.

    multi_candidate   a twin of a record that differs in one field people would tell it by
    distractor        a twin that its status, kind or flag excludes
    boundary_tie      twins on, just below and just above a threshold that a rule or guard names; or a tie on a number
    cross_entity      two twins, each sharing one of two references: only both together identify the record
    history           several records that belong to one other record, with amounts and dates to count and add up
    mutable_object    a twin in the first state of its lifecycle: something that is still to be dealt with
    closed_loop       a record still to be dealt with, and the history that its decision would be based on

Every operator keeps the state valid: an addition that breaks a type, a reference or a rule is taken back whole.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec, Guard, Procedure
from agentomnia.environment.state import State, pack, state_problems, unpack
from agentomnia.row import Row
from agentomnia.synthesis.environments.states import StateMaker, add_record

Operator = Literal[
    "multi_candidate", "distractor", "boundary_tie", "cross_entity", "history", "mutable_object", "closed_loop"
]

_HISTORY = (3, 5)
"""How many records a history adds."""

Values = dict[str, Any]


class Enrichment(Row):
    """One addition: which operator, around which record, what was added."""

    operator: Operator
    entity: str
    around: str
    added: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """Where an operator works: around one record of a state."""

    spec: EnvironmentSpec
    maker: StateMaker
    state: State
    entity: Entity
    key: str
    rng: Random

    @property
    def record(self) -> Values:
        """The record itself."""
        found: Values = self.state[self.entity.plural][self.key]
        return found


def enrich(
    spec: EnvironmentSpec,
    maker: StateMaker,
    state: State,
    rng: Random,
    rounds: int = 14,
    only: Sequence[Operator] = (),
) -> list[Enrichment]:
    """Apply random operators to random records of a state, in place.

    Args:
        spec: the environment.
        maker: its state maker, for the rules and new values.
        state: a valid state; it stays valid.
        rng: draws operators and records.
        rounds: how many additions to try.
        only: the operators to draw from; all of them when empty.

    Returns:
        What was added.
    """
    log = []
    eligible = [e for e in spec.entities if sum(1 for a in e.attributes if not a.unique) >= 2]
    for _ in range(rounds if eligible else 0):
        entity = rng.choice(eligible)
        keys = list(state[entity.plural])
        if keys:
            done = apply_operator(
                rng.choice(only or OPERATORS), Site(spec, maker, state, entity, rng.choice(keys), rng)
            )
            log += [done] if done is not None else []
    return log


def apply_operator(operator: Operator, site: Site) -> Enrichment | None:
    """Apply one operator around one record; `None` where it does not fit or would break the state."""
    before = pack(site.state)
    added = [
        add_record(site.state, entity, values) for entity, values in _ADDITIONS[operator](site)
    ]  # each addition sees the ones before it
    if added:
        site.maker.derive(site.state)
        if not any(state_problems(site.spec, site.state)) and not any(site.maker.broken(site.state)):
            return Enrichment(operator=operator, entity=site.entity.name, around=site.key, added=tuple(added))
    site.state.clear()
    site.state.update(unpack(before))
    return None


Additions = Iterator[tuple[Entity, Values]]


def _multi_candidate(site: Site) -> Additions:
    kinds = ("date", "datetime", "number", "integer", "string", "reference")
    yield from _changed_twin(site, [a for a in site.entity.attributes if a.type in kinds and _free(a)])


def _distractor(site: Site) -> Additions:
    yield from _changed_twin(site, [a for a in site.entity.attributes if a.type in ("enum", "boolean")])


def _cross_entity(site: Site) -> Additions:
    references = [a for a in site.entity.attributes if a.type == "reference" and _free(a)]
    if len(references) >= 2:
        for attribute in site.rng.sample(references, 2):
            yield from _changed_twin(site, [attribute])


def _boundary_tie(site: Site) -> Additions:
    limits = [(f, v) for e, f, v in thresholds(site.spec) if e == site.entity.name]
    if limits and site.rng.random() < 0.6:
        field, limit = site.rng.choice(limits)
        whole = site.entity.attribute(field).type == "integer"
        for value in (limit - 1, limit, limit + 1):
            yield from _twin(site, {field: int(value) if whole else round(float(value), 2)})
        return
    numbers = [a for a in site.entity.attributes if a.type in ("integer", "number", "date") and _free(a)]
    if numbers:
        tied = site.rng.choice(numbers).name
        values = site.maker.draw(site.entity, site.state, site.rng, fixed={tied: site.record[tied]})
        yield from [(site.entity, values)] if values is not None else []


def _history(site: Site) -> Additions:
    children = [
        (e, a) for e in site.spec.entities for a in e.attributes if a.target == site.entity.name and not a.unique
    ]
    if children:
        child, reference = site.rng.choice(children)
        for _ in range(site.rng.randint(*_HISTORY)):
            values = site.maker.draw(child, site.state, site.rng, fixed={reference.name: site.key})
            yield from [(child, values)] if values is not None else []


def _mutable_object(site: Site) -> Additions:
    lifecycle = site.entity.lifecycle
    if lifecycle is not None:
        yield from _twin(site, {lifecycle.field: lifecycle.initial})


def _closed_loop(site: Site) -> Additions:
    """A record to deal with, and a history at one of the records it points to."""
    if site.entity.lifecycle is None:
        return
    yield from _mutable_object(site)
    owners = [a for a in site.entity.attributes if a.target is not None and site.record[a.name] is not None]
    if owners:
        owner = site.rng.choice(owners)
        entity = site.spec.entity(owner.target or "")
        yield from _history(Site(site.spec, site.maker, site.state, entity, site.record[owner.name], site.rng))


_ADDITIONS: dict[Operator, Callable[[Site], Additions]] = {
    "multi_candidate": _multi_candidate,
    "distractor": _distractor,
    "boundary_tie": _boundary_tie,
    "cross_entity": _cross_entity,
    "history": _history,
    "mutable_object": _mutable_object,
    "closed_loop": _closed_loop,
}

OPERATORS: tuple[Operator, ...] = tuple(_ADDITIONS)


def _free(attribute: Attribute) -> bool:
    return not attribute.unique and attribute.derive is None


def _changed_twin(site: Site, attributes: list[Attribute]) -> Additions:
    """A twin with one of the fields drawn anew until it differs."""
    if not attributes:
        return
    changed = site.rng.choice(attributes).name
    kept = {f: copy.deepcopy(v) for f, v in _copied(site).items() if f != changed}
    for _ in range(8):
        values = site.maker.draw(site.entity, site.state, site.rng, fixed=kept)
        if values is not None and values[changed] != site.record[changed]:
            yield site.entity, values
            return


def _twin(site: Site, changes: Values) -> Additions:
    values = site.maker.draw(site.entity, site.state, site.rng, fixed={**_copied(site), **changes})
    if values is not None:
        yield site.entity, values


def _copied(site: Site) -> Values:
    """The fields a twin shares: all but the key and those that must be unique."""
    shared = {a.name for a in site.entity.attributes if not a.unique}
    return {f: copy.deepcopy(v) for f, v in site.record.items() if f in shared}


def thresholds(spec: EnvironmentSpec) -> list[tuple[str, str, float]]:
    """Numbers that a rule or guard compares a field with: `(entity, field, number)`.

    A heuristic over the syntax tree: `record.field >= 3` with `record` a bound record, or `it` in a rule.
    """
    found: list[tuple[str, str, float]] = []
    for rule in spec.rules:
        found += _compared(rule.predicate, {"it": rule.entity}, spec)
    for tool in spec.tools:
        if isinstance(tool.action, Procedure):
            bound = {p.binds: spec.target(p.carries) or "" for p in tool.parameters if p.binds}
            for step in tool.action.steps:
                if isinstance(step, Guard):
                    found += _compared(step.that, bound, spec)
    return list(dict.fromkeys(found))


def _compared(text: str, names: dict[str, str], spec: EnvironmentSpec) -> Iterator[tuple[str, str, float]]:
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        match node:
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id=name), attr=field),
                comparators=[ast.Constant(value=int() | float() as number)],
            ) if name in names and not isinstance(number, bool):
                entity = spec.entity(names[name])
                if field in entity.fields and entity.attribute(field).type in ("integer", "number"):
                    yield entity.name, field, float(number)

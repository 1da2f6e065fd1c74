"""Hard initial states (paper, section 11.1): operators that add records to a valid state.

Three of the seven operators are here:

    multi_candidate   a twin of a record that differs in one field people would tell it by
    distractor        a twin that its status, kind or flag excludes
    cross_entity      two twins, each sharing one of two references: only both together identify the record

Every operator keeps the state valid: an addition that breaks a type, a reference or a rule is taken back.
The log says what was added around which record.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any, Literal

from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec
from agentomnia.environment.state import State, state_problems
from agentomnia.row import Row
from agentomnia.synthesis.environments.states import StateMaker, add_record

Operator = Literal["multi_candidate", "distractor", "cross_entity"]

OPERATORS: tuple[Operator, ...] = ("multi_candidate", "distractor", "cross_entity")


class Enrichment(Row):
    """One addition: which operator, around which record, what was added."""

    operator: Operator
    entity: str
    around: str
    added: tuple[str, ...]


def enrich(spec: EnvironmentSpec, maker: StateMaker, state: State, rng: Random, rounds: int = 12) -> list[Enrichment]:
    """Apply random operators to random records of a state, in place.

    Args:
        spec: the environment.
        maker: its state maker, for the rules and new values.
        state: a valid state; it stays valid.
        rng: draws operators and records.
        rounds: how many additions to try.

    Returns:
        What was added.
    """
    log = []
    eligible = [e for e in spec.entities if _varied(e)]
    for _ in range(rounds if eligible else 0):
        entity = rng.choice(eligible)
        keys = list(state[entity.plural])
        if keys:
            done = apply_operator(spec, maker, state, rng.choice(OPERATORS), entity, rng.choice(keys), rng)
            log += [done] if done is not None else []
    return log


def _varied(entity: Entity) -> bool:
    """Twins make sense where a record has something besides its name to be told by."""
    return sum(1 for a in entity.attributes if not a.unique) >= 2


def apply_operator(
    spec: EnvironmentSpec,
    maker: StateMaker,
    state: State,
    operator: Operator,
    entity: Entity,
    key: str,
    rng: Random,
) -> Enrichment | None:
    """Apply one operator around one record; `None` where it does not fit or would break the state."""
    changes = {
        "multi_candidate": lambda: [_one_of(_telling(entity), rng)],
        "distractor": lambda: [_one_of([a for a in entity.attributes if a.type in ("enum", "boolean")], rng)],
        "cross_entity": lambda: _two_references(entity, rng),
    }[operator]()
    if any(c is None for c in changes) or not changes:
        return None
    before = copy.deepcopy(state)
    added = []
    for attribute in changes:
        assert attribute is not None
        twin = _twin(maker, state, entity, state[entity.plural][key], attribute, rng)
        if twin is None:
            _take_back(state, before)
            return None
        added.append(add_record(spec, state, entity, twin))
    maker.derive(state)
    if any(state_problems(spec, state)) or any(maker.broken(state)):
        _take_back(state, before)
        return None
    return Enrichment(operator=operator, entity=entity.name, around=key, added=tuple(added))


def _take_back(state: State, before: State) -> None:
    state.clear()
    state.update(before)


def _one_of(attributes: list[Attribute], rng: Random) -> Attribute | None:
    return rng.choice(attributes) if attributes else None


def _telling(entity: Entity) -> list[Attribute]:
    kinds = ("date", "datetime", "number", "integer", "string", "reference")
    return [a for a in entity.attributes if a.type in kinds and not a.unique and a.derive is None]


def _two_references(entity: Entity, rng: Random) -> list[Attribute | None]:
    references = [a for a in entity.attributes if a.type == "reference" and not a.unique]
    return list(rng.sample(references, 2)) if len(references) >= 2 else []


def _twin(
    maker: StateMaker, state: State, entity: Entity, record: dict[str, Any], changed: Attribute, rng: Random
) -> dict[str, Any] | None:
    """A copy of a record with one field, and every unique field, drawn anew."""
    kept = {f: copy.deepcopy(v) for f, v in record.items() if f not in (entity.key, changed.name)}
    kept = {f: v for f, v in kept.items() if not entity.attribute(f).unique}
    for _ in range(8):
        twin = maker.draw(entity, state, rng, fixed=kept)
        if twin is not None and twin[changed.name] != record[changed.name]:
            return twin
    return None

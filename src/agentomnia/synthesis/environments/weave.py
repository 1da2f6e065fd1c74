"""Weaving: a domain card and its archetypes become the raw specification of one environment.

Paper, section 4.2.2 "Knowledge-Augmented State Generation": the card and the archetypes are the builtin
author's domain knowledge. What comes out has the operations of the business; the readers, searches and
summaries that agents need are added by `toolset`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from agentomnia.environment.spec import (
    Attribute,
    AttributeType,
    Entity,
    EnvironmentSpec,
    Guard,
    Let,
    Lifecycle,
    Lineage,
    Parameter,
    Procedure,
    Rule,
    Tool,
)
from agentomnia.errors import CardError, SpecError
from agentomnia.synthesis.environments.card import (
    Card,
    EntityCard,
    FieldCard,
    LetCard,
    OperationCard,
    TakenCard,
    UseCard,
    key_of,
    load_archetype,
    noun_of,
    plural_of,
    words_of,
)
from agentomnia.synthesis.environments.expression import Effects, Kind, Scope, translate, translate_body

_SCHEMA_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string", "minLength": 1, "maxLength": 200},
    "text": {"type": "string", "minLength": 1, "maxLength": 2000},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
    "reference": {"type": "string", "minLength": 1, "maxLength": 64},
    "list": {"type": "array"},
    "object": {"type": "object"},
}


def weave(card: Card, lineage: Lineage, rng: Random) -> EnvironmentSpec:
    """Weave a card with its archetypes.

    Args:
        card: the domain card.
        lineage: where it came from; `variant` 0 uses every archetype, others may leave optional ones out.
        rng: draws which optional archetypes a variant keeps.

    Raises:
        CardError: the card and its archetypes do not fit together.
        SpecError: what they say together contradicts itself.
    """
    if card.domain is None:
        raise CardError(f"{lineage.source}: a card needs `domain:`, the id of its level-2 domain")
    uses = [u for u in card.archetypes if not (u.optional and lineage.variant and rng.random() < 0.5)]
    parts = [("card", card, ()), *((u.use, _archetype(u, card), u.drop) for u in uses)]
    entities = _merged_entities([part for _, part, _ in parts])
    specs = tuple(_entity(name, entity, entities) for name, entity in entities.items())
    rules = tuple(
        Rule(name=r.name, sentence=r.says, entity=r.entity, predicate=r.holds) for _, p, _ in parts for r in p.rules
    )
    bare = EnvironmentSpec(
        name=class_name(card.title),
        title=card.title,
        introduction=" ".join(card.introduction.split()),
        policies=tuple(dict.fromkeys((*card.policies, *(r.sentence for r in rules), *_other_policies(parts)))),
        domains=(card.domain,),
        clock=card.clock,
        speaker=card.speaker,
        entities=specs,
        rules=rules,
        tools=(),
        lineage=lineage,
    )
    tools: dict[str, Tool] = {}
    for origin, part, dropped in parts:
        for name, operation in part.operations.items():
            if name in dropped:
                continue
            if name in tools and origin != "card":
                raise CardError(f"{lineage.source}: archetype {origin} and {tools[name].origin} both have {name}")
            tools[name] = operation_tool(bare, name, operation, origin)
    return bare.replace_tools(tuple(tools.values()))


def _archetype(use: UseCard, card: Card) -> Card:
    missing = sorted(set(use.slots.values()) - set(card.entities))
    if missing:
        raise CardError(f"archetype {use.use}: {', '.join(missing)} is no entity of the card; add it")
    return load_archetype(use.use, {slot: card.entities[name] for slot, name in use.slots.items()}, use.slots)


def _other_policies(parts: list[tuple[str, Card, tuple[str, ...]]]) -> list[str]:
    return [policy for origin, part, _ in parts if origin != "card" for policy in part.policies]


def _merged_entities(parts: list[Card]) -> dict[str, EntityCard]:
    merged: dict[str, EntityCard] = {}
    for part in parts:
        for name, entity in part.entities.items():
            if name in merged:
                raise CardError(f"entity {name} comes from two parts; rename one of them")
            merged[name] = entity
    for part in parts:
        for name, fields in part.extend.items():
            entity = merged[name]
            added = {f: c for f, c in fields.items() if f not in entity.fields}
            merged[name] = entity.model_copy(update={"fields": {**entity.fields, **added}})
    return merged


def class_name(title: str) -> str:
    """`Salon appointment desk` as a class name."""
    words = re.findall(r"[A-Za-z0-9]+", title)
    name = "".join(w[0].upper() + w[1:] for w in words) or "Environment"
    return name if name[0].isalpha() else f"Environment{name}"


def _entity(name: str, card: EntityCard, all_entities: Mapping[str, EntityCard]) -> Entity:
    moves = {f: c.moves for f, c in card.fields.items() if c.moves is not None}
    if len(moves) > 1:
        raise CardError(f"entity {name}: only one field can have `moves`")
    lifecycle = None
    for field, graph in moves.items():
        pairs = tuple((state, to) for state, targets in graph.items() for to in targets)
        lifecycle = Lifecycle(field=field, initial=next(iter(graph)), moves=pairs)
    return Entity(
        name=name,
        plural=card.plural or plural_of(words_of(name)).replace(" ", "_"),
        key=key_of(name, card),
        prefix=card.prefix or _prefix(name),
        noun=noun_of(name, card),
        description=card.about,
        attributes=tuple(_attribute(name, field, c, all_entities) for field, c in card.fields.items()),
        label=card.label,
        lifecycle=lifecycle,
        count=card.count,
    )


def _prefix(name: str) -> str:
    capitals = "".join(c for c in name if c.isupper())
    return capitals if len(capitals) > 1 else name[:3].upper()


def _attribute(owner: str, name: str, card: FieldCard, entities: Mapping[str, EntityCard]) -> Attribute:
    if card.ref is not None and card.ref not in entities:
        raise CardError(f"{owner}.{name} refers to {card.ref}, which is no entity; add it or correct the name")
    choices = card.choices
    if card.moves is not None:
        choices = tuple(dict.fromkeys((*card.moves, *(to for targets in card.moves.values() for to in targets))))
    return Attribute(
        name=name,
        type=_attribute_type(card),
        description=card.about,
        nullable=card.null,
        default=card.default,
        choices=choices,
        target=card.ref,
        items=card.items,
        minimum=card.min,
        maximum=card.max,
        step=card.step,
        unit=card.unit,
        unique=card.unique,
        mutable=card.mutable,
        maker=card.make,
        vocabulary=card.words,
        derive=card.derive,
        present_if=card.present_if,
    )


def _attribute_type(card: FieldCard) -> AttributeType:
    if card.ref is not None:
        return "reference"
    if card.choices or card.moves is not None:
        return "enum"
    return card.type or "string"


def operation_tool(spec: EnvironmentSpec, name: str, card: OperationCard, origin: str) -> Tool:
    """An operation of a card as a tool.

    Raises:
        CardError: an argument fits no field.
        ExpressionError: a guard or effect is outside the language.
    """
    parameters = tuple(_parameter(spec, name, argument, taken) for argument, taken in card.takes.items())
    steps = tuple(
        Let(name=s.let, value=s.be)
        if isinstance(s, LetCard)
        else Guard(that=s.that, code=s.code, message=s.says, hint=s.hint)
        for s in card.require
    )
    action = Procedure(steps=steps, body=card.do.strip(), returns=tuple(card.returns.items()), undo=card.undo)
    return Tool(
        name=name,
        kind="modify" if _writes(spec, name, parameters, action) else "query",
        description=" ".join(card.about.split()),
        parameters=parameters,
        action=action,
        ask=card.ask,
        staff=card.staff,
        origin=origin,
    )


def _writes(spec: EnvironmentSpec, name: str, parameters: tuple[Parameter, ...], action: Procedure) -> bool:
    names: dict[str, Kind] = {p.name: Kind() for p in parameters}
    names |= {p.binds: Kind(spec.target(p.carries)) for p in parameters if p.binds}
    names |= {s.name: Kind() for s in action.steps if isinstance(s, Let)}
    where = f"operation {name}"
    for step in action.steps:
        if isinstance(step, Let):
            names[step.name] = translate(step.value, Scope(spec, names, where)).kind
    effects = Effects()
    translate_body(action.body, Scope(spec, names, where), effects)
    return bool(effects.writes)


def _parameter(spec: EnvironmentSpec, operation: str, name: str, card: TakenCard) -> Parameter:
    where = f"operation {operation}, argument {name}"
    if card.field is not None and "." not in card.field:
        return _key_parameter(spec, name, card, where)
    attribute = _carried(spec, card.field, where)
    schema = dict(attribute_schema(attribute)) if attribute else dict(_SCHEMA_TYPES[card.type or "string"])
    if card.choices:
        schema = {"type": "string", "enum": list(card.choices)}
    if card.min is not None:
        schema["minimum"] = _whole(card.min)
    if card.max is not None:
        schema["maximum"] = _whole(card.max)
    return Parameter(
        name=name,
        json_schema=schema,
        description=card.about or (attribute.description if attribute else "") or _sentence(name),
        required=card.required,
        default=card.default,
        carries=card.field,
        maker=card.make,
        vocabulary=card.words,
        phrase=card.phrase,
    )


def _key_parameter(spec: EnvironmentSpec, name: str, card: TakenCard, where: str) -> Parameter:
    """`{appointment: Appointment}` is the argument `appointment_id`, bound to the record `appointment`."""
    try:
        entity = spec.entity(card.field or "")
    except SpecError as error:
        raise CardError(f"{where}: {error}") from None
    return Parameter(
        name=entity.key if name == entity.variable else f"{name}_id",
        json_schema=_SCHEMA_TYPES["reference"],
        description=card.about or f"Identifier of the {entity.noun}.",
        required=card.required,
        carries=f"{entity.name}.{entity.key}",
        binds=name,
        phrase=card.phrase,
    )


def _carried(spec: EnvironmentSpec, path: str | None, where: str) -> Attribute | None:
    if path is None:
        return None
    try:
        return spec.field(path)
    except SpecError as error:
        raise CardError(f"{where}: {error}") from None


def attribute_schema(attribute: Attribute) -> dict[str, Any]:
    """JSON Schema of the values an attribute takes as an argument."""
    if attribute.type == "enum":
        return {"type": "string", "enum": list(attribute.choices)}
    schema = dict(_SCHEMA_TYPES[attribute.type])
    if attribute.minimum is not None and attribute.type in ("integer", "number"):
        schema["minimum"] = _whole(attribute.minimum)
    if attribute.maximum is not None and attribute.type in ("integer", "number"):
        schema["maximum"] = _whole(attribute.maximum)
    if attribute.type == "list":
        schema["items"] = dict(_SCHEMA_TYPES[attribute.items])
    return schema


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number


def _sentence(name: str) -> str:
    text = name.replace("_", " ")
    return text[0].upper() + text[1:] + "."

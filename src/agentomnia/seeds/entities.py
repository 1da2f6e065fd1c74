"""Entities from resources: which fields are kept, what refers to what, and how a new record begins.

A field is never null where every operation that creates the record demands it; where creation leaves it open,
a default that the file tells (or a moment that the server would set) stands in, else the field may be null.
References that would close a circle are made optional, the least needed first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx

from agentomnia.environment.spec import Attribute, Entity
from agentomnia.seeds.believable import attribute_of, choices_of, label_of, stored_as
from agentomnia.seeds.naming import class_case, free_name, plural, sentence, singular, snake, usable, words
from agentomnia.seeds.plan import (
    Given,
    Plan,
    Planned,
    Resource,
    flattened,
    is_list,
    looks_like_id,
    record_in,
    spoken_noun,
    target_of,
)
from agentomnia.seeds.seed import Report
from agentomnia.seeds.shape import Shape, both

MAX_FIELDS = 18
_CREATED = frozenset(
    ("created_at", "created", "created_on", "date_created", "creation_date", "created_date", "create_time",
     "creation_time", "inserted_at", "date_added", "added_at", "opened_at")
)  # fmt: skip
_UPDATED = frozenset(
    ("updated_at", "updated", "modified", "modified_at", "last_modified", "updated_on", "date_modified",
     "date_updated", "update_time", "last_updated", "last_modified_at", "changed_at", "modified_on")
)  # fmt: skip
_STATUS = frozenset(("status", "state", "lifecycle_state", "provisioning_state"))
_ORDERING = re.compile(r"(\A|_)(sort|order|direction|format|fields|view|mode|detail|output|expand|include)(_|\Z)")


@dataclass
class Model:
    """Entities with what the tools need to know of them."""

    entities: dict[str, Entity] = field(default_factory=dict)
    """By the resource's variable."""
    shapes: dict[str, dict[str, Given]] = field(default_factory=dict)
    """Every kept field as the file tells it."""
    cut: dict[str, set[str]] = field(default_factory=dict)
    """Fields left out to keep a record readable."""


def gather_schemas(plan: Plan) -> None:
    """Note for each resource the names of the schemas of its records, and of the parameters that name one."""
    seen: dict[str, set[str]] = {}
    for resource in plan.resources.values():
        for planned in resource.of("get", "list"):
            name = record_in(planned.call.answer, resource.variable).name
            if name:
                seen.setdefault(name, set()).add(resource.variable)
                resource.schema_names.add(name)
        for planned in resource.of("get", "update", "delete", "move"):
            if planned.key is not None and looks_like_id(planned.key):
                resource.key_names.add(usable(planned.key))
    for resource in plan.resources.values():
        # a schema that several resources share names none of them
        resource.schema_names -= {n for n, owners in seen.items() if len(owners) > 1}
        plan.schemas |= dict.fromkeys(sorted(resource.schema_names), resource.variable)


def gather_fields(plan: Plan) -> None:
    """Fill the fields of every resource from its answers first, then from its bodies."""
    for resource in plan.resources.values():
        fields: dict[str, Given] = {}
        for shape in _sources(resource):
            for name, given in flattened(shape, resource, plan):
                known = fields.get(name)
                fields[name] = given if known is None else _merged(known, given)
            resource.description = resource.description or sentence(shape.description)
        resource.fields = fields
        resource.natural = _natural_key(resource)
        if resource.natural is not None and not resource.of("create"):
            resource.operations = [replace(p, deed="save") if _puts_new(p) else p for p in resource.operations]


def _puts_new(planned: Planned) -> bool:
    """Whether a PUT on a record says that it creates the record where there is none."""
    said = f"{planned.call.summary} {' '.join(words(planned.call.spoken_name))}".lower()
    return (
        planned.deed == "update"
        and planned.call.method == "put"
        and re.search(r"\b(create|add|register|put)", said) is not None
    )


def _sources(resource: Resource) -> Iterator[Shape]:
    """The shapes that show a resource's fields, those of whole records first."""
    shown = False
    for planned in resource.of("get", "list"):
        shape = record_in(planned.call.answer, resource.variable)
        if shape.properties and (planned.deed == "get" or is_list(planned.call.answer, resource.variable) or not shown):
            shown = True
            yield shape
    for planned in resource.of("create", "update", "save"):
        body = planned.body
        if len(planned.call.placed("body")) == 1 and (items := _batch_items(body)) is not None:
            body = items
        if planned.verb == "set" and planned.call.method:
            continue
        if planned.deed == "update" and not planned.call.method and resource.of("create", "save"):
            # how a tool changes a record (a list of edits) is no field of it
            body = replace(body, properties={n: s for n, s in body.properties.items() if s.scalar})
        yield body
    if not shown:
        for planned in resource.of("create", "update"):
            shape = record_in(planned.call.answer, resource.variable)
            if shape.properties and not is_list(planned.call.answer, resource.variable):
                yield shape
        for planned in resource.of("list"):
            yield Shape(kind="object", properties=_shown_by_filters(planned))


def _shown_by_filters(planned: Planned) -> dict[str, Shape]:
    """Fields that a tool's filters show: what can be chosen from a few values is a field of what is listed."""
    if planned.call.method:
        return {}
    return {
        a.name: a.shape for a in planned.call.arguments if choices_of(a.shape) and not _ORDERING.search(snake(a.name))
    }


def _batch_items(body: Shape) -> Shape | None:
    only = next(iter(body.properties.values()), None) if len(body.properties) == 1 else None
    if only is None or only.kind != "array" or only.items is None or not only.items.properties:
        return None
    return only.items


def _merged(known: Given, given: Given) -> Given:
    if known.embedded or given.embedded:
        return known if known.embedded else given
    one, other = known.shape, given.shape
    choices = (
        tuple(dict.fromkeys((*one.choices, *other.choices)))
        if one.choices and other.choices
        else one.choices or other.choices
    )
    looser = replace(
        both(one, other) if one.kind == other.kind else one,
        choices=choices,
        read_only=one.read_only and other.read_only,
        nullable=one.nullable or other.nullable,
        # the record keeps what any of its operations allows
        minimum=_looser(one.minimum, other.minimum, min),
        maximum=_looser(one.maximum, other.maximum, max),
        exclusive_minimum=_looser(one.exclusive_minimum, other.exclusive_minimum, min),
        exclusive_maximum=_looser(one.exclusive_maximum, other.exclusive_maximum, max),
    )
    return replace(known, shape=looser)


def _looser(one: float | None, other: float | None, choose: Any) -> float | None:
    if one is None or other is None:
        return None
    chosen: float = choose(one, other)
    return chosen


def _natural_key(resource: Resource) -> str | None:
    """The field that operations name a record by, where it is no identifier of the server's."""
    keys = [snake(p.key) for p in resource.of("get", "update", "delete", "move", "save") if p.key]
    keys += [named for p in resource.of("delete") if p.key is None for named in _listed_keys(p)]
    for key in dict.fromkeys(keys):
        if looks_like_id(key):
            continue
        last = resource.variable.rpartition("_")[2]
        stem = key.removesuffix("_name")
        candidates = [usable(key)]
        if (stem != key and stem in (resource.variable, last)) or key in (resource.variable, last):
            candidates += ["name"]
        for name in candidates:
            given = resource.fields.get(name)
            if given is None or given.shape.kind != "string" or stored_as(name, given.shape).type != "string":
                continue
            if all(_gives(p, name, resource) for p in resource.of("create")):
                return name
    return None


def _listed_keys(planned: Planned) -> Iterator[str]:
    """`delete_entities(entity_names: [...])` names entities by their name."""
    for argument in planned.call.arguments:
        items = argument.shape.items
        if argument.required and items is not None and items.kind == "string":
            yield singular(snake(argument.name)).rpartition("_")[2]


def _gives(planned: Planned, name: str, resource: Resource) -> bool:
    """Whether a creation is told the natural key, so that the caller knows it."""
    names = {usable(a.name) for a in planned.call.arguments} | {usable(n) for n in planned.body.properties}
    body = planned.body
    items = _batch_items(body)
    return name in names or (items is not None and name in {usable(n) for n in items.properties})


def build_entities(plan: Plan, report: Report) -> Model:
    """The entities of a plan whose fields are gathered."""
    model = Model()
    names: set[str] = set()
    plurals = {"clock", "counters"}
    for resource in plan.resources.values():
        name = free_name(class_case(resource.variable), names)
        container = free_name(usable(plural(resource.variable), "records"), plurals)
        names.add(name)
        plurals.add(container)
        model.entities[resource.variable] = _bare_entity(name, container, resource)
    for resource in plan.resources.values():
        kept = _kept_fields(resource, plan, model, report)
        model.shapes[resource.variable] = kept
        changing = _Changing(
            [demanded_fields(p, resource, plan) for p in resource.of("create", "save")],
            {n for p in resource.of("update") for n in taken_fields(p, resource, plan)},
        )
        attributes = tuple(_attribute(n, g, resource, plan, model, changing) for n, g in kept.items())
        entity = model.entities[resource.variable]
        model.entities[resource.variable] = entity.model_copy(
            update={"attributes": attributes, "label": label_of(attributes)}
        )
    _open_circles(plan, model)
    _count_records(plan, model)
    return model


def _bare_entity(name: str, container: str, resource: Resource) -> Entity:
    letters = "".join(c for c in name if c.isupper())
    prefix = letters if 1 < len(letters) < 5 else name[:3].upper()
    return Entity(
        name=name,
        plural=container,
        key=usable(f"{resource.variable}_id"),
        prefix=prefix,
        noun=spoken_noun(resource.variable),
        description=resource.description,
        attributes=(),
    )


def _kept_fields(resource: Resource, plan: Plan, model: Model, report: Report) -> dict[str, Given]:
    """At most `MAX_FIELDS` fields: keys of other records first, what operations demand, then in the file's order."""
    entity = model.entities[resource.variable]
    fields = {n: g for n, g in resource.fields.items() if n != entity.key and not _says_nothing(n, g)}
    for parent in resource.parents:
        owned = model.entities[parent].key if parent in model.entities else None
        if owned is not None and owned != entity.key and parent != resource.variable:
            fields = {owned: Given(Shape(kind="string"), True), **fields}
    changes = resource.of("create", "update", "save")
    demanded = {n for p in changes for n in demanded_fields(p, resource, plan)}
    taken = {n for p in changes for n in taken_fields(p, resource, plan)}
    need = {n: 8 * (n in demanded) + 3 * (n in taken) + _worth(n, g, resource, plan) for n, g in fields.items()}
    ranked = sorted(fields, key=lambda n: -need[n])
    keep = set(ranked[:MAX_FIELDS])
    model.cut[resource.variable] = set(fields) - keep
    if len(fields) > len(keep):
        report.note(
            f"{spoken_noun(resource.variable)}: {len(fields) - len(keep)} of {len(fields)} fields are left out to "
            f"keep records readable"
        )
    return {n: g for n, g in fields.items() if n in keep}


def _says_nothing(name: str, given: Given) -> bool:
    shape = given.shape
    if given.embedded:
        return False
    if shape.kind == "array" and shape.items is not None and shape.items.kind == "object" and shape.items.name:
        return shape.read_only
    return len(shape.choices) == 1 and (shape.read_only or name in ("type", "kind", "object"))


def _worth(name: str, given: Given, resource: Resource, plan: Plan) -> int:
    refers = name in {f"{p}_id" for p in resource.parents} or target_of(name, given, resource, plan) is not None
    score = 6 * (name == resource.natural) + 4 * refers
    score += 3 * (name in _STATUS) + 3 * (name in ("name", "title", "label")) + 1 * (name in _CREATED)
    return score + (given.shape.kind != "object") + given.required


def taken_fields(planned: Planned, resource: Resource, plan: Plan) -> dict[str, Given]:
    """The fields that an operation is given in its body."""
    body = planned.body
    items = _batch_items(body)
    return {n: g for n, g in flattened(items or body, resource, plan) if not g.shape.read_only}


def demanded_fields(planned: Planned, resource: Resource, plan: Plan) -> set[str]:
    """The fields that an operation must be given, the keys of what the record belongs to among them."""
    demanded = {n for n, g in taken_fields(planned, resource, plan).items() if g.required}
    demanded |= {usable(f"{parent}_id") for _, parent in planned.parents[-1:]}
    natural = {resource.natural} if resource.natural else set()
    return demanded | natural


@dataclass(frozen=True)
class _Changing:
    """What creations of a resource demand, one by one, and what updates of it can set."""

    demanded: list[set[str]]
    settable: set[str]


def _attribute(name: str, given: Given, resource: Resource, plan: Plan, model: Model, changing: _Changing) -> Attribute:
    open_field = bool(changing.demanded) and not all(name in d for d in changing.demanded)
    own = next((p for p in resource.parents if p in model.entities and model.entities[p].key == name), None)
    target = own or target_of(name, given, resource, plan)
    if target is not None and target in model.entities:
        entity = model.entities[target]
        nullable = open_field or given.shape.nullable or target == resource.variable
        return Attribute(
            name=name, type="reference", target=entity.name, nullable=nullable,
            description=sentence(given.shape.description) if not given.embedded else f"The {entity.noun} it refers to.",
        )  # fmt: skip
    default = initial_value(name, given.shape) if open_field else None
    nullable = (open_field and default is None and not _starts_now(name, given.shape)) or given.shape.nullable
    if name == resource.natural:
        nullable = False
    attribute = attribute_of(name, given.shape, owner=resource.variable, nullable=nullable, default=default)
    if name == resource.natural:
        return attribute.model_copy(update={"unique": True, **_many_values(attribute)})
    return attribute.model_copy(update={"mutable": name in changing.settable})


def _many_values(attribute: Attribute) -> dict[str, Any]:
    """Enough different values for a field that tells records apart."""
    few = attribute.maker is not None and attribute.maker.startswith(("pick", "city"))
    if few or (attribute.vocabulary and len(attribute.vocabulary) < 16):
        return {"maker": 'code("@@@-###")', "vocabulary": ()}
    return {}


def initial_value(name: str, shape: Shape) -> Any:
    """What a field begins with where its creation gives nothing; `None` where nothing is told."""
    stored = stored_as(name, shape).type
    if stored == "enum":
        choices = choices_of(shape)
        return shape.default if shape.default in choices else choices[0] if name in _STATUS else None
    if stored == "boolean":
        return shape.default if isinstance(shape.default, bool) else False
    if stored == "integer" and isinstance(shape.default, int) and not isinstance(shape.default, bool):
        return shape.default if _within(shape.default, shape) else None
    if stored == "number" and isinstance(shape.default, int | float) and not isinstance(shape.default, bool):
        return float(shape.default) if _within(shape.default, shape) else None
    if stored == "string" and isinstance(shape.default, str) and shape.default:
        return shape.default
    return [] if stored == "list" else None


def _within(value: float, shape: Shape) -> bool:
    return (shape.minimum is None or value >= shape.minimum) and (shape.maximum is None or value <= shape.maximum)


def _starts_now(name: str, shape: Shape) -> bool:
    return name in _CREATED | _UPDATED and stored_as(name, shape).type in ("date", "datetime")


def starts_now(attribute: Attribute) -> bool:
    """Whether the server sets the field to the moment of creation."""
    return attribute.name in _CREATED | _UPDATED and attribute.type in ("date", "datetime") and not attribute.nullable


def touched(attribute: Attribute) -> bool:
    """Whether the server sets the field to the moment of every change."""
    return attribute.name in _UPDATED and attribute.type in ("date", "datetime")


def _open_circles(plan: Plan, model: Model) -> None:
    """Make references optional until entities can be created one after another."""
    graph = nx.DiGraph()
    variables = {e.name: v for v, e in model.entities.items()}
    edges = [
        (0 if a.name == model.entities.get(next(iter(plan.resources[v].parents), ""), e).key else 1, e.name, a)
        for v, e in model.entities.items()
        for a in e.attributes
        if a.target is not None and not a.nullable
    ]
    for _, owner, attribute in sorted(edges, key=lambda edge: (edge[0], edge[1], edge[2].name)):
        target = attribute.target or ""
        circular = owner == target or (
            graph.has_node(owner) and graph.has_node(target) and nx.has_path(graph, owner, target)
        )
        if circular:
            entity = model.entities[variables[owner]]
            opened = tuple(a.model_copy(update={"nullable": True}) if a is attribute else a for a in entity.attributes)
            model.entities[variables[owner]] = entity.model_copy(update={"attributes": opened})
        else:
            graph.add_edge(target, owner)


def _count_records(plan: Plan, model: Model) -> None:
    """More records where many others refer to one, so that some are free to be deleted."""
    referrers: dict[str, int] = {}
    for entity in model.entities.values():
        for attribute in entity.attributes:
            if attribute.target is not None and attribute.target != entity.name:
                referrers[attribute.target] = referrers.get(attribute.target, 0) + 1
    for variable, entity in model.entities.items():
        deletable = bool(plan.resources[variable].of("delete"))
        count = 12 + (3 * min(referrers.get(entity.name, 0), 5) if deletable else 0)
        unique = [a for a in entity.attributes if a.unique and a.vocabulary]
        model.entities[variable] = entity.model_copy(
            update={"count": min([count, *(len(a.vocabulary) * 2 // 3 for a in unique)])}
        )

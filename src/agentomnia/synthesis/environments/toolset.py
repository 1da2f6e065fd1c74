"""Tool set synthesis: candidate readers, then refinement with a log of every decision.

Paper, section 4.2.3. Generation is wide: for each entity a lookup, a search with many filters, exact
finders, lists by reference, summaries with mode selectors, and an update of its free fields. Refinement
then merges what says the same, splits nothing that a card already keeps apart, removes shortcuts and cuts
to the wanted size; near-duplicates with different meaning stay, since telling them apart is the difficulty
wanted. Each candidate is logged as kept, merged, split, rewritten or removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Literal

from agentomnia.environment.spec import (
    Attribute,
    Entity,
    EnvironmentSpec,
    Filter,
    Guard,
    Lookup,
    Parameter,
    Procedure,
    Search,
    Summary,
    Tool,
)
from agentomnia.errors import SpecError
from agentomnia.row import Row
from agentomnia.synthesis.environments.card import plural_of
from agentomnia.synthesis.environments.compiler import tool_facts
from agentomnia.synthesis.environments.weave import attribute_schema

Decision = Literal["kept", "merged", "split", "rewritten", "removed"]

TOOLS_MEAN, TOOLS_STD = 50.9, 13.4
"""Tools per environment (paper, Table 5)."""

_KEY_SCHEMA: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 64}
_LIMIT = Parameter(
    name="limit",
    json_schema={"type": "integer", "minimum": 1, "maximum": 200},
    description="How many records to return at most.",
    required=False,
    default=50,
)


class ToolDecision(Row):
    """What became of a candidate operation, and why."""

    tool: str
    decision: Decision
    reason: str
    into: str | None = None


def build_toolset(spec: EnvironmentSpec, rng: Random) -> tuple[EnvironmentSpec, list[ToolDecision]]:
    """Add readers to the operations of a specification and refine the whole set.

    Args:
        spec: a specification with the operations of the business only.
        rng: draws the size of the set around Table 5's mean, and which readers a smaller set loses.

    Returns:
        The specification with its tools, and the refinement log.
    """
    log = [ToolDecision(tool=t.name, decision="kept", reason=f"operation of {t.origin}") for t in spec.tools]
    taken = {t.name for t in spec.tools}
    readers: list[Tool] = []
    for entity in spec.entities:
        for tool in _candidates(spec, entity):
            if tool.name in taken:
                log.append(ToolDecision(tool=tool.name, decision="merged", reason="the card has it", into=tool.name))
                continue
            taken.add(tool.name)
            readers.append(tool)
    readers, merged = _merge_equal_readers(readers)
    kept, removed = _cut(spec, readers, rng)
    log += merged
    log += [ToolDecision(tool=t.name, decision="kept", reason="reader") for t in kept]
    log += [ToolDecision(tool=t.name, decision="removed", reason="shortcut past the size wanted") for t in removed]
    return spec.replace_tools((*spec.tools, *kept)), log


def _merge_equal_readers(readers: list[Tool]) -> tuple[list[Tool], list[ToolDecision]]:
    """Readers with equal actions and parameters are one tool."""
    kept: dict[str, Tool] = {}
    log = []
    for tool in readers:
        identity = f"{tool.action!r}{[(p.name, p.required) for p in tool.parameters]!r}"
        if identity in kept:
            log.append(
                ToolDecision(tool=tool.name, decision="merged", reason="same behaviour", into=kept[identity].name)
            )
        else:
            kept[identity] = tool
    return list(kept.values()), log


def _cut(spec: EnvironmentSpec, readers: list[Tool], rng: Random) -> tuple[list[Tool], list[Tool]]:
    """Cut readers to the size drawn for this environment; each entity keeps a lookup and a search."""
    wanted = max(30, min(80, round(rng.gauss(TOOLS_MEAN, TOOLS_STD / 2))))
    spare = [t for t in readers if not t.name.startswith(("get_", "search_"))]
    excess = len(spec.tools) + len(readers) - wanted
    dropped = {t.name for t in rng.sample(spare, min(len(spare), excess))} if excess > 0 else set()
    return [t for t in readers if t.name not in dropped], [t for t in readers if t.name in dropped]


def _candidates(spec: EnvironmentSpec, entity: Entity) -> Iterator[Tool]:
    yield _lookup(spec, entity)
    yield _search(entity)
    if entity.label is not None:
        yield _finder(entity, entity.label)
    for attribute in entity.attributes:
        if attribute.type == "reference":
            yield _list_by_reference(spec, entity, attribute)
    groups = [a.name for a in entity.attributes if a.type in ("enum", "reference", "boolean")]
    if groups:
        yield _summary(entity, groups)
    free = [a for a in entity.attributes if a.mutable and a.type not in ("reference", "list", "object")]
    if free:
        yield _update(entity, free)


def _the(entity: Entity) -> str:
    return f"the {entity.noun}"


def _lookup(spec: EnvironmentSpec, entity: Entity) -> Tool:
    include = tuple(
        a.name for a in entity.attributes if a.type == "reference" and a.target and spec.entity(a.target).label
    )
    joined = [a.removesuffix("_id").replace("_", " ") for a in include]
    names = f" Adds the name of its {' and '.join(joined)}." if joined else ""
    return Tool(
        name=f"get_{entity.variable}",
        kind="query",
        description=f"Read one {entity.noun} in full by its identifier.{names}",
        parameters=(_key(entity, f"{entity.name}.{entity.key}", entity.key),),
        action=Lookup(entity=entity.name, include=include),
        origin="reader",
    )


def _key(entity: Entity, carries: str, name: str, required: bool = True) -> Parameter:
    return Parameter(
        name=name,
        json_schema=_KEY_SCHEMA,
        description=f"Identifier of {_the(entity)}.",
        required=required,
        carries=carries,
    )


def _search(entity: Entity) -> Tool:
    parameters, filters = _filter_parameters(entity)
    sortable = tuple(
        a.name for a in entity.attributes if a.type in ("integer", "number", "date", "datetime") and not a.nullable
    )
    if sortable:
        parameters += [
            Parameter(
                name="sort_by",
                json_schema={"type": "string", "enum": list(sortable)},
                description="Field to order the records by.",
                required=False,
            ),
            Parameter(
                name="descending",
                json_schema={"type": "boolean"},
                description="Largest or latest first; only used together with an order.",
                required=False,
                default=False,
            ),
        ]
    nouns = plural_of(entity.noun)
    return Tool(
        name=f"search_{entity.plural}",
        kind="query",
        description=f"Search {nouns} by any combination of filters. Without a filter it lists all of them. "
        f"`total` counts every match, also those past the limit.",
        parameters=(*parameters, _LIMIT),
        action=Search(entity=entity.name, filters=tuple(filters), sort_fields=sortable),
        origin="reader",
    )


def _filter_parameters(entity: Entity) -> tuple[list[Parameter], list[Filter]]:
    parameters: list[Parameter] = []
    filters: list[Filter] = []
    ranges = 0
    for attribute in entity.attributes:
        carries = f"{entity.name}.{attribute.name}"
        if attribute.name == entity.label and attribute.type == "string":
            name = f"{attribute.name}_contains"
            schema = {"type": "string", "minLength": 1, "maxLength": 200}
            item = Filter(parameter=name, field=attribute.name, op="contains")
            _add(parameters, filters, name, schema, carries, item,
                 f"Part of the {attribute.name.replace('_', ' ')}, upper or lower case.")  # fmt: skip
        elif attribute.type in ("enum", "boolean", "reference"):
            schema = attribute_schema(attribute)
            what = attribute.name.removesuffix("_id").replace("_", " ")
            described = f"Identifier of the {what}." if attribute.type == "reference" else f"Exactly this {what}."
            _add(parameters, filters, attribute.name, schema, carries,
                 Filter(parameter=attribute.name, field=attribute.name, op="equals"), described)  # fmt: skip
        elif attribute.type in ("date", "datetime", "number", "integer") and ranges < 2:
            ranges += 1
            low, high = _range_names(attribute)
            dated = attribute.type in ("date", "datetime")
            schema = {k: v for k, v in attribute_schema(attribute).items() if k in ("type", "format")}
            words = attribute.name.replace("_", " ")
            unit = f" in {attribute.unit}" if attribute.unit else ""
            _add(parameters, filters, low, schema, carries, Filter(parameter=low, field=attribute.name, op="at_least"),
                 f"{'Earliest' if dated else 'Smallest'} {words}{unit}.")  # fmt: skip
            _add(parameters, filters, high, schema, carries, Filter(parameter=high, field=attribute.name, op="at_most"),
                 f"{'Latest' if dated else 'Largest'} {words}{unit}.")  # fmt: skip
    return parameters, filters


def _add(
    parameters: list[Parameter], filters: list[Filter], name: str, schema: dict[str, Any], carries: str,
    item: Filter, description: str,
) -> None:  # fmt: skip
    parameters.append(
        Parameter(name=name, json_schema=schema, description=description, required=False, carries=carries)
    )
    filters.append(item)


def _range_names(attribute: Attribute) -> tuple[str, str]:
    if attribute.type in ("date", "datetime"):
        stem = attribute.name.removesuffix("_at").removesuffix("_date").removesuffix("_on")
        return f"{stem}_from", f"{stem}_until"
    return f"min_{attribute.name}", f"max_{attribute.name}"


def _finder(entity: Entity, label: str) -> Tool:
    attribute = entity.attribute(label) if label != entity.key else None
    schema = attribute_schema(attribute) if attribute else _KEY_SCHEMA
    words = label.replace("_", " ")
    return Tool(
        name=f"find_{entity.variable}_by_{label}",
        kind="query",
        description=f"Find {plural_of(entity.noun)} whose {words} is exactly the given one, letter by letter.",
        parameters=(
            Parameter(
                name=label,
                json_schema=schema,
                description=f"The exact {words}.",
                carries=f"{entity.name}.{label}",
            ),
        ),
        action=Search(entity=entity.name, filters=(Filter(parameter=label, field=label, op="equals"),)),
        origin="reader",
    )


def _list_by_reference(spec: EnvironmentSpec, entity: Entity, attribute: Attribute) -> Tool:
    target = spec.entity(attribute.target or "")
    role = attribute.name.removesuffix("_id")
    parameters = [_key(target, f"{entity.name}.{attribute.name}", attribute.name)]
    filters = [Filter(parameter=attribute.name, field=attribute.name, op="equals")]
    if entity.lifecycle is not None:
        status = entity.attribute(entity.lifecycle.field)
        parameters.append(
            Parameter(
                name=status.name,
                json_schema=attribute_schema(status),
                description=f"Only {plural_of(entity.noun)} in this state.",
                required=False,
                carries=f"{entity.name}.{status.name}",
            )
        )
        filters.append(Filter(parameter=status.name, field=status.name, op="equals"))
    return Tool(
        name=f"list_{entity.plural}_of_{role}",
        kind="query",
        description=f"List every {entity.noun} that belongs to one {role.replace('_', ' ')}.",
        parameters=tuple(parameters),
        action=Search(entity=entity.name, filters=tuple(filters)),
        origin="reader",
    )


def _summary(entity: Entity, groups: list[str]) -> Tool:
    metrics = [a.name for a in entity.attributes if a.type in ("integer", "number")]
    parameters = [
        Parameter(
            name="group_by",
            json_schema={"type": "string", "enum": groups},
            description="Field that makes the groups.",
        )
    ]
    if metrics:
        parameters.append(
            Parameter(
                name="metric",
                json_schema={"type": "string", "enum": ["count", *metrics]},
                description="What to add up and average in each group besides counting.",
                required=False,
                default="count",
            )
        )
    filters = []
    status = entity.lifecycle.field if entity.lifecycle else None
    if status is not None:
        parameters.append(
            Parameter(
                name=status,
                json_schema=attribute_schema(entity.attribute(status)),
                description=f"Count only {plural_of(entity.noun)} in this state.",
                required=False,
                carries=f"{entity.name}.{status}",
            )
        )
        filters.append(Filter(parameter=status, field=status, op="equals"))
    return Tool(
        name=f"summarize_{entity.plural}",
        kind="query",
        description=f"Count {plural_of(entity.noun)} by group, with totals and averages of a chosen number.",
        parameters=tuple(parameters),
        action=Summary(entity=entity.name, group_fields=tuple(groups), metrics=tuple(metrics), filters=tuple(filters)),
        origin="reader",
    )


def _update(entity: Entity, free: list[Attribute]) -> Tool:
    variable = entity.variable
    fields = [
        Parameter(
            name=a.name,
            json_schema=attribute_schema(a),
            description=a.description or f"New {a.name.replace('_', ' ')}.",
            required=False,
            carries=f"{entity.name}.{a.name}",
            phrase=f"its {a.name.replace('_', ' ')} to {{value}}",
        )
        for a in free
    ]
    nothing = " and ".join(f"{a.name} is None" for a in free)
    body = "\n".join(f"if {a.name} is not None:\n    {variable}.{a.name} = {a.name}" for a in free)
    return Tool(
        name=f"update_{variable}",
        kind="modify",
        description=f"Change {_listed([a.name.replace('_', ' ') for a in free])} of one {entity.noun}. "
        "Only the given fields change; give at least one.",
        parameters=(
            _key(entity, f"{entity.name}.{entity.key}", entity.key).model_copy(update={"binds": variable}),
            *fields,
        ),
        action=Procedure(
            steps=(
                Guard(
                    that=f"not ({nothing})",
                    code="invalid_argument",
                    message="Nothing to change was given.",
                    hint="Give at least one field with its new value.",
                ),
                *(_stays_unique(entity, a) for a in free if a.unique),
            ),
            body=body,
            returns=((variable, variable),),
        ),
        origin="reader",
    )


def _stays_unique(entity: Entity, attribute: Attribute) -> Guard:
    words, variable = attribute.name.replace("_", " "), entity.variable
    others = f"o.{attribute.name} == {attribute.name} and o.{entity.key} != {variable}.{entity.key}"
    return Guard(
        that=f"{attribute.name} is None or not any({others} for o in {entity.name})",
        code="conflict",
        message=f"Another {entity.noun} has this {words}.",
        hint=f"Choose another {words}.",
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def check_facts(spec: EnvironmentSpec) -> None:
    """Raise when a tool that says it only reads would write, or the other way round.

    Raises:
        ExpressionError: a tool's expressions are outside the language.
        SpecError: kind and effects disagree.
    """
    for tool in spec.tools:
        writes = bool(tool_facts(spec, tool).writes)
        if writes != (tool.kind == "modify"):
            raise SpecError(f"tool {tool.name} is a {tool.kind} but {'writes' if writes else 'writes nothing'}")

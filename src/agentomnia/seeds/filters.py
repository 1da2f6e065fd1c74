"""Query parameters as filters of a search: which field each one really names, and in which relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentomnia.environment.spec import Attribute, Entity, Filter, Parameter
from agentomnia.seeds.believable import described, parameter_schema
from agentomnia.seeds.call import Argument
from agentomnia.seeds.naming import free_name, sentence, snake, spoken, usable
from agentomnia.seeds.plan import is_transport

Relation = Literal["equals", "contains", "at_least", "at_most"]

_LIMITS = frozenset(
    ("limit", "per_page", "page_size", "pagesize", "max_results", "maxresults", "max", "top", "size", "count",
     "first", "results_per_page", "max_items", "max_records", "results", "take", "rows", "num_results", "max_keys",
     "items_per_page", "perpage", "page_limit", "max_count", "number")
)  # fmt: skip
_TEXTS = frozenset(
    ("q", "query", "search", "keyword", "keywords", "search_term", "term", "text", "search_text", "filter_text",
     "search_query", "s", "pattern", "name_contains", "contains", "prefix", "name_prefix")
)  # fmt: skip
_LOW = ("min_", "from_", "start_", "after_", "since_")
_LOW_ENDS = ("_min", "_from", "_start", "_after", "_since", "_gte", "_gt", "_ge", "_begin")
_HIGH = ("max_", "to_", "end_", "before_", "until_")
_HIGH_ENDS = ("_max", "_to", "_end", "_before", "_until", "_lte", "_lt", "_le", "_till")
_BARE_LOW = frozenset(
    (
        "since",
        "after",
        "from",
        "start",
        "start_date",
        "from_date",
        "date_from",
        "start_time",
        "begin",
        "min_date",
        "newer_than",
        "start_at",
        "begin_date",
    )
)
_BARE_HIGH = frozenset(
    ("until", "before", "to", "end", "end_date", "to_date", "date_to", "end_time", "max_date", "older_than", "end_at")
)
_RANGED = frozenset(("integer", "number", "date", "datetime"))
_MAX_FILTERS = 12

LIMIT_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 200}


@dataclass(frozen=True)
class Matched:
    """A parameter with the filter it drives."""

    parameter: Parameter
    filter: Filter


def is_limit(name: str) -> bool:
    """Whether a parameter says how many records to return."""
    plain = snake(name)
    return plain in _LIMITS or plain.endswith(("_limit", "_page_size")) or plain == "page_limit"


def tells_how(argument: Argument) -> bool:
    """Whether a parameter only says how to answer (paging, order, form, credentials), so that it can be left out."""
    return not argument.required or is_transport(argument.name) or is_limit(argument.name)


def match_filters(arguments: list[Argument], entity: Entity, taken: set[str]) -> tuple[list[Matched], list[Argument]]:
    """Match parameters to fields.

    Args:
        arguments: the query parameters, or the body of a search.
        entity: what is searched.
        taken: parameter names in use.

    Returns:
        The filters, and the arguments that match no field.
    """
    found: list[Matched] = []
    unmatched: list[Argument] = []
    used: set[tuple[str, str]] = set()
    for argument in arguments:
        place = _place(argument, entity)
        if place is None or (place[0].name, place[1]) in used or len(found) >= _MAX_FILTERS:
            unmatched.append(argument)
            continue
        used.add((place[0].name, place[1]))
        name = free_name(usable(argument.name), taken)
        taken.add(name)
        found.append(_matched(argument, name, entity, *place))
    return found, unmatched


def _matched(argument: Argument, name: str, entity: Entity, attribute: Attribute, relation: Relation) -> Matched:
    schema = parameter_schema(attribute, argument.shape)
    if relation != "equals" or attribute.type in ("integer", "number"):
        schema = {k: v for k, v in schema.items() if k in ("type", "format")}
    if attribute.type in ("string", "text"):
        schema = {"type": "string", "minLength": 1, "maxLength": 200}
    if attribute.type == "enum" and schema["enum"] != list(attribute.choices):
        schema = {**schema, "enum": [c for c in attribute.choices if c in schema["enum"]]}
    text = sentence(argument.description or argument.shape.description)
    parameter = Parameter(
        name=name,
        json_schema=schema,
        description=text or described(attribute, _meaning(attribute, relation)),
        required=argument.required,
        carries=f"{entity.name}.{attribute.name}",
        phrase=f"with the {spoken(attribute.name)} {{value}}" if not argument.required else "",
    )
    return Matched(parameter, Filter(parameter=name, field=attribute.name, op=relation))


def _meaning(attribute: Attribute, relation: Relation) -> str:
    words = spoken(attribute.name)
    return {
        "equals": f"Exactly this {words}.",
        "contains": f"Part of the {words}, upper or lower case.",
        "at_least": f"Smallest or earliest {words}.",
        "at_most": f"Largest or latest {words}.",
    }[relation]


def _place(argument: Argument, entity: Entity) -> tuple[Attribute, Relation] | None:
    name = snake(argument.name.replace("filter[", "").replace("where[", ""))
    fields = {a.name: a for a in entity.attributes if a.type not in ("list", "object")}
    exact = fields.get(usable(name)) or fields.get(f"{usable(name)}_id") or fields.get(name.removeprefix("filter_"))
    if exact is not None and argument.shape.kind not in ("array", "object"):
        return exact, "equals"
    if exact is not None and argument.shape.kind == "array" and exact.type in ("enum", "string", "reference"):
        return exact, "equals"
    label = fields.get(entity.label or "")
    if name in _TEXTS and label is not None and argument.shape.kind in ("string", "any"):
        return label, "contains"
    stem = name.removesuffix("_contains").removesuffix("_like")
    if stem != name and stem in fields and fields[stem].type in ("string", "text"):
        return fields[stem], "contains"
    return _range_place(name, fields)


def _range_place(name: str, fields: dict[str, Attribute]) -> tuple[Attribute, Relation] | None:
    ranged = {n: a for n, a in fields.items() if a.type in _RANGED}
    relations: tuple[tuple[tuple[str, ...], tuple[str, ...], Relation], ...] = (
        (_LOW, _LOW_ENDS, "at_least"), (_HIGH, _HIGH_ENDS, "at_most"),
    )  # fmt: skip
    for heads, tails, relation in relations:
        stems = [name.removeprefix(h) for h in heads if name.startswith(h)] + [
            name.removesuffix(t) for t in tails if name.endswith(t)
        ]
        for stem in stems:
            for field in (stem, f"{stem}_at", f"{stem}_date", f"{stem}_on", f"{stem}_time"):
                if field in ranged:
                    return ranged[field], relation
    if name in _BARE_LOW | _BARE_HIGH:
        days = [a for a in ranged.values() if a.type in ("date", "datetime")]
        chosen = next((a for a in days if a.name.startswith("created")), days[0] if days else None)
        if chosen is not None:
            return chosen, "at_least" if name in _BARE_LOW else "at_most"
    return None

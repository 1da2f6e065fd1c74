"""How a person asks for an operation: English imperatives with `{record}` and `{value}` places.

A place for a record is the name that the procedure binds it to; a person never says tool or parameter names.
"""

from __future__ import annotations

from agentomnia.environment.spec import Attribute, Entity, Parameter
from agentomnia.seeds.naming import article, listed, singular, spoken

_LABELS = frozenset(("name", "title", "display_name", "full_name", "username", "user_name", "login", "label", "path"))


def create_asks(
    entity: Entity, label: str | None, references: list[tuple[str, str]], values: list[Parameter]
) -> tuple[str, ...]:
    """Asking for a new record.

    Args:
        entity: its kind.
        label: the parameter that names it, where it must be given.
        references: `(place, noun)` of the records it must refer to.
        values: the other parameters that must be given.
    """
    tails = []
    if label is not None:
        tails.append(f"named {{{label}}}" if label in _LABELS else f"with the {spoken(label)} {{{label}}}")
    if references:
        tails.append(
            "for "
            + listed(f"the {noun} {{{place}}}" if i else f"{{{place}}}" for i, (place, noun) in enumerate(references))
        )
    dated = [p for p in values if p.name.endswith(("_on", "_at", "_until", "_from")) and "format" in p.json_schema]
    others = [with_value(p.name, f"{{{p.name}}}", p.json_schema.get("type")) for p in values if p not in dated]
    if others:
        tails.append("with " + listed(others))
    tails += [_dated(p.name) for p in dated]
    kinds = (f"create a new {entity.noun}", f"set up {article(entity.noun)}")
    return tuple(" ".join([kind, *tails]) for kind in kinds)


def _dated(name: str) -> str:
    """`due on 2026-03-09`, `that starts at …`, `with pickup on …`."""
    stem = name.rpartition("_")[0]
    if stem == "due" or stem.endswith("ed"):
        return f"{spoken(name)} {{{name}}}"
    return f"{'that' if stem.endswith('s') else 'with'} {spoken(name)} {{{name}}}"


def with_value(name: str, value: str, kind: object = "string") -> str:
    """`price 12`, `12 shelves` for a number of things, `gift wrap set to true` for a flag."""
    if kind == "boolean":
        return f"{spoken(name)} set to {value}"
    counted = kind == "integer" and name != singular(name) and "_" not in name
    return f"{value} {spoken(name)}" if counted else f"{spoken(name)} {value}"


def update_asks(record: str, required: list[Parameter]) -> tuple[str, ...]:
    """Asking for new values of fields of one record."""
    if not required:
        return (f"update {{{record}}}",)
    if len(required) == 1:
        name = required[0].name
        return (
            f"change the {spoken(name)} of {{{record}}} to {{{name}}}",
            f"set the {spoken(name)} of {{{record}}} to {{{name}}}",
        )
    parts = [f"its {spoken(p.name)} to {{{p.name}}}" for p in required]
    return (f"update {{{record}}}: set {listed(parts)}",)


def create_phrase(attribute: Attribute) -> str:
    """How an optional value of a new record is mentioned."""
    if attribute.type == "text":
        return f'with the {spoken(attribute.name)} "{{value}}"'
    return "with " + with_value(attribute.name, "{value}", attribute.type)


def update_phrase(attribute: Attribute) -> str:
    """How one of several new values is mentioned."""
    return f"setting the {spoken(attribute.name.removesuffix('_id'))} to {{value}}"


def delete_asks(record: str, entity: Entity) -> tuple[str, ...]:
    """Asking to delete one record."""
    return (f"delete the {entity.noun} {{{record}}}", f"remove {{{record}}} for good")


def move_asks(record: str, verb: str, state: str) -> tuple[str, ...]:
    """Asking to bring one record into a state."""
    if verb in ("put", "set", "add"):
        return (f"mark {{{record}}} as {spoken(state)}",)
    return (f"{spoken(verb)} {{{record}}}", f"please {spoken(verb)} {{{record}}}")

"""Domain cards and archetypes: what the builtin author knows of a domain (paper, section 3.2).

Both are YAML files of one form; an archetype is a reusable piece of business behaviour with slots.

    domain: 10006                     # cards: id on the domain axis
    slots: [member]                   # archetypes: entities the card supplies
    title, introduction, clock, speaker, policies
    archetypes: [{use: membership, with: {member: Client}}]
    entities: {Name: {about, label, count, prefix, plural, noun, fields: {name: {…}}}}
    extend: {Name: {name: {…}}}       # archetypes: fields added to a slot's entity
    rules: [{name, entity, says, holds}]
    operations: {name: {about, takes, let, require, do, returns, ask, undo}}

`docs/cards.md` is the manual. Slots are filled by text: `${member}` is the entity's name, `${member.key}`
its key field, `${member.var}` the name of one record, `${member.noun}` and `${member.nouns}` what people say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError

from agentomnia.environment.result import ErrorCode
from agentomnia.errors import CardError
from agentomnia.row import Row


class _Part(Row):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class FieldCard(_Part):
    """One field of an entity, as written on a card."""

    type: Literal["string", "text", "integer", "number", "boolean", "date", "datetime", "list", "object"] | None = None
    about: str = ""
    choices: tuple[str, ...] = ()
    ref: str | None = None
    moves: dict[str, tuple[str, ...]] | None = None
    """Lifecycle: each state and where it may go; the first one is initial."""
    null: bool = False
    default: Any = None
    unique: bool = False
    mutable: bool = False
    min: float | None = None
    max: float | None = None
    step: float | None = None
    unit: str = ""
    items: Literal["string", "integer", "number", "object"] = "string"
    make: str | None = None
    words: tuple[str, ...] = ()
    derive: str | None = None
    present_if: str | None = None


class EntityCard(_Part):
    """A kind of record, as written on a card."""

    about: str = ""
    label: str | None = None
    count: int = 12
    prefix: str | None = None
    plural: str | None = None
    noun: str | None = None
    key: str | None = None
    fields: dict[str, FieldCard]


class RuleCard(_Part):
    """A rule in words and as a predicate over `it`."""

    name: str
    entity: str
    says: str
    holds: str


class TakenCard(_Part):
    """One argument of an operation, spelled out; on a card usually just `Entity` or `Entity.field`."""

    field: str | None = None
    """`Entity` for a record's key, `Entity.field` for a value of that field."""
    type: Literal["string", "text", "integer", "number", "boolean", "date", "datetime", "list"] | None = None
    about: str = ""
    required: bool = True
    default: Any = None
    choices: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    make: str | None = None
    words: tuple[str, ...] = ()
    phrase: str = ""


class RequireCard(_Part):
    """A precondition with the answer to a call that breaks it."""

    that: str
    says: str
    hint: str = ""
    code: ErrorCode = "precondition_failed"


class LetCard(_Part):
    """A value computed between preconditions."""

    let: str
    be: str


class OperationCard(_Part):
    """One operation of the business."""

    about: str
    takes: dict[str, TakenCard] = Field(default_factory=dict)
    require: tuple[LetCard | RequireCard, ...] = ()
    do: str = ""
    returns: dict[str, str] = Field(default_factory=dict)
    ask: tuple[str, ...] = ()
    undo: bool = False
    staff: bool = False
    """Where a customer speaks: the business does it, a customer never asks for it."""


class UseCard(_Part):
    """An archetype with its slots filled."""

    use: str
    slots: dict[str, str] = Field(default_factory=dict, alias="with")
    optional: bool = False
    """Left out by some variants of the environment."""
    drop: tuple[str, ...] = ()
    """Operations of the archetype that this domain does not have."""


class Card(_Part):
    """A whole card or archetype."""

    domain: int | None = None
    slots: tuple[str, ...] = ()
    title: str = ""
    introduction: str = ""
    clock: str = "2026-03-09T09:00"
    speaker: str | None = None
    policies: tuple[str, ...] = ()
    archetypes: tuple[UseCard, ...] = ()
    entities: dict[str, EntityCard] = Field(default_factory=dict)
    extend: dict[str, dict[str, FieldCard]] = Field(default_factory=dict)
    rules: tuple[RuleCard, ...] = ()
    operations: dict[str, OperationCard] = Field(default_factory=dict)


def card_paths() -> tuple[Path, ...]:
    """The cards that ship with the package, in order of domain id."""
    return _shipped("cards")


def archetype_paths() -> tuple[Path, ...]:
    """The archetypes that ship with the package, by name."""
    return _shipped("archetypes")


def _shipped(folder: str) -> tuple[Path, ...]:
    root = resources.files("agentomnia.synthesis.environments").joinpath(folder)
    return tuple(sorted(Path(str(p)) for p in root.iterdir() if p.name.endswith(".yaml")))


def load_card(path: Path) -> Card:
    """Read a card or archetype.

    Raises:
        CardError: the file is not YAML, or does not say a card; names the place.
    """
    return parse_card(_read(path), str(path.name))


def load_archetype(name: str, slots: Mapping[str, EntityCard], names: Mapping[str, str]) -> Card:
    """Read an archetype with its slots filled.

    Args:
        name: the archetype's file name without ending.
        slots: the card's entities by slot.
        names: the names of those entities by slot.

    Raises:
        CardError: there is no such archetype, or a slot is missing.
    """
    path = next((p for p in archetype_paths() if p.stem == name), None)
    if path is None:
        known = ", ".join(p.stem for p in archetype_paths())
        raise CardError(f"there is no archetype {name!r}; use one of {known}")
    raw = _read(path)
    wanted = set(raw.get("slots", ()))
    if wanted != set(names):
        raise CardError(f"archetype {name}: fill exactly the slots {sorted(wanted)}, not {sorted(names)}")
    words: dict[str, str] = {}
    for slot, entity in slots.items():
        words |= slot_words(slot, names[slot], entity)
    return parse_card(_fill(raw, words), path.name)


def parse_card(raw: Any, where: str) -> Card:
    """Validate the contents of a card file, short forms spelled out.

    Raises:
        CardError: the contents do not say a card.
    """
    if not isinstance(raw, dict):
        raise CardError(f"{where}: a card is a mapping; start with `domain:` or `slots:`")
    for operation in (raw.get("operations") or {}).values():
        if isinstance(operation, dict):
            taken = operation.get("takes") or {}
            operation["takes"] = {k: {"field": v} if isinstance(v, str) else v for k, v in taken.items()}
            if isinstance(operation.get("ask"), str):
                operation["ask"] = [operation["ask"]]
    try:
        return Card.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise CardError(f"{where}: {place}: {first['msg']}; see docs/cards.md") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        # the C parser reads a card six times faster; builds of PyYAML without libyaml lack it
        loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CardError(f"{path}: cannot be read as YAML: {error}; correct the file") from None
    if not isinstance(raw, dict):
        raise CardError(f"{path}: a card is a mapping; start with `domain:` or `slots:`")
    return raw


def words_of(name: str) -> str:
    """`SupplyItem` as people write it: `supply item`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def plural_of(noun: str) -> str:
    """The plural of an English noun, by the common rules."""
    if re.search(r"[^aeiou]y\Z", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(s|x|z|ch|sh)\Z", noun) else "s")


def noun_of(name: str, card: EntityCard) -> str:
    """What people call one record."""
    return card.noun or words_of(name)


def variable_of(name: str) -> str:
    """What procedures call one record: `supply_item`."""
    return words_of(name).replace(" ", "_")


def key_of(name: str, card: EntityCard) -> str:
    """The key field of an entity."""
    return card.key or f"{variable_of(name)}_id"


def slot_words(slot: str, name: str, card: EntityCard) -> dict[str, str]:
    """What the placeholders of a slot stand for."""
    noun = noun_of(name, card)
    return {
        f"${{{slot}}}": name,
        f"${{{slot}.key}}": key_of(name, card),
        f"${{{slot}.var}}": variable_of(name),
        f"${{{slot}.noun}}": noun,
        f"${{{slot}.nouns}}": plural_of(noun),
        f"${{{slot}.label}}": card.label or key_of(name, card),
    }


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for placeholder, word in words.items():
            value = value.replace(placeholder, word)
        left = re.search(r"\$\{[^}]*\}", value)
        if left:
            raise CardError(f"placeholder {left.group()} is not a slot; the slots give {sorted(words)}")
        return value
    if isinstance(value, dict):
        return {_fill(k, words): _fill(v, words) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, words) for v in value]
    return value

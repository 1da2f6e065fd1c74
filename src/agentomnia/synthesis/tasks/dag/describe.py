"""Referring expressions: how a person points at one record without its identifier.

The incremental algorithm of Dale and Reiter (1995): go through the record's properties in an order people
prefer, keep each one that rules out a candidate still left, stop when only the record remains. Where the
record cannot be told from every other one, there is no expression and the record is no target of a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec
from agentomnia.environment.state import State
from agentomnia.task.render import say, say_choice, say_list

_MOST_DESCRIPTORS = 4


@dataclass(frozen=True)
class Descriptor:
    """One property that a description mentions."""

    field: str
    value: Any
    text: str
    """The words for the value alone; `unsay` turns them back."""
    target: str | None = None
    """For a reference: the entity pointed to, described by its label."""


@dataclass(frozen=True)
class Description:
    """A noun phrase that points at exactly one record of a state."""

    entity: str
    key: str
    phrase: str
    descriptors: tuple[Descriptor, ...]
    ruled_out: int
    """How many other records the descriptors exclude."""


class Describer:
    """Describes records of one state, from the side of one speaker."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        state: State,
        speaker: str | None,
        avoid: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """Describe records as they are in `state`.

        Args:
            spec: the environment.
            state: the state a request is made in.
            speaker: key of the record that is the person who asks.
            avoid: fields that the task itself changes; described by them a record would be hard to find later.
        """
        self.spec = spec
        self.state = state
        self.speaker = speaker
        self.avoid = avoid

    def is_speaker(self, entity: str, key: str) -> bool:
        """Whether the record is the person who asks."""
        return entity == self.spec.speaker and key == self.speaker

    def describe(self, entity_name: str, key: str) -> Description | None:
        """A description of one record, or `None` where it cannot be told apart."""
        entity = self.spec.entity(entity_name)
        records = self.state[entity.plural]
        if key not in records:
            return None
        if self._labelled(entity, key):
            label = str(records[key][entity.label])
            descriptor = Descriptor(entity.label or "", label, label)
            phrase = "me" if self.is_speaker(entity_name, key) else self._label_phrase(entity, label)
            if phrase.startswith("the ") and self._is_own(entity, records[key]):
                phrase = f"my {phrase[4:]}"
            return Description(entity_name, key, phrase, (descriptor,), len(records) - 1)
        return self._by_properties(entity, key, records)

    def _is_own(self, entity: Entity, record: dict[str, Any]) -> bool:
        owners = [a.name for a in entity.attributes if a.target is not None and a.target == self.spec.speaker]
        return self.speaker is not None and bool(owners) and record[owners[0]] == self.speaker

    def _labelled(self, entity: Entity, key: str) -> bool:
        if entity.label is None or entity.label == entity.key:
            return False
        records = self.state[entity.plural]
        label = records[key][entity.label]
        same = [k for k, r in records.items() if _folded(r[entity.label]) == _folded(label)]
        return isinstance(label, str) and bool(label.strip()) and same == [key]

    def _label_phrase(self, entity: Entity, label: str) -> str:
        if entity.label is not None and _names_somebody(entity.attribute(entity.label)):
            return label
        quoted = f"“{label}”" if " " in label or label.islower() else label
        return f"the {entity.noun} {quoted}"

    def _by_properties(self, entity: Entity, key: str, records: dict[str, dict[str, Any]]) -> Description | None:
        record, left, chosen = records[key], [k for k in records if k != key], []
        for descriptor in self._properties(entity, record):
            remaining = [k for k in left if records[k][descriptor.field] == descriptor.value]
            own = descriptor.target is not None and self.is_speaker(descriptor.target, str(descriptor.value))
            if len(remaining) < len(left) or own:
                chosen.append(descriptor)
                left = remaining
            if not left and chosen:
                break
            if len(chosen) == _MOST_DESCRIPTORS:
                return None
        if left or not chosen:
            return None
        return Description(entity.name, key, self._phrase(entity, chosen), tuple(chosen), len(records) - 1)

    def _properties(self, entity: Entity, record: dict[str, Any]) -> Iterator[Descriptor]:
        """Properties in the order people prefer: whose it is, what it points to, when, what kind, how much."""
        ranked = sorted(
            (a for a in entity.attributes if record[a.name] is not None and (entity.name, a.name) not in self.avoid),
            key=lambda a: (_rank(a, self.spec.speaker), entity.attributes.index(a)),
        )
        for attribute in ranked:
            value = record[attribute.name]
            if attribute.target is not None:
                target = self.spec.entity(attribute.target)
                if value in self.state[target.plural] and self._labelled(target, value):
                    label = str(self.state[target.plural][value][target.label])
                    yield Descriptor(attribute.name, value, label, attribute.target)
            elif attribute.type in ("date", "datetime", "enum", "number", "integer", "string") and value != "":
                yield Descriptor(attribute.name, value, say(value, attribute.type, self.spec.clock, attribute.unit))

    def _phrase(self, entity: Entity, chosen: list[Descriptor]) -> str:
        front, name, after, owner = "", "", [], "the"
        for descriptor in chosen:
            attribute = entity.attribute(descriptor.field)
            if descriptor.field == entity.label:
                name = f" “{descriptor.text}”"
            elif descriptor.target is not None and self.is_speaker(descriptor.target, str(descriptor.value)):
                owner = "my"
            elif (
                attribute.type == "enum" and " " not in descriptor.text and not front and _adjective(entity, attribute)
            ):
                front = f"{descriptor.text} "
            else:
                after.append(self._clause(attribute, descriptor))
        having = [clause.removeprefix("with ") for clause in after if clause.startswith("with ")]
        others = [clause for clause in after if not clause.startswith("with ")]
        tail = " ".join([*others, *([f"with {say_list(having)}"] if having else [])])
        return f"{owner} {front}{entity.noun}{name} {tail}".strip()

    def _clause(self, attribute: Attribute, descriptor: Descriptor) -> str:
        words = attribute.name.removesuffix("_id").replace("_", " ")
        if descriptor.target is not None:
            target = self.spec.entity(descriptor.target)
            named = self._label_phrase(target, descriptor.text)
            return reference_clause(attribute, target, named)
        if attribute.type in ("date", "datetime"):
            return f"{date_words(attribute.name)} {descriptor.text}"
        if attribute.type == "enum":
            return f"with {words} {say_choice(descriptor.text)}"
        if attribute.type in ("number", "integer"):
            return f"with {words} {descriptor.text}"
        return f"with {words} “{descriptor.text}”"


_ROLE_WORDS = {
    "stylist": "with", "doctor": "with", "host": "hosted by", "author": "by", "owner": "of",
    "assignee": "assigned to",
    "supplier": "from", "vendor": "from", "sender": "from", "location": "at", "place": "at", "site": "at",
    "room": "in",
    "warehouse": "at", "branch": "at", "restaurant": "from", "store": "at", "hotel": "at", "folder": "in",
    "queue": "in",
    "project": "in", "board": "in", "approver": "awaiting", "requester": "of", "created_by": "by",
    "organizer": "organised by",
    "interviewer": "with", "technician": "with", "adjuster": "handled by", "carrier": "with", "provider": "with",
    "from_account": "from", "to_account": "to",
}  # fmt: skip


def reference_clause(attribute: Attribute, target: Entity, named: str) -> str:
    """How a reference is said: by its role where that is known, else `of` a person and `for` a thing."""
    role = attribute.name.removesuffix("_id")
    if role in _ROLE_WORDS:
        return f"{_ROLE_WORDS[role]} {named}"
    person = target.label is not None and _names_somebody(target.attribute(target.label))
    if role != target.variable and not person:
        return f"with {role.replace('_', ' ')} {named}"
    return f"{'of' if person else 'for'} {named}"


def date_words(name: str) -> str:
    """The words before a date: `due_on` is `due on`, `starts_at` is `on`, `expires_on` is `expiring on`."""
    stem = name.removesuffix("_at").removesuffix("_on").removesuffix("_date").removesuffix("_time")
    known = {
        "starts": "on", "start": "on", "date": "on", "day": "on", "scheduled": "on", "time": "on", "due": "due on",
        "expires": "expiring on", "expiry": "expiring on", "ends": "ending on", "end": "ending on",
        "created": "created on",
        "opened": "opened on", "placed": "placed on", "ordered": "ordered on", "received": "received on",
        "check_in": "with check-in on", "check_out": "with check-out on", "departs": "departing on",
        "arrives": "arriving on",
    }  # fmt: skip
    if stem in known:
        return known[stem]
    said_so = name.endswith(("_at", "_on")) or stem.endswith("ed")
    return f"{stem.replace('_', ' ')} on" if said_so else f"with {name.replace('_', ' ')} on"


def _rank(attribute: Attribute, speaker: str | None) -> int:
    if attribute.target is not None:
        return 0 if attribute.target == speaker else 1
    order = {"date": 2, "datetime": 2, "enum": 3, "string": 4, "number": 5, "integer": 5}
    return order.get(attribute.type, 9)


def _adjective(entity: Entity, attribute: Attribute) -> bool:
    """A lifecycle state can stand before the noun: `the confirmed appointment`."""
    return entity.lifecycle is not None and entity.lifecycle.field == attribute.name


def _names_somebody(attribute: Attribute) -> bool:
    return attribute.maker is not None and attribute.maker.startswith(("person", "company"))


def _folded(value: Any) -> str:
    return str(value).casefold().strip()

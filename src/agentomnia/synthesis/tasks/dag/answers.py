"""Questions at the end of a task: what a person wants to know, with a reader that shows it.

Three forms, each answered by the final state: how many records there are of a kind, what a named record's
field says, which group is the largest or what a total comes to. Answers are numbers, dates and words,
never identifiers; yes-or-no questions are left out, since guessing would earn them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agentomnia.environment.spec import (
    Attribute,
    Entity,
    Lookup,
    Parameter,
    Search,
    Summary,
    Tool,
)
from agentomnia.synthesis.environments.card import plural_of
from agentomnia.synthesis.tasks.dag.describe import reference_clause
from agentomnia.synthesis.tasks.dag.goals import owned_by
from agentomnia.synthesis.tasks.dag.ground import Grounder
from agentomnia.task.criterion import AnswerField, Expected
from agentomnia.task.render import say_choice
from agentomnia.task.task import Source


@dataclass(frozen=True)
class Question:
    """A question with its answer and the field to give it in."""

    words: str
    """Goes after "tell me"."""
    answer: AnswerField
    expected: Expected
    mentions: tuple[str, ...]


def ask_count(grounder: Grounder, tool: Tool) -> Question | None:
    """How many records of a kind there are, by a search with filters."""
    if not isinstance(tool.action, Search):
        return None
    entity = grounder.spec.entity(tool.action.entity)
    if not _asks_own(grounder, entity, tool):
        return None
    chosen = _count_filter(grounder, tool, entity)
    if chosen is None:
        return None
    values, sources, words = chosen
    answer = grounder.instance.call(tool.name, values)
    if not answer["ok"] or answer["data"]["total"] < 1:
        return None
    index = grounder.add_call(tool.name, values, sources, answer["data"])
    grounder.plan.think("AGGREGATE", "count what is left", [f"call:{index}"])
    name = f"number_of_{entity.plural}"
    wanted = AnswerField(name=name, description=f"{words[0].upper()}{words[1:]}, as a whole number", type="number")
    texts = tuple(s.text for s in sources.values() if s.text)
    return Question(words, wanted, Expected(value=answer["data"]["total"], comparison="number"), texts)


@dataclass
class _CountPhrase:
    """What to count, as it is put together: `how many FRONT nouns AFTER OWNER`."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    front: str = ""
    kinds: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    owner: str = "there are"

    def words(self, entity: Entity) -> str:
        kinds = [f"with {' and '.join(self.kinds)}"] if self.kinds else []
        return " ".join(["how many", self.front, plural_of(entity.noun), *kinds, *self.after, self.owner]).replace(
            "  ", " "
        )


def _count_filter(
    grounder: Grounder, tool: Tool, entity: Entity
) -> tuple[dict[str, Any], dict[str, Source], str] | None:
    """One or two states or kinds to count by, and perhaps one record they belong to."""
    assert isinstance(tool.action, Search)
    filters = {f.parameter: f.field for f in tool.action.filters if f.op == "equals"}
    phrase = _CountPhrase()
    for parameter in tool.parameters:
        attribute = _attribute(entity, filters[parameter.name]) if parameter.name in filters else None
        given = attribute is not None and (
            _count_by_kind(grounder, phrase, entity, parameter, attribute)
            if attribute.type == "enum"
            else _count_by_record(grounder, phrase, parameter, attribute)
        )
        if parameter.required and not given:
            return None
    owned = grounder.spec.speaker in {a.target for a in entity.attributes if a.target is not None}
    if not phrase.values or (owned and grounder.describer.speaker is not None and phrase.owner != "I have"):
        return None
    return phrase.values, phrase.sources, phrase.words(entity)


def _count_by_kind(
    grounder: Grounder, phrase: _CountPhrase, entity: Entity, parameter: Parameter, attribute: Attribute
) -> bool:
    if len(phrase.kinds) + bool(phrase.front) > 1 or not (parameter.required or grounder.rng.random() < 0.6):
        return False
    value = grounder.rng.choice(attribute.choices)
    words = say_choice(value)
    if entity.lifecycle is not None and entity.lifecycle.field == attribute.name and " " not in words:
        phrase.front = words
    else:
        phrase.kinds.append(f"{attribute.name.replace('_', ' ')} {words}")
    phrase.values[parameter.name], phrase.sources[parameter.name] = value, Source(origin="query", text=words)
    return True


def _count_by_record(grounder: Grounder, phrase: _CountPhrase, parameter: Parameter, attribute: Attribute) -> bool:
    if attribute.target is None or not (_wants_owner(grounder, attribute, parameter) or grounder.rng.random() < 0.3):
        return False
    located = _some_located(grounder, attribute.target)
    if located is None:
        return False
    key, source, named = located
    phrase.values[parameter.name], phrase.sources[parameter.name] = key, source
    if named == "me":
        phrase.owner = "I have"
    else:
        phrase.after.append(_belonging(grounder, attribute, named))
    return True


def _belonging(grounder: Grounder, attribute: Attribute, phrase: str) -> str:
    return reference_clause(attribute, grounder.spec.entity(attribute.target or ""), phrase)


def _wants_owner(grounder: Grounder, attribute: Attribute, parameter: Parameter) -> bool:
    """A person who asks for themselves always counts their own."""
    return parameter.required or (attribute.target == grounder.spec.speaker and grounder.describer.speaker is not None)


def _asks_own(grounder: Grounder, entity: Entity, tool: Tool) -> bool:
    """Where somebody asks for themselves: their own records, or what belongs to nobody (a catalogue)."""
    speaker = grounder.spec.speaker
    if speaker is None:
        return True
    direct = {a.name for a in entity.attributes if a.target == speaker}
    if direct:
        assert isinstance(tool.action, Search)
        return any(f.field in direct and f.op == "equals" for f in tool.action.filters)
    return not owned_by(grounder.spec, entity.name, speaker)


def _some_located(grounder: Grounder, entity: str) -> tuple[str, Source, str] | None:
    """A record that the task has found already; the person who asks is always found by their name."""
    speaker = grounder.describer.speaker
    if entity == grounder.spec.speaker and speaker is not None:
        grounder.locate(entity, speaker)
        grounder.describe(entity, speaker)
    found = [k for e, k in grounder.plan.known if e == entity and (e, k) in grounder.described]
    if not found:
        return None
    key = grounder.rng.choice(found)
    return key, grounder.plan.known[(entity, key)], grounder.described[(entity, key)].phrase


def ask_field(grounder: Grounder, tool: Tool, prefer: set[tuple[str, str]]) -> Question | None:
    """What a field of a found record says at the end, by a lookup."""
    if not isinstance(tool.action, Lookup):
        return None
    entity = grounder.spec.entity(tool.action.entity)
    if entity.name == grounder.spec.speaker and grounder.describer.speaker is not None:
        grounder.locate(entity.name, grounder.describer.speaker)
    known = [k for e, k in grounder.plan.known if e == entity.name and (e, k) in grounder.described]
    if not known:
        return None
    touched = [k for k in known if (entity.name, k) in prefer]
    key = grounder.rng.choice(touched or known)
    fields = [a for a in entity.attributes if _askable(a) and a.name not in _said(grounder, entity.name, key)]
    if not fields:
        return None
    attribute = grounder.rng.choice(fields)
    parameter = tool.parameters[0].name
    source = grounder.plan.known[(entity.name, key)]
    answer = grounder.instance.call(tool.name, {parameter: key})
    value = answer["data"].get(attribute.name) if answer["ok"] else None
    if value is None:
        return None
    index = grounder.add_call(tool.name, {parameter: key}, {parameter: source}, answer["data"])
    grounder.plan.think("EXTRACT", f"{attribute.name.replace('_', ' ')} of the answer", [f"call:{index}"])
    what = attribute.name.replace("_", " ")
    phrase = grounder.described[(entity.name, key)].phrase
    owner = "my" if phrase == "me" else f"the {what} of {phrase}"
    words = f"what {owner} {what} is" if phrase == "me" else f"what {owner} is"
    if attribute.type == "integer" and what.endswith("s"):
        words = f"how many {what} {'I have' if phrase == 'me' else phrase + ' has'}"
    return Question(words, *_field_answer(attribute, what, value), mentions=())


def _field_answer(attribute: Attribute, what: str, value: Any) -> tuple[AnswerField, Expected]:
    kind: Literal["number", "string"] = "number" if attribute.type in ("number", "integer") else "string"
    form = {"date": ", as YYYY-MM-DD", "datetime": ", as YYYY-MM-DDTHH:MM"}.get(attribute.type, "")
    wanted = AnswerField(name=attribute.name, description=f"The {what} at the end{form}", type=kind)
    return wanted, Expected(value=value, comparison="number" if kind == "number" else "text")


_NO_NOUN_ENDINGS = frozenset(
    "at on by in from to until of starts ends opens closes begins start end required allowed needed".split()
)


def _askable(attribute: Attribute) -> bool:
    """Fields whose name reads as a noun; `opens at` does not."""
    if attribute.name.rsplit("_", 1)[-1] in _NO_NOUN_ENDINGS:
        return False
    return attribute.type in ("number", "integer", "date", "datetime", "enum")


def _said(grounder: Grounder, entity: str, key: str) -> set[str]:
    """Fields that the description of the record already gives away."""
    return {d.field for d in grounder.described[(entity, key)].descriptors}


def ask_summary(grounder: Grounder, tool: Tool) -> Question | None:
    """Which group is the largest, or what a total over all groups comes to."""
    if not isinstance(tool.action, Summary):
        return None
    entity = grounder.spec.entity(tool.action.entity)
    if grounder.spec.speaker is not None and owned_by(grounder.spec, entity.name, grounder.spec.speaker):
        return None
    metrics = [m for m in tool.action.metrics if _attribute(entity, m) and _additive(entity, m)]
    if metrics and grounder.rng.random() < 0.5:
        return _ask_total(grounder, tool, entity, grounder.rng.choice(metrics))
    groups = [g for g in tool.action.group_fields if _is_enum(entity, g)]
    return _ask_largest(grounder, tool, entity, grounder.rng.choice(groups)) if groups else None


def _ask_largest(grounder: Grounder, tool: Tool, entity: Entity, group: str) -> Question | None:
    answer = grounder.instance.call(tool.name, {"group_by": group})
    if not answer["ok"]:
        return None
    ranked = sorted(answer["data"]["groups"], key=lambda g: -g["count"])
    if len(ranked) < 2 or ranked[0]["count"] == ranked[1]["count"] or ranked[0]["group"] is None:
        return None
    what = group.replace("_", " ")
    source = Source(origin="query", text=what)
    index = grounder.add_call(tool.name, {"group_by": group}, {"group_by": source}, answer["data"])
    grounder.plan.think("LOGIC", "the group with the largest count", [f"call:{index}"])
    words = f"which {what} is the most common among the {plural_of(entity.noun)}"
    wanted = AnswerField(
        name=f"most_common_{group}",
        description=f"The {what} with the most {plural_of(entity.noun)}",
        type="string",
    )
    return Question(words, wanted, Expected(value=ranked[0]["group"], comparison="text"), (what,))


def _ask_total(grounder: Grounder, tool: Tool, entity: Entity, metric: str) -> Question | None:
    assert isinstance(tool.action, Summary)
    attribute = entity.attribute(metric)
    group = grounder.rng.choice(tool.action.group_fields)
    values: dict[str, Any] = {"group_by": group, "metric": metric}
    what = metric.replace("_", " ")
    sources = {
        "group_by": Source(origin="computation", text="any grouping"),
        "metric": Source(origin="query", text=what),
    }
    front = ""
    status = entity.lifecycle.field if entity.lifecycle else None
    if status is not None and any(p.name == status for p in tool.parameters):
        values[status] = grounder.rng.choice(entity.attribute(status).choices)
        front = say_choice(values[status])
        sources[status] = Source(origin="query", text=front)
    answer = grounder.instance.call(tool.name, values)
    if not answer["ok"] or answer["data"]["total"] < 2:
        return None
    total = round(sum(g["total"] for g in answer["data"]["groups"]), 2)
    index = grounder.add_call(tool.name, values, sources, answer["data"])
    grounder.plan.think("AGGREGATE", "the sum over all groups", [f"call:{index}"])
    unit = f" in {attribute.unit}" if attribute.unit else ""
    nouns = plural_of(entity.noun)
    kind = f"{nouns} with {status.replace('_', ' ')} {front}" if status and " " in front else f"{front} {nouns}".strip()
    words = f"the total {what} of all {kind}"
    wanted = AnswerField(name=f"total_{metric}", description=f"The total {what} of all {kind}{unit}", type="number")
    return Question(
        words,
        wanted,
        Expected(value=total, comparison="number"),
        tuple(s.text for s in sources.values() if s.origin == "query" and s.text),
    )


def _attribute(entity: Entity, name: str) -> Attribute | None:
    return next((a for a in entity.attributes if a.name == name), None)


def _is_enum(entity: Entity, name: str) -> bool:
    attribute = _attribute(entity, name)
    return attribute is not None and attribute.type == "enum"


_NOT_ADDED_UP = frozenset(
    "at hour hours level year month day rate rating score percent limit max min version position floor age radius per "
    "number term".split()
)


def _additive(entity: Entity, name: str) -> bool:
    """Amounts and counts can be added up; hours of the day, levels and years cannot."""
    dated = any(a.type in ("date", "datetime") and not a.nullable for a in entity.attributes)
    if entity.lifecycle is None and not dated:
        return False  # nobody adds up a catalogue
    return not _NOT_ADDED_UP & set(name.split("_")) and entity.attribute(name).unit not in ("hour", "%", "percent")

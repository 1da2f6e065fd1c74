"""Query writing: goals and questions in a person's words (paper, section 4.4.1, "Description refinement").

Each goal is said by one of its tool's `ask` forms, records by their referring expressions, values in words.
A record that was mentioned before is picked up again ("that appointment", "the new order"), as people do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from agentomnia.environment.spec import Attribute, EnvironmentSpec, Parameter, Tool
from agentomnia.synthesis.tasks.dag.answers import Question
from agentomnia.synthesis.tasks.dag.goals import Goal
from agentomnia.synthesis.tasks.dag.ground import Grounder
from agentomnia.task.render import WEEKDAYS, say, say_list

_OPENINGS = ("Please {0}.", "Could you {0}?", "I need you to {0}.", "Can you {0}, please?", "Kindly {0}.")
_NEXT = ("Then {0}.", "After that, {0}.", "Also, {0}.", "Next, {0}.", "And {0}, please.")
_LAST = ("Finally, {0}.", "When that is done, {0}.", "Last, {0}.")
_TELL = ("Then tell me {0}.", "In the end, let me know {0}.", "Once that is done, tell me {0}.")
_ONLY_TELL = ("Can you tell me {0}?", "I would like to know {0}.", "Please find out {0}.")
_ALSO_TELL = ("I also need to know {0}.", "And let me know {0} as well.")
_GREETINGS = ("Hi, this is {0}.", "Hello, {0} here.", "I am {0}.", "My name is {0}.")


class QueryWriter:
    """Writes the query of one task."""

    def __init__(self, spec: EnvironmentSpec, grounder: Grounder, rng: Random) -> None:
        """Write with the grounder's descriptions."""
        self.spec = spec
        self.grounder = grounder
        self.rng = rng
        self.mentions: list[str] = []
        self._said: dict[tuple[str, str], int] = {}

    def write(self, goals: list[Goal], questions: list[Question], created: Mapping[tuple[str, str], int]) -> str | None:
        """The whole query, or `None` where a goal cannot be said."""
        sentences = []
        for number, goal in enumerate(goals):
            phrase = self._goal_phrase(goal, created, number)
            if phrase is None:
                return None
            forms: tuple[str, ...] = (
                _OPENINGS if number == 0 else _LAST if number == len(goals) - 1 and number > 1 else _NEXT
            )
            sentences.append(self.rng.choice(forms).format(phrase))
        for number, question in enumerate(questions):
            endings: tuple[str, ...] = _ALSO_TELL if number else _TELL if goals else _ONLY_TELL
            sentences.append(self.rng.choice(endings).format(question.words))
            self.mentions += question.mentions
        text = " ".join(sentences)
        if self.grounder.describer.speaker is not None and self._needs_name(text):
            text = f"{self._greeting()} {text}"
        return _tidy(text)

    def _needs_name(self, text: str) -> bool:
        """Whether somebody must know who is asking: the reference looked them up, or the text says `my`."""
        speaker = (self.spec.speaker, self.grounder.describer.speaker)
        return speaker in self.grounder.described or re.search(r"\b(me|my|I have)\b", text) is not None

    def _greeting(self) -> str:
        entity = self.spec.entity(self.spec.speaker or "")
        record = self.grounder.describer.state[entity.plural][self.grounder.describer.speaker]
        name = str(record[entity.label or entity.key])
        self.mentions.append(name)
        return self.rng.choice(_GREETINGS).format(name)

    def _goal_phrase(self, goal: Goal, created: Mapping[tuple[str, str], int], number: int) -> str | None:
        words: dict[str, str] = {}
        prose: set[str] = set()
        for parameter in goal.tool.parameters:
            if parameter.name not in goal.arguments:
                continue
            value = goal.arguments[parameter.name]
            said = self._argument(goal.tool, parameter, value, created, number)
            if said is None:
                return None
            words[parameter.name] = words[parameter.binds or parameter.name] = said
            prose |= (
                {parameter.name} if " " in said and value_kind(self.spec, parameter) in ("text", "string") else set()
            )
        template = self.rng.choice(goal.tool.ask) if goal.tool.ask else _default_ask(self.spec, goal)
        template = template.removeprefix("please ")
        extras = [
            p.phrase.replace("{value}", f"{{{p.name}}}")
            for p in goal.tool.parameters
            if p.name in words and not p.required and p.phrase and goal.tool.ask and f"{{{p.name}}}" not in template
        ]
        return _filled(f"{template} {say_list(extras)}".strip(), words, prose)

    def _argument(
        self, goal_tool: Tool, parameter: Parameter, value: Any, created: Mapping[tuple[str, str], int], number: int
    ) -> str | None:
        target = self.spec.target(parameter.carries)
        if target is not None:
            return self._record(target, str(value), created, number)
        said = argument_words(self.spec, goal_tool, parameter, value)
        self.mentions.append(said)
        return said

    def _record(self, entity: str, key: str, created: Mapping[tuple[str, str], int], number: int) -> str | None:
        place, noun = (entity, key), self.spec.entity(entity).noun
        others = [p for p in self._said if p[0] == entity and p != place]
        if place in created and created[place] < number:
            self._said[place] = number
            siblings = [p for p in created if p[0] == entity and p != place]
            return None if siblings else f"the new {noun}"
        description = self.grounder.describe(entity, key)
        if description is None:
            return None
        again = place in self._said and not others and description.phrase != "me" and number > self._said[place]
        self._said[place] = number
        self.mentions += [d.text for d in description.descriptors if not self._is_self(d.target, d.value, place)]
        return f"that {noun}" if again and len(description.phrase) > len(noun) + 12 else description.phrase

    def _is_self(self, target: str | None, value: Any, place: tuple[str, str]) -> bool:
        describer = self.grounder.describer
        return describer.is_speaker(*place) or (target is not None and describer.is_speaker(target, str(value)))


def argument_words(spec: EnvironmentSpec, tool: Tool, parameter: Parameter, value: Any) -> str:
    """A value of a tool's argument in words; a flag by its name only where the writer chooses the sentence."""
    if tool.ask and value_kind(spec, parameter) == "boolean":
        return say(value, "boolean", spec.clock)
    return value_words(spec, parameter, value)


def value_words(spec: EnvironmentSpec, parameter: Parameter, value: Any) -> str:
    """A value of a parameter in words; a flag by its name, `accepting` or `not accepting`."""
    kind = value_kind(spec, parameter)
    if kind == "boolean":
        return _field_words(spec, parameter) if value else f"not {_field_words(spec, parameter)}"
    return say(value, kind, spec.clock, value_unit(spec, parameter))


def value_kind(spec: EnvironmentSpec, parameter: Parameter) -> str:
    """The attribute type by which an argument's value is said."""
    schema = parameter.json_schema
    if "enum" in schema:
        return "enum"
    if parameter.carries is not None:
        return spec.field(parameter.carries).type
    if schema.get("format") in ("date", "date-time"):
        return str(schema["format"]).replace("-", "")
    kind = schema.get("type", "string")
    named = kind if isinstance(kind, str) else next(k for k in kind if k != "null")
    return {"array": "list"}.get(named, named)


def value_unit(spec: EnvironmentSpec, parameter: Parameter) -> str:
    """The unit said after an argument's value."""
    return spec.field(parameter.carries).unit if parameter.carries is not None else ""


def _default_ask(spec: EnvironmentSpec, goal: Goal) -> str:
    """How an update that nobody wrote an `ask` for is said: `change the price of {service} to {price}`."""
    key = next((p for p in goal.tool.parameters if p.binds), None)
    changes = [p for p in goal.tool.parameters if p.name in goal.arguments and p is not key]
    if key is None or not changes or goal.tool.kind != "modify":
        return "{unsayable}"
    if value_kind(spec, changes[0]) == "boolean":
        changes = changes[:1]
        return f"mark {{{key.binds}}} as {{{changes[0].name}}}"
    first, *rest = changes
    target = spec.target(key.carries)
    fields = [_field_words(spec, p) for p in changes]
    if target == spec.speaker:
        said = [f"my {w} to {_slot(spec, p)}" for w, p in zip(fields, changes)]
        return "change " + say_list(said)
    text = f"change the {fields[0]} of {{{key.binds}}} to {_slot(spec, first)}"
    return text + "".join(f" and its {w} to {_slot(spec, p)}" for w, p in zip(fields[1:], rest))


def _slot(spec: EnvironmentSpec, parameter: Parameter) -> str:
    kind = value_kind(spec, parameter)
    return f"“{{{parameter.name}}}”" if kind in ("text", "string") else f"{{{parameter.name}}}"


def _field_words(spec: EnvironmentSpec, parameter: Parameter) -> str:
    attribute: Attribute | None = spec.field(parameter.carries) if parameter.carries else None
    return (attribute.name if attribute else parameter.name).replace("_", " ")


def _filled(template: str, words: Mapping[str, str], prose: set[str]) -> str | None:
    """A template with its words; prose gets quotation marks where the template has none around it."""
    for name in prose:
        bare = re.compile(rf'(?<!["“])\{{{name}\}}(?!["”])')
        template = bare.sub(f"“{{{name}}}”", template)
    try:
        return template.format_map(words)
    except (KeyError, IndexError, ValueError):
        return None  # the template asks for something the goal does not have


_COUNTED_ONE = re.compile(
    r"(?<![\d.,])1 (nights|times|portions|minutes|hours|days|weeks|months|copies|pieces|items|units|stars|seats|people|"
    r"guests|replicas|points|tickets|bottles|boxes)\b"
)


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").replace("..", ".").replace(".”.", ".”")
    text = _COUNTED_ONE.sub(lambda m: "1 " + ("person" if m.group(1) == "people" else m.group(1)[:-1]), text)
    text = re.sub(r'"([^"]*)"', r"“\1”", text)
    text = re.sub(r"\bthe ([a-z]+(?: [a-z]+)?) (the|my|that) \1\b", r"\2 \1", text)  # a noun that the card says too
    text = re.sub(r"\b(\w+) \1\b", r"\1", text)  # a unit that the card says once more
    text = re.sub(r"\b([Aa]) (?=[AEIOaeio])(?!one\b|on[ec]e\b|eu|Eu)", r"\1n ", text)
    text = re.sub(rf"\bat ({'|'.join(WEEKDAYS)})\b", r"on \1", text)
    return re.sub(r"([.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)

"""The words a teacher reasons in: what the last observation showed, and what it does next.

Short and plain (mostly 8 to 30 words), varied by a seeded generator, and made of observable things only: phrases of
the query, values of observations, the clock, words of the tools shown. The shapes of the sentences are those that
`quality.py` can check: a clause with an identifier and a form of "to be" or "to have" states something of that record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from agentomnia.environment.spec import Attribute, Entity, Lookup, Search, Summary, Tool
from agentomnia.synthesis.environments.card import plural_of
from agentomnia.synthesis.trajectories.plan import Reading, answer_value
from agentomnia.task.render import say, say_list, say_number
from agentomnia.task.task import ReferenceCall, Source

MOST_WORDS = 30
_LONGEST_SAID = 6
"""Words of the longest value that is repeated; longer texts are "as worded"."""
_SUFFIXES = ("_contains", "_id")

_FOLLOWS = ("Next, ", "Now ", "Then ")


class ReasoningWriter:
    """Writes the reasoning of one episode."""

    def __init__(self, reading: Reading, rng: Random) -> None:
        """Write for one reading of a reference solution.

        Args:
            reading: the reference solution with its reasons.
            rng: draws among the ways to say a thing.
        """
        self._reading = reading
        self._spec = reading.spec
        self._rng = rng
        self._known: dict[str, None] = {}
        """Identifiers that the words have named so far."""

    def before_call(
        self, index: int, arguments: Mapping[str, Any], observed: Mapping[int, Any], previous: int | None
    ) -> str:
        """The reasoning of a turn that makes a call.

        Args:
            index: the reference call that is made.
            arguments: its arguments as they are given now.
            observed: data of the answers so far, by reference call.
            previous: the call whose answer came last; `None` in the first turn.
        """
        learned = self.learned(previous, observed) if previous is not None else ""
        dates = self._dates(index, arguments)
        plain, purposeful = self._announced(index, arguments, first=previous is None)
        bare = f"Now I {_tool_words(self._tool(index))}."
        for parts in ((learned, dates, purposeful), (learned, dates, plain), (learned, plain), (learned, bare)):
            text = " ".join(part for part in parts if part)
            if len(text.split()) <= MOST_WORDS:
                return text
        return text

    def at_end(self, observed: Mapping[int, Any], previous: int | None, answers: Mapping[str, Any]) -> str:
        """The reasoning of the last turn: what was learned last, and the answers by their names."""
        learned = self.learned(previous, observed) if previous is not None else ""
        if answers:
            said = say_list([f"{name} is {_plain(value)}" for name, value in answers.items()])
            closing = self._rng.choice(("So {}.", "With that, {}.", "Therefore {}.")).format(said)
        else:
            closing = self._rng.choice(
                ("Everything that was asked for is done.", "Nothing else was asked for, so this is finished.")
            )
        return f"{learned} {closing}".strip()

    def after_refusal(self, index: int, message: str) -> str:
        """The reasoning after a refused call: no way on is known, so the person is told."""
        return f"The call to {_tool_words(self._tool(index))} was refused: {message} I cannot go on and have to say so."

    # what was learned

    def learned(self, index: int, observed: Mapping[int, Any]) -> str:
        """What the answer to a call showed, in one sentence."""
        data, tool = observed.get(index), self._tool(index)
        if not isinstance(data, dict):
            return "That is done."
        questions = self._reading.questions_of(index)
        if questions:
            return self._answered(index, data)
        if isinstance(tool.action, Search):
            return self._found(index, tool.action, data)
        if isinstance(tool.action, Lookup):
            return self._looked(tool.action, data)
        return self._changed(tool, data)

    def _answered(self, index: int, data: dict[str, Any]) -> str:
        node, action = self._reading.questions_of(index)[0], self._tool(index).action
        value = answer_value(self._reading, index, node, data)
        if isinstance(action, Search):
            nouns = self._nouns(action.entity, value)
            return f"There {'is' if value == 1 else 'are'} {value} {nouns} {self._described(index, {})}".strip() + "."
        if isinstance(action, Summary) and node.type == "LOGIC":
            return f"The largest group is {_plain(value)}."
        if isinstance(action, Summary):
            return f"The totals of the groups add up to {_plain(value)}."
        field = node.note.removesuffix(" of the answer")
        key = data.get(self._spec.entity(action.entity).key) if isinstance(action, Lookup) else None
        return f"{key} has {field} {_plain(value)}." if key else f"The {field} is {_plain(value)}."

    def _found(self, index: int, action: Search, data: dict[str, Any]) -> str:
        entity, rows = self._spec.entity(action.entity), data.get(self._spec.entity(action.entity).plural, [])
        clauses: list[str] = []
        for source in self._reading.found_by(index)[:2]:
            row = _row_at(rows, source)
            if row is not None:
                clauses.append(self._picked(index, entity, row, rows, source))
        if not clauses and len(rows) == 1:
            clauses.append(self._named(entity, rows[0], str(rows[0][entity.key])))
        if not clauses:
            return f"That shows {len(rows)} {self._nouns(entity.name, len(rows))}."
        said = "; ".join(dict.fromkeys(clauses)) + "."
        return said[0].upper() + said[1:]

    def _picked(self, index: int, entity: Entity, row: dict[str, Any], rows: Sequence[Any], source: Source) -> str:
        key = str(row[entity.key])
        if source.path[-1] != entity.key:
            attribute = entity.attribute(str(source.path[-1]))
            return f"{key} has the {_noun_of(attribute)} {row[attribute.name]}"
        if len(rows) == 1:
            return self._named(entity, row, key)
        self._known[key] = None
        told_by = self._told_by(index, entity, row)
        of_all = f"of the {len(rows)} {self._nouns(entity.name, len(rows))}, " if self._rng.random() < 0.7 else ""
        return f"{of_all}{key} is the one with {say_list(told_by)}" if told_by else f"{of_all}{key} is the one I need"

    def _told_by(self, index: int, entity: Entity, row: dict[str, Any]) -> list[str]:
        """The fields that single a record out, as the filter behind the call names them."""
        notes = [n.note for n in self._reading.nodes_after(index, "FILTER")]
        names = [f.replace(" ", "_") for note in notes[:1] for f in note.rpartition(": ")[2].split(", ")]
        return [self._field_said(entity.attribute(n), row[n]) for n in names if n in row and n in entity.fields][:3]

    def _field_said(self, attribute: Attribute, value: Any) -> str:
        return f"{_noun_of(attribute)} {say(value, attribute.type, self._spec.clock, attribute.unit)}"

    def _named(self, entity: Entity, row: dict[str, Any], key: str) -> str:
        """A record by its name, where the request says that name."""
        label = row.get(entity.label or "")
        if isinstance(label, str) and label and label.casefold() in self._reading.task.query.casefold():
            forms = (f"{key} is {self._quoted(label)}", f"{key} is the {entity.noun} {self._quoted(label)}")
        else:
            told = [
                f"{_noun_of(a)} {row[a.name]}" for a in entity.attributes if a.target and row.get(a.name) in self._known
            ]
            fits = f"with {say_list(told[:2])}" if told else "that fits"
            forms = (f"{key} is the {entity.noun} {fits}", f"{key} is the only {entity.noun} {fits}")
        self._known[key] = None
        return self._rng.choice(forms)

    def _looked(self, action: Lookup, data: dict[str, Any]) -> str:
        entity = self._spec.entity(action.entity)
        key, cycle = data.get(entity.key), entity.lifecycle
        if cycle is not None and isinstance(data.get(cycle.field), str):
            return f"{key} is {say(data[cycle.field], 'enum', self._spec.clock)}, so nothing stands in the way."
        return f"{key} is there and nothing stands in the way."

    def _changed(self, tool: Tool, data: dict[str, Any]) -> str:
        """The record that a change wrote first, with its state where it has one."""
        place = self._written(data)
        if place is None:
            return "That is done."
        entity, record = place
        key, cycle = record[entity.key], entity.lifecycle
        if cycle is not None and isinstance(record.get(cycle.field), str):
            return f"{key} is now {say(record[cycle.field], 'enum', self._spec.clock)}."
        return f"{key} is done." if tool.kind == "modify" else f"{key} is there."

    def _written(self, data: dict[str, Any]) -> tuple[Entity, dict[str, Any]] | None:
        for value in data.values():
            for entity in self._spec.entities:
                if (
                    isinstance(value, dict)
                    and isinstance(value.get(entity.key), str)
                    and value.keys() <= {*entity.fields}
                ):
                    return entity, value
        return None

    # what is done next

    def _announced(self, index: int, arguments: Mapping[str, Any], *, first: bool) -> tuple[str, str]:
        """The announcement of a call, plain and with its purpose."""
        tool = self._tool(index)
        action = tool.action
        if self._reading.questions_of(index):
            return (self._opened(self._asking(index, tool, arguments), first),) * 2
        if isinstance(action, Search):
            wanted = self._searching(index, action, arguments)
            goal = self._reading.purpose_of(index)
            plain = self._opened(f"I {wanted}", first)
            if goal is None:
                return plain, plain
            aim = _tool_words(self._tool(goal))
            return plain, self._rng.choice((f"To {aim}, I first {wanted}.", f"I {wanted} before I can {aim}."))
        if isinstance(action, Lookup):
            (value,) = list(arguments.values())[:1] or ("",)
            noun = self._spec.entity(action.entity).noun
            return (self._opened(f"I check the {noun} {value} before I change anything", first),) * 2
        return (self._opened(self._acting(index, tool, arguments), first),) * 2

    def _opened(self, sentence: str, first: bool) -> str:
        return f"{'' if first else self._rng.choice(_FOLLOWS)}{sentence}."

    def _searching(self, index: int, action: Search, arguments: Mapping[str, Any]) -> str:
        entity = self._spec.entity(action.entity)
        if not arguments:
            return f"list the {plural_of(entity.noun)} to find the one that was named"
        named = [s.text for n, s in self._sources(index).items() if s.text and n.endswith("_contains")]
        if named:
            verb = self._rng.choice(("need the {} id of {}", "look up the {} {}"))
            return verb.format(entity.noun, say_list([self._quoted(n) for n in named]))
        verb = self._rng.choice(("look for the {} {}", "search for the {} {}"))
        return verb.format(entity.noun, self._described(index, arguments))

    def _asking(self, index: int, tool: Tool, arguments: Mapping[str, Any]) -> str:
        action = tool.action
        if isinstance(action, Search):
            return f"I count the {plural_of(self._spec.entity(action.entity).noun)} {self._described(index, arguments)}"
        if isinstance(action, Summary):
            return f"I {_tool_words(tool)} {self._described(index, arguments)}"
        (value,) = list(arguments.values())[:1] or ("",)
        field = self._reading.questions_of(index)[0].note.removesuffix(" of the answer")
        return f"I {_tool_words(tool)} {value} to read its {field}"

    def _acting(self, index: int, tool: Tool, arguments: Mapping[str, Any]) -> str:
        given = [self._argument_said(index, name, value) for name, value in arguments.items()]
        if len(arguments) == 1:
            ((name, value),) = arguments.items()
            words, rest = _field_words(name), tool.name.partition("_")[2].replace("_", " ")
            if rest and (rest.endswith(words) or words.endswith(rest)):
                return f"I {_tool_words(tool)} {_plain(value)}"
        return f"I {_tool_words(tool)}: {', '.join(given)}" if given else f"I {_tool_words(tool)}"

    def _described(self, index: int, arguments: Mapping[str, Any]) -> str:
        """Arguments as a description, `with status cancelled and client CLI-0005`."""
        values = {**self._reading.calls[index].arguments, **arguments}
        said = [self._argument_said(index, name, values[name]) for name in self._reading.calls[index].arguments]
        return f"with {say_list(said)}" if said else ""

    def _argument_said(self, index: int, name: str, value: Any) -> str:
        source = self._sources(index).get(name)
        words = _field_words(name)
        if source is not None and source.origin == "query" and source.text:
            long = len(source.text.split()) > _LONGEST_SAID and f"“{source.text}”" in self._reading.task.query
            text = self._quoted(source.text)
            named = "" if source.text.endswith(words) else f"{words} "  # `30 minutes`, not `minutes 30 minutes`
            return f"{words} as worded" if long else f"{named}{text}"
        return f"{words} {_plain(value)}"

    def _dates(self, index: int, arguments: Mapping[str, Any]) -> str:
        """Dates of the request in the form that tools take."""
        said = {
            s.text: arguments[n]
            for n, s in self._sources(index).items()
            if s.origin == "query" and s.text and n in arguments and _is_date(arguments[n]) and s.text != arguments[n]
        }
        return " ".join(f"{words} is {value}." for words, value in said.items())

    def _quoted(self, text: str) -> str:
        """A text with quotation marks where the request has them."""
        return f"“{text}”" if f"“{text}”" in self._reading.task.query else text

    def _sources(self, index: int) -> Mapping[str, Source]:
        call: ReferenceCall = self._reading.calls[index]
        return call.sources

    def _tool(self, index: int) -> Tool:
        return self._spec.tool(self._reading.calls[index].tool)

    def _nouns(self, entity: str, count: Any) -> str:
        noun = self._spec.entity(entity).noun
        return noun if count == 1 else plural_of(noun)


def done_words(tools: Iterable[tuple[Tool, str | None]]) -> str:
    """What was done, for the last message: `booked appointment (APP-0061) and cancelled appointment (APP-0060)`.

    Args:
        tools: each change made, with the key of the record it was about where one is known.
    """
    said = []
    for tool, key in tools:
        verb, _, rest = tool.name.partition("_")
        said.append(" ".join(part for part in (past(verb), rest.replace("_", " "), f"({key})" if key else "") if part))
    return say_list(said)


def past(verb: str) -> str:
    """The simple past of an English verb; a heuristic with a short list of irregular ones."""
    if verb in _IRREGULAR:
        return _IRREGULAR[verb]
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in tuple("aeiou"):
        return f"{verb[:-1]}ied"
    return f"{verb}ed"


_IRREGULAR = {
    "put": "put", "set": "set", "send": "sent", "make": "made", "take": "took", "give": "gave", "hold": "held",
    "lend": "lent", "pay": "paid", "write": "wrote", "withdraw": "withdrew", "ship": "shipped", "cancel": "cancelled",
    "add": "added", "begin": "began", "plan": "planned", "swap": "swapped", "top": "topped", "tip": "tipped",
    "leave": "left", "find": "found", "freeze": "froze", "unfreeze": "unfroze", "submit": "submitted", "edit": "edited",
    "run": "ran", "sign": "signed", "undo": "undid", "sell": "sold", "drop": "dropped", "stop": "stopped",
}  # fmt: skip


def _tool_words(tool: Tool) -> str:
    """`book the appointment` for `book_appointment`, `switch off the room` for `switch_off_room`."""
    words = tool.name.split("_")
    verbs = 2 if len(words) > 1 and words[1] in _PARTICLES else 1
    return " ".join([*words[:verbs], *(["the"] if words[verbs:] else []), *words[verbs:]])


_PARTICLES = frozenset("away back down for from in off on out over to up with".split())


def _field_words(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _noun_of(attribute: Attribute) -> str:
    return _field_words(attribute.name)


def _plain(value: Any) -> str:
    """A value as reasoning says it: whole numbers without a fraction."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return say_number(value)
    return say_list([_plain(v) for v in value]) if isinstance(value, list) else str(value)


def _row_at(rows: Sequence[Any], source: Source) -> dict[str, Any] | None:
    position = source.path[1] if len(source.path) > 1 else None
    if isinstance(position, int) and position < len(rows) and isinstance(rows[position], dict):
        return dict(rows[position])
    return None


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and len(value) in (10, 16) and value[4:5] == "-" and value[7:8] == "-"

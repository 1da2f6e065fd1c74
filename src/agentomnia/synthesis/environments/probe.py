"""Probing one tool: the search for a call that is accepted and for calls that reach every declared error.

First random arguments in ready states; then, for what is still missing, directed search: a known call is kept
and the records around it are bent (values copied from the call and from the records it names, bounds, other
choices) until the answer is the wanted one. A bent state counts only when it is itself valid.
"""

from __future__ import annotations

import ast
import copy
import marshal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.result import Result
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec, Let, Procedure, Tool
from agentomnia.environment.state import State, pack, state_problems, unpack
from agentomnia.errors import EnvironmentFault
from agentomnia.synthesis.environments.compiler import ToolFacts

_RANDOM_TRIES = 160
_DIRECTED_TRIES = 6000
_HOURS_AROUND_NOW = (-90_000, -2400, -300, -49, -25, -2, 0, 1, 6, 23, 30, 70, 200, 900, 3000, 90_000)
"""Deadlines are hours, days, weeks or months away; guards and rules stand on both sides of them."""


@dataclass
class Reached:
    """What the search has found so far."""

    accepted: bool = False
    changed: bool = False
    missing: set[int] = field(default_factory=set)
    """Declared errors not reached yet."""
    calls: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    """Some calls worth bending the state around, with that state as `marshal` writes it, accepted ones first."""

    def done(self, tool: Tool) -> bool:
        """Whether nothing is left to search for."""
        return self.accepted and not self.missing and (self.changed or tool.kind == "query")


@dataclass(frozen=True)
class Aim:
    """What to bend to make one guard fail, and what to leave, so that the other guards still hold."""

    fields: frozenset[str]
    steady: frozenset[str]


ANYWHERE = Aim(frozenset(), frozenset())


class Probe:
    """Probes the tools of one environment in a set of valid states."""

    def __init__(
        self, spec: EnvironmentSpec, program: Program, facts: Mapping[str, ToolFacts], states: Sequence[State]
    ) -> None:
        """Start an instance in every state."""
        self.spec = spec
        self.program = program
        self.facts = facts
        self.instances = [Instance(program, state) for state in states]
        self.snapshots = [instance.snapshot() for instance in self.instances]
        """The state that every instance is in between two searches."""
        self._ready = [marshal.dumps(state) for state in states]
        self._bent = Instance(program, states[0])

    def search(self, tool: Tool, rng: Random) -> Reached:
        """Search for an accepted call and every declared error of a tool.

        Raises:
            EnvironmentFault: the tool let an exception escape.
        """
        reached = Reached(missing=set(range(len(self.facts[tool.name].errors))))
        self._try_random(tool, rng, reached)
        if not reached.done(tool):
            self._try_directed(tool, rng, reached)
        return reached

    def _try_random(self, tool: Tool, rng: Random, reached: Reached) -> None:
        sampler = ArgumentSampler(self.program, rng)
        for number in range(_RANDOM_TRIES):
            instance = self.instances[number % len(self.instances)]
            arguments = sampler.sample(tool.name, instance.live_state)
            if number % 7 == 0:
                arguments |= _unknown_key(tool, rng)
            self._note(tool, number % len(self.instances), arguments, reached)
            if reached.done(tool):
                return

    def _note(self, tool: Tool, place: int, arguments: dict[str, Any], reached: Reached) -> None:
        """Make the call in one of the states, record what it reached, and take its effect back."""
        instance = self.instances[place]
        answer = instance.call(tool.name, arguments)
        if answer["ok"]:
            reached.accepted = True
            reached.calls.insert(0, (self._ready[place], arguments))
            if tool.kind == "modify":
                reached.changed = reached.changed or instance.snapshot() != self.snapshots[place]
                instance.reset()
        else:
            reached.missing -= self._hit(tool, answer, reached)
            if answer["error"]["code"] != "invalid_argument":
                reached.calls.append((self._ready[place], arguments))
        del reached.calls[12:]

    def _try_directed(self, tool: Tool, rng: Random, reached: Reached) -> None:
        sampler = ArgumentSampler(self.program, rng)
        mentioned = mentioned_fields(tool, self.facts[tool.name])
        for number in range(_DIRECTED_TRIES):
            if reached.done(tool):
                return
            # every other try bends only what one of the missing guards speaks of
            missing = rng.choice(sorted(reached.missing)) if reached.missing and number % 2 else None
            focus = mentioned.get(missing, frozenset()) if missing is not None else frozenset()
            aim = Aim(focus, frozenset().union(*mentioned.values()) - focus) if focus else ANYWHERE
            if reached.calls and number % 3:
                ready, arguments = rng.choice(reached.calls)
            else:
                instance = self.instances[number % len(self.instances)]
                ready = self._ready[number % len(self.instances)]
                arguments = sampler.sample(tool.name, instance.live_state)
            self._note_bent(tool, marshal.loads(ready), dict(arguments), aim, rng, reached)

    def _note_bent(
        self,
        tool: Tool,
        state: State,
        arguments: dict[str, Any],
        aim: Aim,
        rng: Random,
        reached: Reached,
    ) -> None:
        named = list(self._named_records(tool, state, arguments))
        for _ in range(rng.randint(1, 5 if aim.fields else 3)):
            self._bend(tool, state, arguments, named, aim, rng)
        snapshot = pack(state)
        self._bent.adopt(state)
        answer = self._bent.call(tool.name, arguments)
        hit = self._hit(tool, answer, reached)
        news = hit or (answer["ok"] and not (reached.accepted and reached.changed))
        if not news:
            return
        changed = self._bent.snapshot() != snapshot
        if not self._valid(unpack(snapshot)):
            return
        reached.missing -= hit
        if answer["ok"]:
            reached.accepted = True
            reached.changed = reached.changed or changed
            reached.calls.insert(0, (marshal.dumps(unpack(snapshot)), arguments))

    def _hit(self, tool: Tool, answer: Result, reached: Reached) -> set[int]:
        """The missing errors that an answer is one of."""
        errors = self.facts[tool.name].errors
        return {i for i in reached.missing if not answer["ok"] and errors[i].matches(answer["error"])}

    def _valid(self, state: State) -> bool:
        if any(state_problems(self.spec, state)):
            return False
        self._bent.adopt(state)
        try:
            return not self._bent.broken_rules()
        except EnvironmentFault:
            return False  # a rule that cannot even be asked of a bent state does not hold in it

    def _named_records(
        self, tool: Tool, state: State, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[Entity, dict[str, Any]]]:
        """The records that a call names, and those that they refer to."""
        left = [(self.spec.target(p.carries), arguments.get(p.name)) for p in tool.parameters]
        seen: set[tuple[str, str]] = set()
        while left:
            target, key = left.pop(0)
            if target is None or not isinstance(key, str) or (target, key) in seen:
                continue
            seen.add((target, key))
            entity = self.spec.entity(target)
            record = state[entity.plural].get(key)
            if record is not None:
                yield entity, record
                left += [(a.target, record[a.name]) for a in entity.attributes if a.target is not None]

    def _bend(
        self,
        tool: Tool,
        state: State,
        arguments: dict[str, Any],
        named: list[tuple[Entity, dict[str, Any]]],
        aim: Aim,
        rng: Random,
    ) -> None:
        """Set some fields of one record, named by the call or of an entity the tool looks at; or one argument."""
        if rng.random() < (0.1 if aim.fields else 0.25):
            self._bend_argument(tool, arguments, named, rng)
            return
        readable = sorted(self.facts[tool.name].reads) or [self.spec.entities[0].name]
        spoken_of = [n for n in readable if aim.fields & set(self.spec.entity(n).fields)] or readable
        aimed = [(e, r) for e, r in named if aim.fields & set(e.fields)] or named
        if aimed and rng.random() < 0.5:
            entity, record = rng.choice(aimed)
        else:
            entity = self.spec.entity(rng.choice(spoken_of))
            if not state[entity.plural]:
                return
            record = rng.choice(list(state[entity.plural].values()))
        attributes = [a for a in entity.attributes if not a.unique]
        if rng.random() < 0.3:
            # fields that belong together (a status and its date) come from a record that has them right
            model = rng.choice(list(state[entity.plural].values()))
            record.update({a.name: copy.copy(model[a.name]) for a in attributes if a.name not in aim.steady})
        attributes = [a for a in attributes if a.name in aim.fields] or attributes
        for attribute in rng.sample(attributes, min(len(attributes), rng.randint(1, 4))):
            values = list(self._wanted_values(attribute, state, arguments, named))
            if values:
                record[attribute.name] = rng.choice(values)

    def _bend_argument(
        self, tool: Tool, arguments: dict[str, Any], named: list[tuple[Entity, dict[str, Any]]], rng: Random
    ) -> None:
        free = [p for p in tool.parameters if p.carries is None or self.spec.target(p.carries) is None]
        if not free:
            return
        parameter = rng.choice(free)
        kind = parameter.json_schema.get("type")
        values = [v for _, r in named for v in r.values() if _fits(v, kind)]
        values += [v + step for v in values if type(v) in (int, float) for step in (-1, 1)]
        values += [parameter.json_schema[k] for k in ("minimum", "maximum") if k in parameter.json_schema]
        values += parameter.json_schema.get("enum", [])
        if values:
            arguments[parameter.name] = rng.choice(values)

    def _wanted_values(
        self,
        attribute: Attribute,
        state: State,
        arguments: Mapping[str, Any],
        named: list[tuple[Entity, dict[str, Any]]],
    ) -> Iterator[Any]:
        """Values that make guards meet: the call's own, those of the records it names, bounds and choices."""
        if attribute.nullable:
            yield None
        if attribute.target is not None:
            plural = self.spec.entity(attribute.target).plural
            links = [v for v in arguments.values() if isinstance(v, str)]
            links += [v for _, record in named for v in record.values() if isinstance(v, str)]
            yield from (v for v in links if v in state[plural])
            return
        if attribute.type == "enum":
            yield from attribute.choices
            return
        if attribute.type == "boolean":
            yield from (True, False)
            return
        kind = {"date": "string", "datetime": "string"}.get(attribute.type, attribute.type)
        length = {"date": 10, "datetime": 16}.get(attribute.type)
        pool = [v for v in arguments.values() if _fits(v, kind)]
        pool += [v for _, record in named for v in record.values() if _fits(v, kind)]
        if attribute.type in ("date", "datetime"):
            now = state["clock"]["now"]
            pool += [_shifted(now, hours) for hours in _HOURS_AROUND_NOW]
            yield from (v[:length] if len(v) >= (length or 0) else v for v in pool if _dated(v))
            return
        if attribute.type in ("integer", "number"):
            bounds = [b for b in (attribute.minimum, attribute.maximum) if b is not None]
            pool += [int(b) if attribute.type == "integer" else b for b in bounds]
            pool += [v + step for v in list(pool) for step in (-1, 1)]
            yield from (int(v) if attribute.type == "integer" else v for v in pool)
            return
        if attribute.type in ("string", "text"):
            yield from pool


def _fits(value: Any, kind: Any) -> bool:
    if kind == "string":
        return isinstance(value, str)
    return kind in ("integer", "number") and type(value) in (int, float)


def _shifted(moment: str, hours: int) -> str:
    return (datetime.fromisoformat(moment) + timedelta(hours=hours)).isoformat(timespec="minutes")


def _dated(value: str) -> bool:
    return len(value) >= 10 and value[4] == "-" and value[7] == "-" and value[:4].isdigit()


def _unknown_key(tool: Tool, rng: Random) -> dict[str, Any]:
    keys = [p.name for p in tool.parameters if p.binds is not None or tool.action.type == "lookup"]
    return {rng.choice(keys): "NONE-0000"} if keys else {}


def mentioned_fields(tool: Tool, facts: ToolFacts) -> dict[int, frozenset[str]]:
    """The field names that the guard behind each declared error speaks of, by the error's index."""
    if not isinstance(tool.action, Procedure):
        return {}
    found: dict[int, frozenset[str]] = {}
    known: dict[str, frozenset[str]] = {}
    for step in tool.action.steps:
        text = step.value if isinstance(step, Let) else step.that
        tree = ast.parse(text.strip(), mode="eval")
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        names |= {f"{n}_id" for n in names}  # a reference is followed by its name without `_id`
        used = [known[n.id] for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in known]
        fields = frozenset(names).union(*used)
        if isinstance(step, Let):
            known[step.name] = fields
        else:
            found |= {
                i: fields for i, e in enumerate(facts.errors) if (e.code, e.template) == (step.code, step.message)
            }
    return found

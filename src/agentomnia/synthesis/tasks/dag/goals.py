"""Goals: what a person wants done, found by trying calls on a scratch instance until they are accepted.

For each modifying tool of the sampled chains the generator chooses records and believable values. A goal is
kept when the call succeeds in the state that the earlier goals left, and when every record it
names can be described to somebody who does not know identifiers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.spec import EnvironmentSpec, Parameter, Procedure, Tool
from agentomnia.environment.state import State, unpack
from agentomnia.errors import EnvironmentFault
from agentomnia.synthesis.environments.compiler import ToolFacts
from agentomnia.synthesis.environments.makers import make_argument
from agentomnia.synthesis.tasks.dag.describe import Describer
from agentomnia.task.diff import StateDiff, state_diff

_TRIES = 60


def owned_by(spec: EnvironmentSpec, entity: str, owner: str) -> bool:
    """Whether records of the entity lead to a record of the owner by references, or are owners themselves."""
    seen, left = {entity}, [entity]
    while left:
        current = left.pop()
        if current == owner:
            return True
        targets = {a.target for a in spec.entity(current).attributes if a.target is not None} - seen
        left += sorted(targets)
        seen |= targets
    return False


def owner_of(spec: EnvironmentSpec, state: State, entity: str, key: str) -> str | None:
    """The speaker's record that a record leads to by the shortest way of references."""
    seen, left = {(entity, key)}, [(entity, key)]
    while left:
        name, current = left.pop(0)
        if name == spec.speaker:
            return current
        record = state[spec.entity(name).plural][current]
        links = [(a.target, record[a.name]) for a in spec.entity(name).attributes if a.target and record[a.name]]
        left += [link for link in links if link not in seen]
        seen |= set(links)
    return None


@dataclass(frozen=True)
class Goal:
    """One modifying call that the person asks for."""

    tool: Tool
    arguments: dict[str, Any]
    created: tuple[tuple[str, str], ...] = ()
    """Records that the call creates, `(entity, key)`."""


@dataclass
class GoalSearch:
    """Chooses goals one after another on a scratch instance."""

    spec: EnvironmentSpec
    facts: dict[str, ToolFacts]
    scratch: Instance
    describer: Describer
    rng: Random
    goals: list[Goal] = field(default_factory=list)
    created: dict[tuple[str, str], int] = field(default_factory=dict)
    """Records created by earlier goals, with the goal's index."""
    touched: set[tuple[str, str]] = field(default_factory=set)
    """Records that a goal has changed or created."""
    _owned: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """Keys by entity that lead to the speaker, until the next goal changes the state."""

    def add(self, tool: Tool) -> bool:
        """Try to make the tool the next goal; whether it worked."""
        for _ in range(_TRIES):
            arguments = self._choose(tool)
            if arguments is None or not self._sensible(tool, arguments):
                continue
            before = self.scratch.snapshot()
            try:
                answer = self.scratch.call(tool.name, arguments)
            except EnvironmentFault:
                self.scratch.restore(before)
                return False
            if not answer["ok"]:
                continue
            diff = state_diff(unpack(before), self.scratch.live_state)
            if diff.empty or self._overrides(diff) or self._numbers_twice(diff, arguments):
                self.scratch.restore(before)
                continue
            self._note(tool, arguments, [*diff.created], [*diff.updated])
            return True
        return False

    def _note(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        created: list[tuple[str, str]],
        updated: list[tuple[str, str]],
    ) -> None:
        self._owned.clear()
        by_container = {e.plural: e.name for e in self.spec.entities}
        new = tuple((by_container[c], key) for c, key in created)
        self.goals.append(Goal(tool, arguments, new))
        for place in new:
            self.created[place] = len(self.goals) - 1
        self.touched |= {*new, *((by_container[c], key) for c, key in updated)}

    def _numbers_twice(self, diff: StateDiff, arguments: dict[str, Any]) -> bool:
        """Whether a second record of a kind would be created whose printed number depends on which came first."""
        before = {e for e, _ in self.created}
        values = list(arguments.values())
        for container, key in diff.created:
            entity = next(e for e in self.spec.entities if e.plural == container)
            record = diff.created[(container, key)]
            if entity.name in before and any(a.unique and record[a.name] not in values for a in entity.attributes):
                return True
        return False

    def _overrides(self, diff: StateDiff) -> bool:
        """Whether a change overwrites what the same request did: nobody sets a thing twice, or there and back.

        Moving on along a lifecycle, and adding to or taking from an amount, are no overwriting.
        """
        by_container = {e.plural: e for e in self.spec.entities}
        for (container, key), fields in diff.updated.items():
            entity = by_container[container]
            if (entity.name, key) not in self.touched:
                continue
            initial = self.describer.state[container].get(key, {})
            for field_name, value in fields.items():
                attribute = entity.attribute(field_name)
                moves_on = entity.lifecycle is not None and entity.lifecycle.field == field_name
                adds_up = attribute.type in ("number", "integer")
                if value == initial.get(field_name) or not (moves_on or adds_up):
                    return True
        return False

    def _sensible(self, tool: Tool, arguments: dict[str, Any]) -> bool:
        """Nobody asks to take back what the same request does, or to do the same thing twice."""
        keys = {p.name: arguments.get(p.name) for p in tool.parameters if p.binds}
        if any(g.tool.name == tool.name and keys.items() <= g.arguments.items() for g in self.goals if keys):
            return False
        # a list, not a set: an argument may itself be a list
        named = [(self.spec.target(p.carries), arguments.get(p.name)) for p in tool.parameters if p.carries]
        if tool.origin == "reader" and any(place in self.created for place in named):
            return False  # what a new record should say, people say when they ask for it
        undo = isinstance(tool.action, Procedure) and tool.action.undo
        return not (undo and any(place in named for place in self.touched))

    def _choose(self, tool: Tool) -> dict[str, Any] | None:
        arguments: dict[str, Any] = {}
        state = self.scratch.live_state
        for parameter in tool.parameters:
            if not parameter.required and not self._wants_optional(tool, parameter):
                continue
            target = self.spec.target(parameter.carries)
            if target is not None:
                key = self._choose_key(target, state, arguments)
                if key is None:
                    return None
                arguments[parameter.name] = key
            else:
                carried = self.spec.field(parameter.carries) if parameter.carries else None
                arguments[parameter.name] = make_argument(parameter, carried, self.spec.clock, self.rng)
        only_key = all(p.required or p.name not in arguments for p in tool.parameters)
        if only_key and tool.origin == "reader":
            self._give_one_field(tool, arguments)
        return arguments

    def _give_one_field(self, tool: Tool, arguments: dict[str, Any]) -> None:
        """An update without a field would be refused; give it one."""
        free = [p for p in tool.parameters if not p.required]
        if free:
            parameter = self.rng.choice(free)
            carried = self.spec.field(parameter.carries) if parameter.carries else None
            arguments[parameter.name] = make_argument(parameter, carried, self.spec.clock, self.rng)

    def _wants_optional(self, tool: Tool, parameter: Parameter) -> bool:
        """An optional argument is used now and then, where the card says how a person mentions it."""
        return bool(parameter.phrase) and self.rng.random() < (0.5 if tool.origin == "reader" else 0.35)

    def _choose_key(self, entity: str, state: State, arguments: dict[str, Any]) -> str | None:
        """A record to name: the speaker, one of this request, one related to those chosen, or any other."""
        records = state[self.spec.entity(entity).plural]
        if entity == self.spec.speaker and self.describer.speaker in records:
            return self.describer.speaker
        recent = [key for e, key in self.touched if e == entity and key in records]
        if recent and self.rng.random() < 0.6:
            return self.rng.choice(sorted(recent))
        own = self._own(entity, list(records))
        related = [k for k in own if self._related(records[k], arguments)]
        pool = related if related and self.rng.random() < 0.7 else own
        return self.rng.choice(pool) if pool else None

    def _own(self, entity: str, keys: list[str]) -> list[str]:
        """Where records of this kind lead to the person who asks, only those that lead to this very person."""
        speaker = self.describer.speaker
        if speaker is None or not owned_by(self.spec, entity, self.spec.speaker or ""):
            return keys
        owned = self._owned.get(entity)
        if owned is None:
            state = self.scratch.live_state
            owned = self._owned[entity] = [k for k in keys if owner_of(self.spec, state, entity, k) == speaker]
        return owned

    def _related(self, record: dict[str, Any], arguments: dict[str, Any]) -> bool:
        chosen = {v for v in arguments.values() if isinstance(v, str)}
        return any(isinstance(v, str) and v in chosen for v in record.values())

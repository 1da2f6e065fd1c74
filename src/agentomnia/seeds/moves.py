"""Moves of a record from one state to another: which field a verb means, and when the move may start."""

from __future__ import annotations

from dataclasses import dataclass

from agentomnia.environment.spec import Attribute, Entity, Guard
from agentomnia.seeds.naming import snake, spoken
from agentomnia.seeds.verbs import opposite_of, states_of


@dataclass(frozen=True)
class Wanted:
    """The state that a move leads to, and when it may start."""

    field: str
    expression: str
    that: str
    """The condition on the field, with `{}` for its place."""
    spoken: str

    def guard(self, record: str, entity: Entity) -> Guard:
        """The refusal of a move that is done already, or that starts from the wrong state."""
        return Guard(
            that=self.that.format(f"{record}.{self.field}"), code="conflict",
            message=f"The {spoken(self.field)} of this {entity.noun} does not allow this.",
            hint=f"Read the {entity.noun} to see its {spoken(self.field)}.",
        )  # fmt: skip


def wanted_state(entity: Entity, verb: str) -> Wanted | None:
    """The state that a verb leads to, where a field of the entity can hold it; a flag, a status or a moment."""
    opposite = opposite_of(verb)
    if opposite is not None:
        flag = _flag(entity, opposite)
        if flag is not None:
            return Wanted(flag.name, "False", "{}", f"not {spoken(flag.name)}")
    flag = _flag(entity, verb)
    if flag is not None:
        return Wanted(flag.name, "True", "not {}", spoken(flag.name))
    for attribute in (a for a in entity.attributes if a.type == "enum"):
        choices = {snake(c): c for c in attribute.choices}
        wanted = next((choices[s] for s in states_of(verb) if s in choices), None)
        if wanted is None or len(choices) < 2:
            continue
        left = next((choices[s] for s in states_of(opposite or "") if s in choices), None)
        that = f"{{}} == {left!r}" if left is not None and left != wanted else f"{{}} != {wanted!r}"
        if "{" in wanted + (left or ""):
            continue
        return Wanted(attribute.name, repr(wanted), that, spoken(snake(wanted)))
    moment = next((a for a in entity.attributes if a.name in {f"{s}_at" for s in states_of(verb)} and a.nullable), None)
    if moment is not None and moment.type in ("date", "datetime"):
        return Wanted(moment.name, moment_of(moment), "{} is None", spoken(moment.name.removesuffix("_at")))
    return None


def _flag(entity: Entity, verb: str) -> Attribute | None:
    names = {form for state in states_of(verb) for form in (state, f"is_{state}")}
    return next((a for a in entity.attributes if a.type == "boolean" and a.name in names), None)


def moment_of(attribute: Attribute) -> str:
    """The expression of the present moment, as the field keeps it."""
    return "today" if attribute.type == "date" else "now"

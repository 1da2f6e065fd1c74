"""Tools from planned operations: parameters, guards, effects and the way people ask for them.

Each operation keeps its own name and its own parameters where the state model has a counterpart; what has none is
reported, never invented. A guard stands only for what the file or the records themselves demand: records exist,
belong where the path says, are not in the wanted state already, and are not deleted while others refer to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentomnia.environment.spec import (
    Attribute,
    Entity,
    Filter,
    Guard,
    Let,
    Lookup,
    Parameter,
    Procedure,
    Search,
    Tool,
)
from agentomnia.seeds.batches import batch_items, create_many, delete_many, is_key_list
from agentomnia.seeds.believable import described, parameter_schema
from agentomnia.seeds.call import Argument
from agentomnia.seeds.entities import Model, starts_now, taken_fields, touched
from agentomnia.seeds.filters import LIMIT_SCHEMA, Matched, is_limit, match_filters, tells_how
from agentomnia.seeds.moves import moment_of, wanted_state
from agentomnia.seeds.naming import free_name, plural, sentence, snake, spoken, usable
from agentomnia.seeds.phrases import create_asks, create_phrase, delete_asks, move_asks, update_asks, update_phrase
from agentomnia.seeds.plan import Given, Plan, Planned
from agentomnia.seeds.seed import Report
from agentomnia.seeds.shape import Shape
from agentomnia.seeds.verbs import is_undoing

_KEY = {"type": "string", "minLength": 1, "maxLength": 64}


@dataclass
class Draft:
    """A tool being put together."""

    planned: Planned
    entity: Entity
    parameters: list[Parameter] = field(default_factory=list)
    steps: list[Let | Guard] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names in use by parameters and records."""

    def free(self, base: str) -> str:
        """A name that neither a parameter nor a record has; taken from now on."""
        name = free_name(usable(base), self.names)
        self.names.add(name)
        return name

    def free_record(self, base: str, parameter: str = "") -> str:
        """A name for a record: `pet`, or `pet_record` where the parameter that names it is called that."""
        name = usable(f"{base}_record" if base == parameter else base, "record")
        return self.free(f"{name}_record" if name in self.names else name)

    def free_new(self) -> str:
        """A name for a new record, clear of the name that the program gives to its key."""
        variable = self.entity.variable
        return self.free_record(f"new_{variable}" if f"{variable}_key" in self.names else variable)


class ToolBuilder:
    """Builds the tools of one specification."""

    def __init__(self, plan: Plan, model: Model, report: Report) -> None:
        """Build over the entities of `model`; what cannot be built goes to the report."""
        self.plan = plan
        self.model = model
        self.report = report
        self.by_name = {e.name: (v, e) for v, e in model.entities.items()}

    def build(self, planned: Planned) -> Tool | None:
        """The tool of one operation, or `None` with the reason reported."""
        entity = self.model.entities.get(planned.resource)
        if entity is None:
            self.report.leave_out(
                planned.call.label, f"the file does not tell what {spoken(planned.resource)} records hold"
            )
            return None
        draft = Draft(planned, entity)
        builders = {
            "get": self._get, "list": self._list, "create": self._create, "update": self._update,
            "delete": self._delete,
            "move": self._move, "save": self._save, "count": self._count,
        }  # fmt: skip
        return builders[planned.deed](draft)

    def _refused(self, draft: Draft, reason: str) -> None:
        self.report.leave_out(draft.planned.call.label, reason)

    def finished(self, draft: Draft, action: Lookup | Search | Procedure, ask: Iterable[str] = ()) -> Tool:
        """The tool of a draft with its behaviour."""
        call = draft.planned.call
        modifies = isinstance(action, Procedure) and bool(action.body)
        return Tool(
            name=call.name,
            kind="modify" if modifies else "query",
            description=sentence(call.summary) or self._plain_description(draft),
            parameters=tuple(draft.parameters),
            action=action,
            ask=tuple(ask) if modifies else (),
            origin=call.label,
        )

    def _plain_description(self, draft: Draft) -> str:
        noun = draft.entity.noun
        nouns = spoken(plural(snake(noun)))
        return {
            "get": f"Read one {noun}.", "list": f"List {nouns}.", "create": f"Create a new {noun}.",
            "update": f"Change one {noun}.", "delete": f"Delete one {noun}.", "save": f"Create or replace one {noun}.",
            "count": f"Count {nouns}.",
        }.get(draft.planned.deed, f"{draft.planned.verb.capitalize()} one {noun}.")  # fmt: skip

    # -- naming records -------------------------------------------------------------------------------------------

    def _named(self, draft: Draft, argument: str, variable: str, required: bool = True) -> str:
        """Add the parameter that names a record; returns what the procedure calls the record."""
        entity, resource = self.model.entities[variable], self.plan.resources[variable]
        own = next((a for a in draft.planned.call.arguments if a.name == argument), None)
        text = sentence(own.description or own.shape.description) if own else ""
        natural = resource.natural
        wanted = usable(argument)
        if natural is None and wanted in {a.name for a in entity.attributes}:
            self.report.note(
                f"{draft.planned.call.label}: {argument!r} is served as {entity.key}, since records also have a field "
                f"of that name"
            )
            wanted = entity.key
        if natural is not None and required:
            return self._named_naturally(draft, wanted, text, entity, natural)
        name = draft.free(wanted)
        record = draft.free_record(entity.variable, name)
        draft.parameters.append(
            Parameter(
                name=name, json_schema=_KEY, description=text or f"Identifier of the {entity.noun}.", required=required,
                carries=f"{entity.name}.{entity.key}", binds=record,
            )
        )  # fmt: skip
        return record

    def _named_naturally(self, draft: Draft, wanted: str, text: str, entity: Entity, natural: str) -> str:
        name = draft.free(wanted)
        record = draft.free_record(entity.variable, name)
        attribute = entity.attribute(natural)
        draft.parameters.append(
            Parameter(
                name=name, json_schema=parameter_schema(attribute, Shape(kind="string")),
                description=text or f"{spoken(natural).capitalize()} of the {entity.noun}.",
                carries=f"{entity.name}.{natural}",
            )
        )  # fmt: skip
        draft.steps.append(Let(name=record, value=f"next((r for r in {entity.name} if r.{natural} == {name}), None)"))
        draft.steps.append(
            Guard(that=f"{record} is not None", code="not_found",
            message=f"There is no {entity.noun} with this {spoken(natural)}.",
                  hint=f"Look the {entity.noun} up first.")
        )  # fmt: skip
        return record

    def _parent(self, planned: Planned) -> tuple[str, str] | None:
        """The nearest thing on the path that records belong to, where it is modelled."""
        for argument, variable in reversed(planned.parents):
            entity = self.model.entities.get(planned.resource)
            above = self.model.entities.get(variable)
            if entity is not None and above is not None and above.key in entity.fields and variable != planned.resource:
                return argument, variable
        return None

    def _item(self, draft: Draft) -> str | None:
        """Add the parameters that name the record of the operation, below what it belongs to."""
        planned = draft.planned
        if planned.key is None:
            self._refused(draft, f"it does not say which {draft.entity.noun} it is about")
            return None
        parent = self._parent(planned)
        above = self._named(draft, *parent) if parent else None
        record = self._named(draft, planned.key, planned.resource)
        if parent is not None and above is not None:
            owner = self.model.entities[parent[1]]
            draft.steps.append(
                Guard(that=f"{record}.{owner.key} == {above}.{owner.key}", code="not_found",
                      message=f"This {draft.entity.noun} belongs to another {owner.noun}.",
                      hint=f"Look up which {owner.noun} it belongs to.")
            )  # fmt: skip
        self._note_context(planned, parent)
        return record

    def _note_context(self, planned: Planned, parent: tuple[str, str] | None) -> None:
        ignored = [*planned.context, *(a for a, _ in planned.parents if parent is None or a != parent[0])]
        for name in ignored:
            self.report.leave_out(
                planned.call.label, "the record tells it already, or it names nothing that is modelled", name
            )

    # -- readings -------------------------------------------------------------------------------------------------

    def _get(self, draft: Draft) -> Tool | None:
        record = self._item(draft)
        if record is None:
            return None
        if not self._leave_out_rest(draft):
            return None
        if len(draft.parameters) > 1 or draft.steps:
            return self.finished(draft, Procedure(steps=tuple(draft.steps), returns=((draft.entity.variable, record),)))
        draft.parameters[0] = draft.parameters[0].model_copy(update={"binds": None})
        return self.finished(draft, Lookup(entity=draft.entity.name, include=self._include(draft.entity)))

    def _include(self, entity: Entity) -> tuple[str, ...]:
        """References whose targets have a name to add, unless a field has that name already."""
        included: dict[str, str] = {}
        for attribute in entity.attributes:
            if attribute.target is None:
                continue
            label = self.by_name[attribute.target][1].label
            name = f"{attribute.name.removesuffix('_id')}_{label}"
            if label is not None and name not in entity.fields and name not in included:
                included[name] = attribute.name
        return tuple(included.values())

    def _leave_out_rest(self, draft: Draft) -> bool:
        """Report the arguments that are not served; false where the call would mean something else without one."""
        planned = draft.planned
        used = {planned.key, *(n for n, _ in planned.parents), *planned.context}
        rest = [a for a in planned.call.arguments if a.place != "path" and a.name not in used]
        needed = [a for a in rest if not tells_how(a)]
        if needed and planned.deed in ("get", "list", "count"):
            self._refused(draft, f"it depends on {needed[0].name!r}, which matches nothing that is kept of the record")
            return False
        for argument in rest:
            self.report.leave_out(planned.call.label, "it matches nothing that is kept of the record", argument.name)
        return True

    def _list(self, draft: Draft) -> Tool | None:
        planned, entity = draft.planned, draft.entity
        parent = self._parent(planned)
        self._note_context(planned, parent)
        conditions: list[str] = []
        filters: list[Matched] = []
        if parent is not None:
            owner = self.model.entities[parent[1]]
            if self.plan.resources[parent[1]].natural is None:
                filters.append(self._owner_filter(draft, parent[0], owner))
            else:
                above = self._named(draft, *parent)
                conditions.append(f"r.{owner.key} == {above}.{owner.key}")
        given = self._filter_arguments(planned)
        limits = [a for a in given if is_limit(a.name)]
        matched, unmatched = match_filters([a for a in given if a not in limits], entity, draft.names)
        filters += matched
        needed = next((a for a in unmatched if not tells_how(a)), None)
        if needed is not None:
            self._refused(draft, f"it depends on {needed.name!r}, which matches no field")
            return None
        draft.parameters += [m.parameter for m in filters]
        for argument in unmatched:
            self.report.leave_out(planned.call.label, "it matches no field", argument.name)
        if limits:
            draft.parameters.append(_limit(draft))
        if conditions:
            return self.finished(draft, self._listing(draft, conditions, filters))
        return self.finished(draft, Search(entity=entity.name, filters=tuple(m.filter for m in filters)))

    def _filter_arguments(self, planned: Planned) -> list[Argument]:
        taken = {*(n for n, _ in planned.parents), *planned.context}
        own = {a.name: a for a in planned.call.arguments if a.name not in taken and a.place != "path"}
        return list(own.values())

    def _owner_filter(self, draft: Draft, argument: str, owner: Entity) -> Matched:
        name = draft.free(argument)
        own = next((a for a in draft.planned.call.arguments if a.name == argument), None)
        text = sentence(own.description or own.shape.description) if own else ""
        parameter = Parameter(
            name=name, json_schema=_KEY, description=text or f"Identifier of the {owner.noun}.",
            carries=f"{draft.entity.name}.{owner.key}",
        )  # fmt: skip
        return Matched(parameter, Filter(parameter=name, field=owner.key, op="equals"))

    def _listing(self, draft: Draft, conditions: list[str], filters: list[Matched]) -> Procedure:
        tests = list(conditions)
        for matched in filters:
            place, name = f"r.{matched.filter.field}", matched.filter.parameter
            nullable = draft.entity.attribute(matched.filter.field).nullable
            test = {
                "equals": f"{place} == {name}", "contains": f"{name}.lower() in {place}.lower()",
                "at_least": f"{place} >= {name}", "at_most": f"{place} <= {name}",
            }[matched.filter.op]  # fmt: skip
            if nullable and matched.filter.op != "equals":
                test = f"({place} is not None and {test})"
            tests.append(test if matched.parameter.required else f"({name} is None or {test})")
        listing = f"[r for r in {draft.entity.name} if {' and '.join(tests)}]"
        draft.steps.append(Let(name="found", value=listing))
        shown = "found[:limit]" if any(p.name == "limit" for p in draft.parameters) else "found"
        return Procedure(steps=tuple(draft.steps), returns=(("total", "len(found)"), (draft.entity.plural, shown)))

    def _count(self, draft: Draft) -> Tool | None:
        for argument in draft.planned.call.arguments:
            self.report.leave_out(draft.planned.call.label, "it matches nothing that is counted", argument.name)
        return self.finished(draft, Procedure(returns=(("count", f"len([r for r in {draft.entity.name}])"),)))

    # -- changes --------------------------------------------------------------------------------------------------

    def _fields(self, draft: Draft, natural: bool) -> dict[str, Given]:
        """The fields that a change is given, as far as they are kept."""
        planned, resource = draft.planned, self.plan.resources[draft.planned.resource]
        kept = self.model.shapes[planned.resource]
        given = taken_fields(planned, resource, self.plan)
        for name in given:
            if name not in kept:
                self.report.leave_out(planned.call.label, "the record does not keep it", name)
        found = {n: g for n, g in given.items() if n in kept}
        if natural and resource.natural is not None and resource.natural not in found:
            found = {resource.natural: Given(Shape(kind="string"), True), **found}
        for argument in planned.call.placed("query"):
            if planned.call.method == "get" or usable(argument.name) not in found:
                self.report.leave_out(planned.call.label, "it matches no field", argument.name)
        return found

    def _value_parameter(
        self, draft: Draft, attribute: Attribute, given: Given, required: bool, creating: bool
    ) -> tuple[str, str]:
        """Add the parameter for a field; returns the expression of its value and its place in what people say."""
        entity = draft.entity
        text = sentence(given.shape.description) or described(attribute)
        phrase = "" if required else create_phrase(attribute) if creating else update_phrase(attribute)
        if attribute.target is not None:
            name = draft.free(attribute.name)
            record = draft.free_record(_stem(attribute.name), name)
            owner = self.by_name[attribute.target][1]
            draft.parameters.append(
                Parameter(name=name, json_schema=_KEY, description=text if attribute.description else f"Identifier of "
                f"the {owner.noun}.",
                          required=required, carries=f"{owner.name}.{owner.key}", binds=record, phrase=phrase)
            )  # fmt: skip
            return name, record
        schema = parameter_schema(attribute, given.shape)
        if creating and not required and attribute.nullable and given.shape.nullable:
            schema = {
                **schema,
                "type": [schema["type"], "null"],
                **({"enum": [*schema["enum"], None]} if "enum" in schema else {}),
            }
        name = draft.free(attribute.name)
        draft.parameters.append(
            Parameter(name=name, json_schema=schema, description=text, required=required,
                      carries=f"{entity.name}.{attribute.name}", phrase=phrase)
        )  # fmt: skip
        return name, name

    def _owner_value(self, draft: Draft) -> tuple[str, str, str] | None:
        """The reference of a new record to what its path stands under: field, expression, place."""
        parent = self._parent(draft.planned)
        self._note_context(draft.planned, parent)
        if parent is None:
            return None
        owner = self.model.entities[parent[1]]
        record = self._named(draft, *parent)
        return owner.key, f"{record}.{owner.key}", record

    def _create(self, draft: Draft) -> Tool | None:
        planned, entity = draft.planned, draft.entity
        items = batch_items(planned)
        if items is not None:
            return create_many(self, draft, items)
        fields = self._fields(draft, natural=True)
        owner = self._owner_value(draft)
        fields = {n: g for n, g in fields.items() if owner is None or n != owner[0]}
        if not fields and owner is None:
            self._refused(draft, "it is given nothing that the record keeps")
            return None
        values, label, references, plain = self._creation_values(draft, fields, owner)
        missing = self._unfilled(entity, values)
        if missing:
            self._refused(
                draft, f"a new {entity.noun} would lack {', '.join(missing)}, which the operation is not given"
            )
            return None
        self._refuse_doubles(draft, values)
        record = draft.free_new()
        body = f"{record} = new({entity.name}, {', '.join(f'{n}={e}' for n, e in values.items())})"
        action = Procedure(steps=tuple(draft.steps), body=body, returns=((entity.variable, record),))
        return self.finished(draft, action, create_asks(entity, label, references, plain))

    def _creation_values(
        self, draft: Draft, fields: dict[str, Given], owner: tuple[str, str, str] | None
    ) -> tuple[dict[str, str], str | None, list[tuple[str, str]], list[Parameter]]:
        entity, resource = draft.entity, self.plan.resources[draft.planned.resource]
        values: dict[str, str] = {}
        label: str | None = None
        references: list[tuple[str, str]] = []
        plain: list[Parameter] = []
        if owner is not None:
            values[owner[0]] = owner[1]
            references.append((owner[2], self._noun_of(entity.attribute(owner[0]))))
        for name, given in fields.items():
            attribute = entity.attribute(name)
            required = given.required or name == resource.natural
            if (
                not required
                and not attribute.nullable
                and attribute.default is None
                and attribute.type != "list"
                and not starts_now(attribute)
            ):
                required = True
            expression, place = self._value_parameter(draft, attribute, given, required, creating=True)
            values[name] = self._or_default(attribute, expression, required)
            if not required:
                continue
            if attribute.target is not None:
                references.append((place, self._noun_of(attribute)))
            elif name == entity.label and label is None:
                label = place
            else:
                plain.append(draft.parameters[-1])
        values |= {a.name: moment_of(a) for a in entity.attributes if starts_now(a) and a.name not in values}
        return values, label, references, plain

    def _noun_of(self, attribute: Attribute) -> str:
        return self.by_name[attribute.target or ""][1].noun

    def _or_default(self, attribute: Attribute, expression: str, required: bool) -> str:
        if required or (attribute.default is None and attribute.nullable):
            return expression
        if starts_now(attribute):
            return f"{expression} if {expression} is not None else {moment_of(attribute)}"
        default = [] if attribute.type == "list" and attribute.default is None else attribute.default
        return f"{expression} if {expression} is not None else {default!r}"

    def _unfilled(self, entity: Entity, values: dict[str, str]) -> list[str]:
        return [
            a.name for a in entity.attributes
            if a.name not in values and not a.nullable and a.default is None and a.type != "list"
        ]  # fmt: skip

    def _refuse_doubles(self, draft: Draft, values: dict[str, str]) -> None:
        """A field that tells records apart is taken once."""
        for attribute in draft.entity.attributes:
            if attribute.unique and attribute.name in values:
                draft.steps.append(
                    Guard(that=f"not any(r.{attribute.name} == {values[attribute.name]} for r in {draft.entity.name})",
                    code="conflict",
                          message=f"There is another {draft.entity.noun} with this {spoken(attribute.name)}.",
                          hint=f"Choose another {spoken(attribute.name)}.")
                )  # fmt: skip

    def _update(self, draft: Draft) -> Tool | None:
        record = self._item(draft)
        if record is None:
            return None
        entity, resource = draft.entity, self.plan.resources[draft.planned.resource]
        fields = {n: g for n, g in self._fields(draft, natural=False).items() if n != resource.natural}
        parent = self._parent(draft.planned)
        owner_key = self.model.entities[parent[1]].key if parent else None
        fields = {n: g for n, g in fields.items() if n != owner_key}
        if draft.planned.verb == "set" and len(fields) < len(taken_fields(draft.planned, resource, self.plan)):
            self._refused(draft, "the file does not tell how it changes the record")
            return None
        if not fields:
            self._refused(draft, "it is given nothing that the record keeps")
            return None
        lines, required = self._assignments(draft, record, fields)
        if not required:
            nothing = " and ".join(f"{p.name} is None" for p in draft.parameters if not p.required)
            draft.steps.append(
                Guard(that=f"not ({nothing})", code="invalid_argument", message="Nothing to change was given.",
                      hint="Give at least one field with its new value.")
            )  # fmt: skip
        lines += [
            f"{record}.{a.name} = {moment_of(a)}" for a in entity.attributes if touched(a) and a.name not in fields
        ]
        action = Procedure(steps=tuple(draft.steps), body="\n".join(lines), returns=((entity.variable, record),))
        return self.finished(draft, action, update_asks(record, required))

    def _assignments(self, draft: Draft, record: str, fields: dict[str, Given]) -> tuple[list[str], list[Parameter]]:
        lines: list[str] = []
        required: list[Parameter] = []
        for name, given in fields.items():
            expression, _ = self._value_parameter(
                draft, draft.entity.attribute(name), given, given.required, creating=False
            )
            if given.required:
                lines.append(f"{record}.{name} = {expression}")
                required.append(draft.parameters[-1])
            else:
                lines.append(f"if {expression} is not None:\n    {record}.{name} = {expression}")
        return lines, required

    def _save(self, draft: Draft) -> Tool | None:
        """Create the record of that natural key, or change the one that exists."""
        entity, resource = draft.entity, self.plan.resources[draft.planned.resource]
        natural = resource.natural
        if natural is None:
            # without a name that the caller gives there is nothing to replace
            return self._update(draft) if draft.planned.key and resource.of("create") else self._create(draft)
        fields = {natural: Given(Shape(kind="string"), True), **self._fields(draft, natural=True)}
        owner = self._owner_value(draft)
        fields = {n: g for n, g in fields.items() if owner is None or n != owner[0]}
        values, label, references, plain = self._creation_values(draft, fields, owner)
        if self._unfilled(entity, values):
            self._refused(draft, f"a new {entity.noun} would lack {', '.join(self._unfilled(entity, values))}")
            return None
        record = draft.free_new()
        draft.steps.append(
            Let(name=record, value=f"next((r for r in {entity.name} if r.{natural} == {values[natural]}), None)")
        )
        created = f"    {record} = new({entity.name}, {', '.join(f'{n}={e}' for n, e in values.items())})"
        given = [p for p in draft.parameters if p.carries and p.name != values[natural] and p.name in fields]
        changed = [
            f"    {record}.{p.name} = {p.name}"
            if p.required
            else f"    if {p.name} is not None:\n        {record}.{p.name} = {p.name}"
            for p in given
        ]
        body = "\n".join([f"if {record} is None:", created, *(["else:", *changed] if changed else [])])
        action = Procedure(steps=tuple(draft.steps), body=body, returns=((entity.variable, record),))
        return self.finished(draft, action, create_asks(entity, label, references, plain))

    def _delete(self, draft: Draft) -> Tool | None:
        if is_key_list(draft.planned):
            return delete_many(self, draft)
        record = self._item(draft)
        if record is None:
            return None
        entity = draft.entity
        self._leave_out_rest(draft)
        referring = [
            (other, a) for other in self.model.entities.values() for a in other.attributes if a.target == entity.name
        ]  # fmt: skip
        if referring:
            tests = " or ".join(f"any(r.{a.name} == {record}.{entity.key} for r in {o.name})" for o, a in referring)
            draft.steps.append(
                Guard(that=f"not ({tests})", code="conflict",
                message=f"Other records still refer to this {entity.noun}.",
                      hint="Delete them, or point them to another one, first.")
            )  # fmt: skip
        action = Procedure(
            steps=tuple(draft.steps), body=f"delete({record})", returns=((entity.variable, record),), undo=True
        )
        return self.finished(draft, action, delete_asks(record, entity))

    def _move(self, draft: Draft) -> Tool | None:
        wanted = wanted_state(draft.entity, draft.planned.verb)
        if wanted is None:
            self._refused(draft, f"no field of the {draft.entity.noun} tells that it was done")
            return None
        record = self._item(draft)
        if record is None:
            return None
        self._leave_out_rest(draft)
        draft.steps.append(wanted.guard(record, draft.entity))
        touch = [
            f"{record}.{a.name} = {moment_of(a)}"
            for a in draft.entity.attributes
            if touched(a) and a.name != wanted.field
        ]
        body = "\n".join([f"{record}.{wanted.field} = {wanted.expression}", *touch])
        action = Procedure(
            steps=tuple(draft.steps),
            body=body,
            returns=((draft.entity.variable, record),),
            undo=is_undoing(draft.planned.verb),
        )
        return self.finished(draft, action, move_asks(record, draft.planned.verb, wanted.spoken))


def _stem(name: str) -> str:
    return name.removesuffix("_id")


def _limit(draft: Draft) -> Parameter:
    draft.names.add("limit")
    return Parameter(
        name="limit",
        json_schema=LIMIT_SCHEMA,
        description="How many records to return at most.",
        required=False,
        default=50,
    )

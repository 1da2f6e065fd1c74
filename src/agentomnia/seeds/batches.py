"""Operations on many records at once: `create_entities(entities: [{…}])`, `delete_entities(names: [...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentomnia.environment.spec import Guard, Let, Parameter, Procedure, Tool
from agentomnia.seeds.believable import simple_schema
from agentomnia.seeds.call import Argument
from agentomnia.seeds.naming import article, plural, sentence, singular, snake, spoken, usable
from agentomnia.seeds.plan import Planned
from agentomnia.seeds.shape import Shape

if TYPE_CHECKING:
    from agentomnia.seeds.tools import Draft, ToolBuilder


def batch_items(planned: Planned) -> Argument | None:
    """The one argument that holds the new records, where there is one."""
    given = [a for a in planned.call.arguments if a.place == "body"]
    if len(given) != 1 or given[0].shape.kind != "array":
        return None
    items = given[0].shape.items
    return given[0] if items is not None and items.kind == "object" and items.properties else None


def create_many(builder: ToolBuilder, draft: Draft, argument: Argument) -> Tool | None:
    """A tool that creates a record for each item of a list."""
    entity = draft.entity
    items = argument.shape.items or Shape()
    fields = {usable(n): (n, s) for n, s in items.properties.items() if snake(n)}
    values: dict[str, str] = {}
    for attribute in entity.attributes:
        name, shape = fields.get(attribute.name, ("", Shape()))
        if attribute.target is not None and name:
            builder.report.leave_out(draft.planned.call.label, "items of the list refer to other records")
            return None
        if name in items.required:
            values[attribute.name] = f"item[{name!r}]"
        elif name:
            values[attribute.name] = f"item[{name!r}] if {name!r} in item else {attribute.default!r}"
    missing = [
        a.name
        for a in entity.attributes
        if a.name not in values and not a.nullable and a.default is None and a.type != "list"
    ]
    kept = {n: s for n, s in items.properties.items() if usable(n) in values}
    if missing or not kept:
        builder.report.leave_out(
            draft.planned.call.label, f"items of the list lack {', '.join(missing) or 'every kept field'}"
        )
        return None
    natural = next((a.name for a in entity.attributes if a.unique), None)
    name = draft.free(argument.name)
    shape = Shape(kind="object", properties=kept, required=items.required & kept.keys())
    draft.parameters.append(_records(name, shape, argument, f"The new {spoken(plural(entity.variable))}."))
    if natural is not None and natural in values:
        _refuse_known(draft, name, fields[natural][0], natural)
    body = f"for item in {name}:\n    new({entity.name}, {', '.join(f'{n}={e}' for n, e in values.items())})"
    action = Procedure(steps=tuple(draft.steps), body=body, returns=(("created", f"len({name})"),))
    return builder.finished(draft, action, (f"create these {spoken(plural(entity.variable))}: {{{name}}}",))


def _refuse_known(draft: Draft, name: str, source: str, natural: str) -> None:
    entity = draft.entity
    words = spoken(natural)
    draft.steps += [
        Guard(that=f"not any(r.{natural} == item[{source!r}] for item in {name} for r in {entity.name})",
        code="conflict",
              message=f"There is {article(entity.noun)} with one of these {words}s already.",
              hint="Leave out what exists."),
        Guard(that=f"len(set([item[{source!r}] for item in {name}])) == len({name})", code="invalid_argument",
              message=f"Two of the given ones have the same {words}.", hint="Give each once."),
    ]  # fmt: skip


def is_key_list(planned: Planned) -> bool:
    """Whether a deletion is told its records as one list of names or identifiers."""
    return _key_list(planned) is not None


def _key_list(planned: Planned) -> Argument | None:
    required = [a for a in planned.call.arguments if a.required and a.shape.kind == "array"]
    if len(required) != 1 or planned.key is not None:
        return None
    items = required[0].shape.items
    return required[0] if items is not None and (items.kind in ("string", "integer") or items.properties) else None


def delete_many(builder: ToolBuilder, draft: Draft) -> Tool | None:
    """A tool that deletes every record named in a list."""
    argument = _key_list(draft.planned)
    assert argument is not None
    entity = draft.entity
    if argument.shape.items is not None and argument.shape.items.properties:
        return _delete_alike(builder, draft, argument, argument.shape.items)
    natural = builder.plan.resources[draft.planned.resource].natural
    last = singular(snake(argument.name)).rpartition("_")[2]
    field = natural or (last if last in {a.name for a in entity.attributes} else entity.key)
    name = draft.free(argument.name)
    draft.parameters.append(
        Parameter(
            name=name, json_schema={"type": "array", "items": {"type": "string"}, "minItems": 1},
            description=sentence(argument.description or argument.shape.description) or f"Which {entity.noun} records "
            f"to delete.",
        )
    )  # fmt: skip
    draft.steps += [
        Let(name="missing", value=f"[n for n in {name} if not any(r.{field} == n for r in {entity.name})]"),
        Guard(that="len(missing) == 0", code="not_found", message=f"Not every {entity.noun} of the list exists.",
              hint=f"Look each {entity.noun} up first."),
    ]  # fmt: skip
    record = draft.free_record(entity.variable)
    body = f"for {record} in {entity.name}:\n    if {record}.{field} in {name}:\n        delete({record})"
    action = Procedure(steps=tuple(draft.steps), body=body, returns=(("deleted", f"len({name})"),), undo=True)
    return builder.finished(draft, action, (f"delete these {spoken(plural(entity.variable))}: {{{name}}}",))


def _delete_alike(builder: ToolBuilder, draft: Draft, argument: Argument, items: Shape) -> Tool | None:
    """A tool that deletes every record that is described in a list, field by field."""
    entity = draft.entity
    stored = {a.name for a in entity.attributes if a.type not in ("list", "object") and a.target is None}
    fields = {n: usable(n) for n in items.properties if usable(n) in stored}
    if len(fields) < len(items.properties) or not items.required >= fields.keys():
        builder.report.leave_out(draft.planned.call.label, f"its list does not describe whole {entity.noun} records")
        return None
    name = draft.free(argument.name)
    shape = Shape(kind="object", properties={n: items.properties[n] for n in fields}, required=frozenset(fields))
    draft.parameters.append(_records(name, shape, argument, f"The {entity.noun} records to delete."))
    record = draft.free_record(entity.variable)
    same = " and ".join(f"{{0}}.{field} == item[{source!r}]" for source, field in fields.items())
    draft.steps += [
        Let(name="missing", value=f"[item for item in {name} if not any({same.format('r')} for r in {entity.name})]"),
        Guard(that="len(missing) == 0", code="not_found", message=f"Not every {entity.noun} of the list exists.",
              hint=f"Look each {entity.noun} up first."),
    ]  # fmt: skip
    described = f"any({same.format(record)} for item in {name})"
    body = f"for {record} in {entity.name}:\n    if {described}:\n        delete({record})"
    action = Procedure(steps=tuple(draft.steps), body=body, returns=(("deleted", f"len({name})"),), undo=True)
    return builder.finished(draft, action, (f"delete these {spoken(plural(entity.variable))}: {{{name}}}",))


def _records(name: str, shape: Shape, argument: Argument, otherwise: str) -> Parameter:
    """A required list of records of a shape; `otherwise` describes it where the file does not."""
    items = {**simple_schema(shape), "additionalProperties": False}
    described = sentence(argument.description or argument.shape.description)
    return Parameter(
        name=name, json_schema={"type": "array", "items": items, "minItems": 1}, description=described or otherwise
    )

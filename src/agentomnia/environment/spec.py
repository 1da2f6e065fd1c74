"""The specification of an environment: entities, rules and tools as data (paper, sections 4.2.2 and 4.2.3).

A specification is what an author (builtin, a language model, an API reader) hands to the compiler
(`synthesis.environments.compiler`). It holds no code except expressions of the small checked language
of `synthesis.environments.expression`. Behaviour of a tool is one of four actions:

    Lookup      one record by its key, with the names of what it refers to
    Search      many records, filtered, sorted and limited
    Summary     counts, totals and averages, grouped by a mode-selecting argument
    Procedure   guards, then effects: everything that changes the state, and computed readings
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from keyword import iskeyword
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentomnia.environment.result import ErrorCode
from agentomnia.errors import SpecError
from agentomnia.row import Row

AttributeType = Literal[
    "string",
    "text",
    "integer",
    "number",
    "boolean",
    "date",
    "datetime",
    "enum",
    "reference",
    "list",
    "object",
]
"""`text` is free prose, which no criterion compares word by word; `string` is a short exact value."""

ToolKind = Literal["query", "modify"]

RESERVED_NAMES = frozenset(("self", "clock", "counters", "now", "today", "new", "delete"))
"""Neither a field nor an argument may be called so."""
LOCAL_NAMES = frozenset(
    "all any abs date datetime deepcopy details dict float group groups int len list max members min next numbers "
    "round row rows set sorted str sum timedelta value".split()
)
"""Names that compiled methods use themselves, so no argument may be called so."""
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")
_CLASS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+\Z")
_SCHEMA_TYPES = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))


class Attribute(Row):
    """One field of an entity."""

    name: str
    type: AttributeType
    description: str = ""
    nullable: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    """The values of an `enum`."""
    target: str | None = None
    """The entity that a `reference` points to."""
    items: Literal["string", "integer", "number", "object"] = "string"
    """What a `list` holds."""
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    unit: str = ""
    unique: bool = False
    mutable: bool = False
    """Whether a plain update tool may set it."""
    maker: str | None = None
    """How believable initial values are made, see `synthesis.environments.makers`."""
    vocabulary: tuple[str, ...] = ()
    """Believable initial values, written down."""
    derive: str | None = None
    """An expression over `it` that gives the initial value from other records."""
    present_if: str | None = None
    """An expression over `it`; where it is false the initial value is null."""

    @model_validator(mode="after")
    def _consistent(self) -> Attribute:
        if self.type == "enum" and not self.choices:
            raise SpecError(f"attribute {self.name!r}: an enum needs choices; list them")
        if self.unique and self.type in ("list", "object"):
            raise SpecError(f"attribute {self.name!r}: a {self.type} cannot be unique; leave that out")
        if self.type == "reference" and not self.target:
            raise SpecError(f"attribute {self.name!r}: a reference needs a target entity; name it")
        return self


class Lifecycle(Row):
    """The legal moves of a status field."""

    field: str
    initial: str
    moves: tuple[tuple[str, str], ...]

    @property
    def states(self) -> tuple[str, ...]:
        """Every state, the initial one first, then in order of mention."""
        seen = dict.fromkeys((self.initial, *(state for move in self.moves for state in move)))
        return tuple(seen)


class Entity(Row):
    """A kind of record, kept in one dictionary of the state under `plural`."""

    name: str
    plural: str
    key: str
    prefix: str
    noun: str
    description: str = ""
    attributes: tuple[Attribute, ...]
    """Every field but the key."""
    label: str | None = None
    """The field people use as the record's name."""
    lifecycle: Lifecycle | None = None
    count: int = 12
    """How many records an ordinary initial state holds."""

    def attribute(self, name: str) -> Attribute:
        """The attribute of that name.

        Raises:
            SpecError: the entity has no such attribute.
        """
        found = self._attribute_index.get(name)
        if found is None:
            raise SpecError(f"entity {self.name} has no attribute {name!r}; it has {', '.join(self._attribute_index)}")
        return found

    @cached_property
    def _attribute_index(self) -> dict[str, Attribute]:
        return {a.name: a for a in self.attributes}

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The key and every attribute, in the order of a stored record."""
        return (self.key, *(a.name for a in self.attributes))

    @property
    def variable(self) -> str:
        """The name under which procedures know one record."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


class Rule(Row):
    """What must hold of every record of an entity in every valid state; `it` is the record."""

    name: str
    sentence: str
    entity: str
    predicate: str


class Parameter(Row):
    """One argument of a tool."""

    name: str
    json_schema: dict[str, Any]
    description: str = ""
    required: bool = True
    default: Any = None
    carries: str | None = None
    """The field whose values it takes, as `Entity.field`."""
    binds: str | None = None
    """In a procedure: the name of the record that this key argument stands for."""
    maker: str | None = None
    """How believable values are made, where the carried field does not say it."""
    vocabulary: tuple[str, ...] = ()
    phrase: str = ""
    """How a request mentions an optional argument, with `{value}`."""


class Let(Row):
    """A value computed before the guards that follow it."""

    name: str
    value: str


class Guard(Row):
    """A precondition; when `that` is false the call is refused."""

    that: str
    code: ErrorCode = "precondition_failed"
    message: str
    hint: str = ""


class Filter(Row):
    """One optional filter of a search: keeps records whose `field` stands in relation `op` to the argument."""

    parameter: str
    field: str
    op: Literal["equals", "contains", "at_least", "at_most"]


class Lookup(Row):
    """One record by its key."""

    type: Literal["lookup"] = "lookup"
    entity: str
    include: tuple[str, ...] = ()
    """Reference fields whose targets' labels are added as `<field without _id>_<label>`."""


class Search(Row):
    """Records of an entity that pass every given filter."""

    type: Literal["search"] = "search"
    entity: str
    filters: tuple[Filter, ...] = ()
    sort_fields: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Fields of each returned record; all of them when empty."""
    default_limit: int = 50


class Summary(Row):
    """Counts, totals and averages of an entity's records, by group."""

    type: Literal["summary"] = "summary"
    entity: str
    group_fields: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()


class Procedure(Row):
    """Guards and lets in order, then effects, then what is returned."""

    type: Literal["procedure"] = "procedure"
    steps: tuple[Let | Guard, ...] = ()
    body: str = ""
    """Statements of the checked language: `record.field = …`, `x = new(Entity, …)`, `delete(record)`, `for`, `if`."""
    returns: tuple[tuple[str, str], ...] = ()
    """Result fields and their expressions; the written records when empty."""
    undo: bool = False
    """Whether it takes back earlier work (cancel, reject, void): tasks never undo what they just did."""


Action = Annotated[Lookup | Search | Summary | Procedure, Field(discriminator="type")]


class Tool(Row):
    """One executable tool `t`."""

    name: str
    kind: ToolKind
    description: str
    parameters: tuple[Parameter, ...] = ()
    action: Action
    ask: tuple[str, ...] = ()
    """Ways a person asks for it; `{appointment}` is a record's description, `{start}` a value."""
    staff: bool = False
    """Done by the business only: where a customer speaks, no task asks for it."""
    origin: str = "card"
    """Which part of the author proposed it: a card, an archetype's name, `reader`, an API operation."""

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name.

        Raises:
            SpecError: the tool has no such parameter.
        """
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise SpecError(f"tool {self.name} has no parameter {name!r}")

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments: a closed object."""
        properties = {p.name: {**p.json_schema, "description": p.description} for p in self.parameters}
        required = [p.name for p in self.parameters if p.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        return {**schema, "additionalProperties": False}


class Lineage(Row):
    """Where a specification came from."""

    kind: Literal["card", "openapi", "mcp", "skill", "query", "prd", "import"]
    source: str
    digest: str = ""
    variant: int = 0


class EnvironmentSpec(Row):
    """The whole of an environment as data."""

    schema_version: Literal[1] = 1
    name: str
    """The class name of the compiled program."""
    title: str
    introduction: str
    policies: tuple[str, ...] = ()
    """House rules told to the agent, each enforced by a rule or a guard."""
    domains: tuple[int, ...]
    """Ids of the level-2 domains it supports."""
    clock: str
    """The moment at which every initial state stands, `YYYY-MM-DDTHH:MM`."""
    speaker: str | None = None
    """The entity whose record is the person who asks (a client, a member), if there is one."""
    entities: tuple[Entity, ...]
    rules: tuple[Rule, ...] = ()
    tools: tuple[Tool, ...]
    lineage: Lineage

    @model_validator(mode="after")
    def _consistent(self) -> EnvironmentSpec:
        for problem in _problems(self):
            raise SpecError(f"environment {self.name}: {problem}")
        return self

    @cached_property
    def _entity_index(self) -> dict[str, Entity]:
        return {e.name: e for e in self.entities}

    @cached_property
    def _tool_index(self) -> dict[str, Tool]:
        return {t.name: t for t in self.tools}

    def entity(self, name: str) -> Entity:
        """The entity of that name.

        Raises:
            SpecError: there is none.
        """
        found = self._entity_index.get(name)
        if found is None:
            raise SpecError(f"environment {self.name} has no entity {name!r}; it has {', '.join(self._entity_index)}")
        return found

    def tool(self, name: str) -> Tool:
        """The tool of that name.

        Raises:
            SpecError: there is none.
        """
        found = self._tool_index.get(name)
        if found is None:
            raise SpecError(f"environment {self.name} has no tool {name!r}; see its spec.json")
        return found

    def field(self, path: str) -> Attribute:
        """The attribute behind `Entity.field`; a key reads as a reference to its own entity.

        Raises:
            SpecError: the path names nothing.
        """
        owner, _, name = path.partition(".")
        entity = self.entity(owner)
        if name == entity.key:
            return Attribute(name=name, type="reference", target=owner)
        return entity.attribute(name)

    def target(self, path: str | None) -> str | None:
        """The entity whose keys the field holds, or `None` when it holds something else."""
        return self.field(path).target if path else None

    def replace_tools(self, tools: tuple[Tool, ...]) -> EnvironmentSpec:
        """The same environment with other tools."""
        return EnvironmentSpec.model_validate(
            {**{f: self.__dict__[f] for f in type(self).model_fields}, "tools": tools}
        )


def _usable(name: str) -> bool:
    """Whether a name can stand in a program: everything below becomes source that is run."""
    return _IDENTIFIER.match(name) is not None and not iskeyword(name)


def _problems(spec: EnvironmentSpec) -> Iterator[str]:
    if not _CLASS_NAME.match(spec.name) or iskeyword(spec.name):
        yield "its name is no class name; use letters, digits and underscores"
    yield from _repeated("entity", [e.name for e in spec.entities])
    yield from _repeated("container", [e.plural for e in spec.entities])
    yield from _repeated("tool", [t.name for t in spec.tools])
    names = {e.name for e in spec.entities}
    for entity in spec.entities:
        yield from _entity_problems(entity, names)
    for rule in spec.rules:
        if rule.entity not in names:
            yield f"rule {rule.name} is about unknown entity {rule.entity!r}"
    for tool in spec.tools:
        yield from _tool_problems(spec, tool)
    if spec.speaker is not None and spec.speaker not in names:
        yield f"speaker {spec.speaker!r} is no entity"


def _repeated(what: str, names: list[str]) -> Iterator[str]:
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"{what} {name!r} appears twice; rename one"


def _entity_problems(entity: Entity, names: set[str]) -> Iterator[str]:
    if not _CLASS_NAME.match(entity.name) or iskeyword(entity.variable):
        yield f"entity name {entity.name!r} is not usable; use letters and digits, like `SupplyItem`"
    if not _PREFIX.match(entity.prefix):
        yield f"{entity.name}: prefix {entity.prefix!r} is not usable; use letters and digits"
    yield from _repeated(f"field of {entity.name}", list(entity.fields))
    if iskeyword(entity.plural):
        yield f"{entity.name}: container {entity.plural!r} is a word of Python; choose another plural"
    for field in (entity.plural, *entity.fields):
        if not _IDENTIFIER.match(field) or field in RESERVED_NAMES:
            yield f"{entity.name}: {field!r} is not a usable field name (lower case, digits, underscores)"
    for attribute in entity.attributes:
        if attribute.type == "reference" and attribute.target not in names:
            yield f"{entity.name}.{attribute.name} points to unknown entity {attribute.target!r}"
    if entity.label is not None and entity.label not in entity.fields:
        yield f"{entity.name}: label {entity.label!r} is not one of its fields"
    if entity.lifecycle is not None:
        status = next((a for a in entity.attributes if a.name == entity.lifecycle.field), None)
        if status is None or status.type != "enum":
            yield f"{entity.name}: lifecycle field {entity.lifecycle.field!r} must be an enum attribute"


def _tool_problems(spec: EnvironmentSpec, tool: Tool) -> Iterator[str]:
    if not _usable(tool.name):
        yield f"tool name {tool.name!r} is not usable (lower case, digits, underscores)"
    yield from _repeated(f"parameter of {tool.name}", [p.name for p in tool.parameters])
    for parameter in tool.parameters:
        if not _usable(parameter.name) or parameter.name in RESERVED_NAMES | LOCAL_NAMES:
            yield f"{tool.name}: parameter name {parameter.name!r} is not usable"
        kinds = parameter.json_schema.get("type", "string")
        listed = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(listed, list) or not all(isinstance(k, str) and k in _SCHEMA_TYPES for k in listed):
            yield f"{tool.name}: parameter {parameter.name} has an unknown type {kinds!r}; use those of JSON Schema"
        if parameter.carries is not None:
            spec.field(parameter.carries)
    if tool.kind == "modify" and tool.action.type != "procedure":
        yield f"{tool.name} modifies but is a {tool.action.type}; make it a procedure"
    yield from _action_problems(spec, tool)


def _action_problems(spec: EnvironmentSpec, tool: Tool) -> Iterator[str]:
    action, names = tool.action, {p.name for p in tool.parameters}
    if isinstance(action, Procedure):
        for name, _ in action.returns:
            if not _IDENTIFIER.match(name):
                yield f"{tool.name}: result field {name!r} is not usable (lower case, digits, underscores)"
        return
    entity = spec.entity(action.entity)
    if isinstance(action, Lookup):
        if not tool.parameters:
            yield f"{tool.name} looks one record up but takes no key; add a parameter"
        for field in action.include:
            target = entity.attribute(field).target
            if target is None or spec.entity(target).label is None:
                yield f"{tool.name}: {field} leads to no record with a label; leave it out of `include`"
        return
    if isinstance(action, Summary) and not {"group_by", *(["metric"] if action.metrics else [])} <= names:
        yield f"{tool.name} is a summary; give it the parameters group_by and, with metrics, metric"
    for item in action.filters:
        if item.parameter not in names or item.field not in entity.fields:
            yield f"{tool.name}: filter {item.parameter!r} on {item.field!r} fits no parameter and field; correct it"

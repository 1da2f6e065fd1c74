"""The plan of a seed: resources, and for each operation what it does to which of them.

Readers (`routes` for paths, `verbs` for names) fill a plan; `entities` and `tools` turn it into a specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agentomnia.seeds.call import Argument, Call
from agentomnia.seeds.naming import singular, snake, usable, words
from agentomnia.seeds.shape import Shape
from agentomnia.seeds.verbs import Deed

_ENVELOPES = (
    "data", "result", "results", "item", "items", "value", "values", "records", "entries", "content", "list",
    "rows", "objects", "response", "payload", "body", "resources", "members", "elements", "hits", "embedded",
)  # fmt: skip
_DROPPED = frozenset(
    ("links", "link", "self", "href", "etag", "embedded", "kind", "object", "odata_type", "odata_context", "odata_etag",
     "next", "previous", "resource_uri", "schema", "errors", "error", "expand", "included", "jsonapi")
)  # fmt: skip
"""Fields that carry the transport, not the record."""
_TRANSPORT = re.compile(
    r"\A(x_)?(api_?key|access_token|auth|authorization|token|key|api_version|version|format|output|callback|locale|"
    r"language|lang|"
    r"fields|select|expand|include|page|page_token|offset|cursor|client_id|app_id|tenant|signature|timestamp|nonce|"
    r"sort|order|"
    r"sort_by|order_by|direction|sort_order|v|alt|accept|market|site|start_index|skip|per_page|page_number|mkt|depth)\Z"
)
"""Names of parameters that say how to answer, not about what."""
_WRAPPERS = frozenset(("properties", "attributes"))
"""Objects that hold the fields of a record for no reason of the domain's."""
_OPTIONS = frozenset(
    ("dry_run", "force", "recursive", "async", "verbose", "confirm", "overwrite", "validate", "preview", "notify",
    "return_details",
     "include_details", "replace_all", "append", "case_sensitive", "pretty", "debug", "silent")
)  # fmt: skip
"""Flags that say how an operation runs, not what a record is."""
_ID_ENDS = ("id", "uuid", "guid", "sid", "gid", "arn", "pk", "oid", "uid", "ids")
_MAX_FLATTENED = 6


@dataclass(frozen=True)
class Planned:
    """What one operation does."""

    call: Call
    deed: Deed
    verb: str
    resource: str
    """The resource it acts on, by its variable."""
    key: str | None = None
    """The argument that names the record."""
    parents: tuple[tuple[str, str], ...] = ()
    """Arguments that name what the record belongs to, with their resources; the nearest last."""
    context: tuple[str, ...] = ()
    """Path arguments that name nothing that is modelled."""

    def argument(self, name: str) -> Argument:
        """The argument of that name; the path's where a body has one of the same name."""
        return next(a for a in self.call.arguments if a.name == name)

    @property
    def body(self) -> Shape:
        """What the operation is given besides keys, as one object."""
        # an operation known by its name alone has its key among its arguments; one that creates keeps it
        own_key = None if self.deed in ("create", "save") else self.key
        taken = {own_key, *(name for name, _ in self.parents), *self.context}
        queried = self.call.method not in ("", "get")
        given = [
            a
            for a in self.call.arguments
            if a.place == "body" or (queried and a.place == "query" and not is_transport(a.name))
        ]
        if not self.call.method:
            given = [a for a in given if a.name not in taken]
        return unwrapped(
            Shape(
                kind="object",
                properties={a.name: replace(a.shape, description=a.shape.description or a.description) for a in given},
                required=frozenset(a.name for a in given if a.required),
            )
        )


@dataclass(frozen=True)
class Given:
    """One field as an operation gives or takes it."""

    shape: Shape
    required: bool
    embedded: bool = False
    """Whether a whole record stood where its key is kept."""


@dataclass
class Resource:
    """A kind of record, as the operations show it."""

    variable: str
    schema_names: set[str] = field(default_factory=set)
    key_names: set[str] = field(default_factory=set)
    parents: dict[str, None] = field(default_factory=dict)
    operations: list[Planned] = field(default_factory=list)
    fields: dict[str, Given] = field(default_factory=dict)
    description: str = ""
    natural: str | None = None
    """The field by which people and operations name a record, where it is not an identifier."""

    @property
    def ids(self) -> set[str]:
        """Names under which a record carries its identifier."""
        last = self.variable.rpartition("_")[2]
        own = {f"{stem}_{end}" for stem in (self.variable, last) for end in ("id", "uuid", "guid", "sid", "arn", "key")}
        return {"id", "uuid", "guid", "sid", "gid", "pk", "arn", f"{self.variable}id", *own, *self.key_names}

    def of(self, *deeds: Deed) -> list[Planned]:
        """The operations that do one of these deeds."""
        return [p for p in self.operations if p.deed in deeds]


@dataclass
class Plan:
    """Resources by variable."""

    resources: dict[str, Resource] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    """Which resource a schema describes, by the schema's name."""

    def add(self, planned: Planned) -> None:
        """Put an operation under its resource."""
        resource = self.resources.setdefault(planned.resource, Resource(planned.resource))
        resource.operations.append(planned)
        for _, parent in planned.parents[-1:]:
            if parent != planned.resource:
                resource.parents[parent] = None


def is_transport(name: str) -> bool:
    """Whether a parameter says how to answer, or who asks: paging, order, form, version, credentials."""
    return _TRANSPORT.search(snake(name)) is not None


def looks_like_id(name: str) -> bool:
    """Whether a name is that of an identifier: `petId`, `uuid`, `order_id`."""
    plain = snake(name)
    return plain.rpartition("_")[2] in _ID_ENDS or (
        plain.endswith(("id", "uuid")) and plain not in ("paid", "valid", "bid", "grid")
    )


def unwrapped(shape: Shape) -> Shape:
    """A body without the single object around it: `{"pet": {…}}` and `{"data": {"attributes": {…}}}`."""
    inner = shape
    for _ in range(3):
        objects = [(n, s) for n, s in inner.properties.items() if s.kind == "object" and s.properties]
        names = {snake(n) for n in inner.properties}
        if "attributes" in inner.properties and names <= {"attributes", "type", "id", "relationships", "links", "meta"}:
            inner = inner.properties["attributes"]
        elif len(inner.properties) == 1 and objects:
            inner = objects[0][1]
        else:
            break
    return inner


def record_in(answer: Shape, variable: str) -> Shape:
    """The record inside an answer, whatever envelope it comes in."""
    shape = answer
    for _ in range(3):
        if shape.kind == "array" and shape.items is not None:
            shape = shape.items
            continue
        inside = _enclosed(shape, variable)
        if inside is None:
            break
        shape = inside
    return unwrapped(shape) if "attributes" in shape.properties else shape


def _enclosed(shape: Shape, variable: str) -> Shape | None:
    last = variable.rpartition("_")[2]
    if any(snake(n) in ("id", "uuid", f"{variable}_id") for n in shape.properties):
        return None
    nested = {snake(n): s for n, s in shape.properties.items() if s.kind in ("object", "array")}
    for name, inner in nested.items():
        if singular(name) in (variable, last) and (inner.properties or inner.items):
            return inner
    scalars = sum(1 for s in shape.properties.values() if s.scalar)
    for name in _ENVELOPES:
        inner_shape = nested.get(name)
        if inner_shape is not None and (inner_shape.properties or inner_shape.items) and scalars < 7:
            return inner_shape
    filled = [s for s in nested.values() if s.properties or (s.items is not None and s.items.properties)]
    return filled[0] if len(filled) == 1 and scalars == 0 else None


def is_list(answer: Shape, variable: str) -> bool:
    """Whether an answer holds many records."""
    if answer.kind == "array":
        return answer.items is not None and answer.items.kind in ("object", "any")
    if any(snake(n) in ("id", "uuid", f"{variable}_id") for n in answer.properties):
        return False
    for name, shape in answer.properties.items():
        many = shape.kind == "array" and shape.items is not None and shape.items.kind in ("object", "any")
        if many and (snake(name) in _ENVELOPES or singular(snake(name)) in (variable, variable.rpartition("_")[2])):
            return True
    data = next((s for n, s in answer.properties.items() if snake(n) in _ENVELOPES and s.kind == "object"), None)
    return data is not None and is_list(data, variable)


def flattened(shape: Shape, resource: Resource, plan: Plan) -> Iterator[tuple[str, Given]]:
    """The fields of a record or a body, in the names they are stored under; the record's own key left out.

    Small objects of plain values are flattened (`address.city` is `address_city`); an object that is another
    resource's record becomes its key.
    """
    for name, inner in shape.properties.items():
        plain = usable(name)
        if (
            not snake(name)
            or plain in resource.ids
            or plain in _DROPPED
            or inner.format == "binary"
            or inner.kind == "any"
        ):
            continue
        if plain in _OPTIONS and inner.kind == "boolean":
            continue
        required = name in shape.required
        if plain in _WRAPPERS and inner.properties:
            for part, given in flattened(inner, resource, plan):
                if snake(part) not in {snake(n) for n in shape.properties}:
                    yield part, replace(given, required=given.required and required)
            continue
        if resource_of(inner, plan) is not None or _is_record_of(plain, inner, plan):
            yield plain if plain.endswith("_id") else f"{plain}_id", Given(inner, required, embedded=True)
        elif _is_flat(inner):
            for part, scalar in inner.properties.items():
                if snake(part):
                    yield usable(f"{plain}_{snake(part)}"), Given(scalar, required and part in inner.required)
        else:
            yield plain, Given(inner, required)


def _is_flat(shape: Shape) -> bool:
    parts = shape.properties
    return shape.kind == "object" and 0 < len(parts) <= _MAX_FLATTENED and all(s.scalar for s in parts.values())


def resource_of(shape: Shape, plan: Plan) -> str | None:
    """The resource whose record an object is, by the name of its schema."""
    found = plan.schemas.get(shape.name) if shape.kind == "object" and shape.name else None
    return found if found in plan.resources else None


def _is_record_of(name: str, shape: Shape, plan: Plan) -> bool:
    if shape.kind != "object" or name not in plan.resources:
        return False
    return any(snake(n) in ("id", "uuid", f"{name}_id") for n in shape.properties)


def target_of(name: str, given: Given, resource: Resource, plan: Plan) -> str | None:
    """The resource that a field refers to, if it refers to one."""
    if given.embedded:
        named = resource_of(given.shape, plan)
        return named or name.removesuffix("_id")
    shape = given.shape
    if shape.kind not in ("string", "integer") or shape.choices or shape.format in ("date", "date-time"):
        return None
    stem = name
    for end in ("_id", "_uuid", "_guid", "_sid", "_gid", "_ref"):
        stem = stem.removesuffix(end)
    if stem != name:
        return _best_match(stem, plan)
    return stem if stem in plan.resources and stem != resource.variable else None


def _best_match(stem: str, plan: Plan) -> str | None:
    if stem in plan.resources:
        return stem
    longest = [v for v in plan.resources if stem.endswith(f"_{v}")]
    return max(longest, key=len) if longest else None


def spoken_noun(variable: str) -> str:
    """What people call a record."""
    return " ".join(words(variable))


def by_name(arguments: Mapping[str, Argument], *names: str) -> Argument | None:
    """The first argument with one of these snake-case names."""
    return next((a for n, a in arguments.items() if snake(n) in names), None)

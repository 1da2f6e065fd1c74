"""Shapes: what a schema says of a value, after references, merges and dialects are settled.

One `Shape` stands for JSON Schema 2020-12 (OpenAPI 3.1, MCP), the dialect of OpenAPI 3.0 (`nullable`, boolean
`exclusiveMinimum`) and Swagger 2.0 alike. `allOf` is merged whole; of `oneOf` and `anyOf` the properties of all
variants are kept and only what every variant demands stays required. A schema that contains itself is cut
where it would repeat (`Shape.cut`), so a shape is always finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, get_args

from agentomnia.seeds.document import Document, mapping, reference_name, sequence, text_of

Kind = Literal["string", "integer", "number", "boolean", "array", "object", "any"]

_KINDS = frozenset(get_args(Kind))
_MAX_DEPTH = 4
_MAX_PROPERTIES = 400
_MAX_VARIANTS = 12


@dataclass(frozen=True)
class Shape:
    """What a value looks like."""

    kind: Kind = "any"
    nullable: bool = False
    choices: tuple[Any, ...] = ()
    """The values of `enum` and `const`, null left out."""
    format: str = ""
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str = ""
    items: Shape | None = None
    properties: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    description: str = ""
    default: Any = None
    examples: tuple[Any, ...] = ()
    read_only: bool = False
    write_only: bool = False
    name: str = ""
    """The component that the shape was referred to by."""
    cut: bool = False
    """Whether a recursion ends here."""

    @property
    def scalar(self) -> bool:
        """Whether it is text, a number or a truth value."""
        return self.kind in ("string", "integer", "number", "boolean")

    def to_schema(self) -> dict[str, Any]:
        """The shape as JSON Schema 2020-12."""
        schema: dict[str, Any] = {}
        if self.kind != "any":
            schema["type"] = [self.kind, "null"] if self.nullable else self.kind
        if self.choices:
            schema["enum"] = [*self.choices, None] if self.nullable else list(self.choices)
        schema |= self.bounds()
        if self.items is not None:
            schema["items"] = self.items.to_schema()
        if self.properties:
            schema["properties"] = {name: shape.to_schema() for name, shape in self.properties.items()}
            required = [name for name in self.properties if name in self.required]
            schema |= {"required": required} if required else {}
        return schema

    def bounds(self) -> dict[str, Any]:
        """The limits on a number or on the length of a text, as keywords."""
        limits: dict[str, Any] = {}
        if self.kind in ("integer", "number"):
            limits = {
                "minimum": self.minimum, "maximum": self.maximum,
                "exclusiveMinimum": self.exclusive_minimum, "exclusiveMaximum": self.exclusive_maximum,
            }  # fmt: skip
        elif self.kind == "string":
            limits = {"minLength": self.min_length, "maxLength": self.max_length}
        return {k: _whole(v) for k, v in limits.items() if v is not None}


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number


class ShapeReader:
    """Reads schemas of one document; remembers components so that a large file is read once."""

    def __init__(self, document: Document) -> None:
        """Read schemas whose references point into `document`."""
        self.document = document
        self._known: dict[tuple[str, int], Shape] = {}
        self._open: list[str] = []

    def read(self, schema: Any, depth: int = 0) -> Shape:
        """The shape of a schema.

        Args:
            schema: the schema, or anything else that stands in its place.
            depth: how many objects and lists are around it; deeper ones are cut.
        """
        found, reference = self.document.resolve(schema)
        if reference is None:
            return self._read_plain(found, depth)
        if reference in self._open:
            return Shape(kind="object", name=reference_name(reference), cut=True)
        if (reference, depth) not in self._known:
            self._open.append(reference)
            shape = self._read_plain(found, depth)
            self._open.pop()
            self._known[(reference, depth)] = replace(shape, name=reference_name(reference))
        return self._known[(reference, depth)]

    def _read_plain(self, schema: Mapping[str, Any], depth: int) -> Shape:
        own = self._own(schema, depth)
        parts = [self.read(part, depth) for part in sequence(schema.get("allOf"))[:_MAX_VARIANTS]]
        shape = reduce(both, parts, own) if parts else own
        for keyword in ("oneOf", "anyOf"):
            variants = [v for v in sequence(schema.get(keyword)) if mapping(v).get("type") != "null"]
            listed = len(sequence(schema.get(keyword)))
            if variants:
                read = [self.read(v, depth) for v in variants[:_MAX_VARIANTS]]
                shape = both(shape, either(read))
            if listed > len(variants):
                shape = replace(shape, nullable=True)
        return shape

    def _own(self, schema: Mapping[str, Any], depth: int) -> Shape:
        kind, nullable = _kind_of(schema)
        raw_choices = sequence(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        choices = tuple(c for c in raw_choices if c is not None)
        if kind == "any" and choices:
            kind = _kind_of_values(choices)
        low, low_open = _bound(schema, "minimum", "exclusiveMinimum")
        high, high_open = _bound(schema, "maximum", "exclusiveMaximum")
        deep = depth >= _MAX_DEPTH
        return Shape(
            kind=kind,
            nullable=nullable or None in raw_choices,
            choices=tuple(c for c in choices if _is_kind(c, kind)),
            format=text_of(schema.get("format")),
            minimum=low,
            maximum=high,
            exclusive_minimum=low_open,
            exclusive_maximum=high_open,
            min_length=_length(schema.get("minLength")),
            max_length=_length(schema.get("maxLength")),
            pattern=text_of(schema.get("pattern")),
            items=self.read(schema.get("items"), depth + 1) if kind == "array" and not deep else None,
            properties={} if deep else self._properties(schema, depth),
            required=frozenset(r for r in sequence(schema.get("required")) if isinstance(r, str)),
            description=text_of(schema.get("description")) or text_of(schema.get("title")),
            default=schema.get("default"),
            examples=_examples(schema),
            read_only=schema.get("readOnly") is True,
            write_only=schema.get("writeOnly") is True,
            cut=deep and "properties" in schema,
        )

    def _properties(self, schema: Mapping[str, Any], depth: int) -> dict[str, Shape]:
        listed = list(mapping(schema.get("properties")).items())[:_MAX_PROPERTIES]
        return {name: self.read(inner, depth + 1) for name, inner in listed}


def _kind_of(schema: Mapping[str, Any]) -> tuple[Kind, bool]:
    raw = schema.get("type")
    listed = [k for k in (raw if isinstance(raw, list) else [raw]) if isinstance(k, str)]
    nullable = "null" in listed or schema.get("nullable") is True or schema.get("x-nullable") is True
    kinds = [k for k in listed if k in _KINDS]
    if kinds:
        # of several kinds text holds them all, a number holds an integer
        best = next((k for k in ("object", "array", "string", "number") if k in kinds), kinds[0])
        return best, nullable  # type: ignore[return-value]
    if raw == "file":
        return "string", nullable
    if "properties" in schema or "additionalProperties" in schema:
        return "object", nullable
    return ("array", nullable) if "items" in schema else ("any", nullable)


def _kind_of_values(values: Iterable[Any]) -> Kind:
    for kind in ("boolean", "integer", "number", "string"):
        if all(_is_kind(v, kind) for v in values):
            return kind
    return "any"


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        wanted = int if kind == "integer" else (int, float)
        return isinstance(value, wanted) and not isinstance(value, bool)
    return isinstance(value, str) if kind == "string" else True


def _bound(schema: Mapping[str, Any], keyword: str, exclusive: str) -> tuple[float | None, float | None]:
    """The inclusive and the exclusive limit; OpenAPI 3.0 writes `exclusiveMinimum: true` beside `minimum`."""
    limit, strict = _number(schema.get(keyword)), schema.get(exclusive)
    if strict is True:
        return None, limit
    return limit, _number(strict)


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None
    )


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _examples(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    many = schema.get("examples")
    listed = many if isinstance(many, list) else []
    single = [schema[k] for k in ("example", "x-example") if schema.get(k) is not None]
    return tuple([*single, *(v for v in listed if v is not None)][:12])


def both(one: Shape, other: Shape) -> Shape:
    """What a value that fits both shapes looks like (`allOf`)."""
    properties = dict(one.properties)
    for name, shape in other.properties.items():
        properties[name] = both(properties[name], shape) if name in properties else shape
    return replace(
        one,
        kind=one.kind if one.kind != "any" else other.kind,
        nullable=one.nullable or other.nullable,
        choices=one.choices or other.choices,
        format=one.format or other.format,
        minimum=_tighter(one.minimum, other.minimum, max),
        maximum=_tighter(one.maximum, other.maximum, min),
        exclusive_minimum=_tighter(one.exclusive_minimum, other.exclusive_minimum, max),
        exclusive_maximum=_tighter(one.exclusive_maximum, other.exclusive_maximum, min),
        min_length=one.min_length if one.min_length is not None else other.min_length,
        max_length=one.max_length if one.max_length is not None else other.max_length,
        pattern=one.pattern or other.pattern,
        items=one.items or other.items,
        properties=properties,
        required=one.required | other.required,
        description=one.description or other.description,
        default=one.default if one.default is not None else other.default,
        examples=one.examples or other.examples,
        read_only=one.read_only or other.read_only,
        write_only=one.write_only or other.write_only,
        name=one.name or other.name,
        cut=one.cut or other.cut,
    )


def _tighter(one: float | None, other: float | None, choose: Any) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    chosen: float = choose(one, other)
    return chosen


def either(variants: list[Shape]) -> Shape:
    """What a value that fits one of the shapes looks like (`oneOf`, `anyOf`)."""
    objects = [v for v in variants if v.kind == "object"]
    kinds = {v.kind for v in variants}
    same = objects or variants
    if not objects and len(kinds) > 1:
        numeric = kinds <= {"integer", "number"}
        return Shape(kind="number" if numeric else "string", nullable=any(v.nullable for v in variants))
    merged = reduce(_loosened, same)
    required = reduce(lambda a, b: a & b, (v.required for v in same))
    return replace(merged, required=required, nullable=any(v.nullable for v in variants))


def _loosened(one: Shape, other: Shape) -> Shape:
    """Both shapes at once with the limits of neither."""
    choices = tuple(dict.fromkeys((*one.choices, *other.choices))) if one.choices and other.choices else ()
    properties = dict(one.properties)
    for name, shape in other.properties.items():
        properties[name] = _loosened(properties[name], shape) if name in properties else shape
    return replace(
        both(one, other), choices=choices, properties=properties, name=one.name if one.name == other.name else "",
        minimum=None, maximum=None, exclusive_minimum=None, exclusive_maximum=None, min_length=None, max_length=None,
        pattern="",
    )  # fmt: skip

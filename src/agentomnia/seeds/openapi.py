"""OpenAPI 3.0 and 3.1 (and Swagger 2.0) files as specifications of stateful environments.

    GET /x/{id}          one record              GET /x               records by the filters its parameters name
    POST /x              a new record            PUT, PATCH /x/{id}   new values of the given fields
    DELETE /x/{id}       gone, unless others refer to it
    POST /x/{id}/verb    the status or the flag that the verb means, where the record has one

Operation ids are kept as tool names in snake case; servers, security and paging are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentomnia.environment.spec import Lineage
from agentomnia.errors import SeedError
from agentomnia.row import canonical_json, digest
from agentomnia.seeds.assembly import Heading, assemble
from agentomnia.seeds.call import Argument, Call, Place
from agentomnia.seeds.document import Document, mapping, sequence, text_of
from agentomnia.seeds.naming import sentence, snake, tool_names
from agentomnia.seeds.routes import RouteReader
from agentomnia.seeds.seed import ReadSeed, Report
from agentomnia.seeds.shape import Shape, ShapeReader

_METHODS = ("get", "post", "put", "patch", "delete")
_JSON = ("application/json", "application/vnd.api+json", "application/x-www-form-urlencoded", "multipart/form-data")


def is_openapi(values: Any) -> bool:
    """Whether the values of a file are an OpenAPI or Swagger document."""
    return (
        isinstance(values, dict)
        and isinstance(values.get("paths"), dict)
        and ("openapi" in values or "swagger" in values)
    )


def read_openapi(values: Mapping[str, Any], source: str = "openapi", *, prefix: str = "") -> ReadSeed:
    """Read an OpenAPI document.

    Args:
        values: the parsed document; it is not changed.
        source: the file's name, for the lineage and for messages.
        prefix: put before every tool name, e.g. the name of a server among several.

    Raises:
        SeedError: the values are no OpenAPI document, or say too little for a stateful environment.
    """
    if not is_openapi(values):
        raise SeedError(
            f"{source}: not an OpenAPI document (it needs `openapi` and `paths`); export the API description again"
        )
    document, report = Document(values), Report()
    calls = list(_calls(document, report, prefix))
    plan = RouteReader(calls, report).plan()
    info = mapping(values.get("info"))
    for warning in document.warnings:
        report.note(warning)
    heading = Heading(text_of(info.get("title")) or source, text_of(info.get("description")), source)
    lineage = Lineage(kind="openapi", source=source, digest=digest(_canonical(values)))
    return assemble(plan, heading, lineage, report)


def _canonical(values: Mapping[str, Any]) -> Any:
    """The values themselves, or their text where a number has no JSON form."""
    try:
        canonical_json(values)
    except (ValueError, TypeError):
        return repr(values)
    return values


def _calls(document: Document, report: Report, prefix: str) -> Iterator[Call]:
    shapes = ShapeReader(document)
    listed: list[tuple[str, str, Mapping[str, Any], list[Any]]] = []
    for path, raw in mapping(document.values.get("paths")).items():
        item, _ = document.resolve(raw)
        for method in _METHODS:
            if isinstance(item.get(method), dict):
                listed.append((method, path, item[method], sequence(item.get("parameters"))))
    wanted = {f"{m.upper()} {p}": text_of(o.get("operationId")) for m, p, o, _ in listed}
    names = tool_names(wanted, prefix)
    for method, path, operation, shared in listed:
        label = f"{method.upper()} {path}"
        call = _call(document, shapes, (method, path, names[label]), operation, shared)
        if isinstance(call, str):
            report.leave_out(label, call)
        else:
            yield call


def _call(
    document: Document,
    shapes: ShapeReader,
    named: tuple[str, str, str],
    operation: Mapping[str, Any],
    shared: list[Any],
) -> Call | str:
    """The operation as a call, or why it cannot be one."""
    method, path, name = named
    arguments = {
        (a.place, a.name): a for a in _parameters(document, shapes, [*shared, *sequence(operation.get("parameters"))])
    }
    body = _body(document, shapes, operation)
    problem = _body_problem(body, method)
    if problem is not None:
        return problem
    for argument in _body_arguments(body, path):
        arguments[("body", argument.name)] = argument
    summary = text_of(operation.get("summary")) or text_of(operation.get("description"))
    return Call(
        label=f"{method.upper()} {path}",
        name=name,
        spoken_name=text_of(operation.get("operationId")) or path.rpartition("=")[2].rpartition(".")[2],
        summary=_summary(operation, summary),
        arguments=tuple(arguments.values()),
        answer=_answer(document, shapes, operation),
        method=method,
        path=path,
    )


def _summary(operation: Mapping[str, Any], summary: str) -> str:
    """The sentence that tells most: a summary of one word says less than the description."""
    told = sentence(summary)
    longer = sentence(text_of(operation.get("description")))
    return longer if len(told.split()) < 3 and longer else told


def _parameters(document: Document, shapes: ShapeReader, listed: list[Any]) -> Iterator[Argument]:
    for raw in listed:
        parameter, _ = document.resolve(raw)
        name, place = text_of(parameter.get("name")), parameter.get("in")
        places: dict[Any, Place] = {"path": "path", "query": "query", "formData": "body"}
        if not name or place not in places:
            continue
        content = next(iter(mapping(parameter.get("content")).values()), None)
        schema = parameter.get("schema") or mapping(content).get("schema") or parameter
        shape = shapes.read(schema, 1)
        examples = [parameter["example"]] if isinstance(parameter.get("example"), str) else []
        if examples and not shape.examples:
            shape = replace(shape, examples=tuple(examples))
        required = parameter.get("required") is True or place == "path"
        yield Argument(name, shape, required, places[place], text_of(parameter.get("description")))


def _body(document: Document, shapes: ShapeReader, operation: Mapping[str, Any]) -> Shape | None:
    body, _ = document.resolve(operation.get("requestBody"))
    content = _json_content(mapping(body.get("content")))
    if content is not None:
        shape = shapes.read(content.get("schema"))
        return replace(shape, required=shape.required) if shape.kind != "any" or shape.properties else shape
    for raw in sequence(operation.get("parameters")):
        parameter, _ = document.resolve(raw)
        if parameter.get("in") == "body":
            return shapes.read(parameter.get("schema"))
    return None


def _json_content(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for kind in _JSON:
        found = next((v for k, v in content.items() if k.partition(";")[0].strip().lower() == kind), None)
        if found is not None:
            return mapping(found)
    return next((mapping(v) for v in content.values()), None)


def _body_problem(body: Shape | None, method: str) -> str | None:
    if body is None or body.kind != "array":
        return None
    if method != "post":
        return "its body is a list of changes"
    return None if body.items is not None and body.items.properties else "its body is a list of plain values"


def _body_arguments(body: Shape | None, path: str) -> Iterator[Argument]:
    if body is None:
        return
    if body.kind in ("object", "any"):
        for name, shape in body.properties.items():
            if shape.format not in ("binary", "byte"):
                yield Argument(name, shape, name in body.required, "body", shape.description)
        return
    # a body that is no object is served under a name: the field that the path ends with, or `value`
    last = path.rstrip("/").rpartition("/")[2]
    name = "items" if body.kind == "array" else snake(last) if "{" not in last and snake(last) else "value"
    yield Argument(name, body, True, "body", body.description)


def _answer(document: Document, shapes: ShapeReader, operation: Mapping[str, Any]) -> Shape:
    responses = mapping(operation.get("responses"))
    for status in sorted(responses, key=lambda s: (not str(s).startswith("2"), str(s))):
        if not str(status).startswith(("2", "default")):
            continue
        response, _ = document.resolve(responses[status])
        content = _json_content(mapping(response.get("content")))
        schema = content.get("schema") if content is not None else response.get("schema")
        shape = shapes.read(schema) if schema is not None else Shape()
        if content is not None and not shape.properties and shape.items is None:
            shape = _shape_of_example(content)
        if shape.properties or shape.items is not None:
            return shape
    return Shape()


def _shape_of_example(content: Mapping[str, Any]) -> Shape:
    """Without a schema, an example tells what the answer looks like."""
    example = content.get("example")
    if example is None:
        first = next(iter(mapping(content.get("examples")).values()), None)
        example = mapping(first).get("value")
    return _shape_of_value(example, 0)


def _shape_of_value(value: Any, depth: int) -> Shape:
    if isinstance(value, dict) and depth < 4:
        return Shape(
            kind="object", properties={str(k): _shape_of_value(v, depth + 1) for k, v in list(value.items())[:60]}
        )
    if isinstance(value, list) and depth < 4:
        return Shape(kind="array", items=_shape_of_value(value[0], depth + 1) if value else Shape())
    if isinstance(value, bool):
        return Shape(kind="boolean")
    if isinstance(value, int | float):
        return Shape(kind="integer" if isinstance(value, int) else "number")
    return Shape(kind="string", examples=(value,) if isinstance(value, str) and len(value) < 80 else ())

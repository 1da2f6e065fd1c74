"""MCP tool lists as specifications of stateful environments.

A `tools/list` dump says names, descriptions and input schemas, seldom what a tool answers. So records are inferred
from what tools are given: `create_issue(title, body)` shows that issues have a title and a body, `get_issue(issue_id)`
how one is named, `list_issues(state: open|closed)` that they have a state. Tools are understood by verb and noun
alone; one that keeps no record (`echo`, `get_current_time`) is listed as unmodelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentomnia.environment.spec import Lineage
from agentomnia.errors import SeedError
from agentomnia.row import digest
from agentomnia.seeds.assembly import Heading, assemble
from agentomnia.seeds.call import Argument, Call
from agentomnia.seeds.document import Document, mapping, text_of
from agentomnia.seeds.naming import sentence, snake, tool_names, words
from agentomnia.seeds.plan import Plan, Planned
from agentomnia.seeds.routes import key_argument, planned_by_name
from agentomnia.seeds.seed import ReadSeed, Report
from agentomnia.seeds.shape import Shape, ShapeReader
from agentomnia.seeds.verbs import Said, deed_of, said

_KEEPING = frozenset(("create", "save"))


def listed_tools(values: Any) -> list[Mapping[str, Any]] | None:
    """The tools of a dump, whatever form it has; `None` when it is no tool list.

    Understood are `{"tools": […]}`, a JSON-RPC response around it, a bare list, and OpenAI's or Anthropic's list.
    """
    if isinstance(values, dict):
        inner = values.get("tools", mapping(values.get("result")).get("tools"))
        return listed_tools(inner) if isinstance(inner, list) else None
    if not isinstance(values, list) or not values:
        return None
    tools = [mapping(mapping(t).get("function")) or mapping(t) for t in values]
    named = [t for t in tools if isinstance(t.get("name"), str)]
    return named if named and any(_schema_of(t) is not None or "description" in t for t in named) else None


def _schema_of(tool: Mapping[str, Any]) -> Any:
    return next((tool[k] for k in ("inputSchema", "parameters", "input_schema") if k in tool), None)


def read_mcp(values: Any, source: str = "mcp", *, prefix: str = "") -> ReadSeed:
    """Read a tool list.

    Args:
        values: the parsed dump; it is not changed.
        source: the file's name, for the lineage and for messages.
        prefix: put before every tool name, e.g. the name of a server among several.

    Raises:
        SeedError: the values are no tool list, or say too little for a stateful environment.
    """
    tools = listed_tools(values)
    if tools is None:
        raise SeedError(f"{source}: not a tool list; save the answer of `tools/list` as JSON")
    report = Report()
    calls = list(_calls(tools, report, prefix))
    plan = _plan(calls, report)
    title, about = _heading(values, source, plan)
    return assemble(
        plan, Heading(title, about, source), Lineage(kind="mcp", source=source, digest=digest(list(tools))), report
    )


def _heading(values: Any, source: str, plan: Plan) -> tuple[str, str]:
    info = mapping(mapping(mapping(values).get("result")).get("serverInfo")) or mapping(
        mapping(values).get("serverInfo")
    )
    stem = source.rpartition("/")[2].partition(".")[0].replace("_", " ").replace("-", " ")
    title = text_of(info.get("title")) or text_of(info.get("name")) or stem
    nouns = ", ".join(v.replace("_", " ") for v, r in plan.resources.items() if r.of("create", "save"))
    about = text_of(mapping(values).get("instructions")) or f"A service that keeps records of these kinds: {nouns}."
    return title[0].upper() + title[1:], about


def _calls(tools: list[Mapping[str, Any]], report: Report, prefix: str) -> Iterator[Call]:
    common = _common_prefix([t["name"] for t in tools])
    names = tool_names({f"{number}:{tool['name']}": tool["name"] for number, tool in enumerate(tools)}, prefix)
    for number, tool in enumerate(tools):
        label = tool["name"] or f"tool {number + 1}"
        schema = _schema_of(tool)
        shapes = ShapeReader(Document(mapping(schema)))
        shape = shapes.read(schema if isinstance(schema, dict) else {})
        if shape.kind not in ("object", "any") or not isinstance(schema, dict | None):
            report.leave_out(
                label, f"its arguments are {shape.kind if isinstance(schema, dict) else 'no schema'}, not an object"
            )
            continue
        for warning in shapes.document.warnings:
            report.note(f"{label}: {warning}")
        output = mapping(tool.get("outputSchema"))
        yield Call(
            label=label,
            name=names[f"{number}:{tool['name']}"],
            spoken_name=tool["name"] if not common else " ".join(words(tool["name"])[1:]),
            summary=sentence(text_of(tool.get("description")) or text_of(tool.get("title"))),
            arguments=tuple(
                Argument(n, s, n in shape.required, "body", s.description)
                for n, s in shape.properties.items()
                if snake(n)
            ),
            answer=_answer(output),
            reads_only=hint if isinstance(hint := mapping(tool.get("annotations")).get("readOnlyHint"), bool) else None,
        )


def _answer(output: Mapping[str, Any]) -> Shape:
    """What a tool answers; a single text around everything tells nothing of records."""
    shape = ShapeReader(Document(output)).read(dict(output))
    scalars = [s for s in shape.properties.values() if s.scalar]
    return Shape() if len(shape.properties) == 1 and scalars else shape


def _common_prefix(names: list[str]) -> str:
    """The word that every tool's name begins with: the server's name, which tells nothing."""
    firsts = {words(n)[0] if words(n) else "" for n in names}
    only = firsts.pop() if len(firsts) == 1 else ""
    return only if len(names) >= 3 and only and not deed_of(only) else ""


def _plan(calls: list[Call], report: Report) -> Plan:
    spoken = {c.label: said(c.spoken_name) for c in calls}
    kept = {s.noun for s in spoken.values() if s is not None and s.deed in _KEEPING}
    plan = Plan()
    for call in calls:
        told = spoken[call.label]
        if told is None:
            report.leave_out(call.label, "its name does not tell a verb and what it is done to")
            continue
        told, whole = _about_kept(told, kept), told
        problem = _contradiction(call, told, whole)
        if problem is not None:
            report.leave_out(call.label, problem)
            continue
        plan.add(_planned(call, told))
    for resource in plan.resources.values():
        resource.operations = [_located(p, resource.operations) for p in resource.operations]
        _leave_out_contents(resource.operations, report)
    plan.resources = {v: r for v, r in plan.resources.items() if r.operations}
    return plan


def _contradiction(call: Call, told: Said, whole: Said) -> str | None:
    """Where the name would be misread: the tool itself says otherwise, or it lists only some of the records."""
    reads = told.deed in ("get", "list", "count")
    if call.reads_only is not None and call.reads_only != reads:
        marked = "only reading" if call.reads_only else "changing something"
        return f"its name reads like {told.verb!r}, but it is marked as {marked}"
    if told.deed == "list" and told.noun != whole.noun:
        return f"it lists only some {told.noun.replace('_', ' ')} records, and the file does not tell which"
    return None


def _planned(call: Call, told: Said) -> Planned:
    planned = planned_by_name(call, told)
    if planned.deed == "save":
        return replace(planned, key=None)
    return planned


def _about_kept(told: Said, kept: set[str]) -> Said:
    """The noun of a kind of record that is created somewhere: `text_file` is a file, `issue_status` changes an "
    "issue."""
    if told.noun in kept:
        return told
    ends = [k for k in kept if told.noun.endswith(f"_{k}")]
    heads = [k for k in kept if told.noun.startswith(f"{k}_") and told.deed in ("update", "move", "delete")]
    found = max(ends or heads, key=len, default=None)
    return told if found is None else replace(told, noun=found)


def _located(planned: Planned, operations: list[Planned]) -> Planned:
    """Take arguments that only say where a record lies (owner, workspace) for what they are, not for new values."""
    if planned.deed not in ("get", "update", "delete", "move") or planned.key is None:
        return planned
    others = [p for p in operations if p.deed in ("get", "delete", "move", "update") and p is not planned]
    if not any(p.deed in ("get", "delete") for p in others):
        return planned
    shared = [
        a.name for a in planned.call.arguments
        if a.required and a.name != planned.key and all(_demands(p, a.name) for p in others)
    ]  # fmt: skip
    return replace(planned, context=tuple(shared))


def _demands(planned: Planned, name: str) -> bool:
    return any(a.name == name and a.required for a in planned.call.arguments)


def _leave_out_contents(operations: list[Planned], report: Report) -> None:
    """A list that must be told one record lists what is inside it, which the file does not describe."""
    keys = {p.key for p in operations if p.deed in ("get", "delete", "update") and p.key}
    keys |= {k for p in operations if p.deed == "save" and (k := key_argument(p.call, p.resource))}
    named = {a.name for p in operations if p.deed == "create" for a in p.call.arguments}
    keys |= {n for n in named if snake(n) in ("path", "name", "id", "key", "uri")}
    for planned in [p for p in operations if p.deed == "list"]:
        if any(a.required and a.name in keys for a in planned.call.arguments):
            operations.remove(planned)
            report.leave_out(
                planned.call.label,
                f"it lists what one {planned.resource.replace('_', ' ')} holds, which the file does not tell",
            )

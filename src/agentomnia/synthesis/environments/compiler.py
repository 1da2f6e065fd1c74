"""Executable state and tool compilation: a specification becomes one readable Python class.

Paper, section 4.2.2 "Executable State Compilation" and 4.2.3 "Executable Tool Implementation". The result
needs only the standard library and holds no interpreter: every guard and effect is ordinary code. What
the static pass learns on the way (which records a tool reads and writes, which errors it declares) is kept
as `ToolFacts` for the dependency graph and the gate.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.environment.spec import (
    Entity,
    EnvironmentSpec,
    Filter,
    Guard,
    Let,
    Lookup,
    Parameter,
    Procedure,
    Search,
    Summary,
    Tool,
)
from agentomnia.errors import SpecError
from agentomnia.synthesis.environments.expression import (
    VALUE,
    Effects,
    Kind,
    Scope,
    translate,
    translate_body,
    translate_negated,
    translate_template,
)

_WIDTH = 110
_PYTHON_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict",
}  # fmt: skip

_HELPERS = {
    "days_between": '''def _days_between(earlier: str, later: str) -> int:
    """Whole days from one date to another; a time of day is ignored."""
    return (date.fromisoformat(later[:10]) - date.fromisoformat(earlier[:10])).days''',
    "minutes_between": '''def _minutes_between(earlier: str, later: str) -> int:
    """Whole minutes from one moment to another."""
    return int((datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds() // 60)''',
    "add_days": '''def _add_days(day: str, count: int) -> str:
    """The date, or the moment at the same time of day, so many days later."""
    return (date.fromisoformat(day[:10]) + timedelta(days=count)).isoformat() + day[10:]''',
    "add_minutes": '''def _add_minutes(moment: str, count: int) -> str:
    """The moment so many minutes later."""
    return (datetime.fromisoformat(moment) + timedelta(minutes=count)).isoformat(timespec="minutes")''',
    "add_months": '''def _add_months(day: str, count: int) -> str:
    """The same day so many months later, or the last day of a shorter month."""
    start = date.fromisoformat(day[:10])
    month = start.month - 1 + count
    year, month = start.year + month // 12, month % 12 + 1
    last = (date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)).day
    return date(year, month, min(start.day, last)).isoformat() + day[10:]''',
    "weekday": '''def _weekday(day: str) -> str:
    """The English name of the weekday."""
    names = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    return names[date.fromisoformat(day[:10]).weekday()]''',
    "date_of": '''def _date_of(moment: str) -> str:
    """The date of a moment."""
    return moment[:10]''',
}


@dataclass(frozen=True)
class DeclaredError:
    """An error that a tool can answer: its code and the template of its message."""

    code: str
    template: str

    def matches(self, error: dict[str, Any]) -> bool:
        """Whether an error answer came from here."""
        pattern = re.sub(r"\\\{.*?\\\}", ".*", re.escape(self.template))
        return bool(error["code"] == self.code and re.fullmatch(pattern, error["message"], re.DOTALL))


@dataclass(frozen=True)
class ToolFacts:
    """What the static pass knows of a tool."""

    reads: frozenset[str]
    writes: frozenset[tuple[str, str]]
    errors: tuple[DeclaredError, ...]
    returned: tuple[tuple[str, str], ...]
    """Records in the answer: `(place, entity)`, the place `appointment` or `appointments[]`, `""` at the top."""

    @property
    def written_entities(self) -> frozenset[str]:
        """Entities with a record that the tool may create, change or delete."""
        return frozenset(entity for entity, _ in self.writes)


@dataclass(frozen=True)
class Compiled:
    """The source of a program and the facts of its tools."""

    source: str
    facts: dict[str, ToolFacts]


def compile_environment(spec: EnvironmentSpec) -> Compiled:
    """Compile a specification.

    Returns:
        The source of one module holding one class named `spec.name`, and the facts by tool name.

    Raises:
        ExpressionError: a guard, effect or rule is outside the language.
        SpecError: a tool returns nothing that can be told.
    """
    helpers: set[str] = set()
    methods, facts = [], {}
    for tool in spec.tools:
        method = _compile_tool(spec, tool)
        methods.append("\n".join(method.lines))
        facts[tool.name] = method.facts
        helpers |= method.helpers
    rules, rule_helpers = _compile_rules(spec)
    source = "\n".join(
        [*_header(spec, helpers | rule_helpers), *_class_head(spec), "", *_join(methods), "", *rules, ""]
    )
    return Compiled(source, facts)


def tool_facts(spec: EnvironmentSpec, tool: Tool) -> ToolFacts:
    """The facts of one tool, without the rest of the program."""
    return _compile_tool(spec, tool).facts


def _join(methods: list[str]) -> Iterator[str]:
    for number, method in enumerate(methods):
        if number:
            yield ""
        yield method


def _header(spec: EnvironmentSpec, helpers: set[str]) -> list[str]:
    names = [n for n in _HELPERS if n in helpers]
    dates = {
        "date": any(n not in ("minutes_between", "add_minutes", "date_of") for n in names),
        "datetime": any(n in ("minutes_between", "add_minutes") for n in names),
        "timedelta": any(n in ("add_days", "add_minutes", "add_months") for n in names),
    }
    lines = _docstring(f"{spec.title}. {spec.introduction}", 0)
    if any(e_type in ("list", "object") for e in spec.entities for e_type in (a.type for a in e.attributes)):
        lines += ["", "from copy import deepcopy"]
        lines += (
            [f"from datetime import {', '.join(n for n, used in dates.items() if used)}"] if any(dates.values()) else []
        )
    elif any(dates.values()):
        lines += ["", f"from datetime import {', '.join(n for n, used in dates.items() if used)}"]
    lines += [
        "", "",
        "def _ok(data: dict) -> dict:",
        '    return {"ok": True, "data": data}',
        "", "",
        "def _error(code: str, message: str, hint: str) -> dict:",
        '    return {"ok": False, "error": {"code": code, "message": message, "hint": hint}}',
        "", "",
        "def _missing(noun: str, key: str) -> dict:",
        '    return _error("not_found", f"There is no {noun} {key}.", f"Look the {noun} up first.")',
    ]  # fmt: skip
    for name in names:
        lines += ["", "", _HELPERS[name]]
    return [*lines, "", ""]


def _class_head(spec: EnvironmentSpec) -> list[str]:
    lines = [f"class {spec.name}:"]
    house_rules = "\n\nHouse rules:\n" + "\n".join(f"- {p}" for p in spec.policies) if spec.policies else ""
    lines += _docstring(spec.introduction + house_rules, 4)
    lines += ["", "    def __init__(self, state: dict) -> None:", '        self.clock: dict = state["clock"]']
    lines += ['        self.counters: dict = state["counters"]']
    lines += [f'        self.{e.plural}: dict[str, dict] = state["{e.plural}"]' for e in spec.entities]
    return [
        *lines,
        "",
        "    def _next_id(self, container: str, prefix: str) -> str:",
        "        self.counters[container] += 1",
        '        return f"{prefix}-{self.counters[container]:04d}"',
    ]


def _docstring(text: str, indent: int) -> list[str]:
    pad = " " * indent
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    paragraphs = text.split("\n")
    # a quote at the end would run into the closing ones
    if len(paragraphs) == 1 and len(text) + indent + 6 <= _WIDTH and not text.endswith('"'):
        return [f'{pad}"""{text}"""']
    wrapped: list[str] = []
    for paragraph in paragraphs:
        hang = "  " if paragraph.startswith("- ") else ""
        wrapped += textwrap.wrap(paragraph, _WIDTH - indent - 4, subsequent_indent=hang) or [""]
    return [f'{pad}"""{wrapped[0]}', *(f"{pad}{line}".rstrip() for line in wrapped[1:]), f'{pad}"""']


class _Method:
    """Collects the lines of one tool's method."""

    def __init__(self, spec: EnvironmentSpec, tool: Tool) -> None:
        self.spec = spec
        self.tool = tool
        self.effects = Effects()
        self.errors: list[DeclaredError] = []
        self.returned: list[tuple[str, str]] = []
        self.lines = [*self._signature(), *self._docstring()]

    @property
    def facts(self) -> ToolFacts:
        return ToolFacts(
            frozenset(self.effects.reads),
            frozenset(self.effects.writes),
            tuple(self.errors),
            tuple(self.returned),
        )

    @property
    def helpers(self) -> set[str]:
        return self.effects.functions

    def emit(self, text: str, depth: int = 0) -> None:
        self.lines.append("    " * (depth + 2) + text)

    def refuse_if(self, condition: str, code: str, template: str, message: str, hint: str) -> None:
        """Emit a guard that answers an error when the condition holds."""
        self.errors.append(DeclaredError(code, template))
        self.emit(f"if {condition}:")
        self.emit(f"return _error({_text(code)}, {message}, {_text(hint)})", 1)

    def _signature(self) -> list[str]:
        ordered = sorted(self.tool.parameters, key=lambda p: not p.required)
        arguments = ["self", *(_argument(p) for p in ordered)]
        line = f"    def {self.tool.name}({', '.join(arguments)}) -> dict:"
        if len(line) <= _WIDTH:
            return [line]
        return [f"    def {self.tool.name}(", *(f"        {a}," for a in arguments), "    ) -> dict:"]

    def _docstring(self) -> list[str]:
        if not self.tool.parameters:
            return _docstring(self.tool.description, 8)
        lines = _docstring(self.tool.description, 8)
        lines = [lines[0][:-3]] if len(lines) == 1 else lines[:-1]
        lines += ["", "        Args:"]
        for parameter in self.tool.parameters:
            text = f"{parameter.name}: {parameter.description or parameter.name.replace('_', ' ')}"
            wrapped = textwrap.wrap(
                text.replace("\\", "\\\\").replace('"""', "'''"), _WIDTH - 14, subsequent_indent="    "
            )
            lines += [f"            {line}" for line in wrapped]
        return [*lines, '        """']


def _text(text: str) -> str:
    """The text as a Python literal: the escapes of JSON are Python's."""
    return json.dumps(text, ensure_ascii=False)


def _argument(parameter: Parameter) -> str:
    kinds = parameter.json_schema.get("type", "string")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    python = " | ".join(dict.fromkeys(_PYTHON_TYPES[n] for n in names if n != "null"))
    if parameter.required and "null" not in names:
        return f"{parameter.name}: {python}"
    if parameter.required:
        return f"{parameter.name}: {python} | None"
    if parameter.default is None:
        return f"{parameter.name}: {python} | None = None"
    return f"{parameter.name}: {python} = {parameter.default!r}"


def _compile_tool(spec: EnvironmentSpec, tool: Tool) -> _Method:
    method = _Method(spec, tool)
    match tool.action:
        case Lookup() as lookup:
            _compile_lookup(method, lookup)
        case Search() as search:
            _compile_search(method, search)
        case Summary() as summary:
            _compile_summary(method, summary)
        case Procedure() as procedure:
            _compile_procedure(method, procedure)
    return method


def _copy_of(entity: Entity, variable: str) -> str:
    nested = any(a.type in ("list", "object") for a in entity.attributes)
    return f"deepcopy({variable})" if nested else f"dict({variable})"


def _fetch(method: _Method, parameter: Parameter, entity: Entity, variable: str) -> None:
    """Emit the lookup of a record by its key, refusing an unknown one."""
    method.effects.reads.add(entity.name)
    method.errors.append(DeclaredError("not_found", f"There is no {entity.noun} {{key}}."))
    if parameter.required:
        method.emit(f"{variable} = self.{entity.plural}.get({parameter.name})")
        method.emit(f"if {variable} is None:")
    else:
        method.emit(
            f"{variable} = self.{entity.plural}.get({parameter.name}) if {parameter.name} is not None else None"
        )
        method.emit(f"if {parameter.name} is not None and {variable} is None:")
    method.emit(f"return _missing({_text(entity.noun)}, {parameter.name})", 1)


def _compile_lookup(method: _Method, lookup: Lookup) -> None:
    entity = method.spec.entity(lookup.entity)
    parameter = method.tool.parameters[0]
    _fetch(method, parameter, entity, entity.variable)
    method.returned.append(("", entity.name))
    if not lookup.include:
        method.emit(f"return _ok({_copy_of(entity, entity.variable)})")
        return
    method.emit(f"details = {_copy_of(entity, entity.variable)}")
    for field in lookup.include:
        target = method.spec.entity(entity.attribute(field).target or "")
        method.effects.reads.add(target.name)
        place = f'{entity.variable}["{field}"]'
        name = f"{field.removesuffix('_id')}_{target.label}"
        if name in entity.fields:
            continue  # the record has a field of that name, which must not be hidden
        value = f'self.{target.plural}[{place}]["{target.label}"]'
        if entity.attribute(field).nullable:
            value = f"{value} if {place} is not None else None"
        method.emit(f'details["{name}"] = {value}')
    method.emit("return _ok(details)")


_COMPARE = {"at_least": ">=", "at_most": "<="}


def _keep_lines(entity: Entity, filters: tuple[Filter, ...]) -> list[str]:
    """Statements that narrow `rows` by every given filter."""
    lines = []
    for item in filters:
        place = f'row["{item.field}"]'
        nullable = item.field != entity.key and entity.attribute(item.field).nullable
        guard = f"{place} is not None and " if nullable and item.op != "equals" else ""
        match item.op:
            case "equals":
                test = f"{place} == {item.parameter}"
            case "contains":
                test = f"{guard}{item.parameter}.lower() in {place}.lower()"
            case _:
                test = f"{guard}{place} {_COMPARE[item.op]} {item.parameter}"
        lines += [f"if {item.parameter} is not None:", f"    rows = [row for row in rows if {test}]"]
    return lines


def _refuse_empty_range(method: _Method, filters: tuple[Filter, ...]) -> None:
    lows = {f.field: f.parameter for f in filters if f.op == "at_least"}
    highs = {f.field: f.parameter for f in filters if f.op == "at_most"}
    for field, low in lows.items():
        if field in highs:
            high = highs[field]
            message = f"{low} lies above {high}, so nothing can match."
            condition = f"{low} is not None and {high} is not None and {low} > {high}"
            method.refuse_if(condition, "invalid_argument", message, _text(message), "Swap the two bounds.")


def _compile_search(method: _Method, search: Search) -> None:
    entity = method.spec.entity(search.entity)
    method.effects.reads.add(entity.name)
    method.returned.append((f"{entity.plural}[]", entity.name))
    _refuse_empty_range(method, search.filters)
    method.emit(f"rows = list(self.{entity.plural}.values())")
    for line in _keep_lines(entity, search.filters):
        method.emit(line)
    names = {p.name for p in method.tool.parameters}
    if "sort_by" in names:
        method.emit("if sort_by is not None:")
        method.emit("rows.sort(key=lambda row: row[sort_by], reverse=descending)", 1)
    shown = "rows[:limit]" if "limit" in names else "rows"
    columns = search.columns or entity.fields
    copy = _copy_of(entity, "row")
    if set(columns) != set(entity.fields):
        copy = "{field: row[field] for field in (" + ", ".join(_text(c) for c in columns) + ")}"
    method.emit(f'return _ok({{"total": len(rows), "{entity.plural}": [{copy} for row in {shown}]}})')


def _compile_summary(method: _Method, summary: Summary) -> None:
    entity = method.spec.entity(summary.entity)
    method.effects.reads.add(entity.name)
    _refuse_empty_range(method, summary.filters)
    method.emit(f"rows = list(self.{entity.plural}.values())")
    for line in _keep_lines(entity, summary.filters):
        method.emit(line)
    method.emit("members: dict = {}")
    method.emit("for row in rows:")
    method.emit("members.setdefault(row[group_by], []).append(row)", 1)
    method.emit("groups = []")
    method.emit("for value in sorted(members, key=str):")
    method.emit('group = {"group": value, "count": len(members[value])}', 1)
    if summary.metrics:
        method.emit('if metric != "count":', 1)
        method.emit("numbers = [row[metric] for row in members[value] if row[metric] is not None]", 2)
        method.emit('group["total"] = round(sum(numbers), 2)', 2)
        method.emit('group["average"] = round(sum(numbers) / len(numbers), 2) if numbers else None', 2)
    method.emit("groups.append(group)", 1)
    method.emit('return _ok({"total": len(rows), "groups": groups})')


def _compile_procedure(method: _Method, procedure: Procedure) -> None:
    scope = Scope(method.spec, {}, f"tool {method.tool.name}")
    for parameter in method.tool.parameters:
        scope = scope.bind(**{parameter.name: VALUE})
        if parameter.binds is not None:
            target = method.spec.target(parameter.carries)
            if target is None:
                raise SpecError(f"tool {method.tool.name}: {parameter.name} binds a record but carries no key")
            _fetch(method, parameter, method.spec.entity(target), parameter.binds)
            scope = scope.bind(**{parameter.binds: Kind(target)})
    for step in procedure.steps:
        scope = _compile_step(method, step, scope)
    lines, names = translate_body(procedure.body, scope, method.effects)
    for line in lines:
        method.emit(line)
    after = Scope(method.spec, names, scope.where)
    method.emit(f"return _ok({_returned(method, procedure, after)})")


def _compile_step(method: _Method, step: Let | Guard, scope: Scope) -> Scope:
    if isinstance(step, Let):
        translated = translate(step.value, scope, method.effects)
        method.emit(f"{step.name} = {translated.source}")
        return scope.bind_new(step.name, translated.kind)
    condition = translate_negated(step.that, scope, method.effects)
    message = translate_template(step.message, scope, method.effects)
    method.refuse_if(condition, step.code, step.message, message, step.hint)
    return scope


def _returned(method: _Method, procedure: Procedure, scope: Scope) -> str:
    if procedure.returns:
        return _returned_fields(method, procedure.returns, scope)
    parts = []
    for variable in _written_variables(procedure.body, scope):
        entity = method.spec.entity(scope.names[variable].entity or "")
        method.returned.append((variable, entity.name))
        parts.append(f'"{variable}": {_copy_of(entity, variable)}')
    if not parts:
        raise SpecError(f"tool {method.tool.name} returns nothing: name its `returns`")
    return "{" + ", ".join(parts) + "}"


def _returned_fields(method: _Method, returns: Iterable[tuple[str, str]], scope: Scope) -> str:
    parts = []
    for name, expression in returns:
        translated = translate(expression, scope, method.effects)
        source, kind = translated.source, translated.kind
        if kind.entity is not None:
            entity = method.spec.entity(kind.entity)
            method.returned.append((f"{name}[]" if kind.many else name, entity.name))
            source = f"[{_copy_of(entity, 'row')} for row in {source}]" if kind.many else _copy_of(entity, source)
        parts.append(f'"{name}": {source}')
    line = "{" + ", ".join(parts) + "}"
    if len(line) < _WIDTH - 24:
        return line
    return "{\n" + "".join(f"            {part},\n" for part in parts) + "        }"


def _written_variables(body: str, scope: Scope) -> list[str]:
    """Records written by the top-level statements of a body, in the order of their first writing."""
    found: dict[str, None] = {}
    for line in body.splitlines():
        written = re.match(r"(\w+)\s*(?:\.\w+\s*(?:=|\+=|-=)(?!=)|=\s*new\()|delete\((\w+)\)", line)
        name = (written.group(1) or written.group(2)) if written else None
        if name is not None and name in scope.names and scope.names[name].entity:
            found[name] = None
        created = re.match(r"new\((\w+)", line)
        if created:
            entity = scope.spec.entity(created.group(1))
            found[entity.variable if entity.variable in scope.names else f"new_{entity.variable}"] = None
    return list(found)


def _compile_rules(spec: EnvironmentSpec) -> tuple[list[str], set[str]]:
    effects = Effects()
    lines = [
        "    def _broken_rules(self) -> list[str]:",
        '        """Names of the house rules that the state breaks."""',
    ]
    lines.append("        broken = []")
    for rule in spec.rules:
        scope = Scope(spec, {"it": Kind(rule.entity)}, f"rule {rule.name}")
        predicate = translate(rule.predicate, scope, effects).source
        lines.append(f"        # {' '.join(rule.sentence.split())}")
        lines.append(f"        if not all({predicate} for it in self.{spec.entity(rule.entity).plural}.values()):")
        lines.append(f"            broken.append({_text(rule.name)})")
    return [*lines, "        return broken"], effects.functions


def evaluate_with_helpers(source: str) -> Any:
    """The value of a translated expression, with the date functions at hand."""
    return eval(source, dict(_helper_functions()))


@cache
def _helper_functions() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec("from datetime import date, datetime, timedelta\n" + "\n".join(_HELPERS.values()), namespace)
    return namespace


def build_program(spec: EnvironmentSpec, compiled: Compiled | None = None) -> Program:
    """Compile a specification and load it.

    Raises:
        ExpressionError: an expression is outside the language.
        SpecError: the compiled source does not load.
    """
    compiled = compiled or compile_environment(spec)
    fields = {}
    for tool in spec.tools:
        for parameter in tool.parameters:
            if parameter.carries is not None:
                fields[(tool.name, parameter.name)] = _place(spec, parameter.carries)
    return Program(
        name=spec.name,
        source=compiled.source,
        cls=load_class(compiled.source, spec.name),
        tools={t.name: ToolSchema(t.name, t.kind, t.description, t.input_schema) for t in spec.tools},
        fields=fields,
    )


def _place(spec: EnvironmentSpec, path: str) -> tuple[str, str]:
    """Where values of a field are found: a reference's in the container it points to."""
    owner, _, name = path.partition(".")
    target = spec.target(path)
    if target is not None:
        entity = spec.entity(target)
        return entity.plural, entity.key
    return spec.entity(owner).plural, name

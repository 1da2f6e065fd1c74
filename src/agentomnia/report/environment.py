"""One environment to read in full: what it is, its entities, its tools, its source, its proof.

Everything is read from the package on disk. The source is shown as the file has it; nothing is compiled or
run. A source past `SOURCE_LIMIT` characters is cut, and the view says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentomnia.environment.spec import Attribute, Entity, Tool
from agentomnia.errors import InputError
from agentomnia.report.coverage import domain_words
from agentomnia.report.gates import Check, environment_checks
from agentomnia.report.source import Source, colour
from agentomnia.runs.rows import read_rows
from agentomnia.synthesis.environments.gate import Finding, Verification
from agentomnia.synthesis.environments.package import read_spec, read_verification
from agentomnia.synthesis.environments.toolset import ToolDecision
from agentomnia.task.render import moment_in_words

SOURCE_LIMIT = 160_000


@dataclass(frozen=True)
class AttributeView:
    """One field of an entity in words."""

    name: str
    type: str
    note: str
    key: bool = False


@dataclass(frozen=True)
class EntityView:
    """A kind of record."""

    name: str
    container: str
    description: str
    attributes: tuple[AttributeView, ...]
    moves: tuple[str, ...]
    """Legal moves of the status field."""


@dataclass(frozen=True)
class ParameterView:
    """An argument of a tool."""

    name: str
    required: bool


@dataclass(frozen=True)
class ToolView:
    """A row of the table of tools."""

    name: str
    modifies: bool
    staff: bool
    description: str
    parameters: tuple[ParameterView, ...]
    origin: str


@dataclass(frozen=True)
class RuleView:
    """What must hold of every record."""

    sentence: str
    entity: str
    predicate: str


@dataclass(frozen=True)
class CheckResult:
    """One check of the environment gate on this environment."""

    name: str
    sentence: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class EnvironmentView:
    """An environment, ready to be read."""

    id: str
    anchor: str
    title: str
    introduction: str
    policies: tuple[str, ...]
    domains: tuple[str, ...]
    clock: str
    speaker: str | None
    lineage: str
    entities: tuple[EntityView, ...]
    rules: tuple[RuleView, ...]
    tools: tuple[ToolView, ...]
    decisions: tuple[ToolDecision, ...]
    """What refinement did not simply keep."""
    source: Source
    verification: Verification
    checks: tuple[CheckResult, ...]


def read_environment(folder: Path, anchor: str) -> EnvironmentView:
    """Read a package for the report.

    Args:
        folder: the package.
        anchor: its anchor in the page.

    Raises:
        InputError: a file of the package is missing or cannot be read.
    """
    spec, verification = read_spec(folder / "spec.json"), read_verification(folder / "verification.json")
    log = list(read_rows(folder / "tools.jsonl", ToolDecision))
    return EnvironmentView(
        id=folder.name,
        anchor=anchor,
        title=spec.title,
        introduction=spec.introduction,
        policies=spec.policies,
        domains=tuple(domain_words(d) for d in spec.domains),
        clock=moment_in_words(spec.clock),
        speaker=spec.speaker,
        lineage=f"{spec.lineage.kind} {Path(spec.lineage.source).name}",
        entities=tuple(_entity(e) for e in spec.entities),
        rules=tuple(RuleView(r.sentence, r.entity, r.predicate) for r in spec.rules),
        tools=tuple(_tool(t) for t in spec.tools),
        decisions=tuple(d for d in log if d.decision != "kept"),
        source=colour(_read_source(folder), anchor, SOURCE_LIMIT),
        verification=verification,
        checks=tuple(_result(c, verification.findings) for c in environment_checks()),
    )


def _read_source(folder: Path) -> str:
    try:
        return (folder / "environment.py").read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder / 'environment.py'}: {error.strerror}; make the environment again") from None


def _entity(entity: Entity) -> EntityView:
    moves: dict[str, list[str]] = {}
    for first, then in entity.lifecycle.moves if entity.lifecycle is not None else ():
        moves.setdefault(first, []).append(then)
    key = AttributeView(entity.key, "key", f"{entity.prefix}-0001, …", key=True)
    return EntityView(
        name=entity.name,
        container=entity.plural,
        description=entity.description,
        attributes=(key, *(_attribute(a) for a in entity.attributes)),
        moves=tuple(f"{first} → {', '.join(then)}" for first, then in moves.items()),
    )


def _attribute(attribute: Attribute) -> AttributeView:
    kind = f"{attribute.type} of {attribute.items}" if attribute.type == "list" else attribute.type
    if attribute.target is not None:
        kind = f"→\N{NO-BREAK SPACE}{attribute.target}"
    facts = [
        " | ".join(attribute.choices),
        _bounds(attribute),
        "unique" if attribute.unique else "",
        "may be null" if attribute.nullable else "",
        attribute.description,
    ]
    return AttributeView(attribute.name, kind, "; ".join(f for f in facts if f))


def _bounds(attribute: Attribute) -> str:
    low, high = attribute.minimum, attribute.maximum
    if low is not None and high is not None:
        words = f"{low:g} to {high:g}"
    elif low is not None:
        words = f"at least {low:g}"
    else:
        words = "" if high is None else f"at most {high:g}"
    return f"{words} {attribute.unit}".strip()


def _tool(tool: Tool) -> ToolView:
    return ToolView(
        name=tool.name,
        modifies=tool.kind == "modify",
        staff=tool.staff,
        description=tool.description,
        parameters=tuple(ParameterView(p.name, p.required) for p in tool.parameters),
        origin=tool.origin,
    )


def _result(check: Check, findings: tuple[Finding, ...]) -> CheckResult:
    found = tuple(f"{f.tool}: {f.evidence}" if f.tool else f.evidence for f in findings if f.check == check.name)
    return CheckResult(check.name, check.sentence, found)

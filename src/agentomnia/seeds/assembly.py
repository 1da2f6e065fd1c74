"""From a plan to a specification: which resources one environment holds, and the specification itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agentomnia.environment.spec import EnvironmentSpec, Lineage, Tool
from agentomnia.errors import SeedError
from agentomnia.seeds.domain import infer_domains
from agentomnia.seeds.entities import build_entities, gather_fields, gather_schemas
from agentomnia.seeds.naming import class_case, plain_text, sentence
from agentomnia.seeds.plan import Plan, Resource, target_of
from agentomnia.seeds.seed import BEYOND, MAX_ENTITIES, MAX_TOOLS, MIN_ENTITIES, MIN_TOOLS, ReadSeed, Report
from agentomnia.seeds.tools import ToolBuilder

CLOCK = "2026-03-09T09:00"
_PER_RESOURCE = 8


@dataclass(frozen=True)
class Heading:
    """What the file says of itself as a whole."""

    title: str
    about: str
    where: str
    """The file, for messages."""


def assemble(plan: Plan, heading: Heading, lineage: Lineage, report: Report) -> ReadSeed:
    """Turn a plan into a specification.

    Args:
        plan: the operations of the file by resource.
        heading: what the file says of itself.
        lineage: where the specification comes from.
        report: what the reader left out and noted so far; completed here.

    Raises:
        SeedError: too little of the file can be modelled for a stateful environment.
    """
    gather_schemas(plan)
    gather_fields(plan)
    _drop_empty(plan, report)
    chosen = _chosen(plan, report)
    chosen = _without_idle(chosen, report)
    gather_fields(chosen)
    model = build_entities(chosen, report)
    builder = ToolBuilder(chosen, model, report)
    planned = [p for r in chosen.resources.values() for p in r.operations]
    tools = [t for t in (builder.build(p) for p in planned) if t is not None]
    for tool in tools[MAX_TOOLS:]:
        report.leave_out(tool.origin, BEYOND)
    tools = tools[:MAX_TOOLS]
    _demand_enough(len(model.entities), tools, heading)
    spec = EnvironmentSpec(
        name=_class_name(heading.title),
        title=plain_text(heading.title)[:80] or "Service",
        introduction=sentence(heading.about, limit=400) or f"{plain_text(heading.title)[:80]}.",
        domains=infer_domains(_telling_text(heading, chosen)),
        clock=CLOCK,
        entities=tuple(model.entities.values()),
        tools=tuple(tools),
        lineage=lineage,
    )
    if any(r.key_names or r.ids for r in chosen.resources.values()):
        report.note(
            "identifiers are given by the environment and are text, e.g. PET-0001, also where the file has numbers"
        )
    return ReadSeed(spec=spec, unmodelled=tuple(report.unmodelled.values()), notes=tuple(report.notes))


def _class_name(title: str) -> str:
    name = class_case(title)
    return name if name not in ("Record", "Service") else "ServiceDesk"


def _telling_text(heading: Heading, plan: Plan) -> str:
    names = " ".join(v.replace("_", " ") for v in plan.resources)
    return f"{heading.title} {heading.title} {plain_text(heading.about)[:600]} {names} {names}"


def _drop_empty(plan: Plan, report: Report) -> None:
    for variable in [
        v for v, r in plan.resources.items() if not any(g.embedded or g.shape.scalar for g in r.fields.values())
    ]:
        for planned in plan.resources.pop(variable).operations:
            report.leave_out(planned.call.label, f"the file does not tell what a record of {variable!r} holds")


def _links(plan: Plan) -> dict[str, set[str]]:
    """Which resources refer to which, both ways."""
    links: dict[str, set[str]] = {v: set() for v in plan.resources}
    for variable, resource in plan.resources.items():
        targets = {target_of(n, g, resource, plan) for n, g in resource.fields.items()} | set(resource.parents)
        for target in targets - {variable, None}:
            if target in links:
                links[variable].add(target)
                links[target].add(variable)
    return links


def _weight(resource: Resource) -> int:
    """How much a resource offers: its operations, changes twice."""
    return len(resource.operations) + sum(p.deed not in ("get", "list", "count") for p in resource.operations)


def _chosen(plan: Plan, report: Report) -> Plan:
    """The most connected resources, as many as one environment holds."""
    if len(plan.resources) <= MAX_ENTITIES and sum(len(r.operations) for r in plan.resources.values()) <= MAX_TOOLS:
        return plan
    for resource in plan.resources.values():
        _trim(resource, report)
    links = _links(plan)
    order: list[str] = []
    rest = list(plan.resources)
    operations = 0
    while rest and len(order) < MAX_ENTITIES:
        best = max(
            rest,
            key=lambda v: (
                _weight(plan.resources[v]) + 3 * len(links[v] & set(order)) + (0 if order else 2 * len(links[v])),
                -rest.index(v),
            ),
        )
        rest.remove(best)
        if order and operations + len(plan.resources[best].operations) > MAX_TOOLS:
            continue
        order.append(best)
        operations += len(plan.resources[best].operations)
    for variable in [v for v in plan.resources if v not in order]:
        for planned in plan.resources[variable].operations:
            report.leave_out(planned.call.label, BEYOND)
    return Plan({v: plan.resources[v] for v in plan.resources if v in order}, plan.schemas)


def _trim(resource: Resource, report: Report) -> None:
    """Keep the operations of a large file that differ most, so that one resource does not fill the environment."""
    seen: Counter[str] = Counter()
    ranks: dict[str, tuple[int, int]] = {}
    for position, planned in enumerate(resource.operations):
        ranks[planned.call.label] = (seen[planned.deed], position)
        seen[planned.deed] += planned.deed != "move"
    kept = set(sorted(ranks, key=lambda label: ranks[label])[:_PER_RESOURCE])
    for planned in resource.operations:
        if planned.call.label not in kept:
            report.leave_out(planned.call.label, BEYOND)
    resource.operations = [p for p in resource.operations if p.call.label in kept]


def _without_idle(plan: Plan, report: Report) -> Plan:
    """Leave out resources that stand alone with a single operation beside others that are connected."""
    if len(plan.resources) <= MIN_ENTITIES:
        return plan
    links = _links(plan)
    idle = [
        v
        for v, r in plan.resources.items()
        if not links[v] and len(r.operations) == 1 and r.operations[0].deed != "list"
    ]
    kept = {v: r for v, r in plan.resources.items() if v not in idle}
    if len(kept) < MIN_ENTITIES:
        return plan
    for variable in idle:
        for planned in plan.resources[variable].operations:
            report.leave_out(
                planned.call.label, f"a lone operation on {variable!r}, which nothing else of the file touches"
            )
    return Plan(kept, plan.schemas)


def _demand_enough(entities: int, tools: list[Tool], heading: Heading) -> None:
    changing = sum(t.kind == "modify" for t in tools)
    if entities >= MIN_ENTITIES and len(tools) >= MIN_TOOLS and changing:
        return
    raise SeedError(
        f"{heading.where}: only {entities} kinds of record and {len(tools)} operations ({changing} that change "
        f"something) can be "
        f"modelled, too little for a stateful environment ({MIN_ENTITIES} kinds, {MIN_TOOLS} operations, one change); "
        "choose a file with collections that are created, read and changed"
    )

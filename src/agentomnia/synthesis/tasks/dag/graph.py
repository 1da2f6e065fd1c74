"""The tool dependency graph (paper, section 4.4.1 "Tool dependency graph").

An edge `u → v` says that `u` can prepare `v`, and how:

    parameter         an output of `u` supplies an argument of `v`
    entity_anchor     `u` identifies a record that `v` is called with
    state_transition  `u` changes records that `v` reads or depends on

Candidates come from the declared carries of parameters and results, so they are typed, not guessed from names;
confidence says how much `v` needs what `u` gives, and low-confidence candidates, self-loops and duplicates
are filtered out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from agentomnia.environment.spec import EnvironmentSpec, Tool
from agentomnia.synthesis.environments.compiler import ToolFacts, tool_facts

Relation = Literal["parameter", "entity_anchor", "state_transition"]

MINIMUM_CONFIDENCE = 0.5


@dataclass(frozen=True)
class Dependency:
    """One candidate edge."""

    upstream: str
    downstream: str
    relation: Relation
    confidence: float
    what: str
    """The entity or field that the edge is about."""


@dataclass(frozen=True)
class ToolGraph:
    """The dependency graph of one environment."""

    graph: nx.MultiDiGraph
    facts: Mapping[str, ToolFacts]

    def successors(self, tool: str) -> list[str]:
        """Tools that the tool can prepare, in a stable order."""
        return sorted(self.graph.successors(tool))

    def relations(self, upstream: str, downstream: str) -> list[Dependency]:
        """The edges between two tools."""
        data = self.graph.get_edge_data(upstream, downstream) or {}
        return [edge["dependency"] for _, edge in sorted(data.items())]


def build_graph(spec: EnvironmentSpec, facts: Mapping[str, ToolFacts] | None = None) -> ToolGraph:
    """The dependency graph over all tools of an environment; `facts` are worked out where they are not at hand."""
    if facts is None:
        facts = {tool.name: tool_facts(spec, tool) for tool in spec.tools}
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(tool.name for tool in spec.tools)
    seen = set()
    for upstream in spec.tools:
        for downstream in spec.tools:
            for edge in _candidates(spec, upstream, downstream, facts):
                identity = (edge.upstream, edge.downstream, edge.relation)
                if edge.upstream == edge.downstream or edge.confidence < MINIMUM_CONFIDENCE or identity in seen:
                    continue
                seen.add(identity)
                graph.add_edge(edge.upstream, edge.downstream, key=edge.relation, dependency=edge)
    return ToolGraph(graph, facts)


def _candidates(
    spec: EnvironmentSpec, upstream: Tool, downstream: Tool, facts: Mapping[str, ToolFacts]
) -> Iterator[Dependency]:
    returned = {entity: place for place, entity in facts[upstream.name].returned}
    written = facts[upstream.name].written_entities
    for parameter in downstream.parameters:
        if parameter.carries is None:
            continue
        weight = 1.0 if parameter.required else 0.6
        target = spec.target(parameter.carries)
        if target is not None and target in returned and upstream.kind == "query":
            confidence = weight * (0.9 if returned[target].endswith("[]") else 0.5)
            yield Dependency(upstream.name, downstream.name, "entity_anchor", confidence, target)
        for entity in returned:
            if entity != target and _supplies(spec, entity, parameter.carries):
                yield Dependency(upstream.name, downstream.name, "parameter", weight * 0.7, parameter.carries)
        if (
            target is not None
            and target in written
            and "+" in {f for e, f in facts[upstream.name].writes if e == target}
        ):
            yield Dependency(upstream.name, downstream.name, "parameter", weight * 0.8, target)
    touched = written & (facts[downstream.name].reads | facts[downstream.name].written_entities)
    for entity in sorted(touched):
        confidence = 0.8 if downstream.kind == "modify" else 0.55
        yield Dependency(upstream.name, downstream.name, "state_transition", confidence, entity)


def _supplies(spec: EnvironmentSpec, entity: str, carries: str) -> bool:
    """Whether a record of the entity holds a value of the field, or a reference to the same entity."""
    target = spec.target(carries)
    if target is None:
        return carries.partition(".")[0] == entity
    return any(a.target == target for a in spec.entity(entity).attributes)

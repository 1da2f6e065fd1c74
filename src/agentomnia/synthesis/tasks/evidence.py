"""Coordinates with evidence: difficulty atoms and capabilities counted from a task's structure (paper, section 3.4).

An atom is active only where its measures pass its threshold; the measures are stored with the task. The
thresholds are this project's own: the paper gives none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import networkx as nx
from rapidfuzz import fuzz

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.synthesis.tasks.dag.ground import Grounder
from agentomnia.task.task import Evidence
from agentomnia.taxonomy.coordinate import Coordinate

CHARACTERS_PER_TOKEN = 4
"""Rough English and JSON average, for measures only."""


@dataclass(frozen=True)
class Structure:
    """What is counted of a task."""

    calls: int
    depth: int
    goals: int
    questions: int
    candidates: int
    joins: int
    path_tokens: int
    near_duplicates: int
    inferred_arguments: int
    irreversible: int
    reports: int


def measure(spec: EnvironmentSpec, grounder: Grounder, goals: int, questions: int, irreversible: int) -> Structure:
    """Count the structure of a grounded task."""
    plan = grounder.plan
    graph = nx.DiGraph()
    graph.add_nodes_from(f"call:{i}" for i in range(len(plan.calls)))
    graph.add_edges_from(plan.edges)
    graph.add_edges_from((f"call:{e}", f"call:{i}") for i, c in enumerate(plan.calls) for e in c.after)
    names = {c.tool for c in plan.calls}
    sources = [s for c in plan.calls for s in c.sources.values()]
    return Structure(
        calls=len(plan.calls),
        depth=_depth(graph),
        goals=goals,
        questions=questions,
        candidates=max(plan.candidates, default=0),
        joins=plan.joins,
        path_tokens=sum(len(json.dumps(a, ensure_ascii=False)) for a in plan.answers) // CHARACTERS_PER_TOKEN,
        near_duplicates=_near_duplicates(spec, names),
        inferred_arguments=sum(1 for s in sources if s.origin != "query"),
        irreversible=irreversible,
        reports=sum(1 for v in plan.virtual if v.type in ("AGGREGATE", "LOGIC", "COMPUTE")),
    )


def _depth(graph: nx.DiGraph) -> int:
    """Calls on the longest path."""
    lengths: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        before = max((lengths[p] for p in graph.predecessors(node)), default=0)
        lengths[node] = before + (1 if node.startswith("call:") else 0)
    return max(lengths.values(), default=0)


def _near_duplicates(spec: EnvironmentSpec, used: set[str]) -> int:
    """Tools that are not used but named much like one that is."""
    return sum(
        1
        for t in spec.tools
        if t.name not in used
        and any(fuzz.token_sort_ratio(t.name.replace("_", " "), u.replace("_", " ")) >= 75 for u in used)
    )


THRESHOLDS = {
    "structured_information": "candidates ≥ 12 or joins ≥ 2",
    "tool_parameter_grounding": "near_duplicates ≥ 6 and inferred_arguments ≥ 2",
    "long_context_evidence": "path_tokens ≥ 3000",
    "dynamic_planning": "calls ≥ 6 and depth ≥ 3",
    "risk_reliability_clarification": "irreversible ≥ 1 and candidates ≥ 2",
}
"""What the measures of each atom must pass; no task may bring a threshold of its own."""


def difficulty_evidence(structure: Structure) -> tuple[Evidence, ...]:
    """The active atoms, hardest first by how far their first measure passes its threshold."""
    s = structure
    rules = (
        ("structured_information", {"candidates": s.candidates, "joins": s.joins}, max(s.candidates / 12, s.joins / 2)),
        ("tool_parameter_grounding", {"near_duplicates": s.near_duplicates, "inferred_arguments": s.inferred_arguments},
         min(s.near_duplicates / 6, s.inferred_arguments / 2)),
        ("long_context_evidence", {"path_tokens": s.path_tokens}, s.path_tokens / 3000),
        ("dynamic_planning", {"calls": s.calls, "depth": s.depth}, min(s.calls / 6, s.depth / 3)),
        ("risk_reliability_clarification", {"irreversible": s.irreversible, "candidates": s.candidates},
         min(s.irreversible / 1, s.candidates / 2)),
    )  # fmt: skip
    active = sorted((r for r in rules if r[2] >= 1), key=lambda r: -r[2])
    return tuple(
        Evidence(label=label, measures={k: float(v) for k, v in measures.items()}, threshold=THRESHOLDS[label])
        for label, measures, _ in active
    )


def coordinate(spec: EnvironmentSpec, structure: Structure, evidence: tuple[Evidence, ...]) -> Coordinate:
    """The coordinate `Z` of a task."""
    s = structure
    capabilities = ["tool_use"]
    capabilities += ["task_understanding"] if s.goals + s.questions >= 2 else []
    capabilities += ["information_gathering"] if s.candidates else []
    capabilities += ["planning_decision_making"] if s.depth >= 3 else []
    capabilities += ["state_management"] if s.goals >= 2 else []
    capabilities += ["data_analysis"] if s.reports else []
    capabilities += ["reliability_safety"] if s.irreversible else []
    return Coordinate(
        domain=spec.domains[0],
        capabilities=tuple(capabilities),
        difficulty=tuple(e.label for e in evidence),
        primary=evidence[0].label if evidence else None,
    )

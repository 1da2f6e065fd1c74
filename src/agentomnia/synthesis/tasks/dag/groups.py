"""Topology-aware tool-group sampling (paper, section 4.4.1 "Topology-aware group sampling").

Depth-first search from tools without prerequisites, or with many dependents, gives a pool of long chains;
random walks vary where they start and how long they get. A group is several chains and some scattered
tools; groups that overlap an earlier one too much (Jaccard) are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.synthesis.tasks.dag.graph import ToolGraph

MAXIMUM_JACCARD = 0.6
_POOL = 60
_HUBS = 12


@dataclass(frozen=True)
class ToolGroup:
    """Several long chains and a set of scattered tools."""

    chains: tuple[tuple[str, ...], ...]
    scattered: tuple[str, ...]

    @property
    def tools(self) -> frozenset[str]:
        """Every tool of the group."""
        return frozenset(t for chain in self.chains for t in chain) | frozenset(self.scattered)


@dataclass(frozen=True)
class GroupProfile:
    """How large groups are: the refinement profile of a task variant."""

    chains: tuple[int, int] = (1, 2)
    chain_length: tuple[int, int] = (2, 5)
    scattered: tuple[int, int] = (1, 3)


STANDARD = GroupProfile()


def chain_pool(spec: EnvironmentSpec, graph: ToolGraph, profile: GroupProfile, rng: Random) -> list[tuple[str, ...]]:
    """Chains that the dependency graph allows, each with at least one tool that modifies."""
    modifying = {t.name for t in spec.tools if t.kind == "modify"}
    names = [t.name for t in spec.tools]
    rootless = [n for n in names if graph.graph.in_degree(n) == 0]
    hubs = sorted(names, key=lambda n: (-graph.graph.out_degree(n), n))[:_HUBS]
    starts = list(dict.fromkeys([*rootless, *hubs]))
    pool: dict[tuple[str, ...], None] = {}
    for attempt in range(_POOL * 4):
        start = rng.choice(starts) if attempt % 2 else rng.choice(names)
        chain = _walk(graph, start, rng.randint(*profile.chain_length), rng)
        if len(chain) >= profile.chain_length[0] and modifying & set(chain):
            pool[chain] = None
        if len(pool) >= _POOL:
            break
    return list(pool)


def _walk(graph: ToolGraph, start: str, length: int, rng: Random) -> tuple[str, ...]:
    """Depth-first: follow one random dependent after another, none twice, backing out of dead ends."""
    path, tried = [start], {start}
    while path and len(path) < length:
        onward = [t for t in graph.successors(path[-1]) if t not in tried]
        if not onward:
            break
        nearest = [t for t in onward if _relation_weight(graph, path[-1], t) > 0.6] or onward
        chosen = rng.choice(nearest)
        tried.add(chosen)
        path.append(chosen)
    return tuple(path)


def _relation_weight(graph: ToolGraph, upstream: str, downstream: str) -> float:
    return max(edge.confidence for edge in graph.relations(upstream, downstream))


def sample_groups(
    spec: EnvironmentSpec,
    graph: ToolGraph,
    rng: Random,
    profile: GroupProfile = STANDARD,
    focus: frozenset[str] = frozenset(),
) -> Iterator[ToolGroup]:
    """Endless groups, no two with more than `MAXIMUM_JACCARD` of their tools in common while that lasts.

    The limit is relaxed step by step once an environment's groups are used up, so that the iterator goes on.

    Args:
        spec: the environment.
        graph: its dependency graph.
        rng: draws chains and scattered tools.
        profile: how large groups are.
        focus: tools that every group is about (paper, section 6.2): it begins with a short chain that has one of them,
            and scatters one of those that read. Names that the environment lacks are passed over.
    """
    pool = chain_pool(spec, graph, profile, rng)
    leading = _leading_chains(spec, graph, focus)
    asked = [t.name for t in spec.tools if t.kind == "query" and t.name in focus]
    queries = [t.name for t in spec.tools if t.kind == "query"]
    retained: list[frozenset[str]] = []
    limit, refused = MAXIMUM_JACCARD, 0
    while pool:
        group = _focused(_draw_group(pool, queries, profile, rng), leading, asked, rng)
        if any(_jaccard(group.tools, other) > limit for other in retained):
            refused += 1
            if refused > 50:
                limit, refused = min(1.0, limit + 0.1), 0
            continue
        retained.append(group.tools)
        yield group


def _draw_group(pool: list[tuple[str, ...]], queries: list[str], profile: GroupProfile, rng: Random) -> ToolGroup:
    chains = rng.sample(pool, min(len(pool), rng.randint(*profile.chains)))
    used = {t for chain in chains for t in chain}
    spare = [q for q in queries if q not in used]
    scattered = rng.sample(spare, min(len(spare), rng.randint(*profile.scattered)))
    return ToolGroup(tuple(chains), tuple(scattered))


def _leading_chains(spec: EnvironmentSpec, graph: ToolGraph, focus: frozenset[str]) -> list[tuple[str, ...]]:
    """Short chains about the focus tools: one that modifies behind the reader that prepares it best, one that reads
    before each change that it prepares as well as any."""
    found = []
    for tool in spec.tools:
        if tool.name not in focus:
            continue
        if tool.kind == "modify":
            before = [n for n in graph.graph.predecessors(tool.name) if spec.tool(n).kind == "query"]
            best = sorted(before, key=lambda n: (-_relation_weight(graph, n, tool.name), n))
            found.append((*best[:1], tool.name))
        else:
            after = [n for n in graph.successors(tool.name) if spec.tool(n).kind == "modify"]
            weights = {n: _relation_weight(graph, tool.name, n) for n in after}
            found += [(tool.name, n) for n in after if weights[n] == max(weights.values())]
    return found


def _focused(group: ToolGroup, leading: list[tuple[str, ...]], asked: list[str], rng: Random) -> ToolGroup:
    """The group with a leading chain in the place of its last one, and a focus reader among its scattered tools."""
    chains, scattered = group.chains, group.scattered
    if leading:
        chains = (rng.choice(leading), *chains[:-1])
    if asked:
        scattered = (rng.choice(asked), *scattered[1:])
    return ToolGroup(chains, scattered)


def _jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    return len(left & right) / len(left | right)

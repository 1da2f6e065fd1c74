"""Coverage of the taxonomy by a run, arranged for reading: the domain map, capabilities, difficulty atoms.

Counting is `taxonomy.coverage`'s; here counts get their names. The map holds every level-2 domain, the
empty ones too: what is missing is what a reader looks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES, SPLITS, Split, domain, domains
from agentomnia.taxonomy.coverage import Coverage, Span, coverage

SPLIT_NAMES: dict[str, str] = {"toc": "ToC", "tob": "ToB", "toe": "ToE"}
_SPLIT_WORDS: dict[Split, str] = {"toc": "to consumers", "tob": "to business", "toe": "to employees"}


@dataclass(frozen=True)
class Group:
    """One level-1 domain with its level-2 domains as cells."""

    name: str
    cells: tuple[tuple[str, int], ...]
    """What a cell says, and its number of environments."""

    @property
    def covered(self) -> int:
        """Level-2 domains with an environment."""
        return sum(1 for _, count in self.cells if count)

    @property
    def label(self) -> str:
        """The group read aloud."""
        return f"{self.name}: {self.covered} of {len(self.cells)} level-2 domains have an environment"


@dataclass(frozen=True)
class Place:
    """A level-2 domain that has an environment."""

    id: int
    words: str
    environments: int
    tasks: int


@dataclass(frozen=True)
class SplitView:
    """One split: how much of it has environments and tasks."""

    name: str
    words: str
    environments: int
    tasks: int
    l1: int
    l1_total: int
    l2: int
    l2_total: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Amount:
    """A capability or difficulty atom with its number of tasks."""

    name: str
    description: str
    tasks: int
    primary: int = 0


@dataclass(frozen=True)
class CoverageView:
    """Coverage of the three axes."""

    splits: tuple[SplitView, ...]
    covered: tuple[Place, ...]
    capabilities: tuple[Amount, ...]
    difficulties: tuple[Amount, ...]
    tasks: int
    unlabelled: int
    """Tasks with no difficulty atom."""
    most: int
    """The highest number of environments in a level-2 domain."""

    @property
    def l2(self) -> int:
        """Level-2 domains with an environment."""
        return sum(s.l2 for s in self.splits)

    @property
    def l2_total(self) -> int:
        """All level-2 domains."""
        return sum(s.l2_total for s in self.splits)

    @property
    def most_tasks(self) -> int:
        """The highest number of tasks behind a capability or an atom."""
        return max((a.tasks for a in (*self.capabilities, *self.difficulties)), default=0)


def domain_words(id: int) -> str:
    """A level-2 domain with the way to it."""
    item = domain(id)
    return f"{SPLIT_NAMES[item.split]} / {item.l1} / {item.l2}"


def coverage_view(environments: Iterable[Span], tasks: Iterable[Span]) -> CoverageView:
    """Arrange what environments and tasks cover."""
    made, asked = coverage(environments), coverage(tasks)
    return CoverageView(
        splits=tuple(_split(split, made, asked) for split in SPLITS),
        covered=tuple(Place(id, domain_words(id), count, asked.l2[id]) for id, count in made.l2.items() if count),
        capabilities=tuple(Amount(c.name, c.description, asked.capabilities[c.id]) for c in CAPABILITIES),
        difficulties=tuple(
            Amount(d.name, d.description, asked.difficulty[d.id], asked.primary[d.id]) for d in DIFFICULTIES
        ),
        tasks=asked.rows,
        unlabelled=asked.rows - sum(asked.primary.values()),
        most=max(made.l2.values(), default=0),
    )


def _split(split: Split, made: Coverage, asked: Coverage) -> SplitView:
    found = made.splits[split]
    groups: dict[str, list[tuple[str, int]]] = {}
    for item in domains():
        if item.split == split:
            text = f"{item.id} {item.l2}: environments {made.l2[item.id]}, tasks {asked.l2[item.id]}"
            groups.setdefault(item.l1, []).append((text, made.l2[item.id]))
    return SplitView(
        name=SPLIT_NAMES[split],
        words=_SPLIT_WORDS[split],
        environments=found.rows,
        tasks=asked.splits[split].rows,
        l1=found.l1,
        l1_total=found.l1_total,
        l2=found.l2,
        l2_total=found.l2_total,
        groups=tuple(Group(name, tuple(listed)) for name, listed in groups.items()),
    )

"""The three axes of the taxonomy: domains, capabilities, atomic difficulties (paper, section 3).

Names repeat across the domain tree: "Finance" is level 1 in ToC and in ToB, "Project Manager" is three
level-2 domains. So a level-2 domain is keyed by its numeric id, a level-1 domain by (split, name), and no
function here looks a level-2 domain up by name. Capabilities and difficulties are keyed by their snake_case
ids; the order of `CAPABILITIES` and `DIFFICULTIES` is the order of Tables 2 and 3, and every stored profile
follows it.

The domain tree is data, `domains.yaml` beside this file, read once per process. Lookups of something that
the taxonomy does not have raise `TaxonomyError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml
from typing_extensions import TypedDict  # pydantic refuses typing.TypedDict before Python 3.12

from agentomnia.errors import TaxonomyError
from agentomnia.row import Row

Split = Literal["toc", "tob", "toe"]
SPLITS: tuple[Split, ...] = get_args(Split)


class StateObject(TypedDict):
    """A kind of entity that a domain holds, as written in `domains.yaml`."""

    name: str
    attributes: list[str]
    mutable: dict[str, Literal["value"] | list[str]]
    """Attribute to its lifecycle states, or to "value" where any value may be written."""


class Operation(TypedDict):
    """Something an agent does in a domain, as written in `domains.yaml`."""

    name: str
    kind: Literal["read", "write"]


class Domain(Row):
    """One level-2 domain, `D = (s, d1, d2)` of Eq. 1 with its metadata (section 3.2).

    `domains()` hands out shared rows: read `objects` and `operations`, never edit them.
    """

    id: int
    split: Split
    l1: str
    l2: str
    description: str
    objects: tuple[StateObject, ...]
    constraints: tuple[str, ...]
    operations: tuple[Operation, ...]

    @property
    def path(self) -> str:
        """The domain for people to read: "toc / Finance / Banking Services". Not a key."""
        return f"{self.split} / {self.l1} / {self.l2}"


class Capability(Row):
    """One capability dimension (Table 2)."""

    id: str
    name: str
    description: str


class Difficulty(Row):
    """One atomic difficulty (Table 3)."""

    id: str
    name: str
    description: str


CAPABILITIES: tuple[Capability, ...] = (
    Capability(
        id="task_understanding",
        name="Task Understanding",
        description="Identifying user goals, implicit requirements, priorities, domain constraints, "
        "and expected outcomes.",
    ),
    Capability(
        id="information_gathering",
        name="Information Gathering",
        description="Locating, retrieving, and integrating relevant evidence from environment states, "
        "tools, files, databases, and external information sources.",
    ),
    Capability(
        id="planning_decision_making",
        name="Planning & Decision Making",
        description="Decomposing goals, selecting execution strategies, respecting dependencies and "
        "constraints, and revising plans as new observations become available.",
    ),
    Capability(
        id="state_management",
        name="State Management",
        description="Tracking intermediate progress and maintaining consistency across entities, "
        "environment states, and long or multi-turn trajectories.",
    ),
    Capability(
        id="tool_use",
        name="Tool Use",
        description="Selecting appropriate tools, constructing valid arguments, interpreting outputs, "
        "and coordinating multiple tool calls.",
    ),
    Capability(
        id="code_programmatic_operations",
        name="Code & Programmatic Operations",
        description="Writing and executing code for computation, data transformation, automation, "
        "file manipulation, and programmatic task completion.",
    ),
    Capability(
        id="data_analysis",
        name="Data Analysis",
        description="Filtering, aggregating, comparing, reconciling, and reasoning over structured or "
        "semi-structured data.",
    ),
    Capability(
        id="office_document_handling",
        name="Office & Document Handling",
        description="Reading, extracting, editing, merging, validating, and producing documents, "
        "spreadsheets, presentations, and other file-based artifacts.",
    ),
    Capability(
        id="interactive_collaboration",
        name="Interactive Collaboration",
        description="Requesting missing information, clarifying ambiguous goals, confirming actions, "
        "incorporating user feedback, and coordinating across interaction turns.",
    ),
    Capability(
        id="reliability_safety",
        name="Reliability & Safety",
        description="Detecting and recovering from failures, maintaining constraint compliance, "
        "avoiding unsafe or invalid actions, and completing tasks robustly under "
        "uncertainty.",
    ),
)

DIFFICULTIES: tuple[Difficulty, ...] = (
    Difficulty(
        id="ambiguous_goal",
        name="Ambiguous Goal and Contextual Constraints",
        description="The request is underspecified, indirect, or conditioned on implicit preferences, "
        "policies, priorities, or professional constraints.",
    ),
    Difficulty(
        id="tool_parameter_grounding",
        name="Tool and Parameter Grounding",
        description="The agent must distinguish similar or redundant tools, infer arguments from "
        "context, or request missing parameters before execution.",
    ),
    Difficulty(
        id="structured_information",
        name="Structured-information Complexity",
        description="The environment contains numerous structured entities, attributes, relations, or "
        "records that must be filtered, joined, compared, or reconciled.",
    ),
    Difficulty(
        id="long_context_evidence",
        name="Long-context and Multi-artifact Evidence",
        description="Relevant evidence is distributed across long tool outputs, documents, files, "
        "attachments, logs, or multiple heterogeneous artifacts.",
    ),
    Difficulty(
        id="dynamic_planning",
        name="Dynamic Multi-step Planning",
        description="Completion requires long chains of dependencies, conditional branches, "
        "intermediate decisions, or replanning after new observations.",
    ),
    Difficulty(
        id="multi_source_inconsistency",
        name="Multi-source Inconsistency",
        description="Information from users, tools, files, or environment states is incomplete, "
        "duplicated, outdated, or mutually conflicting.",
    ),
    Difficulty(
        id="progressive_disclosure",
        name="Progressive Disclosure and State Evolution",
        description="Critical information or constraints are revealed gradually through user turns, "
        "tool results, approval stages, or state transitions.",
    ),
    Difficulty(
        id="risk_reliability_clarification",
        name="Risk, Reliability, and Clarification",
        description="The task involves irreversible actions, insufficient evidence, conflicting "
        "instructions, or operations that require explicit confirmation, recovery "
        "procedures, or refusal.",
    ),
)

_CAPABILITY = {item.id: item for item in CAPABILITIES}
_DIFFICULTY = {item.id: item for item in DIFFICULTIES}


@cache
def domains() -> tuple[Domain, ...]:
    """All 354 level-2 domains in id order (Table 1), read once per process."""
    return tuple(sorted(_read_domains(), key=lambda item: item.id))


def domain(id: int) -> Domain:
    """The level-2 domain with this id (section 3.2).

    Raises:
        TaxonomyError: no domain has the id; the message names the nearest ones.
    """
    found = _by_id().get(id)
    if found is None:
        nearest = sorted(sorted(_by_id(), key=lambda known: abs(known - id))[:3])
        near = ", ".join(f"{known} ({_by_id()[known].path})" for known in nearest)
        raise TaxonomyError(f"no domain has id {id}; the nearest are {near}: list them with `omnia taxonomy list`")
    return found


@cache
def level1() -> tuple[tuple[Split, str], ...]:
    """The 90 level-1 keys (split, name), ordered by split and then by lowest id (Table 1)."""
    return tuple(dict.fromkeys((item.split, item.l1) for item in domains()))


def domains_in(split: str | None = None, l1: str | None = None) -> tuple[Domain, ...]:
    """The domains of a split, of a level-1 name, or of both; all of them when neither is given.

    A level-1 name alone may select from several splits, because names repeat.

    Args:
        split: `toc`, `tob` or `toe`.
        l1: a level-1 name; letter case does not matter.

    Raises:
        TaxonomyError: there is no such split, or no such level-1 name in it.
    """
    if split is not None and split not in SPLITS:
        raise TaxonomyError(f"no split {split!r}: choose one of {', '.join(SPLITS)}")
    chosen = tuple(item for item in domains() if split in (None, item.split))
    if l1 is None:
        return chosen
    named = tuple(item for item in chosen if item.l1.casefold() == l1.casefold())
    if not named:
        where = f" in {split}" if split else ""
        raise TaxonomyError(f"no level-1 domain {l1!r}{where}: {_choose(l1, {item.l1 for item in chosen})}")
    return named


def capability(id: str) -> Capability:
    """The capability dimension with this id (Table 2).

    Raises:
        TaxonomyError: no capability has the id; the message names the ones to choose from.
    """
    if id not in _CAPABILITY:
        raise TaxonomyError(f"no capability {id!r}: {_choose(id, _CAPABILITY)}")
    return _CAPABILITY[id]


def difficulty(id: str) -> Difficulty:
    """The atomic difficulty with this id (Table 3).

    Raises:
        TaxonomyError: no atom has the id; the message names the ones to choose from.
    """
    if id not in _DIFFICULTY:
        raise TaxonomyError(f"no atomic difficulty {id!r}: {_choose(id, _DIFFICULTY)}")
    return _DIFFICULTY[id]


@cache
def _by_id() -> dict[int, Domain]:
    return {item.id: item for item in domains()}


def _read_domains() -> Iterator[Domain]:
    for split, branches in _load_tree().items():
        for l1, leaves in branches.items():
            for leaf in leaves:
                yield _domain(split, l1, leaf)


def _load_tree() -> dict[Split, dict[str, list[dict[str, Any]]]]:
    text = resources.files(__package__).joinpath("domains.yaml").read_text(encoding="utf-8")
    # The C parser reads the tree six times faster; builds of PyYAML without libyaml lack it.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    tree: dict[Split, dict[str, list[dict[str, Any]]]] = yaml.load(text, Loader=loader)
    return tree


def _domain(split: Split, l1: str, leaf: dict[str, Any]) -> Domain:
    return Domain(
        id=leaf["id"],
        split=split,
        l1=l1,
        l2=leaf["name"],
        description=leaf["description"],
        objects=tuple(leaf["state_objects"]),
        constraints=tuple(leaf["constraints"]),
        operations=tuple(leaf["operations"]),
    )


def _choose(wrong: str, known: Iterable[str]) -> str:
    """The closest known names to choose from, or all of them when none is close."""
    by_fold = {name.casefold(): name for name in sorted(known)}
    near = difflib.get_close_matches(wrong.casefold(), by_fold, n=3)
    return "choose one of " + ", ".join(by_fold[name] for name in near or by_fold)

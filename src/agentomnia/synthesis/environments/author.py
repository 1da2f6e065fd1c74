"""The author of environments: from a card, or any specification, to a verified environment (paper, section 4.2).

`EnvironmentAuthor` is the seam for other authors: the builtin one weaves cards; one on a language model
would write the same specification and be held to the same compiler, correction and gate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from agentomnia.environment.replay import ReplayProcess
from agentomnia.environment.spec import EnvironmentSpec, Lineage
from agentomnia.errors import CardError
from agentomnia.row import digest
from agentomnia.synthesis.environments.card import Card, card_paths, load_card
from agentomnia.synthesis.environments.correct import correct_environment
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.toolset import ToolDecision, build_toolset, check_facts
from agentomnia.synthesis.environments.weave import weave


@dataclass(frozen=True)
class Draft:
    """A specification that nobody has verified yet, with the log of its tools."""

    spec: EnvironmentSpec
    log: tuple[ToolDecision, ...]


@dataclass(frozen=True)
class VerifiedEnvironment:
    """A specification after correction, with the record of its last verification."""

    spec: EnvironmentSpec
    verification: Verification
    log: tuple[ToolDecision, ...]

    @property
    def id(self) -> str:
        """A short stable name: the class and the head of the specification's identity."""
        return f"{self.spec.name}-{self.spec.identity[:8]}"


class EnvironmentAuthor(Protocol):
    """Who writes the specification of an environment."""

    def draft(self, domain: int, variant: int, seed: str) -> Draft:
        """Write a specification for a level-2 domain.

        Args:
            domain: id on the domain axis.
            variant: which of several environments of the domain.
            seed: names the random draws.

        Raises:
            CardError: the author knows nothing of this domain.
        """
        ...


class BuiltinAuthor:
    """Weaves domain cards with archetypes: deterministic, offline."""

    def __init__(self, paths: Iterable[Path] | None = None) -> None:
        """Know the given card files, or the ones that ship with the package."""
        self._paths = {_domain_of(p): p for p in (card_paths() if paths is None else paths)}

    @property
    def domains(self) -> tuple[int, ...]:
        """The level-2 domains that have a card."""
        return tuple(sorted(self._paths))

    def draft(self, domain: int, variant: int, seed: str) -> Draft:
        """Write a specification; see `EnvironmentAuthor.draft`."""
        if domain not in self._paths:
            known = ", ".join(map(str, self.domains))
            raise CardError(f"there is no card for domain {domain}; cards exist for {known} (docs/cards.md: write one)")
        path = self._paths[domain]
        card = load_card(path)
        return draft_from_card(card, path.name, variant, seed)


def draft_from_card(card: Card, source: str, variant: int = 0, seed: str = "0") -> Draft:
    """Weave one card and give it its tool set.

    Raises:
        CardError, SpecError, ExpressionError: the card does not say a whole environment.
    """
    name = f"{source}/{variant}/{seed}"
    lineage = Lineage(kind="card", source=source, digest=digest(card.model_dump(mode="json"))[:16], variant=variant)
    spec = weave(card, lineage, Random(f"{name}/weave"))
    spec, log = build_toolset(spec, Random(f"{name}/tools"))
    check_facts(spec)
    return Draft(spec, tuple(log))


def _domain_of(path: Path) -> int:
    head = path.stem.partition("_")[0]
    if not head.isdigit():
        raise CardError(f"{path}: name a card DOMAINID_words.yaml")
    return int(head)


def verify_draft(draft: Draft, *, seed: str = "gate", replayer: ReplayProcess | None = None) -> VerifiedEnvironment:
    """Correct and verify a draft."""
    spec, verification, corrections = correct_environment(draft.spec, seed=seed, replayer=replayer)
    return VerifiedEnvironment(spec, verification, (*draft.log, *corrections))

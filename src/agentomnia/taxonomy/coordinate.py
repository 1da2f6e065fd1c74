"""The coordinate of a task, `Z = (D, C, delta)` (paper, Eq. 1).

A task, its trajectory, its rubric and its verifier share one coordinate; an environment lists those it
supports. Capabilities and difficulty atoms are sets in the paper, so the order in which a writer names them
carries nothing: both are stored without repeats and in axis order, and two coordinates that mean the same
have the same identity.

A coordinate that is not in the taxonomy cannot be built: pydantic's `ValidationError` says what to write
instead.
"""

from __future__ import annotations

from typing import Self

from pydantic import field_validator, model_validator

from agentomnia.errors import TaxonomyError
from agentomnia.row import Row
from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES, Split, capability, difficulty, domain


class Coordinate(Row):
    """Where a task stands on the three axes (section 3, Eq. 1)."""

    domain: int
    """Id of the level-2 domain; it fixes split, level 1 and level 2."""
    capabilities: tuple[str, ...]
    """The capability profile `C`: at least one id of Table 2."""
    difficulty: tuple[str, ...] = ()
    """The active atoms of Table 3; empty for a task with no difficulty put in by design."""
    primary: str | None = None
    """The one active atom that mutually exclusive statistics count; none exactly when no atom is active."""

    @field_validator("domain")
    @classmethod
    def _known_domain(cls, value: int) -> int:
        try:
            return domain(value).id
        except TaxonomyError as error:
            raise ValueError(str(error)) from error

    @field_validator("capabilities")
    @classmethod
    def _known_capabilities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("a task needs at least one capability: add the id of one")
        try:
            named = {capability(id) for id in value}
        except TaxonomyError as error:
            raise ValueError(str(error)) from error
        return tuple(item.id for item in CAPABILITIES if item in named)

    @field_validator("difficulty")
    @classmethod
    def _known_difficulty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            named = {difficulty(id) for id in value}
        except TaxonomyError as error:
            raise ValueError(str(error)) from error
        return tuple(item.id for item in DIFFICULTIES if item in named)

    @model_validator(mode="after")
    def _primary_is_active(self) -> Self:
        if self.primary is None and self.difficulty:
            raise ValueError(f"primary is missing: set it to one of {', '.join(self.difficulty)}")
        if self.primary is not None and self.primary not in self.difficulty:
            raise ValueError(f"primary {self.primary!r} is not an active atom: add it to difficulty or drop it")
        return self

    @property
    def split(self) -> Split:
        """The application split `s`."""
        return domain(self.domain).split

    @property
    def l1(self) -> str:
        """The name of level 1, `d1`; unique only together with `split`."""
        return domain(self.domain).l1

    @property
    def l2(self) -> str:
        """The name of level 2, `d2`; not unique, `domain` is the key."""
        return domain(self.domain).l2

    @property
    def profile(self) -> tuple[int, ...]:
        """The difficulty profile as the 0/1 vector of Eq. 3, in the order of Table 3."""
        return tuple(int(item.id in self.difficulty) for item in DIFFICULTIES)

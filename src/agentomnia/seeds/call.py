"""Calls: one operation of a file as its reader understood the form of it, before anything is known of its meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentomnia.seeds.shape import Shape

Place = Literal["path", "query", "body"]


@dataclass(frozen=True)
class Argument:
    """One argument of an operation."""

    name: str
    """As the file writes it."""
    shape: Shape
    required: bool
    place: Place
    description: str = ""


@dataclass(frozen=True)
class Call:
    """One operation of the file."""

    label: str
    """As the file names it: `GET /pets/{petId}`, or the name of an MCP tool."""
    name: str
    """The unique name of its tool."""
    spoken_name: str
    """The name whose words tell what it does: an operationId, an MCP tool's name."""
    summary: str
    arguments: tuple[Argument, ...] = ()
    answer: Shape = field(default_factory=Shape)
    """What a successful call answers."""
    method: str = ""
    """HTTP method in lower case; empty for a tool."""
    path: str = ""

    reads_only: bool | None = None
    """What the file says of whether the call changes anything; `None` when it says nothing."""

    def placed(self, place: Place) -> tuple[Argument, ...]:
        """The arguments that stand in one place."""
        return tuple(a for a in self.arguments if a.place == place)

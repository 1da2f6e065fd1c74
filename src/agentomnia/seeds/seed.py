"""What reading a seed file gives: a specification, and an honest list of what it leaves out.

A reader never invents behaviour. Whatever of the file has no counterpart in the state model (an operation
whose effect the file does not tell, a parameter that matches no field) is listed as `Unmodelled` with the
reason; what was served differently from the file (identifiers, cut recursion) is told in `notes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.row import Row

MAX_ENTITIES = 20
MAX_TOOLS = 80
MIN_ENTITIES = 2
MIN_TOOLS = 4

BEYOND = "beyond the size of one environment"


class Unmodelled(Row):
    """An operation, or one parameter of it, that the specification leaves out."""

    operation: str
    """As the file names it: `GET /pets/{petId}`, or the name of an MCP tool."""
    reason: str
    parameter: str = ""
    """The parameter left out; the whole operation when empty."""


class ReadSeed(Row):
    """A specification read from a seed file."""

    spec: EnvironmentSpec
    unmodelled: tuple[Unmodelled, ...] = ()
    notes: tuple[str, ...] = ()
    """What is served differently from the file."""

    @property
    def left_out(self) -> tuple[Unmodelled, ...]:
        """Operations without a tool; parameters left out of a tool are not among them."""
        return tuple(item for item in self.unmodelled if not item.parameter)


@dataclass
class Report:
    """Collects what is left out and noted while a file is read; equal entries are kept once."""

    unmodelled: dict[tuple[str, str], Unmodelled] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def leave_out(self, operation: str, reason: str, parameter: str = "") -> None:
        """Record an operation, or a parameter of it, that has no counterpart."""
        self.unmodelled.setdefault(
            (operation, parameter), Unmodelled(operation=operation, reason=reason, parameter=parameter)
        )

    def note(self, text: str) -> None:
        """Record something served differently from the file."""
        self.notes[text] = None

"""The base of every stored row: frozen, closed, and named by the SHA-256 of its canonical JSON.

Cache, resume, deduplication and lineage all use `Row.identity`, so there is one notion of "the same".
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN, text kept as text.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something JSON does not have.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def encodes(text: str) -> bool:
    """Whether a text can be written as UTF-8; half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Row(BaseModel):
    """A frozen record: unknown keys are refused, and equal contents have equal identities."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values; defaults are left out so that files stay readable, versions and kinds never."""
        compact = self.model_dump(mode="json", exclude_defaults=True)
        marked: dict[str, Any] = _with_marks(self, compact)
        return marked

    @property
    def identity(self) -> str:
        """SHA-256 of the canonical JSON of the whole row, defaults included."""
        return digest(self.model_dump(mode="json"))


_MARKS = ("schema_version", "type")
"""Fields that say how to read a row, written even where they have their default."""


def _with_marks(value: Any, shown: Any) -> Any:
    """Put the marks of a row, and of the rows inside it, back into its compact JSON."""
    if isinstance(value, Row):
        fields = type(value).model_fields
        marks = {m: value.__dict__[m] for m in _MARKS if m in fields}
        inner = {name: _with_marks(value.__dict__[name], shown[name]) for name in shown}
        return {**marks, **inner}
    if isinstance(value, tuple):
        return [_with_marks(v, s) for v, s in zip(value, shown)]
    if isinstance(value, dict):
        return (
            {k: _with_marks(v, shown[k]) if k in shown else v for k, v in value.items()}
            if shown.keys() == value.keys()
            else shown
        )
    return shown

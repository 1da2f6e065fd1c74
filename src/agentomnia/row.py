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


class Row(BaseModel):
    """A frozen record: unknown keys are refused, and equal contents have equal identities."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values, defaults left out so that files stay readable."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def identity(self) -> str:
        """SHA-256 of the canonical JSON of the whole row, defaults included."""
        return digest(self.model_dump(mode="json"))

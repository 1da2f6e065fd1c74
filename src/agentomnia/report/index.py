"""One row of `environments.jsonl`: what a reader knows of an environment without opening its package."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class IndexRow(BaseModel):
    """The counts of one environment; columns that a report does not show are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    domains: tuple[int, ...]
    entities: int
    attributes: int
    tools: int
    modifying: int

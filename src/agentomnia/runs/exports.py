"""The export stage: trajectories of a run in the form of a trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentomnia.errors import InputError
from agentomnia.export.openai import openai_row
from agentomnia.export.sft import qwen3_sft_row
from agentomnia.export.trl import trl_sft_row
from agentomnia.runs.rows import read_rows
from agentomnia.synthesis.environments.package import write_text
from agentomnia.task.trajectory import Trajectory

TARGETS: dict[str, Callable[[Trajectory], dict[str, Any]]] = {
    "trl": trl_sft_row,
    "openai": openai_row,
    "qwen3-sft": qwen3_sft_row,
}


def export_trajectories(run_path: Path, target: str) -> tuple[Path, int]:
    """Write the kept trajectories of a run for a target.

    Returns:
        The file and its number of rows.

    Raises:
        InputError: the target is unknown, or the run has no trajectories.
    """
    if target not in TARGETS:
        raise InputError(f"there is no export target {target!r}; use one of {', '.join(TARGETS)}")
    rows = [TARGETS[target](t) for t in read_rows(run_path / "trajectories.jsonl", Trajectory)]
    path = run_path / "exports" / f"{target}.jsonl"
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path, len(rows)

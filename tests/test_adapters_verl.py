"""The adapter for verl against the real package: its agent loop, parser, tokenization of turns and tool registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.serving import run_script, served, solved

# what follows verl is imported by it, and missing among its requirements
REQUIREMENTS = (
    "torch==2.13.0", "verl==0.9.1", "cachetools", "fastapi", "uvicorn", "TransferQueue>=0.1.10", "pyzmq", "msgspec",
    "aiohttp",
)  # fmt: skip


@pytest.mark.clients
def test_trajectories_run_in_verls_agent_loop_and_are_graded(policy_run: Path, tmp_path: Path) -> None:
    episodes = solved(policy_run)
    with served(policy_run) as address:
        told = run_script("verl", REQUIREMENTS, "verl_loop.py", address, episodes, tmp_path, seconds=240)
    assert told == {"version": "0.9.1", "episodes": len(episodes)}

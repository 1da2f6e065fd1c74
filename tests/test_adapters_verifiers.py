"""The adapter for verifiers against the real package: its environment, interception, chat program and MCP client."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.serving import run_script, served, solved


@pytest.mark.clients
def test_rollouts_use_the_tools_of_their_own_session(finished_run: Path, tmp_path: Path) -> None:
    episodes = solved(finished_run)
    with served(finished_run) as address:
        told = run_script(
            "verifiers", ("verifiers==0.4.0", "certifi"), "verifiers_taskset.py", address, episodes, tmp_path
        )
    assert told == {"version": "0.4.0", "episodes": len(episodes)}

"""The adapter for SkyRL against the real skyrl-gym."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.serving import run_script, served, solved


@pytest.mark.clients
def test_tasks_are_played_as_the_generator_plays_them(finished_run: Path, tmp_path: Path) -> None:
    episodes = solved(finished_run)
    with served(finished_run) as address:
        told = run_script("skyrl", ("skyrl-gym==0.4.0",), "skyrl_env.py", address, episodes, tmp_path)
    assert told == {"version": "0.4.0", "episodes": len(episodes)}

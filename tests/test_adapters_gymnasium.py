"""The adapter for Gymnasium against the real package."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.serving import run_script, served, solved

REQUIREMENTS = ("gymnasium==1.4.0",)


@pytest.mark.clients
def test_the_checker_passes_and_tasks_are_solved_and_failed(finished_run: Path, tmp_path: Path) -> None:
    episodes = solved(finished_run)
    with served(finished_run) as address:
        told = run_script("gymnasium", REQUIREMENTS, "gymnasium_env.py", address, episodes, tmp_path)
    assert told == {"version": "1.4.0", "episodes": len(episodes)}


@pytest.mark.clients
def test_a_run_is_played_without_a_server(finished_run: Path, tmp_path: Path) -> None:
    episodes = solved(finished_run, 2)
    told = run_script("gymnasium", REQUIREMENTS, "gymnasium_env.py", str(finished_run), episodes, tmp_path)
    assert told["episodes"] == 2

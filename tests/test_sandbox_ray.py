"""Node agents placed and discovered through the real Ray, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox import ray_nodes
from client_venvs import client_python, run_client

REQUIREMENTS = (
    "ray==2.60.0", "pydantic>=2.12", "msgpack>=1.1", "jsonschema>=4.23", "anyio>=4.14", "PyYAML>=6.0",
)  # fmt: skip


@pytest.mark.clients
def test_sessions_outlive_a_killed_and_a_drained_node_that_ray_placed() -> None:
    python = client_python("ray", REQUIREMENTS)
    said = run_client(python, Path(__file__).parent / "clients" / "ray_nodes.py", seconds=300)
    assert json.loads(said.splitlines()[-1])["sessions"] == 32


def test_without_a_connection_to_ray_one_is_told_what_to_do() -> None:
    with pytest.raises(InfrastructureError, match=r"pip install 'agentomnia\[ray\]'|call ray\.init"):
        ray_nodes.discover()

"""Node agents placed by Ray (extra `ray`): one actor for each machine, found again by name (paper, section 4.3).

Ray decides where node agents run, starts them again where they die, and tells where they are. It never sees a call:
an actor only watches a process of `node.py`, to which gateways connect by themselves. A call through an actor would
cost some hundred times as much.

    addresses = start(NodePlan(nodes=4, cpus=8))        # on the cluster that `ray.init()` has connected to
    host = Host(catalog, places=ClusterPlaces(addresses))
    follower = asyncio.create_task(host.places.follow(discover))

Whoever can submit jobs to the Ray cluster can read the token; it keeps out everybody else.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentomnia.errors import InfrastructureError, InputError
from agentomnia.sandbox.cluster import NodeAddress
from agentomnia.sandbox.link import Endpoint

NAMESPACE = "agentomnia"
_PREFIX = "omnia-node-"
_ANSWER_SECONDS, _LOOK_SECONDS = 60.0, 5.0


@dataclass(frozen=True)
class NodePlan:
    """How many node agents, and how much each may take."""

    nodes: int = 1
    cpus: float = 1.0
    memory_bytes: int = 4 << 30
    workers: int = 256
    """Worker processes of one node."""
    instances: int = 50_000
    """Live instances of one node."""
    trust: bool = False
    """See `node.NodeSettings`."""
    host: str | None = None
    """Where agents listen; by default at the address by which Ray knows their machine."""
    start_seconds: float = 120.0
    """How long placing and starting may take."""


class NodeKeeper:
    """The actor: keeps one process of `node.py`, and ends with it, so that Ray starts both again."""

    def __init__(self, plan: NodePlan, token: str, group: Any) -> None:
        """Start the process and wait until it listens.

        Args:
            plan: how large the node is.
            token: what gateways must hold.
            group: the placement group that the node is in, kept for whoever stops it.

        Raises:
            InfrastructureError: it does not start.
        """
        self._token, self._group = token, group
        with tempfile.NamedTemporaryFile("w", prefix="omnia-token-", delete=False) as file:
            file.write(token)
        try:
            self._process = subprocess.Popen(_command(plan, file.name), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._endpoint = _listening(self._process)
        finally:
            Path(file.name).unlink()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        os._exit(1)

    def address(self) -> tuple[str, str]:
        """Endpoint and token."""
        return self._endpoint, self._token

    def group(self) -> Any:
        """The placement group."""
        return self._group

    def process(self) -> int:
        """Process id of the node agent."""
        return self._process.pid


def start(plan: NodePlan) -> list[NodeAddress]:
    """Place node agents on the cluster that this process is connected to, one for each machine where there are enough.

    Args:
        plan: how many, and how large.

    Raises:
        InputError: there are node agents already.
        InfrastructureError: Ray is not installed or not connected, or has no room for them.
    """
    ray = _ray()
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if _actors(ray):
        raise InputError("this Ray cluster has node agents already; use `discover`, or `stop` them first")
    bundles = [{"CPU": plan.cpus, "memory": plan.memory_bytes}] * plan.nodes
    group = placement_group(bundles, _strategy(ray, plan.nodes), lifetime="detached")
    if not group.wait(plan.start_seconds):
        ray.util.remove_placement_group(group)
        raise InfrastructureError(f"Ray has no room for {plan.nodes} nodes of {bundles[0]}; ask for fewer or smaller")
    token = secrets.token_urlsafe(32)
    keeper = ray.remote(NodeKeeper)
    actors = [
        keeper.options(
            name=f"{_PREFIX}{number}", namespace=NAMESPACE, lifetime="detached", max_restarts=-1,
            num_cpus=plan.cpus, memory=plan.memory_bytes,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        ).remote(plan, token, group)
        for number in range(plan.nodes)
    ]  # fmt: skip
    try:
        told = ray.get([actor.address.remote() for actor in actors], timeout=plan.start_seconds)
    except (ray.exceptions.RayError, TimeoutError) as error:
        _end(ray, actors, [group])
        raise InfrastructureError(f"a node agent does not start: {error}; see `ray logs`") from error
    return [_address(*row) for row in told]


def discover(seconds: float = _LOOK_SECONDS) -> list[NodeAddress]:
    """The node agents that answer now; one that is being started again is not among them.

    Args:
        seconds: how long they may take to answer.

    Raises:
        InfrastructureError: Ray is not installed or cannot be reached.
    """
    ray = _ray()
    told = _gathered(ray, [actor.address.remote() for actor in _actors(ray)], seconds)
    return sorted((_address(*row) for row in told), key=lambda address: str(address.endpoint))


def stop() -> None:
    """End all node agents of the cluster; their sessions are rebuilt elsewhere or fail as infrastructure."""
    ray = _ray()
    actors = _actors(ray)
    _end(ray, actors, _gathered(ray, [actor.group.remote() for actor in actors], _ANSWER_SECONDS))


def processes() -> list[int]:
    """Process ids of the node agents, as their own machines number them."""
    ray = _ray()
    return _gathered(ray, [actor.process.remote() for actor in _actors(ray)], _ANSWER_SECONDS)


def _ray() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise InfrastructureError("Ray is not installed; pip install 'agentomnia[ray]'") from error
    if not ray.is_initialized():
        raise InfrastructureError("this process is not connected to Ray; call ray.init() first")
    return ray


def _actors(ray: Any) -> list[Any]:
    """The actors that keep node agents, whoever started them."""
    named = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(a["name"] for a in named if a["namespace"] == NAMESPACE and a["name"].startswith(_PREFIX))
    found = []
    for name in names:
        try:
            found.append(ray.get_actor(name, NAMESPACE))
        except ValueError:
            continue  # it has just gone
    return found


def _end(ray: Any, actors: Sequence[Any], groups: Sequence[Any]) -> None:
    for actor in actors:
        ray.kill(actor, no_restart=True)
    for group in {group.id: group for group in groups}.values():
        ray.util.remove_placement_group(group)


def _strategy(ray: Any, nodes: int) -> str:
    """Every agent on a machine of its own where there are enough machines."""
    machines = sum(1 for machine in ray.nodes() if machine["Alive"])
    return "STRICT_SPREAD" if machines >= nodes else "PACK"


def _gathered(ray: Any, asked: Sequence[Any], seconds: float) -> list[Any]:
    """The answers of those actors that answer in time."""
    if not asked:
        return []
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    found = []
    for answer in ready:
        try:
            found.append(ray.get(answer))
        except ray.exceptions.RayError:
            continue  # it is being started again
    return found


def _address(endpoint: str, token: str) -> NodeAddress:
    return NodeAddress(Endpoint.parse(endpoint), token)


def _command(plan: NodePlan, token_file: str) -> list[str]:
    host = plan.host or _ray().util.get_node_ip_address()
    command = [
        sys.executable, "-m", "agentomnia.sandbox.node", "--tied", "--token-file", token_file,
        "--listen", str(Endpoint(host, 0)), "--workers", str(plan.workers), "--instances", str(plan.instances),
    ]  # fmt: skip
    return [*command, "--trust"] if plan.trust else command


def _listening(process: subprocess.Popen[bytes]) -> str:
    """Where a node agent says that it listens."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise InfrastructureError("a node agent ends at once; see what it wrote to the actor's log")
    said: str = json.loads(line)["listening"]
    return said

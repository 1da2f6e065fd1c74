"""Node agents as separate processes and in this one: placing, loss, drain, and who may ask."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError, InputError
from agentomnia.sandbox.cluster import ClusterPlaces, ClusterSettings, NodeAddress
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.link import Endpoint, Link
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.sandbox.node import NodeAgent, NodeSettings
from agentomnia.sandbox.places import WorkerGone
from agentomnia.sandbox.wire import frame
from sandbox_ledger import LEDGER, Pair, catalog, opened, source, there, until

TOKEN = "a token for tests only"
LOOPBACK = Endpoint("127.0.0.1", 0)
QUICK = ClusterSettings(gauge_seconds=0.1, patience_seconds=10.0, drain_seconds=5.0)


@contextmanager
def node_process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], NodeAddress]]:
    token = folder / "token"
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "agentomnia.sandbox.node", "--token-file", str(token), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, NodeAddress(Endpoint.parse(json.loads(process.stdout.readline())["listening"]), TOKEN)
        finally:
            process.kill()


@asynccontextmanager
async def agent(settings: NodeSettings | None = None, workers: int = 8) -> AsyncIterator[tuple[NodeAgent, NodeAddress]]:
    made = NodeAgent(LocalPlaces(LocalSettings(workers=workers)), TOKEN, settings)
    try:
        yield made, NodeAddress(await made.start(LOOPBACK), TOKEN)
    finally:
        await made.close()


@asynccontextmanager
async def host(
    *nodes: NodeAddress, count: int = 1, settings: ClusterSettings = QUICK, **given: Any
) -> AsyncIterator[tuple[Host, ClusterPlaces]]:
    places = ClusterPlaces(nodes, settings)
    made = Host(catalog(count, **given), HostSettings(idle_seconds=1000), places)
    try:
        yield made, places
    finally:
        await made.close()


def test_every_session_outlives_the_death_of_a_node(tmp_path: Path) -> None:
    async def work(pair: Pair, rng: Random, stop: asyncio.Event) -> int:
        done = 0
        while not stop.is_set():
            await pair.add(rng.randint(-9, 9))
            done += 1
            await asyncio.sleep(0.002)
        return done

    async def main(first: subprocess.Popen[bytes], nodes: tuple[NodeAddress, NodeAddress]) -> None:
        async with host(*nodes, count=4) as (made, places):
            for node in nodes:
                places.add(node)
            await until(lambda: places.gauges()["nodes"] == 2)
            pairs = await opened(made, 40)
            before = there(places)
            assert min(before.values()) > 0 and sum(before.values()) == 40
            stop = asyncio.Event()
            tasks = [asyncio.create_task(work(p, Random(f"calls {n}"), stop)) for n, p in enumerate(pairs)]
            await asyncio.sleep(0.3)
            first.kill()
            await asyncio.sleep(0.5)
            stop.set()
            assert min(await asyncio.gather(*tasks)) > 0
            await asyncio.gather(*(pair.compare() for pair in pairs))
            assert there(places) == {nodes[0]: 0, nodes[1]: 40}

    with node_process(tmp_path) as (first, a), node_process(tmp_path) as (_, b):
        asyncio.run(main(first, (a, b)))


def test_a_node_that_is_told_to_stop_gives_its_sessions_away_and_ends(tmp_path: Path) -> None:
    async def main(first: subprocess.Popen[bytes], nodes: tuple[NodeAddress, NodeAddress]) -> None:
        async with host(*nodes, count=4) as (made, places):
            for node in nodes:
                places.add(node)
            await until(lambda: places.gauges()["nodes"] == 2)
            pairs = await opened(made, 24)
            first.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait, 10) == 0
            await asyncio.gather(*(pair.add(3) for pair in pairs))
            await asyncio.gather(*(pair.compare() for pair in pairs))
            assert there(places)[nodes[1]] == 24

    with node_process(tmp_path) as (first, a), node_process(tmp_path) as (_, b):
        asyncio.run(main(first, (a, b)))


def test_draining_loses_nothing_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with agent() as (one, a), agent() as (other, b), host(a, b, count=4) as (made, places):
            for node in (a, b):
                places.add(node)
            await until(lambda: places.gauges()["nodes"] == 2)
            pairs = await opened(made, 16)
            assert one.instances and other.instances
            slow = [asyncio.create_task(pair.add(2)) for pair in pairs]
            await places.drain(a)
            await asyncio.gather(*slow)
            await until(lambda: one.instances == 0)
            await asyncio.gather(*(pair.add(5) for pair in pairs))
            await asyncio.gather(*(pair.compare() for pair in pairs))
            assert other.instances == 16 and places.nodes == (b,)
            with pytest.raises(InputError, match="no node of this cluster"):
                await places.drain(a)

    asyncio.run(main())


def test_a_gateway_that_goes_away_leaves_no_instance() -> None:
    async def main() -> None:
        async with agent() as (node, address):
            async with host(address) as (made, _):
                pairs = await opened(made, 5)
                assert node.instances == 5
                await pairs[0].session.close()
                await until(lambda: node.instances == 4)
            await until(lambda: node.instances == 0)
            assert [place.handles for place in node.places.all()] == [0]

    asyncio.run(main())


def test_a_gateway_that_breaks_off_leaves_no_instance() -> None:
    async def main() -> None:
        async with agent() as (node, address):
            link = await Link.connect(address.endpoint, TOKEN, lambda: WorkerGone(suspect=False))
            given = {**source("ledger-0").request(None), "trusted": False}
            place = await link.ask("load", "ledger-0", given)
            asked = [link.ask("open", place, n, b"\x82\xa7entries\x91\x01\xa5total\x01", None) for n in range(20)]
            await asked[0]
            link.abort()
            done = await asyncio.gather(*asked, return_exceptions=True)
            assert all(answer is None or isinstance(answer, WorkerGone) for answer in done)
            await until(lambda: node.instances == 0)
            (bench,) = node.places.all()
            assert bench.handles == 0
            for handle in range(20):  # the worker itself knows none of them any more
                with pytest.raises(InfrastructureError, match="no instance"):
                    await bench.ask("digest", (1 << 40) + handle)

    asyncio.run(main())


def test_only_a_holder_of_the_token_is_heard() -> None:
    async def main() -> None:
        async with agent() as (node, address):
            with pytest.raises(InfrastructureError, match="token"):
                await Link.connect(address.endpoint, "another token altogether", lambda: WorkerGone(suspect=False))
            for said in (
                b"GET / HTTP/1.1\r\n\r\n",
                frame([1, "gauges"]),
                frame([b"x" * 32, b"y" * 32]),
                b"\x00\x01\x00\x00",
            ):
                reader, writer = await asyncio.open_connection(address.endpoint.host, address.endpoint.port)
                writer.write(said)
                await asyncio.wait_for(reader.read(), 10)  # until the node ends it
                writer.close()
            assert node.instances == 0

    asyncio.run(main())


def test_a_stranger_that_listens_in_place_of_a_node_gets_no_source() -> None:
    heard = bytearray()

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(["omnia-1", b"n" * 32]))
        heard.extend(await reader.read(200))
        writer.write(frame([b"s" * 32]))
        heard.extend(await reader.read(200))
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(InfrastructureError):
            await Link.connect(endpoint, TOKEN, lambda: WorkerGone(suspect=False))
        server.close()
        await server.wait_closed()
        assert TOKEN.encode() not in heard and b"class" not in heard

    asyncio.run(main())


def test_one_name_with_two_contents_is_two_sources_on_a_node() -> None:
    changed = LEDGER.replace("self.total += n", "self.total += 10 * n")

    async def main() -> None:
        async with agent() as (node, address), host(address) as (one, _), host(address, text=changed) as (two, _):
            first, second = await one.open("ledger-0"), await two.open("ledger-0")
            assert (await first.call("add", {"n": 1}))["data"]["total"] == 2
            assert (await second.call("add", {"n": 1}))["data"]["total"] == 11
            assert node.gauges()["workers"] == 2

    asyncio.run(main())


@pytest.mark.parametrize("trust", [True, False])
def test_what_is_trusted_runs_in_the_agent_only_where_the_agent_says_so(trust: bool) -> None:
    async def main() -> None:
        async with agent(NodeSettings(trust=trust)) as (_, address), host(address, trusted=True) as (made, _):
            pair = Pair(await made.open("ledger-0"))
            await pair.add(4)
            process = (await pair.session.call("where", {}))["data"]
            assert (process == os.getpid()) is trust
            await pair.compare()

    asyncio.run(main())


def test_a_call_that_kills_its_worker_is_the_environments_fault_there_too() -> None:
    async def main() -> None:
        async with agent() as (_, address), host(address) as (made, _):
            pairs = await opened(made, 3)
            guilty = await made.open("ledger-0")
            with pytest.raises(EnvironmentFault, match="dies"):
                await guilty.call("die", {})
            await asyncio.gather(*(pair.add(1) for pair in pairs))
            await asyncio.gather(*(pair.compare() for pair in pairs))

    asyncio.run(main())


def test_a_full_node_is_passed_over_and_a_full_cluster_refuses() -> None:
    async def main() -> None:
        small = NodeSettings(instances=2)
        async with agent(small) as (one, a), agent(small) as (two, b), host(a, b) as (made, places):
            for node in (a, b):
                places.add(node)
            await until(lambda: places.gauges()["nodes"] == 2)
            for _ in range(4):
                pair = Pair(await made.open("ledger-0"))
                await pair.add(1)
            assert (one.instances, two.instances) == (2, 2)
            with pytest.raises(CapacityError):
                await Pair(await made.open("ledger-0")).add(1)

    asyncio.run(main())


def test_a_node_that_comes_later_is_waited_for_and_none_at_all_is_told() -> None:
    async def main() -> None:
        async with agent() as (node, address):
            await node.close()
            hasty = replace(QUICK, patience_seconds=0.2)
            async with host(address, settings=hasty) as (made, _):
                with pytest.raises(InfrastructureError, match="no node agent can be reached"):
                    await (await made.open("ledger-0")).call("add", {"n": 1})
            async with host() as (made, places), agent() as (_, late):
                call = asyncio.create_task((await made.open("ledger-0")).call("add", {"n": 1}))
                await asyncio.sleep(0.1)
                places.add(late)
                assert (await call)["data"]["total"] == 2

    asyncio.run(main())


def test_nodes_follow_what_is_discovered() -> None:
    async def main() -> None:
        async with agent() as (one, a), agent() as (_, b), host() as (made, places):
            known = [a]
            follower = asyncio.create_task(places.follow(lambda: list(known), 0.05))
            pair = Pair(await made.open("ledger-0"))
            await pair.add(1)
            known[:] = [b]
            await one.close()
            await until(lambda: places.nodes == (b,))
            await pair.add(1)
            await pair.compare()
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    asyncio.run(main())


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short\n")
    command = [sys.executable, "-m", "agentomnia.sandbox.node", "--token-file", str(token)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "16 or more" in done.stderr

"""Two node agents placed by Ray: kill one, drain one, lose nothing. Run under Ray's own interpreter; prints figures."""

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent
SOURCE = TESTS.parent / "src"
sys.path[:0] = [str(SOURCE), str(TESTS)]
# read when Ray is imported: a token of this run's own rather than one in the user's home, and nothing sent to anybody
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}

import ray  # noqa: E402

from agentomnia.sandbox.cluster import ClusterPlaces, ClusterSettings, NodeAddress  # noqa: E402
from agentomnia.sandbox.host import Host, HostSettings  # noqa: E402
from agentomnia.sandbox.ray_nodes import NodePlan, discover, processes, start, stop  # noqa: E402
from sandbox_ledger import Pair, catalog, opened, there, until  # noqa: E402

PLAN = NodePlan(nodes=2, cpus=1, memory_bytes=200 << 20, workers=8, host="127.0.0.1")


async def play(addresses: list[NodeAddress]) -> dict[str, float]:
    places = ClusterPlaces(addresses, ClusterSettings(gauge_seconds=0.2, patience_seconds=60))
    host = Host(catalog(4), HostSettings(), places)
    for address in addresses:
        places.add(address)
    await until(lambda: places.gauges()["nodes"] == 2, 30)
    follower = asyncio.create_task(places.follow(discover, 1.0))
    pairs = await opened(host, 24)
    assert min(there(places).values()) > 0, there(places)

    os.kill(processes()[0], signal.SIGKILL)
    began = time.perf_counter()
    await asyncio.gather(*(pair.add(5) for pair in pairs))
    rebuilt = time.perf_counter() - began
    await check(pairs)

    await until(lambda: places.gauges()["nodes"] == 2 and set(places.nodes) != set(addresses), 90)
    back = time.perf_counter() - began
    more = await opened(host, 8)
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    leaving = max(there(places).items(), key=lambda item: item[1])[0]
    await places.drain(leaving)
    await check([*pairs, *more])
    assert sum(there(places).values()) == 32 and leaving not in places.nodes
    await host.close()
    return {"sessions": 32, "rebuilt_seconds": round(rebuilt, 3), "node_back_seconds": round(back, 1)}


async def check(pairs: list[Pair]) -> None:
    await asyncio.gather(*(pair.add(-2) for pair in pairs))
    await asyncio.gather(*(pair.compare() for pair in pairs))


def main() -> None:
    paths = os.pathsep.join((str(SOURCE), str(TESTS)))
    ray.init(
        num_cpus=3, include_dashboard=False, object_store_memory=80 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}}, log_to_driver=False,
    )  # fmt: skip
    try:
        began = time.perf_counter()
        addresses = start(PLAN)
        started = time.perf_counter() - began
        assert sorted(map(str, discover())) == sorted(map(str, addresses)) and len(set(addresses)) == 2
        figures = asyncio.run(play(addresses))
        stop()
        until_gone = time.monotonic() + 20
        while discover():
            assert time.monotonic() < until_gone, "node agents go on after they were stopped"
        print(json.dumps({"start_seconds": round(started, 1), **figures}))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()

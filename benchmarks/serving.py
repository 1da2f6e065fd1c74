"""What serving costs: CPU of the server for a call, opening, resetting, memory; beside peers' servers in the same run.

    python benchmarks/serving.py [--json] [--quick] [--no-peers] [--only NAME …] [--write docs/benchmarks.md]

Every server is a process of its own on this machine, serving the same class, state and calls: half reads, half writes,
all accepted, each answer compared once with that of an instance in process. `server_cpu_us` is the CPU time of the
server's process and of all below it for one call, at 64 callers; the median of three rounds. `--json` prints one
object. Peers are installed into environments of their own under ~/.cache/agentomnia-venvs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_cases import HEADLINE, OWN, PEERS, Case, Peer, Shop
from serving_load import Address, BadAnswer, Crowd, Line, Round, Talk, dial, memory_mb
from serving_own import SIZES, make_shop
from serving_tables import rewritten, tables

HERE = Path(__file__).parent
CALLERS = 64
_START_SECONDS, _STOP_SECONDS = 300.0, 20.0
_CONNECTION_ERRORS = (OSError, BadAnswer, TimeoutError)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    calls: int = 6_400
    rounds: int = 3
    round_seconds: float = 6.0
    """After which a round of a slow server ends before all its calls are made."""
    sessions: int = 3_000
    """Of which memory is measured."""
    workers: int = 16
    sizes: tuple[int, ...] = SIZES


QUICK = Plan(calls=320, rounds=1, round_seconds=3.0, sessions=800, workers=3, sizes=(100, 1_000))


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        """It answers already; see `started`."""
        self.process, self.address = process, address

    @property
    def pid(self) -> int:
        """Of the process that was started; what it started hangs below it."""
        return self.process.pid


@contextmanager
def started(
    command: Sequence[str], unix: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server that tells its port in a line of JSON, and stop it afterwards.

    Raises:
        BadAnswer: it did not start; with what it said.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        )
        try:
            yield Server(process, Address(_port(process, said), unix))
        finally:
            _stop(process, gently=environment is None)


def _port(process: subprocess.Popen[str], said: Any) -> int:
    assert process.stdout is not None
    if select.select([process.stdout], [], [], _START_SECONDS)[0] and (line := process.stdout.readline()):
        return int(json.loads(line)["port"])
    process.kill()
    process.wait()
    said.seek(0)
    raise BadAnswer(f"{process.args!r} does not start: {said.read()[-1500:]}")


def _stop(process: subprocess.Popen[str], gently: bool) -> None:
    """End it; one of ours ends by itself when its standard input does, and closes its sessions first."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    if not gently:
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


async def measure(case: Case, server: Server, shop: Shop, plan: Plan, alone: bool = True) -> dict[str, Any]:
    """Everything about one way to be served.

    Args:
        case: the way.
        server: serves it.
        shop: what it serves.
        plan: how much is measured.
        alone: also measure a single caller.

    Raises:
        BadAnswer: an answer is wrong.
    """
    talks, opened = await _opened(case, server.address, shop)
    try:
        await _verify(case, talks[0], shop)
        crowd = Crowd(talks, case.mark, CALLERS // len(talks))
        await crowd.run(max(CALLERS, plan.calls // 8), plan.round_seconds, server.pid)
        rounds = [await crowd.run(plan.calls, plan.round_seconds, server.pid) for _ in range(plan.rounds)]
        told = _row(rounds) | {"session_open_ms": round(statistics.median(opened), 3)}
        if alone:
            single, calls = Crowd(talks[:1], case.mark), max(8, plan.calls // 8)
            row = _row([await single.run(calls, plan.round_seconds, server.pid) for _ in range(plan.rounds)])
            told |= {"cpu_us_1": row["cpu_us"], "p50_ms_1": row["p50_ms"]}
    finally:
        for talk in talks:
            talk.line.close()
    return told


async def _opened(case: Case, address: Address, shop: Shop) -> tuple[list[Talk], list[float]]:
    """A session for each caller, and the milliseconds from the connection to the first answered call."""
    where = Address(unix=address.unix) if case.unix else Address(address.port)
    sessions: list[tuple[Line, list[bytes]]] = []
    taken: list[float] = []
    shared: Line | None = None
    for _ in range(CALLERS):
        began = time.perf_counter()
        line = shared or await dial(where, case.framing())
        shared = line if case.shared else None
        requests = await case.begin(line, shop)
        await line.ask(requests[0])
        taken.append((time.perf_counter() - began) * 1e3)
        sessions.append((line, requests))
    if shared is None:
        return [Talk(line, requests, 1) for line, requests in sessions], taken
    # one connection: a call of each session in turn, so that no session has two in flight
    mixed = [requests[number] for number in range(len(shop.calls)) for _, requests in sessions]
    return [Talk(shared, mixed, CALLERS)], taken


async def _verify(case: Case, talk: Talk, shop: Shop) -> None:
    """Every call is answered as in process, once all of them have been made."""
    for number in range(2 * len(talk)):
        place, request = talk.take()
        answer, call = case.result(await talk.line.ask(request)), shop.calls[place * len(shop.calls) // len(talk)]
        if number >= len(talk) and answer != call.expected:
            raise BadAnswer(f"{case.name}: {call.tool} answered {str(answer)[:300]}, not {str(call.expected)[:300]}")


def _row(rounds: Sequence[Round]) -> dict[str, Any]:
    """The round whose CPU for a call is the median."""
    middle = sorted(rounds, key=lambda r: r.cpu_us)[len(rounds) // 2]
    return {
        "cpu_us": round(middle.cpu_us, 2),
        "client_cpu_us": round(middle.client_cpu_us, 2),
        "calls_per_s": round(middle.per_second),
        "p50_ms": round(middle.p50_ms, 3),
        "p99_ms": round(middle.p99_ms, 3),
        "calls": middle.calls,
    }


async def own_faces(folder: Path, shop: Shop, plan: Plan, only: frozenset[str], isolate: bool) -> dict[str, Any]:
    """Every face of ours; with isolated workers, those that others are compared with."""
    socket = str(folder / ("isolated.sock" if isolate else "trusted.sock"))
    command = [sys.executable, str(HERE / "serving_own.py"), "serve", str(folder), socket]
    told: dict[str, Any] = {}
    with started(command + (["--isolate"] if isolate else []), socket) as server:
        for case in OWN:
            if (not only or case.name in only) and (not isolate or case.name in HEADLINE):
                told[case.name] = await measure(case, server, shop, plan, alone=not isolate)
        told["rss_mib"] = round(memory_mb(server.pid), 1)
    return told


async def peer(one: Peer, package: Path, shop: Shop, plan: Plan) -> dict[str, Any]:
    """A peer's server, or why there are no figures of it."""
    python = _peer_python(one)
    if isinstance(python, str):
        return {"skipped": python}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        with started(
            [str(python), str(HERE / "serving_peers" / one.script), str(package)], None, environment
        ) as server:
            told = await measure(one.case, server, shop, plan)
            told["rss_mib"] = round(memory_mb(server.pid), 1)
    except _CONNECTION_ERRORS as error:
        return {"skipped": f"{type(error).__name__}: {error}"[:400]}
    return told | {"versions": _versions(python, one)}


def _peer_python(one: Peer) -> Path | str:
    """The interpreter that has the peer, or why there is none."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    import pytest

    from client_venvs import client_python

    name = "bench-" + one.requirements[0].partition("=")[0]
    try:
        return Path(client_python(name, one.requirements))
    except pytest.skip.Exception as skipped:
        return str(skipped)
    finally:
        sys.path.pop(0)


def _versions(python: Path, one: Peer) -> dict[str, str]:
    names = [*(r.partition("=")[0] for r in one.requirements if ">" not in r), "uvicorn"]
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    )
    done = subprocess.run([str(python), "-I", "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def own_figures(folder: Path, plan: Plan) -> dict[str, Any]:
    """What needs no wire: operations, loading, memory."""
    told = _alone("inside", folder)
    told["workers"] = _alone("workers", folder, "--count", str(plan.workers))
    for kind in ("live", "asleep", "isolated"):
        told.setdefault("memory", {})[kind] = _alone("memory", folder, kind, "--count", str(plan.sessions))
    told["instances_4gib"] = {kind: row["in_4gib"] for kind, row in told["memory"].items()}
    return told


def _alone(mode: str, folder: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "serving_own.py"), mode, str(folder), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_START_SECONDS, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def run(plan: Plan, only: frozenset[str], peers: bool) -> dict[str, Any]:
    """The whole benchmark."""
    with tempfile.TemporaryDirectory(prefix="omnia-serving-") as temporary:
        folder = Path(temporary)
        shop = make_shop(folder, plan.sizes)
        package = folder / "environments" / shop.environment
        trusted = await own_faces(folder, shop, plan, only, isolate=False)
        isolated = await own_faces(folder, shop, plan, only, isolate=True)
        figures = own_figures(folder, plan) if not only else {}
        wanted = [one for one in PEERS if peers and (not only or one.case.name in only)]
        theirs = {one.case.name: await peer(one, package, shop, plan) for one in wanted}
    return report(shop, plan, trusted, isolated, figures, theirs)


def report(
    shop: Shop, plan: Plan, trusted: dict[str, Any], isolated: dict[str, Any], figures: dict[str, Any],
    peers: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Everything in one object; the four keys that others compare come first."""
    faces = {name: row for name, row in trusted.items() if isinstance(row, dict)}
    held = {name: row for name, row in isolated.items() if isinstance(row, dict)}
    sizes = [len(json.dumps(call.expected)) for call in shop.calls]
    return {
        "server_cpu_us": {name: faces[name]["cpu_us"] for name in HEADLINE if name in faces},
        "session_open_ms": faces["rest"]["session_open_ms"] if "rest" in faces else None,
        **figures,
        "reset_ms": figures.get("reset_ms", {}),
        "peers": peers,
        "server_cpu_us_1": {name: row["cpu_us_1"] for name, row in faces.items()},
        "isolated_cpu_us": {name: row["cpu_us"] for name, row in held.items()},
        "faces": faces,
        "isolated": held,
        "server_rss_mib": {"trusted": trusted["rss_mib"], "isolated": isolated["rss_mib"]},
        "setting": {
            "cores": os.cpu_count(), "python": platform.python_version(), "callers": CALLERS, "calls": plan.calls,
            "rounds": plan.rounds, "environment": shop.environment, "tools": [call.tool for call in shop.calls],
            "answer_bytes": round(statistics.mean(sizes)), "load_1min": round(os.getloadavg()[0], 1),
        },
    }  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    parser.add_argument("--quick", action="store_true", help="a few hundred calls, no peers: only shows that it runs")
    parser.add_argument("--no-peers", action="store_true", help="our own servers only")
    parser.add_argument("--calls", type=int, default=Plan.calls, help="calls of a round")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these faces and peers only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="rewrite the tables between the marks of this file")
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan(calls=given.calls)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told = runner.run(run(plan, frozenset(given.only), peers=not (given.quick or given.no_peers)))
    if given.write is not None:
        given.write.write_text(rewritten(given.write.read_text(encoding="utf-8"), told), encoding="utf-8")
    if given.json:
        print(json.dumps(told))
    else:
        from rich.console import Console

        for table in tables(told):
            Console().print(table.rich())


if __name__ == "__main__":
    main()

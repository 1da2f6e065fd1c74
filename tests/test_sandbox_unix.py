"""The sandbox behind a Unix socket: both clients against a real host, errors, order, bounds, and what a call costs."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.errors import (
    CallTimeout,
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
)
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source, TaskEntry
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.link import Endpoint
from agentomnia.sandbox.pool import Pooled, ended
from agentomnia.sandbox.unix import UnixServer
from agentomnia.sandbox.unix_client import AsyncUnixClient, UnixClient
from agentomnia.sandbox.wire import FrameReader, WireError, frame
from agentomnia.task.criterion import Change, Criterion, Expected
from agentomnia.task.task import Task
from agentomnia.taxonomy.coordinate import Coordinate

START = {"members": {"m1": {"points": 3}, "m2": {"points": 0}}}
CLUB = """
class Club:
    def __init__(self, state):
        self.members = state["members"]

    def give(self, member, points):
        if member not in self.members:
            return {"ok": False, "error": {"code": "not_found", "message": "Nobody.", "hint": "Look."}}
        self.members[member]["points"] += points
        return {"ok": True, "data": dict(self.members[member])}

    def breaks(self):
        raise RuntimeError("the ink is dry")
"""
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
GIVE = {
    **EMPTY,
    "properties": {"member": {"type": "string"}, "points": {"type": "integer"}},
    "required": ["member", "points"],
}
TOOLS = {
    "give": ToolSchema("give", "modify", "Gives.", GIVE),
    "breaks": ToolSchema("breaks", "query", "Breaks.", EMPTY),
}
PROGRAM = Program(name="Club", source=CLUB, cls=load_class(CLUB, "Club"), tools=TOOLS)
ENVIRONMENT, TASK = "Club-1a", "t1"


def catalog() -> Catalog:
    info = EnvironmentInfo(ENVIRONMENT, "Club", "A club.", (), TOOLS, ("s0",), True, {"all": (TASK,)})
    place = Coordinate(domain=10006, capabilities=("tool_use",))
    task = Task(
        id=TASK, environment=ENVIRONMENT, state="s0", kind="dag", query="Give m2 a point.", coordinate=place,
        lineage="0/test/1",
    )  # fmt: skip
    change = Change(kind="updated", container="members", key="m2", values={"points": Expected(value=1)})
    source = Source(info, "Club", text=lambda: CLUB, state=lambda _: START, program=lambda: PROGRAM)
    return Catalog({ENVIRONMENT: source}, {TASK: TaskEntry(task, Criterion(changes=(change,)))})


@asynccontextmanager
async def served(path: Path, **given: Any) -> AsyncIterator[tuple[Host, Endpoint]]:
    host = Host(catalog(), HostSettings(sessions=200))
    server = UnixServer(host, Endpoint(path=str(path / "omnia.sock")), **given)
    endpoint = await server.start()
    try:
        yield host, endpoint
    finally:
        await server.close()
        await host.close()


def in_thread(path: Path, use: Callable[[UnixClient], None]) -> None:
    """Run a blocking client against a server in this process."""

    async def main() -> None:
        async with served(path) as (_, endpoint):
            with UnixClient(endpoint, timeout=10) as client:
                await asyncio.to_thread(use, client)

    asyncio.run(main())


def with_client(path: Path, use: Callable[[AsyncUnixClient, Host], Awaitable[None]], **given: Any) -> None:
    async def main() -> None:
        async with served(path, **given) as (host, endpoint), await AsyncUnixClient.connect(endpoint) as client:
            await use(client, host)

    asyncio.run(main())


def test_the_async_client_has_the_whole_instance_api(tmp_path: Path) -> None:
    async def use(client: AsyncUnixClient, host: Host) -> None:
        twin = Instance(PROGRAM, START)
        async with await client.open(task=TASK) as session:
            assert (session.info.environment, session.info.task, session.info.query) == (
                ENVIRONMENT,
                TASK,
                "Give m2 a point.",
            )
            assert [t["function"]["name"] for t in session.info.tools] == ["give", "breaks"]
            assert session.info.digest == twin.digest() and "A club." in session.info.prompt
            assert (await session.score()).reward == 0.0
            given = {"member": "m2", "points": 1}
            assert await session.call("give", given) == twin.call("give", given)
            assert (await session.score()).reward == 1.0
            snapshot = await session.snapshot()
            refused = {"member": "nobody", "points": 1}
            assert await session.batch([("give", given), ("give", refused)]) == [
                twin.call("give", given), twin.call("give", refused),
            ]  # fmt: skip
            forked = await session.fork()
            await session.restore(snapshot)
            assert await forked.digest() == twin.digest() != await session.digest()
            await session.reset()
            assert await session.digest() == session.info.digest
            assert (await client.session(session.id)).info.id == session.id
            await forked.close()
            await forked.close()
        assert host.gauges()["sessions"] == 0
        assert (await client.task(TASK)).query == "Give m2 a point."
        assert [t.id for t in await client.tasks(ENVIRONMENT, "all")] == [TASK]
        assert [e["id"] for e in await client.environments()] == [ENVIRONMENT]
        assert (await client.gauges())["sessions"] == 0

    with_client(tmp_path, use)


def test_the_blocking_client_has_the_whole_instance_api(tmp_path: Path) -> None:
    def use(client: UnixClient) -> None:
        twin = Instance(PROGRAM, START)
        with client.open(ENVIRONMENT) as session, client.open(task=TASK) as other:
            given = {"member": "m2", "points": 1}
            assert session.call("give", given) == other.call("give", given) == twin.call("give", given)
            assert other.score().reward == 1.0
            snapshot = session.snapshot()
            assert session.batch([("give", given)] * 2) == [twin.call("give", given), twin.call("give", given)]
            assert session.digest() == session.fork().digest() == twin.digest()
            session.restore(snapshot)
            assert session.digest() == other.digest()
            session.reset()
            assert session.digest() == session.info.digest == client.session(session.id).info.digest
        assert client.task(TASK).id == TASK == client.tasks(ENVIRONMENT, "all")[0].id
        assert client.environments()[0]["tools"] == 2 and client.gauges()["sessions"] == 1
        with pytest.raises(InstanceError):
            session.call("give", given)

    in_thread(tmp_path, use)


def test_threads_share_a_client(tmp_path: Path) -> None:
    def use(client: UnixClient) -> None:
        def play(number: int) -> None:
            with client.open(ENVIRONMENT) as session:
                for _ in range(30):
                    session.call("give", {"member": "m1", "points": number})
                totals.append((number, session.call("give", {"member": "m1", "points": 0})["data"]["points"]))

        totals: list[tuple[int, int]] = []
        threads = [threading.Thread(target=play, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(totals) == [(n, 3 + 30 * n) for n in range(8)]

    in_thread(tmp_path, use)


def test_errors_come_back_as_what_was_raised(tmp_path: Path) -> None:
    async def use(client: AsyncUnixClient, host: Host) -> None:
        with pytest.raises(InputError, match="no environment"):
            await client.open("Nowhere")
        with pytest.raises(InputError, match="neither"):
            await client.open()
        with pytest.raises(InstanceError):
            await client.session("n0-none")
        session = await client.open(ENVIRONMENT)
        with pytest.raises(EnvironmentFault, match="ink is dry"):
            await session.call("breaks", {})
        with pytest.raises(EnvironmentFault, match="faulted before"):
            await session.call("give", {"member": "m1", "points": 1})
        await session.reset()
        with pytest.raises(InputError, match="no snapshot"):
            await session.restore(b"\xc1")
        with pytest.raises(InputError, match="no task"):
            await session.score()
        assert (await session.call("steal", {}))["error"]["code"] == "not_found"
        assert (await session.call("give", {"member": 3}))["error"]["code"] == "invalid_argument"
        sessions = [await client.open(ENVIRONMENT) for _ in range(199)]
        with pytest.raises(CapacityError):
            await client.open(ENVIRONMENT)
        assert len(sessions) == 199

    with_client(tmp_path, use)


def test_malformed_requests_are_the_callers_and_hurt_nobody(tmp_path: Path) -> None:
    async def use(client: AsyncUnixClient, host: Host) -> None:
        session = await client.open(ENVIRONMENT)
        ask = client._link.ask
        for request in (
            ("call",), ("call", session.id), ("call", [], "give", {}), ("call", session.id, ["give"], {}),
            ("call", session.id, "give", [1]), ("batch", session.id, [1]), ("batch", session.id, [["give", 2]]),
            ("digest",), ("digest", session.id, 1), ("open", 1), ("no such thing",), ("tasks", "Nowhere", "all"),
        ):  # fmt: skip
            with pytest.raises(InputError):
                await ask(*request)
        assert (await session.call("give", {"member": "m1", "points": 1}))["data"]["points"] == 4

    with_client(tmp_path, use)


def test_garbage_ends_the_connection_and_no_other(tmp_path: Path) -> None:
    async def use(client: AsyncUnixClient, host: Host) -> None:
        path = str(tmp_path / "omnia.sock")
        for said in (b"GET / HTTP/1.1\r\n\r\n", frame([b"x" * 32, b"y" * 32]), frame([1, "gauges"]), b"\xff" * 64):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(said)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        assert (await client.gauges())["sessions"] == 0

    with_client(tmp_path, use)


def test_many_calls_of_one_session_run_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    async def use(client: AsyncUnixClient, host: Host) -> None:
        session = await client.open(ENVIRONMENT)
        answers = await asyncio.gather(*(session.call("give", {"member": "m2", "points": n}) for n in range(200)))
        assert [a["data"]["points"] for a in answers] == [n * (n + 1) // 2 for n in range(200)]

    with_client(tmp_path, use)


def test_sessions_outlive_connections_and_calls_in_flight_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (_, endpoint):
            async with await AsyncUnixClient.connect(endpoint) as client:
                session = await client.open(ENVIRONMENT)
                await session.call("give", {"member": "m1", "points": 1})
            with pytest.raises(InfrastructureError, match="connection"):
                await session.call("give", {"member": "m1", "points": 1})
            async with await AsyncUnixClient.connect(endpoint) as client:
                again = await client.session(session.id)
                assert (await again.call("give", {"member": "m1", "points": 1}))["data"]["points"] == 5

    asyncio.run(main())


def test_a_blocking_client_goes_on_after_the_server_was_started_again(tmp_path: Path) -> None:
    async def main() -> None:
        with UnixClient(Endpoint(path=str(tmp_path / "omnia.sock")), timeout=5) as client:
            with pytest.raises(InfrastructureError, match="start it there"):
                await asyncio.to_thread(client.gauges)
            for _ in range(2):
                async with served(tmp_path):
                    assert (await asyncio.to_thread(client.gauges))["sessions"] == 0

    asyncio.run(main())


def test_the_socket_is_this_users_and_a_port_needs_a_token(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (host, endpoint):
            mode = os.stat(endpoint.path).st_mode  # noqa: PTH116
            assert stat.S_ISSOCK(mode) and mode & 0o777 == 0o600
            with pytest.raises(InputError, match="another server"):
                await UnixServer(host, endpoint).start()
            with pytest.raises(InputError, match="give a token"):
                await UnixServer(host, Endpoint("127.0.0.1", 0)).start()
            guarded = UnixServer(host, Endpoint("127.0.0.1", 0), token="a token for tests only")
            port = await guarded.start()
            with pytest.raises(InfrastructureError, match="token"):
                await AsyncUnixClient.connect(port)
            with pytest.raises(InfrastructureError, match="token"):
                await asyncio.to_thread(UnixClient(port).gauges)
            async with await AsyncUnixClient.connect(str(port), "a token for tests only") as client:
                assert (await client.gauges())["sessions"] == 0
            await guarded.close()
        assert not Path(endpoint.path).exists()
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(endpoint.path)  # nobody listens there
        stale.close()
        async with served(tmp_path) as (_, endpoint), await AsyncUnixClient.connect(endpoint) as client:
            assert (await client.gauges())["sessions"] == 0

    asyncio.run(main())


def test_another_tenants_sessions_are_out_of_reach(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (host, endpoint):
            mine = await host.open(ENVIRONMENT, tenant="somebody")
            async with await AsyncUnixClient.connect(endpoint) as client:
                for operation in ("digest", "close", "session"):
                    with pytest.raises(InstanceError):
                        await client._link.ask(operation, mine.id)
            assert host.session(mine.id, "somebody") is mine

    asyncio.run(main())


class Slow:
    """A sandbox whose only session answers when it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.environments = catalog().infos
        self.environment = EnvironmentInfo("slow", "Slow", "", (), TOOLS, (), False)

    def session(self, instance: str, tenant: str = "local") -> Slow:
        return self

    def call_at_once(self, tool: str, arguments: dict[str, Any]) -> None:
        return None

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await self.gate.wait()
        if tool == "late":
            raise CallTimeout("it ran past its time")
        if tool == "bug":
            raise ZeroDivisionError
        return {"ok": True, "data": tool}


def test_what_waits_is_bounded_and_a_bug_in_the_server_is_infrastructure(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        server = UnixServer(slow, Endpoint(path=str(tmp_path / "s")), in_flight=4)  # type: ignore[arg-type]
        async with await AsyncUnixClient.connect(await server.start()) as client:
            asked = [client._link.ask("call", "x", tool, {}) for tool in ("a", "late", "bug", "b", "c", "d")]
            done = await asyncio.gather(*asked[4:], return_exceptions=True)
            assert [type(e) for e in done] == [CapacityError, CapacityError]
            asked[3].cancel()  # a caller that goes away takes nobody's answer with it
            slow.gate.set()
            one, late, bug = await asyncio.gather(*asked[:3], return_exceptions=True)
            assert one == {"ok": True, "data": "a"}
            assert type(late) is CallTimeout and type(bug) is InfrastructureError and "look at its log" in str(bug)
            assert await client._link.ask("call", "x", "e", {}) == {"ok": True, "data": "e"}
        await server.close()

    asyncio.run(main())


def test_a_call_costs_the_server_little(tmp_path: Path) -> None:
    """Processor time of the server's thread with 64 calls in flight; far over what a quiet machine shows."""
    calls, seconds = 64 * 60, float("inf")

    async def main(ready: threading.Event, stop: threading.Event, used: list[float]) -> None:
        async with served(tmp_path):
            ready.set()
            before = time.thread_time()
            while not stop.is_set():
                await asyncio.sleep(0.01)
            used.append(time.thread_time() - before)

    async def drive() -> None:
        async with await AsyncUnixClient.connect(Endpoint(path=str(tmp_path / "omnia.sock"))) as client:
            sessions = [await client.open(ENVIRONMENT) for _ in range(64)]
            for _ in range(calls // 64):
                await asyncio.gather(*(s.call("give", {"member": "m1", "points": 1}) for s in sessions))

    for _ in range(3):
        ready, stop, used = threading.Event(), threading.Event(), list[float]()
        thread = threading.Thread(target=lambda r=ready, s=stop, u=used: asyncio.run(main(r, s, u)))
        thread.start()
        ready.wait(10)
        asyncio.run(drive())
        stop.set()
        thread.join()
        seconds = min(seconds, used[0])
    assert seconds / calls < 100e-6, f"{seconds / calls * 1e6:.1f} us"


class Sockets(Pooled[socket.socket]):
    def _gone(self, idle: socket.socket) -> bool:
        return ended(idle.fileno())


def test_idle_connections_are_used_again_by_the_same_process_while_the_server_holds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    with Sockets() as pool:
        assert pool._taken() is None
        for ours, _ in pairs:
            pool._given_back(ours)
        pairs[2][1].close()
        assert pool._taken() is pairs[1][0] and pairs[2][0].fileno() == -1
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert pool._taken() is None
        pool._given_back(pairs[1][0])
    assert pairs[1][0].fileno() == -1
    for pair in pairs:
        for end in pair:
            end.close()


def test_frames_are_read_however_they_are_cut() -> None:
    rng = Random("frames")
    values = [
        b"",
        "a",
        list(range(50)),
        b"x" * 65_535,
        b"y" * 70_000,
        [[] for _ in range(100_000)],
        {"a": 1.5},
        b"z" * 200_000,
    ]
    sent = b"".join(map(frame, values))
    for most in (3, 1_000, 70_000, len(sent)):
        reader, heard, at = FrameReader(), list[Any](), 0
        while at < len(sent):
            step = rng.randint(1, most) if at < 3_000 or most > 3 else 50_000
            heard += reader.feed(sent[at : at + step])
            at += step
        assert heard == values and gc.isenabled()


@pytest.mark.parametrize("length", [1, 70_000])
def test_a_frame_that_is_none_is_refused(length: int) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        FrameReader().feed(length.to_bytes(4, "big") + b"\xc1" * length)
    assert gc.isenabled()
    with pytest.raises(WireError, match="over"):
        FrameReader(length - 1).feed(length.to_bytes(4, "big"))

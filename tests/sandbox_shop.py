"""Two small environments with tasks, behind the faces of OpenEnv and ORS: what their tests stand on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source, TaskEntry
from agentomnia.sandbox.gateway import Gateway, GatewaySettings, Route
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.http import Connections
from agentomnia.sandbox.server import running
from agentomnia.task.criterion import AnswerField, Change, Criterion, Expected
from agentomnia.task.task import Task
from agentomnia.taxonomy.coordinate import Coordinate
from sandbox_wire import Answer, Memory, Reading, client_frame, connections, request, server_frames

TILL = """
class Till:
    def __init__(self, state):
        self.accounts = state["accounts"]

    def pay(self, account, amount, memo="none"):
        if account not in self.accounts:
            return {"ok": False, "error": {"code": "not_found", "message": "No such account.", "hint": "Look."}}
        record = self.accounts[account]
        if amount > record["balance"]:
            return {"ok": False, "error": {"code": "precondition_failed", "message": "Too little.", "hint": "Less."}}
        record["balance"] -= amount
        return {"ok": True, "data": {"left": record["balance"], "memo": memo}}

    def look(self, account):
        return {"ok": True, "data": {"account": account, **self.accounts[account]}}

    def breaks(self):
        raise RuntimeError("the drawer is stuck")

    def talk(self, times):
        return {"ok": True, "data": "a b  c   " * times}
"""

TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1}
TILL_ID, DEPOT_ID = "Till-1a", "Depot-2b"


def _tool(name: str, required: tuple[str, ...], **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ToolSchema(name, "modify", f"{name.capitalize()}s.", parameters)


TOOLS = {
    t.name: t
    for t in (
        _tool("pay", ("account", "amount"), account=TEXT, amount=NUMBER, memo=TEXT),
        _tool("look", ("account",), account=TEXT),
        _tool("breaks", ()),
        _tool("talk", ("times",), times=NUMBER),
    )
}
STATES = {"start": 10, "rich": 1000}


def _state(name: str) -> dict[str, Any]:
    return {"accounts": {"a1": {"balance": STATES[name]}, "a2": {"balance": 5}}}


def _task(
    name: str, environment: str, left: int, state: str = "start", tools: tuple[str, ...] = ("pay", "look")
) -> TaskEntry:
    answer = (AnswerField(name="left", description="What is left", type="number"),)
    place = Coordinate(domain=10006, capabilities=("tool_use",))
    task = Task(
        id=name, environment=environment, state=state, kind="dag", query=f"Leave {left} in a1 and say so.",
        answer=answer, tools=tools, coordinate=place, lineage="0/test/1",
    )  # fmt: skip
    change = Change(kind="updated", container="accounts", key="a1", values={"balance": Expected(value=left)})
    return TaskEntry(task, Criterion(changes=(change,), answers={"left": Expected(value=left, comparison="number")}))


def _source(name: str, splits: Mapping[str, tuple[str, ...]]) -> Source:
    info = EnvironmentInfo(name, "Till", "A till with accounts.", ("Be exact.",), TOOLS, tuple(STATES), True, splits)
    program = Program("Till", TILL, load_class(TILL, "Till"), TOOLS)
    return Source(info, "Till", lambda: TILL, _state, lambda: program)


def shop() -> Catalog:
    """Two environments; the first has four tasks in two splits, the second one. `leave-8` exposes all tools."""
    sources = (
        _source(TILL_ID, {"train": ("leave-7", "leave-6"), "hard": ("leave-900", "leave-8")}),
        _source(DEPOT_ID, {"train": ("depot-4",)}),
    )
    tasks = {
        "leave-7": _task("leave-7", TILL_ID, 7), "leave-6": _task("leave-6", TILL_ID, 6),
        "leave-900": _task("leave-900", TILL_ID, 900, "rich"), "depot-4": _task("depot-4", DEPOT_ID, 4),
        "leave-8": _task("leave-8", TILL_ID, 8, tools=()),
    }  # fmt: skip
    return Catalog({s.id: s for s in sources}, tasks)


@dataclass
class Caller:
    """Speaks to a server's protocol in this process, a connection for each request."""

    connections: Connections
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(
        self, method: str, path: str, body: Any = None, told: list[bytes] | None = None, **headers: str
    ) -> Answer:
        """One request; a body that is no bytes is sent as JSON. What is answered can be watched in `told`."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        memory, reading = Memory(self.connections.make()), Reading()
        told = memory.written = [] if told is None else told
        read = 0
        memory.receive(request(method, path, sent, **{**self.headers, **headers}))
        try:
            async with asyncio.timeout(30):
                while not reading.answers:
                    for piece in told[read:]:
                        reading.feed(piece)
                        read += 1
                    await asyncio.sleep(0)
        finally:
            memory.hang_up()
        return reading.answers[0]

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any = None, told: list[bytes] | None = None, **headers: str) -> Answer:
        return await self.ask("POST", path, body, told, **headers)

    def socket(self, path: str, **headers: str) -> Socket:
        return Socket(self.connections, path, {**self.headers, **headers})


class Socket:
    """The client's side of a WebSocket."""

    def __init__(self, connections: Connections, path: str, headers: dict[str, str]) -> None:
        self._memory, self._read = Memory(connections.make()), 0
        self._frames: list[tuple[int, bytes]] = []
        asked = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
        key = {"sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        self._memory.receive(request("GET", path, **asked, **key, **headers))

    async def __aenter__(self) -> Socket:
        self.opened = Reading()
        self.opened.feed(await self._piece())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()

    async def drop(self) -> None:
        """Be gone without a word."""
        self._memory.hang_up()
        for _ in range(3):
            await asyncio.sleep(0)

    async def say(self, frame: Any) -> Any:
        """Send a frame and wait for the answer."""
        self._memory.receive(client_frame(1, (frame if isinstance(frame, str) else json.dumps(frame)).encode()))
        return await self.hear()

    async def hear(self) -> Any:
        """The next message; a goodbye is told as `{"type": "websocket.close", "code": …}`."""
        if not self._frames:
            self._frames = server_frames(await self._piece())
        opcode, payload = self._frames.pop(0)
        if opcode == 8:
            return {"type": "websocket.close", "code": int.from_bytes(payload[:2], "big")}
        return json.loads(payload)

    async def _piece(self) -> bytes:
        async with asyncio.timeout(30):
            while len(self._memory.written) <= self._read:
                await asyncio.sleep(0)
        self._read += 1
        return self._memory.written[self._read - 1]


@asynccontextmanager
async def only_face(host: Host, segment: str, face: Any) -> AsyncIterator[Caller]:
    """A gateway with this face under the first segment of its paths."""
    gateway = Gateway(host)
    gateway._routes[segment] = Route("only", face, gateway.metrics.tally("only"), socket=face)
    server = connections(gateway)
    yield Caller(server)
    await server.close(5)


def played(
    play: Callable[[Host, Caller], Awaitable[None]],
    settings: HostSettings | None = None,
    gateway: GatewaySettings | None = None,
) -> None:
    """Play against a gateway over the shop, and see that it closes what is left."""

    async def run() -> None:
        host = Host(shop(), settings)
        app = Gateway(host, gateway)
        server = connections(app)
        try:
            await asyncio.wait_for(play(host, Caller(server)), 60)
        finally:
            await server.close(5)
            await app.close()
        assert host.gauges()["sessions"] == 0

    asyncio.run(run())


def served(play: Callable[[str], str], settings: HostSettings | None = None) -> tuple[str, float]:
    """Run a client, which blocks, against a real server on loopback.

    Returns:
        What the client returned, and how many sessions it left open.
    """

    async def run() -> tuple[str, float]:
        host = Host(shop(), settings)
        async with running(host) as (address, _):
            told = await asyncio.to_thread(play, address)
            return told, host.gauges()["sessions"]

    return asyncio.run(run())

"""HTTP/1.1 byte by byte: what is answered, in which order, and what is refused; mostly without sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.gateway import Gateway
from agentomnia.sandbox.http import Connections
from agentomnia.sandbox.request import Request
from agentomnia.sandbox.websocket import WebSocket
from sandbox_desk import Desk, served
from sandbox_wire import Answer, Memory, Reading, connections, request


class Echo:
    """Answers with what it was asked; paths ask for what is harder."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.held = 0
        self.go = asyncio.Event()

    def hold(self, request: Request) -> None:
        self.held += 1
        if b"x-forbidden" in request.headers:
            request.refusal = Refusal(403, "not you; ask as somebody else")

    async def http(self, request: Request) -> None:
        self.seen.append(request)
        if request.refusal is not None:
            return request.problem(request.refusal)
        match request.path[0]:
            case "wait":
                await own_task()
                await self.go.wait()
            case "yield":
                await asyncio.sleep(0)
            case "stream":
                request.start_events()
                await request.event("one", "first")
                await own_task()
                await self.go.wait()
                await request.event("two\nlines")
                return request.end_events()
            case "cut":
                return request.start_events()
            case "none":
                return request.raw(204)
            case "large":
                return request.raw(200, b"x" * 200_000)
            case "inject":
                return request.raw(200, b"", headers=((b"location", b"/x\r\nset-cookie: a=b"),))
        told = f"{request.method} {'/'.join(request.path)} {request.target.arguments} ".encode()
        return request.raw(200, told + request.body, b"text/plain")

    async def websocket(self, socket: WebSocket) -> None:
        socket.refuse(Refusal(404, "no socket here; use another"))


Play = Callable[[Echo, Connections], Awaitable[None]]


def played(play: Play, **limits: Any) -> None:
    async def run() -> None:
        echo = Echo()
        server = connections(echo, **limits)
        try:
            async with asyncio.timeout(20):
                await play(echo, server)
        finally:
            echo.go.set()
            await server.close(1)
        assert not server.live and not server.tasks

    asyncio.run(run())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def answers(memory: Memory) -> list[Answer]:
    reading = Reading()
    reading.feed(memory.sent)
    return reading.answers


def exchanged(data: bytes, pieces: int = 1, **limits: Any) -> tuple[Memory, Echo]:
    """What is answered to bytes that come in so many pieces."""
    kept: list[Any] = []

    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            memory.receive(data[start : start + size])
        await settle()
        kept.extend((copy(memory), echo))

    played(play, **limits)
    return kept[0], kept[1]


def answered(data: bytes, pieces: int = 1, **limits: Any) -> tuple[list[Answer], Memory, Echo]:
    """The same, with the answers read."""
    memory, echo = exchanged(data, pieces, **limits)
    return answers(memory), memory, echo


STREAM = (
    request("GET", "/a%20b//c/?x=1&y=%41")
    + request("POST", "/one", b"body")
    + b"POST /chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
    + b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nHost: evil\r\n\r\n"
    + request("HEAD", "/head")
    + b"\r\n"
    + request("POST", "/yield", b"later")
    + request("GET", "/none")
)
BODIES = [b"GET a b//c x=1&y=%41 ", b"POST one  body", b"POST chunked  abcde", b"", b"POST yield  later", b""]


def test_requests_are_read_and_answered_in_order_however_they_are_cut() -> None:
    for pieces in (1, 2, 3, 5, 7, 50, len(STREAM)):
        memory, echo = exchanged(STREAM, pieces)
        told, rest = [], memory.sent
        for place, body in enumerate(BODIES):
            head, _, rest = rest.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 204" if place == 5 else b"HTTP/1.1 200") and b"\r\ndate: " in head
            assert (b"content-length" in head) == (place != 5), "an answer without a body has no length"
            told.append(rest[: len(body)])
            rest = rest[len(body) :]
        assert told == BODIES and rest == b"" and not memory.closed, pieces
        assert [r.headers.get(b"host") for r in echo.seen][2] == b"x", "trailers are nobody's"


def test_one_answer_leaves_in_one_write() -> None:
    memory, _ = exchanged(request("POST", "/one", b"body"))
    assert len(memory.written) == 1


REFUSED: tuple[tuple[bytes, int], ...] = (
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
    (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\n y: folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400),
    (b"GET /a\x80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"nonsense\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"POST /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\nabc", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(9_000)) + b"\r\n", 431),
)


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_what_cannot_be_read_safely_is_refused_and_ends_the_connection(data: bytes, status: int) -> None:
    told, memory, _ = answered(request("GET", "/before") + data + request("GET", "/smuggled"), 1)
    assert [a.status for a in told] == [200, status] and told[1].headers["connection"] == "close", told
    assert told[1].json["owner"] == "caller" and memory.finished
    told, _, _ = answered(data, 40)
    assert [a.status for a in told] == [status], "whole or in pieces"


def test_a_head_without_end_is_cut_off() -> None:
    for data in (b"GET /" + b"y" * 70_000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 15_000):
        told, memory, _ = answered(data, 40)
        assert [a.status for a in told] == [431] and memory.finished


def test_nothing_is_read_behind_the_last_request() -> None:
    for first in (
        request("GET", "/one", connection="close"),
        b"GET /one HTTP/1.0\r\n\r\n",
        b"GET /one HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ):
        told, memory, _ = answered(first + request("GET", "/two"))
        assert len(told) == 1 and told[0].headers["connection"] == "close" and memory.closed, first


def test_names_of_this_server_in_a_url_are_allowed() -> None:
    told, _, _ = answered(request("GET", "http://127.0.0.1/a?b#c"))
    assert told[0].body == b"GET a b "


def test_a_wish_for_another_protocol_is_passed_over_with_the_body_kept() -> None:
    wish = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABkAAQ"}
    told, _, _ = answered(request("POST", "/one", b"body", **wish) + request("GET", "/two"))
    assert [a.body for a in told] == [b"POST one  body", b"GET two  "]


def test_bodies_have_a_limit() -> None:
    told, memory, _ = answered(
        request("POST", "/one", b"x" * 1000) + request("POST", "/two", b"x" * 1001), 3, body_bytes=1000
    )
    assert [a.status for a in told] == [200, 413] and memory.closed
    chunks = b"".join(b"64\r\n" + b"x" * 100 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    told, _, echo = answered(head + chunks, 7, body_bytes=1000)
    assert [a.status for a in told] == [413] and echo.seen[0].body == b""


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentomnia.sandbox.http._DISCARDED", 50_000)
    told, memory, _ = answered(request("POST", "/one", b"x" * 100_000), 100, body_bytes=1000)
    assert [a.status for a in told] == [413] and memory.finished


def test_who_asks_whether_to_send_a_body_is_told() -> None:
    head = b"POST /one HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n%b\r\n"

    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        memory.receive(head % (4, b""))
        assert memory.sent == b"HTTP/1.1 100 Continue\r\n\r\n" and echo.held
        memory.receive(b"body")
        assert memory.sent.endswith(b"POST one  body") and not memory.closed
        for length, more, status in ((4, b"X-Forbidden: 1\r\n", 403), (5_000_000, b"", 413)):
            memory = Memory(server.make())
            memory.receive(head % (length, more))
            (answer,) = answers(memory)
            assert answer.status == status and memory.finished

    played(play)


def test_a_refused_caller_sends_its_body_for_nothing_and_may_go_on() -> None:
    told, memory, echo = answered(request("POST", "/one", b"x" * 1000, x_forbidden="1") + request("GET", "/two"), 9)
    assert [a.status for a in told] == [403, 200] and echo.seen[0].body == b"" and not memory.closed


def test_answers_wait_for_those_before_them_and_reading_stops_meanwhile() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        memory.receive(request("GET", "/wait"))
        memory.receive(request("GET", "/two") + request("GET", "/three"))
        await settle()
        assert memory.paused and memory.sent == b"" and len(echo.seen) == 1
        echo.go.set()
        await settle()
        assert [a.body.split()[1] for a in answers(memory)] == [b"wait", b"two", b"three"] and not memory.paused

    played(play)


def test_a_client_that_does_not_read_is_asked_no_more() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make(), slow=True)
        memory.receive(request("GET", "/large") * 10)
        await settle()
        assert len(echo.seen) == 1 and memory.paused
        memory.read_on()
        await settle()
        assert len(echo.seen) == 10 and not memory.paused

    played(play)


def test_streams_come_in_chunks_and_wait_for_their_reader() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        memory.receive(request("GET", "/stream"))
        await settle()
        assert memory.sent.endswith(b"\r\n\r\n18\r\nevent: first\ndata: one\n\n\r\n")
        echo.go.set()
        await settle()
        (answer,) = answers(memory)
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.body == b"event: first\ndata: one\n\ndata: two\ndata: lines\n\n" and not memory.closed
        slow = Memory(server.make(), slow=True)
        slow.receive(request("GET", "/stream"))
        await settle()
        assert b"two" not in slow.sent
        slow.read_on()
        await settle()
        assert slow.sent.endswith(b"0\r\n\r\n")
        old = Memory(server.make())
        old.receive(b"GET /stream HTTP/1.0\r\n\r\n")
        await settle()
        assert old.sent.endswith(b"\r\n\r\nevent: first\ndata: one\n\ndata: two\ndata: lines\n\n") and old.closed

    played(play)


def test_a_stream_that_is_not_ended_ends_the_connection() -> None:
    memory, _ = exchanged(request("GET", "/cut"))
    assert memory.closed and not memory.sent.endswith(b"0\r\n\r\n")


def test_no_header_of_an_answer_breaks_out_of_its_line() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        with pytest.raises(ValueError, match="end of a line"):
            memory.receive(request("GET", "/inject"))
        assert memory.sent == b""

    played(play)


def test_half_closed_connections_get_their_answers() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        memory.receive(request("GET", "/wait", connection="close"))
        memory.hang_up()
        assert not memory.closed
        echo.go.set()
        await settle()
        assert answers(memory)[0].status == 200 and memory.closed

    played(play)


def test_time_is_up_for_what_does_not_come() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        head, body, idle, answering, slow = (Memory(server.make(), slow=n == 4) for n in range(5))
        head.receive(b"GET / HTTP/1.1\r\nX: ")
        body.receive(request("POST", "/one", b"body")[:-1])
        answering.receive(request("GET", "/wait"))
        slow.receive(request("GET", "/large"))
        while not all(memory.closed for memory in (head, body, idle, slow)):
            if not head.finished:
                head.receive(b"T")
            await asyncio.sleep(0.02)
        assert [a.status for a in answers(head)] == [408] == [a.status for a in answers(body)]
        assert idle.sent == b"" and not answering.closed

    played(play, head_seconds=0.05, body_seconds=0.05, idle_seconds=0.2, linger_seconds=0.1)


def test_connections_leave_when_the_server_does() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        idle, half, busy = Memory(server.make()), Memory(server.make()), Memory(server.make())
        half.receive(b"GET / HTTP")
        busy.receive(request("GET", "/wait"))
        leaving = asyncio.create_task(server.close(5))
        await settle()
        assert idle.closed and half.closed and not busy.closed
        busy.receive(request("GET", "/late"))
        echo.go.set()
        await leaving
        (answer,) = answers(busy)
        assert answer.headers["connection"] == "close" and busy.closed and len(echo.seen) == 1

    played(play)


def test_calls_that_never_end_are_given_up_when_the_server_leaves() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        memory = Memory(server.make())
        memory.receive(request("GET", "/wait"))
        await server.close(0.05)
        assert memory.closed

    played(play)


def test_a_connection_that_is_lost_gives_back_the_places_of_its_requests() -> None:
    async def run() -> None:
        gateway = Gateway(Desk())
        server = connections(gateway)
        memory = Memory(server.make())
        memory.receive(request("POST", "/v1/sessions", b"{}")[:-1])
        assert gateway.gauges()["requests_in_flight"] == 1
        memory.hang_up()
        await settle()
        assert gateway.gauges()["requests_in_flight"] == 0
        await server.close(1)
        await gateway.close()

    asyncio.run(run())


def test_a_caller_is_let_in_by_all_that_it_says() -> None:
    """Who was let in once is known again by its headers; a known token does not let a foreign page in."""

    async def run() -> None:
        gateway = Gateway(Desk())
        server = connections(gateway)
        memory = Memory(server.make())
        for headers, status in (
            ({}, 200), ({"origin": "https://evil.example"}, 403), ({}, 200), ({"host": "evil.example"}, 421),
            ({"origin": "http://localhost"}, 200), ({"origin": "https://evil.example"}, 403),
        ):  # fmt: skip
            memory.receive(request("GET", "/v1/environments", **headers))
            await settle()
            assert answers(memory)[-1].status == status, headers
        await server.close(1)
        await gateway.close()

    asyncio.run(run())


def test_what_may_wait_runs_in_a_task() -> None:
    """A sandbox that uses `asyncio.timeout` works on every face, although faces are begun outside of tasks."""

    class Timed(Desk):
        async def open(self, *names: Any, **more: Any) -> Any:
            async with asyncio.timeout(5):
                session = await super().open(*names, **more)
            for name in ("call", "batch", "reset", "snapshot", "restore", "fork", "digest", "score", "close"):
                setattr(session, name, timed(getattr(session, name)))
            return session

    def timed(method: Any) -> Any:
        async def in_time(*arguments: Any) -> Any:
            async with asyncio.timeout(5):
                return await method(*arguments)

        return in_time

    async def run() -> None:
        from sandbox_shop import Caller

        gateway = Gateway(Timed())
        server = connections(gateway)
        caller = Caller(server)
        session = (await caller.post("/v1/sessions", {"task": "count-7"})).json["session"]
        path = f"/v1/sessions/{session}"
        for action in ("call", "batch", "reset", "fork", "score"):
            body = {"tool": "read", "calls": [{"tool": "read"}]}
            assert (await caller.post(f"{path}/{action}", body)).status in (200, 201), action
        snapshot = (await caller.get(f"{path}/snapshot")).body
        assert (await caller.ask("PUT", f"{path}/snapshot", snapshot)).status == 200
        assert (await caller.get(f"{path}/digest")).status == (await caller.get(path)).status == 200
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "read"}}
        answer = await caller.post(f"/i/{session}/mcp", message, content_type="application/json")
        assert answer.json["result"]["isError"] is False
        async with caller.socket("/v1/ws") as socket:
            for op in ("open", "call", "score", "close"):
                frame = {"id": op, "op": op, "session": session, "tool": "read", "environment": "counter"}
                assert (await socket.say(frame))["ok"] is True, op
        async with caller.socket("/e/counter/ws") as socket:
            for kind, data in (
                ("state", {}), ("step", {"tool_name": "read", "arguments": {}}), ("state", {}), ("reset", {}),
                ("reset", {"task": "count-7"}), ("step", {"type": "list_tools"}), ("step", {"message": "done"}),
            ):  # fmt: skip
                assert (await socket.say({"type": kind, "data": data}))["type"] != "error", (kind, data)
        for method in ("openenv/session/create", "tools/list"):
            asked = {"jsonrpc": "2.0", "id": 1, "method": method}
            assert "result" in (await caller.post("/e/counter/mcp", asked)).json
        for route, body in (
            ("create", {"split": "train", "index": 0}), ("call", {"name": "read", "input": {}}),
            ("call", {"name": "submit_answer", "input": {"message": "done"}}), ("delete", {}),
        ):  # fmt: skip
            answer = await caller.post(f"/{route}", body, x_session_id="s")
            assert answer.status == 200 and b"event: error" not in answer.body, answer
        await server.close(1)
        await gateway.close()

    asyncio.run(run())


def test_over_real_sockets_a_refused_client_reads_why() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        parts = urlsplit(url)

        def talk(data: bytes) -> bytes:
            with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
                raw.sendall(data)
                told = b""
                while piece := raw.recv(65536):
                    told += piece
                return told

        for data, status in ((b"GET / HTTP/1.1\r\nX: " + b"y" * 500_000, b" 431 "), (b"\0" * 300_000, b" 400 ")):
            assert status in await asyncio.to_thread(talk, data)
        assert b"healthy" in await asyncio.to_thread(talk, b"GET /health HTTP/1.0\r\n\r\n")

    served(play)

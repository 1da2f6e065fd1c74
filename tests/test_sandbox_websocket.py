"""WebSockets: frames against the package `websockets`, and conversations byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import PayloadTooBig
from websockets.frames import Opcode
from websockets.protocol import Protocol, Side, State

from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.frames import Control, FrameReader, frame, unmask
from agentomnia.sandbox.http import Connections
from agentomnia.sandbox.request import Request
from agentomnia.sandbox.websocket import WebSocket
from sandbox_wire import Memory, Reading, client_frame, connections, request, server_frames, until

MOST = 10**6
Heard = tuple[list[tuple[int, bytes]], int | None]
"""Messages by opcode, and the code with which the connection is ended for what follows them."""


def heard(data: bytes, cuts: list[int]) -> Heard:
    """What our reader makes of bytes that come in pieces."""
    reader, messages = FrameReader(MOST), list[tuple[int, bytes]]()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        for message in reader.feed(data[start:end]):
            if isinstance(message, Control):
                if message.opcode == 8 and reader.partial:
                    return messages, 1002  # ours lets a client say goodbye amid a message, the package does not
                messages.append((message.opcode, message.payload))
            else:
                messages.append((1, message.encode()) if isinstance(message, str) else (2, message))
        if reader.broken is not None:
            return messages, reader.broken.code
    return messages, None


def reference(data: bytes) -> Heard:
    """What the package makes of them; that a text is UTF-8 it leaves to its upper half."""
    protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=MOST)
    protocol.receive_data(data)
    messages: list[tuple[int, bytes]] = []
    parts: list[Any] = []
    for event in protocol.events_received():
        if event.opcode >= Opcode.CLOSE:
            messages.append((int(event.opcode), bytes(event.data)))
            continue
        parts.append(event)
        if event.fin:
            whole, opcode = b"".join(bytes(part.data) for part in parts), int(parts[0].opcode)
            parts = []
            try:
                messages.append((opcode, whole if opcode == 2 else whole.decode().encode()))
            except UnicodeDecodeError:
                return messages, 1007
    if protocol.parser_exc is None:
        return messages, None
    return messages, 1009 if isinstance(protocol.parser_exc, PayloadTooBig) else 1002


def encoded(opcode: int, final: bool, reserved: int, masked: bool, mask: bytes, payload: bytes, wide: int) -> bytes:
    size = len(payload)
    width = max(wide, 0 if size < 126 else 2 if size < 1 << 16 else 8)
    length = bytes((size,)) if width == 0 else bytes((0x7E if width == 2 else 0x7F,)) + size.to_bytes(width, "big")
    first = (0x80 if final else 0) | reserved << 4 | opcode
    if not masked:
        return bytes((first,)) + length + payload
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes((first, length[0] | 0x80)) + length[1:] + mask + hidden


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 20 + list(rare))


PAYLOADS = st.one_of(
    st.binary(max_size=130),
    st.text(max_size=60).map(str.encode),
    st.integers(120, 70_000).map(lambda size: b"a" * size),
)
FRAMES = st.builds(
    encoded,
    opcode=st.sampled_from([0, 0, 0, 1, 1, 1, 2, 2, 9, 10, 3, 11]),
    final=st.booleans(),
    reserved=mostly(0, 1, 2, 4),
    masked=mostly(True, False),
    mask=st.binary(min_size=4, max_size=4),
    payload=PAYLOADS,
    wide=mostly(0, 2, 8),
)
LAST = st.sampled_from([b"", client_frame(8, b""), client_frame(8, b"\x03\xe8bye"), b"\x81", b"\x81\xfe\x01"])


@settings(deadline=None, max_examples=400)
@given(st.lists(FRAMES, max_size=6), LAST, st.lists(st.integers(0, 10**6), max_size=8))
def test_frames_are_read_as_the_package_reads_them(frames: list[bytes], last: bytes, cuts: list[int]) -> None:
    data = b"".join(frames) + last
    assert heard(data, cuts) == reference(data)


def test_every_cut_of_a_stream_gives_the_same_messages() -> None:
    parts = (
        client_frame(1, "grüße ".encode()[:4], final=False), client_frame(9, b"there?"),
        client_frame(0, b"", final=False),
        client_frame(0, "grüße ".encode()[4:]), client_frame(2, b"x" * 126), client_frame(1, b""),
        client_frame(8, b"\x03\xe8"),
    )  # fmt: skip
    data = b"".join(parts)
    whole = heard(data, [])
    assert whole[0] == [(9, b"there?"), (1, "grüße ".encode()), (2, b"x" * 126), (1, b""), (8, b"\x03\xe8")]
    assert all(heard(data, [cut]) == whole for cut in range(len(data)))
    assert heard(data, list(range(len(data)))) == whole


@settings(deadline=None)
@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4))
def test_masks_come_off(payload: bytes, mask: bytes) -> None:
    assert unmask(payload, mask) == bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_frames_are_written_as_the_package_reads_them(size: int) -> None:
    client = Protocol(Side.CLIENT, state=State.OPEN, max_size=MOST)
    client.receive_data(frame(1, b"a" * size))
    (event,) = client.events_received()
    assert (event.opcode, event.fin, bytes(event.data)) == (Opcode.TEXT, True, b"a" * size)


# Conversations


class Echo:
    """Answers a text with itself; some words ask for what is harder."""

    def __init__(self) -> None:
        self.go, self.heard, self.ended = asyncio.Event(), list[str | bytes](), 0

    def hold(self, request: Request) -> None:
        pass

    async def http(self, request: Request) -> None:
        request.raw(200) if request.refusal is None else request.problem(request.refusal)

    async def websocket(self, socket: WebSocket) -> None:
        try:
            if socket.path == ("refused",):
                raise Refusal(403, "not here; use another path")
            socket.accept()
        except Refusal as refusal:
            socket.refuse(refusal)
            return
        try:
            while (message := await socket.receive()) is not None:
                await self.answer(socket, message)
                if message == "leave":
                    break
        finally:
            self.ended += 1

    async def answer(self, socket: WebSocket, message: str | bytes) -> None:
        self.heard.append(message)
        if message == "wait":
            await own_task()
            async with asyncio.timeout(10):
                await self.go.wait()
        elif message == "yield":
            await asyncio.sleep(0)
        elif message == "close":
            socket.close(4001, "enough")
        elif message == "cancel":
            await own_task()
            raise asyncio.CancelledError
        socket.send(message.encode() if isinstance(message, str) else message, binary=isinstance(message, bytes))


ASKED = {
    "connection": "keep-alive, Upgrade", "upgrade": "WebSocket", "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


class Line:
    """The client's side."""

    def __init__(
        self, server: Connections, path: str = "/ws", more: bytes = b"", slow: bool = False, **headers: str
    ) -> None:
        self.memory = Memory(server.make(), slow)
        self.memory.receive(request("GET", path, **{**ASKED, **headers}) + more)
        self.opened = Reading()
        self.opened.feed(self.memory.sent)
        self.memory.written.clear()

    def say(self, *frames: bytes) -> None:
        self.memory.receive(b"".join(frames))

    def hear(self) -> list[tuple[int, bytes]]:
        """The frames since the last time."""
        sent = self.memory.sent
        self.memory.written.clear()
        return server_frames(sent)


def text(word: str) -> bytes:
    return client_frame(1, word.encode())


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def played(play: Callable[[Echo, Connections], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        echo = Echo()
        server = connections(echo, **{"linger_seconds": 0.5, **limits})
        try:
            async with asyncio.timeout(20):
                await play(echo, server)
        finally:
            echo.go.set()
            await server.close(2)
        assert not server.live and not server.tasks

    asyncio.run(run())


def test_the_handshake_is_answered_or_refused() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        (answer,) = Line(server).opened.answers
        assert answer.status == 101 and answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        for headers, status in (
            ({"sec_websocket_version": "8"}, 426), ({"sec_websocket_key": "short"}, 400),
            ({"sec_websocket_key": "%"}, 400),
        ):  # fmt: skip
            line = Line(server, **headers)
            (answer,) = line.opened.answers
            assert answer.status == status and line.memory.closed, headers
            assert status != 426 or answer.headers["sec-websocket-version"] == "13"
        line = Line(server, "/refused")
        assert line.opened.answers[0].status == 403 and line.opened.answers[0].json["owner"] == "caller"
        assert Line(server, connection="close").opened.answers[0].status == 200, "no wish without Connection: Upgrade"

    played(play)


def test_answers_to_one_read_leave_in_one_write_and_in_order() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server)
        line.say(text("one"), client_frame(9, b"ping"), client_frame(2, b"two"), text("three"))
        assert len(line.memory.written) == 1
        assert sorted(line.hear()) == [(1, b"one"), (1, b"three"), (2, b"two"), (10, b"ping")]
        early = Line(server, more=text("early"))
        await settle()
        assert server_frames(early.opened.rest) == [(1, b"early")]

    played(play)


def test_what_waits_goes_on_in_a_task_and_what_follows_waits_for_it() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server)
        line.say(text("wait"), text("after"))
        await settle()
        assert line.hear() == [] and echo.heard == ["wait"]
        line.say(client_frame(9, b"still there?"))
        assert line.hear() == [(10, b"still there?")], "pings are answered meanwhile"
        line.say(*(text(str(n)) for n in range(40)))
        assert line.memory.paused, "no more is read than can be answered"
        echo.go.set()
        await settle()
        assert [payload for _, payload in line.hear()] == [b"wait", b"after", *(str(n).encode() for n in range(40))]
        assert not line.memory.paused
        line.say(text("yield"), text("yield"), text("end"))
        await settle()
        assert [payload for _, payload in line.hear()] == [b"yield", b"yield", b"end"]

    played(play)


GOODBYES: tuple[tuple[bytes, bytes], ...] = (
    (client_frame(8, b""), b""),
    (client_frame(8, b"\x03\xe8bye"), b"\x03\xe8"),
    (client_frame(8, b"\x0f\xa1"), b"\x0f\xa1"),
    (client_frame(8, b"\x03"), b"\x03\xea"),
    (client_frame(8, b"\x03\xed"), b"\x03\xea"),
    (client_frame(8, b"\x03\xe8\xff"), b"\x03\xef"),
    (client_frame(1, b"\xff"), b"\x03\xef"),
    (client_frame(1, b"\xe2\x82", final=False) + client_frame(0, b"x"), b"\x03\xef"),
    (b"\x81\x01a", b"\x03\xea"),
    (client_frame(0, b"a"), b"\x03\xea"),
    (client_frame(1, b"a", final=False) + client_frame(1, b"b"), b"\x03\xea"),
    (client_frame(9, b"a", final=False), b"\x03\xea"),
    (client_frame(9, b"a" * 126), b"\x03\xea"),
    (client_frame(3, b"a"), b"\x03\xea"),
    (b"\xc1" + client_frame(1, b"a")[1:], b"\x03\xea"),
    (client_frame(2, b"a" * 1001)[:10], b"\x03\xf1"),
    (client_frame(2, b"a" * 900, final=False) + client_frame(0, b"a" * 101), b"\x03\xf1"),
    (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x03\xf1"),
)


@pytest.mark.parametrize(("data", "code"), GOODBYES)
def test_goodbyes_and_broken_frames_end_the_socket_after_what_came_before(data: bytes, code: bytes) -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server)
        line.say(text("before") + data)
        await settle()
        said = line.hear()
        assert said[0] == (1, b"before") and [(o, p[:2]) for o, p in said[1:]] == [(8, code)]
        assert line.memory.closed or line.memory.finished
        line.say(text("after"))
        assert echo.heard == ["before"] and echo.ended == 1
        if not line.memory.closed:  # whoever does not hang up after that is hung up on
            await until(lambda: line.memory.closed)

    played(play, body_bytes=1000, body_seconds=0.1)


def test_a_face_says_goodbye_and_the_other_side_may_answer() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        for word, code in (("close", b"\x0f\xa1enough"), ("leave", b"\x03\xe8")):
            line = Line(server)
            line.say(text(word), text("nobody"))
            await settle()
            assert line.hear()[-1] == (8, code) and "nobody" not in echo.heard and not line.memory.closed
            line.say(client_frame(8, code))
            assert line.memory.closed
        assert echo.ended == 2
        silent = Line(server)
        silent.say(text("leave"))
        await until(lambda: silent.memory.closed)  # one that does not answer is not waited for
        cancelled = Line(server)
        cancelled.say(text("cancel"))
        await settle()
        assert cancelled.hear() == [(8, b"\x03\xe8")]

    played(play, body_seconds=0.1)


def test_a_client_that_is_gone_ends_the_conversation_after_the_call_that_was_begun() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server)
        line.say(text("wait"), text("next"))
        line.memory.hang_up()
        await settle()
        assert echo.ended == 0
        echo.go.set()
        await settle()
        assert echo.ended == 1 and echo.heard == ["wait", "next"] and line.hear() == []

    played(play)


def test_a_client_that_does_not_read_is_answered_no_more() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server, slow=True)
        line.memory.read_on()
        line.memory.slow = True
        line.say(text("one"))
        line.say(text("two"), text("three"))
        await settle()
        assert echo.heard == ["one"] and line.memory.paused
        line.memory.read_on()
        await settle()
        assert echo.heard == ["one", "two", "three"] and not line.memory.paused

    played(play)


def test_half_a_message_must_go_on_in_time_and_silence_between_messages_may_last() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        half, part, silent = Line(server), Line(server), Line(server)
        half.say(client_frame(1, b"abc")[:-1])
        part.say(client_frame(1, b"abc", final=False))
        await until(lambda: bool(half.memory.written and part.memory.written))
        assert half.hear()[0][1][:2] == part.hear()[0][1][:2] == b"\x03\xf0" and silent.hear() == []
        silent.say(text("still here"))
        assert silent.hear() == [(1, b"still here")]

    played(play, body_seconds=0.1)


def test_sockets_are_told_when_the_server_leaves() -> None:
    async def play(echo: Echo, server: Connections) -> None:
        line = Line(server)
        leaving = asyncio.create_task(server.close(5))
        await settle()
        assert line.hear()[0][1][:2] == b"\x03\xf4" and echo.ended == 1
        line.say(client_frame(8, b"\x03\xf4"))
        await leaving
        assert line.memory.closed

    played(play)

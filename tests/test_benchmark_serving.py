"""The serving benchmark: its clocks and framings, its calls, and one small run against real servers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentomnia.environment.state import state_problems
from agentomnia.synthesis.environments.author import BuiltinAuthor

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def on_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def load(on_path: None) -> ModuleType:
    import serving_load

    return serving_load


@pytest.fixture(scope="module")
def own(on_path: None) -> ModuleType:
    import serving_own

    return serving_own


@pytest.fixture(scope="module")
def told(on_path: None) -> ModuleType:
    import serving_tables

    return serving_tables


def test_the_clock_counts_a_process_and_its_children(load: ModuleType) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\n"
    shell = f"{sys.executable} -c '{burn}'; read line"
    with subprocess.Popen(["/bin/sh", "-c", shell], stdin=subprocess.PIPE) as process:
        began, most = time.perf_counter(), 0.0
        while most < 0.15 and time.perf_counter() - began < 10:
            most = max(most, load.server_cpu(process.pid))
            time.sleep(0.01)
    assert most >= 0.15


def test_answers_end_where_their_length_or_last_chunk_says(load: ModuleType) -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    http = load.Http()
    assert [http.end(bytearray(plain[:n])) for n in range(len(plain))] == [0] * len(plain)
    assert http.end(bytearray(plain + b"HTTP")) == len(plain)
    assert http.body(plain) == b"hello"
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    assert [http.end(bytearray(chunked[:n])) for n in range(len(chunked))] == [0] * len(chunked)
    assert http.end(bytearray(chunked)) == len(chunked)
    assert http.body(chunked) == b"hello"
    with pytest.raises(load.BadAnswer, match="429"):
        http.body(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("size", [3, 125, 126, 70_000])
def test_frames_of_a_socket_are_whole_or_not_there(load: ModuleType, size: int) -> None:
    framing = load.WebSocket()
    hello = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"
    assert framing.end(bytearray(hello)) == len(hello)
    assert framing.upgraded
    long = (
        bytes([0x81, 126]) + size.to_bytes(2, "big") if size < 65536 else bytes([0x81, 127]) + size.to_bytes(8, "big")
    )
    whole = (bytes([0x81, size]) if size < 126 else long) + b"x" * size
    assert framing.end(bytearray(whole[:-1])) == 0
    assert framing.end(bytearray(whole + whole)) == len(whole)
    assert framing.body(whole) == b"x" * size
    with pytest.raises(load.BadAnswer, match="closes"):
        framing.body(b"\x88\x02\x03\xe8")


class _Echo(asyncio.Protocol):
    """Answers each frame with its own bytes, or, where `wrong`, with others."""

    def __init__(self, wrong: bool) -> None:
        self._wrong = wrong

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data.replace(b"good", b"evil") if self._wrong else data)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_crowd_makes_every_call_and_notices_a_wrong_answer(load: ModuleType, tmp_path: Path, wrong: bool) -> None:
    socket = str(tmp_path / "echo.sock")

    async def play() -> Any:
        server = await asyncio.get_running_loop().create_unix_server(lambda: _Echo(wrong), socket)
        lines = [await load.dial(load.Address(unix=socket), load.Lengths()) for _ in range(3)]
        try:
            talks = [load.Talk(line, [load.length_frame(b"good 1"), load.length_frame(b"good 2")]) for line in lines]
            return await load.Crowd(talks, re.compile(b"good"), 4).run(50, 5.0, 1)
        finally:
            for line in lines:
                line.close()
            server.close()
            await server.wait_closed()

    if wrong:
        with pytest.raises(load.BadAnswer, match="without its mark"):
            asyncio.run(play())
        return
    done = asyncio.run(play())
    assert done.calls == 50
    assert 0 < done.p50_ms <= done.p99_ms
    assert done.per_second > 0


def test_a_multiplied_state_is_valid_and_points_to_itself(own: ModuleType) -> None:
    spec = BuiltinAuthor().draft(own.DOMAIN, 0, "serving").spec
    small = own.small_state(spec, 100)
    grown = own.multiplied(spec, small, 3)
    assert abs(own.count_records(spec, small) - 100) < 10
    assert own.count_records(spec, grown) == 3 * own.count_records(spec, small)
    assert list(state_problems(spec, grown)) == []


ROW = {"cpu_us": 40.0, "cpu_us_1": 80.0, "calls_per_s": 9000, "p50_ms": 1.0, "p99_ms": 3.0, "session_open_ms": 0.5}
REPORT: dict[str, Any] = {
    "faces": {"mcp": ROW, "unix": {**ROW, "cpu_us": 9.0}},
    "isolated_cpu_us": {"mcp": 61.0},
    "peers": {
        "mcp_sdk": {**ROW, "cpu_us": 600.0, "versions": {"mcp": "2.3.0"}},
        "fastmcp": {"skipped": "pip | no\nnetwork"},
    },
    "setting": {"cores": 2, "python": "3.11", "callers": 64, "calls": 6400, "rounds": 3, "load_1min": 0.1,
                "answer_bytes": 250},
}  # fmt: skip


def test_tables_replace_what_stood_between_the_marks(told: ModuleType) -> None:
    text = f"before\n{told.BEGIN}\nold figures\n{told.END}\nafter\n"
    once = told.rewritten(text, REPORT)
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "old figures" not in once
    assert "| MCP SDK `MCPServer` 2.3.0 | 600 | 40.0 | 15.0 |" in once
    assert "not measured: pip / no network" in once
    assert told.rewritten(once, REPORT) == once
    with pytest.raises(ValueError, match="put them where"):
        told.rewritten("no marks", REPORT)


def test_the_page_has_the_marks(told: ModuleType) -> None:
    page = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert told.BEGIN in page
    assert told.END in page


@pytest.mark.slow
def test_a_quick_run_prints_one_object_with_every_figure() -> None:
    command = [sys.executable, str(BENCHMARKS / "serving.py"), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert set(report["server_cpu_us"]) == {"mcp", "websocket", "rest", "unix"}
    assert set(report["isolated_cpu_us"]) == set(report["server_cpu_us"])
    assert all(0 < cost < 100_000 for cost in report["server_cpu_us"].values())
    assert report["server_cpu_us_1"].keys() > report["server_cpu_us"].keys()
    assert report["session_open_ms"] > 0
    assert 0 < report["reset_ms"]["100"] < report["reset_ms"]["1000"]
    assert 0 < report["load_ms"]["cached"] < report["load_ms"]["cold"]
    assert report["instances_4gib"]["live"] < report["instances_4gib"]["asleep"]
    assert report["workers"]["workers"] >= 3
    assert report["peers"] == {}

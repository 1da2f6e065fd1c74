"""The gateway, the REST face, its WebSocket and both Python clients, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgpack
import pytest

from agentomnia.errors import (
    CallTimeout,
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
    OmniaError,
)
from agentomnia.sandbox.client import AsyncSandboxClient, SandboxClient
from agentomnia.sandbox.gateway import Gateway, GatewaySettings
from agentomnia.sandbox.server import JsonLines, running
from sandbox_desk import Desk, served

Reply = tuple[int, dict[str, str], bytes]


def ask(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
) -> Reply:
    """One request on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=20)
    try:
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection.request(method, path, sent, headers or {})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


async def asked(url: str, method: str, path: str, body: Any = None, **more: Any) -> Reply:
    return await asyncio.to_thread(ask, url, method, path, body, **more)


async def opened(url: str, body: Any = None, headers: dict[str, str] | None = None) -> str:
    status, _, answer = await asked(url, "POST", "/v1/sessions", body or {"environment": "counter"}, headers=headers)
    assert status == 201, answer
    return str(json.loads(answer)["session"])


# REST


def test_a_session_says_all_that_a_trainer_needs_and_is_driven_over_http() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        status, headers, body = await asked(url, "POST", "/v1/sessions", {"task": "count-7"})
        told = json.loads(body)
        path = f"/v1/sessions/{told['session']}"
        assert status == 201 and headers["location"] == path and headers["content-type"] == "application/json"
        assert told["query"] == "Count to 7." and told["prompt"] == "You count. Grüße."
        assert [t["function"]["name"] for t in told["tools"]] == ["read", "add"]

        async def post(action: str, body: Any = None) -> Any:
            status, _, answer = await asked(url, "POST", f"{path}/{action}", body)
            assert status in (200, 201), answer
            return json.loads(answer)

        assert await post("call", {"tool": "add", "arguments": {"n": 3}}) == {
            "ok": True,
            "data": {"total": 3, "€": "ü"},
        }
        refused = await post("call", {"tool": "add", "arguments": {"n": "three"}})
        assert refused["ok"] is False and refused["error"]["code"] == "invalid_argument"
        assert (await post("call", {"tool": "nothing"}))["error"]["code"] == "not_found"
        assert (await post("call", {"tool": "add", "arguments": [1]}))["error"]["code"] == "invalid_argument"
        calls = {"calls": [{"tool": "add", "arguments": {"n": 4}}, {"tool": "read"}]}
        assert [r["data"]["total"] for r in (await post("batch", calls))["results"]] == [7, 7]
        forked = await post("fork")
        assert forked["session"] != told["session"] and desk.sessions[forked["session"]].total == 7
        assert (await post("score", {"message": "done"})) == {"reward": 1.0, "failures": []}
        assert (await post("score"))["reward"] == 0.0
        before = json.loads((await asked(url, "GET", f"{path}/digest"))[2])
        status, headers, snapshot = await asked(url, "GET", f"{path}/snapshot")
        assert status == 200 and headers["content-type"] == "application/octet-stream"
        assert (await post("reset"))["digest"] == told["digest"] != before["digest"]
        status, _, body = await asked(url, "PUT", f"{path}/snapshot", raw=snapshot)
        assert status == 200 and json.loads(body) == before
        assert json.loads((await asked(url, "GET", path))[2])["digest"] == before["digest"]
        assert (await asked(url, "DELETE", path))[0] == 204 and (await asked(url, "DELETE", path))[0] == 404
        assert set(desk.sessions) == {forked["session"]}

    served(play)


def test_environments_and_tasks_are_listed() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        async def get(path: str) -> Any:
            return json.loads((await asked(url, "GET", path))[2])

        (short,) = (await get("/v1/environments"))["environments"]
        assert short["id"] == "counter" and short["tasks"] == {"train": 2, "test": 1}
        one = await get("/v1/environments/counter")
        assert one["policies"] == ["Be exact."] and len(one["tools"]) == short["tool_count"] == 10
        ids = [t["id"] for t in (await get("/v1/tasks?environment=counter&split=train"))["tasks"]]
        assert ids == ["count-7", "count-8"]
        page = await get("/v1/tasks?offset=1&limit=1")
        assert [t["id"] for t in page["tasks"]] == ["count-8"] and page["total"] == 3
        assert (await get("/v1/tasks/count-9"))["query"] == "Count to 9."
        for path in ("/v1/tasks/none", "/v1/environments/none", "/v1/tasks?environment=none", "/v1/none", "/none"):
            assert (await asked(url, "GET", path))[0] == 404, path
        assert (await asked(url, "GET", "/v1/tasks?offset=-1"))[0] == 400

    served(play)


def test_whose_fault_a_failed_call_is_can_be_told() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url)
        for tool, status, owner, kind in (
            ("fault", 500, "environment", "EnvironmentFault"),
            ("late", 500, "environment", "CallTimeout"),
            ("wrong", 500, "environment", "EnvironmentFault"),
            ("gone", 503, "infrastructure", "InfrastructureError"),
            ("full", 429, "infrastructure", "CapacityError"),
            ("mistake", 503, "infrastructure", "InfrastructureError"),
        ):
            got, headers, body = await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": tool})
            problem = json.loads(body)
            assert (got, problem["owner"], problem["kind"], problem["status"]) == (status, owner, kind, status)
            assert headers["content-type"] == "application/problem+json"
            assert ("retry-after" in headers) == (owner == "infrastructure")
            assert tool != "mistake" or "KeyError" not in problem["detail"]
            assert (await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": "read"}))[0] == 200

    served(play)


UNUSABLE: tuple[tuple[str, str, bytes | None, int], ...] = (
    ("POST", "/v1/sessions", b"{", 400),
    ("POST", "/v1/sessions", b"[]", 400),
    ("POST", "/v1/sessions", b"\xff", 400),
    ("POST", "/v1/sessions", b'{"environment": NaN}', 400),
    ("POST", "/v1/sessions", b"[" * 100_000, 400),
    ("POST", "/v1/sessions", b'{"environment": ' + b"9" * 5000 + b"}", 400),
    ("POST", "/v1/sessions", b"{}", 400),
    ("POST", "/v1/sessions", b'{"environment": "none"}', 422),
    ("POST", "/v1/sessions", b'{"task": "none"}', 422),
    ("GET", "/v1/sessions", None, 405),
    ("PATCH", "/v1/sessions/x", None, 405),
    ("POST", "/v1/sessions/none/call", b'{"tool": "read"}', 404),
    ("POST", "/v1/sessions/s-0/call", b'{"tool": 3}', 400),
    ("POST", "/v1/sessions/s-0/batch", b'{"calls": [1]}', 400),
    ("POST", "/v1/sessions/s-0/batch", b'{"calls": 7}', 400),
    ("POST", "/v1/sessions/s-0/score", b"{}", 422),
    ("PUT", "/v1/sessions/s-0/snapshot", b"nonsense", 422),
    ("GET", "/v1/sessions/s-0/call", None, 405),
    ("POST", "/v1/sessions/s-0/explode", b"{}", 404),
    ("GET", "//", None, 404),
)


def test_requests_that_cannot_be_used_are_told_what_is_wrong() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        await opened(url)
        for method, path, raw, status in UNUSABLE:
            got, _, body = await asked(url, method, path, raw=raw)
            problem = json.loads(body)
            assert got == status and problem["owner"] == "caller" and problem["detail"], (method, path, problem)

    served(play)


# The gateway


def test_a_body_over_the_limit_is_refused_and_the_server_lives() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        assert (await asked(url, "POST", "/v1/sessions", raw=b"x" * 10_001))[0] == 413
        assert (await asked(url, "POST", "/v1/sessions", raw=b"x" * 3_000_000))[0] == 413
        await opened(url)

    served(play, GatewaySettings(body_limit=10_000))


def test_tokens_separate_tenants() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        ann, bob = {"authorization": "Bearer a-token"}, {"authorization": "bearer b-token"}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic a-token"}):
            status, replied, _ = await asked(url, "GET", "/v1/environments", headers=headers)
            assert status == 401 and replied["www-authenticate"] == "Bearer"
        assert (await asked(url, "GET", "/metrics"))[0] == 401 and (await asked(url, "GET", "/health"))[0] == 200
        session = await opened(url, headers=ann)
        assert desk.sessions[session].tenant == "ann"
        for action in ("GET", "DELETE"):
            assert (await asked(url, action, f"/v1/sessions/{session}", headers=bob))[0] == 404
        call = f"/v1/sessions/{session}/call"
        assert (await asked(url, "POST", call, {"tool": "read"}, headers=bob))[0] == 404
        assert (await asked(url, "POST", call, {"tool": "read"}, headers=ann))[0] == 200
        async with aiohttp.ClientSession() as web:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await web.ws_connect(f"{url}/v1/ws")
            assert refused.value.status == 401

    served(play, GatewaySettings(tokens={"a-token": "ann", "b-token": "bob"}))


CALLERS: tuple[tuple[dict[str, str], int], ...] = (
    ({"origin": "https://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://localhost.evil.example"}, 403),
    ({"origin": "http://[::1"}, 403),
    ({"host": "evil.example"}, 421),
    ({"host": "evil.example:80"}, 421),
    ({"origin": "http://localhost:5173"}, 200),
    ({"origin": "https://studio.example"}, 200),
    ({"host": "localhost:1"}, 200),
    ({"host": "[::1]:1"}, 200),
    ({}, 200),
)


def test_web_pages_and_rebound_names_are_kept_out() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        for headers, status in CALLERS:
            assert (await asked(url, "GET", "/v1/environments", headers=headers))[0] == status, headers

    served(play, GatewaySettings(origins=frozenset(("https://studio.example",))))


def test_over_the_limit_in_flight_calls_are_refused_at_once_and_operators_are_not() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url)
        call = f"/v1/sessions/{session}/call"
        slow = [asyncio.create_task(asked(url, "POST", call, {"tool": "slow"})) for _ in range(2)]
        while gateway.gauges()["requests_in_flight"] < 2:
            await asyncio.sleep(0.01)
        status, headers, body = await asked(url, "POST", call, {"tool": "read"})
        assert status == 429 and int(headers["retry-after"]) >= 1 and json.loads(body)["kind"] == "CapacityError"
        assert (await asked(url, "GET", "/health"))[0] == 200
        assert b"omnia_requests_in_flight 2" in (await asked(url, "GET", "/metrics"))[2]
        desk.released.set()
        assert [r[0] for r in await asyncio.gather(*slow)] == [200, 200]
        assert (await asked(url, "POST", call, {"tool": "read"}))[0] == 200

    served(play, GatewaySettings(in_flight=2))


def test_one_tenant_does_not_take_all_the_places() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        ann, bob = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
        session, other = await opened(url, headers=ann), await opened(url, headers=bob)
        call = f"/v1/sessions/{session}/call"
        slow = asyncio.create_task(asked(url, "POST", call, {"tool": "slow"}, headers=ann))
        while gateway.gauges()["requests_in_flight"] < 1:
            await asyncio.sleep(0.01)
        assert (await asked(url, "POST", call, {"tool": "read"}, headers=ann))[0] == 429
        assert (await asked(url, "POST", f"/v1/sessions/{other}/call", {"tool": "read"}, headers=bob))[0] == 200
        desk.released.set()
        assert (await slow)[0] == 200

    served(play, GatewaySettings(tokens={"a": "ann", "b": "bob"}, tenant_in_flight=1))


def test_aborted_connections_give_their_places_back() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session, parts = await opened(url), urlsplit(url)
        head = f"POST /v1/sessions/{session}/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        for sent in (b"17\r\n\r\n" + b'{"tool": "slow"} ', b"100\r\n\r\n{", b"17\r\n"):
            for _ in range(5):
                with socket.create_connection((parts.hostname, parts.port)) as raw:
                    raw.sendall(head.encode() + sent)
        await asyncio.sleep(0.2)
        desk.released.set()
        while gateway.gauges()["requests_in_flight"]:
            await asyncio.sleep(0.01)
        assert (await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": "read"}))[0] == 200

    served(play, GatewaySettings(in_flight=32))


def test_a_body_that_never_comes_gives_its_place_back() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        parts = urlsplit(url)

        def stall() -> bytes:
            with socket.create_connection((parts.hostname, parts.port)) as raw:
                raw.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
                return raw.recv(100)

        assert b" 408 " in await asyncio.to_thread(stall)
        assert gateway.gauges()["requests_in_flight"] == 0
        await opened(url)

    served(play, GatewaySettings(body_seconds=0.2))


def test_a_draining_server_opens_no_session_and_finishes_its_calls() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url)
        slow = asyncio.create_task(asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": "slow"}))
        while not gateway.gauges()["requests_in_flight"]:
            await asyncio.sleep(0.01)
        assert await gateway.drain(0.05) is False
        status, _, body = await asked(url, "POST", "/v1/sessions", {"environment": "counter"})
        assert status == 503 and json.loads(body)["owner"] == "infrastructure"
        assert (await asked(url, "GET", "/health"))[0] == 503
        assert (await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": "read"}))[0] == 200
        desk.released.set()
        assert await gateway.drain() is True and (await slow)[0] == 200

    served(play)


def samples(text: str) -> dict[str, float]:
    """The samples of an exposition; fails on a line that is none."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_metrics_count_what_was_answered() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url)
        for tool in ("read", "read", "fault"):
            await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": tool})
        _, headers, body = await asked(url, "GET", "/metrics")
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(body.decode())
        assert found['omnia_requests_total{face="rest",status="200"}'] == 2
        assert found['omnia_requests_total{face="rest",status="201"}'] == 1
        assert found['omnia_requests_total{face="rest",status="500"}'] == 1
        assert found['omnia_request_seconds_count{face="rest"}'] == 4
        assert found['omnia_request_seconds_bucket{face="rest",le="+Inf"}'] == 4
        buckets = [v for k, v in found.items() if k.startswith('omnia_request_seconds_bucket{face="rest"')]
        assert buckets == sorted(buckets) and found["omnia_sessions"] == 1 and found["omnia_draining"] == 0

    served(play)


def test_logs_tell_faults_without_what_was_in_them(caplog: pytest.LogCaptureFixture) -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url, headers={"authorization": "Bearer a-token"})
        for tool in ("add", "fault", "mistake"):
            body = {"tool": tool, "arguments": {"n": 424242}} if tool == "add" else {"tool": tool}
            await asked(url, "POST", f"/v1/sessions/{session}/call", body, headers={"authorization": "Bearer a-token"})

    with caplog.at_level(logging.DEBUG, logger="agentomnia"):
        served(play, GatewaySettings(tokens={"a-token": "ann"}))
    lines = [json.loads(JsonLines().format(r)) for r in caplog.records if r.name.startswith("agentomnia")]
    faults = [line for line in lines if line["level"] == "warning"]
    assert [f["where"] for f in faults if f["owner"] == "environment"] == ["Counter.fault: ValueError"]
    assert [line["message"] for line in lines].count("request") == 2
    assert any("KeyError" in line.get("traceback", "") for line in lines)
    told = json.dumps(lines)
    assert not any(secret in told for secret in ("a-token", "424242", "secret-value"))


# The WebSocket


def test_one_socket_drives_many_sessions_in_both_encodings() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        async with aiohttp.ClientSession() as web, web.ws_connect(f"{url}/v1/ws") as socket:

            async def text(**frame: Any) -> Any:
                await socket.send_json(frame)
                return await socket.receive_json()

            async def binary(**frame: Any) -> Any:
                await socket.send_bytes(msgpack.packb(frame))
                return msgpack.unpackb(await socket.receive_bytes())

            one = (await text(id=1, op="open", environment="counter"))["value"]["session"]
            two = (await binary(id=2, op="open", task="count-7"))["value"]["session"]
            await text(id=3, op="call", session=one, tool="add", arguments={"n": 5})
            assert (await binary(id=4, op="call", session=two, tool="read")) == {
                "id": 4, "ok": True, "value": {"ok": True, "data": {"total": 0, "€": "ü"}},
            }  # fmt: skip
            taken = (await text(id=5, op="snapshot", session=one))["value"]["snapshot"]
            same = (await binary(id=6, op="snapshot", session=one))["value"]["snapshot"]
            assert base64.b64decode(taken) == same
            assert (await text(id=7, op="restore", session=two, snapshot=taken))["ok"]
            assert desk.sessions[two].total == 5
            for frame, status in (
                ({"op": "call", "session": "none", "tool": "read"}, 404),
                ({"op": "explode", "session": one}, 400),
                ({"op": "call", "session": one, "tool": "fault"}, 500),
                ({"op": "call", "session": one, "tool": "mistake"}, 503),
                ({"op": "restore", "session": one, "snapshot": "%"}, 400),
                ({"op": "open", "environment": "none"}, 422),
            ):
                answer = await text(id="x", **frame)
                assert answer["ok"] is False and answer["error"]["status"] == status, answer
            for nonsense in ("[]", "{", "[" * 100_000):
                await socket.send_str(nonsense)
                assert (await socket.receive_json())["error"]["status"] == 400
            await socket.send_bytes(b"\xc1")
            assert msgpack.unpackb(await socket.receive_bytes())["error"]["status"] == 400
        assert set(desk.sessions) == {one, two}
        found = samples((await asked(url, "GET", "/metrics"))[2].decode())
        assert found['omnia_requests_total{face="rest_ws",status="503"}'] == 1

    served(play)


def test_frames_are_worked_on_at_once_and_those_of_a_session_in_order() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        async with aiohttp.ClientSession() as web, web.ws_connect(f"{url}/v1/ws") as socket:
            one, two = await opened(url), await opened(url)
            await socket.send_json({"id": "slow", "op": "call", "session": one, "tool": "slow"})
            for n in range(600):  # more than are worked on at once
                await socket.send_json({"id": n, "op": "call", "session": two, "tool": "add", "arguments": {"n": 1}})
            totals = [(await socket.receive_json())["value"]["data"]["total"] for _ in range(600)]
            assert totals == list(range(1, 601))
            desk.released.set()
            assert (await socket.receive_json())["id"] == "slow"

    served(play)


def test_a_socket_that_drops_leaves_its_sessions_and_no_work() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        session = await opened(url)
        for _ in range(10):
            async with aiohttp.ClientSession() as web:
                socket = await web.ws_connect(f"{url}/v1/ws")
                await socket.send_json({"id": 1, "op": "call", "session": session, "tool": "slow"})
        desk.released.set()
        while gateway.gauges()["requests_in_flight"]:
            await asyncio.sleep(0.01)
        assert (await asked(url, "POST", f"/v1/sessions/{session}/call", {"tool": "read"}))[0] == 200

    served(play)


def test_frames_over_the_limit_are_refused() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        async with aiohttp.ClientSession() as web, web.ws_connect(f"{url}/v1/ws") as socket:
            await socket.send_bytes(b"x" * 20_000)
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            assert socket.close_code == 1009
        await opened(url)

    served(play, GatewaySettings(body_limit=10_000))


# The clients


def use(client: SandboxClient, desk: Desk) -> None:
    """What a trainer does."""
    assert [e["id"] for e in client.environments()] == ["counter"] and len(client.environment("counter")["tools"]) == 10
    assert [t.id for t in client.tasks("counter", "train")] == ["count-7", "count-8"] and len(client.tasks()) == 3
    assert client.task("count-9").query == "Count to 9."
    with client.open(task="count-7") as session, client.open("counter", state="high") as other:
        assert session.info.query == "Count to 7." and session.info.prompt and len(session.info.tools) == 2
        assert session.call("add", {"n": 3})["data"]["total"] == 3
        assert session.call("add", {"n": "x"})["ok"] is False
        snapshot, digest = session.snapshot(), session.digest()
        assert [r["data"]["total"] for r in session.batch([("add", {"n": 4}), ("read", {})])] == [7, 7]
        assert session.score("done").reward == 1.0 and session.score().failures == ("not there",)
        with session.fork() as fork:
            fork.restore(snapshot)
            assert fork.digest() == digest != session.digest()
        session.reset()
        assert session.digest() == session.info.digest and other.call("read", {})["data"]["total"] == 100
        assert client.session(other.id).info.environment == "counter"
        session.close()
    assert desk.sessions == {}


async def use_async(client: AsyncSandboxClient, desk: Desk) -> None:
    """The same without threads."""
    assert [e["id"] for e in await client.environments()] == ["counter"]
    assert len((await client.environment("counter"))["tools"]) == 10
    assert [t.id for t in await client.tasks("counter", "train")] == ["count-7", "count-8"]
    assert (await client.task("count-9")).query == "Count to 9."
    async with await client.open(task="count-7") as session, await client.open("counter", state="high") as other:
        assert session.info.query == "Count to 7."
        assert (await session.call("add", {"n": 3}))["data"]["total"] == 3
        snapshot, digest = await session.snapshot(), await session.digest()
        assert [r["data"]["total"] for r in await session.batch([("add", {"n": 4}), ("read", {})])] == [7, 7]
        assert (await session.score("done")).reward == 1.0
        async with await session.fork() as fork:
            await fork.restore(snapshot)
            assert await fork.digest() == digest != await session.digest()
        await session.reset()
        assert await session.digest() == session.info.digest
        assert (await other.call("read", {}))["data"]["total"] == 100
        assert (await client.session(other.id)).info.environment == "counter"
        await session.close()
    assert desk.sessions == {}


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_both_clients_drive_sessions(kind: str, tmp_path: Path) -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        with SandboxClient(url, "a-token") as client:
            await asyncio.to_thread(use, client, desk)
        async with AsyncSandboxClient(url, "a-token") as client_async:
            await use_async(client_async, desk)

    unix = tmp_path / "gateway.sock" if kind == "unix" else None
    served(play, GatewaySettings(tokens={"a-token": "ann"}), unix=unix)
    assert not list(tmp_path.iterdir())


def failure_of(action: Callable[[], object]) -> OmniaError:
    try:
        action()
    except OmniaError as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_come_back_as_they_were_raised() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        def sync() -> None:
            with SandboxClient(url, patience=0) as client:
                session = client.open("counter")
                for tool, kind in (
                    ("fault", EnvironmentFault), ("late", CallTimeout), ("wrong", EnvironmentFault),
                    ("gone", InfrastructureError), ("full", CapacityError), ("mistake", InfrastructureError),
                ):  # fmt: skip
                    assert type(failure_of(lambda tool=tool: session.call(tool, {}))) is kind, tool
                assert type(failure_of(lambda: session.restore(b"nonsense"))) is InputError
                assert type(failure_of(lambda: client.session("none"))) is InstanceError
                assert type(failure_of(lambda: client.open("none"))) is InputError
                big = failure_of(lambda: session.call("read", {"x": "y" * 3_000_000}))
                assert type(big) is InputError and "bytes" in str(big)
                assert session.call("read", {})["ok"]

        await asyncio.to_thread(sync)
        async with AsyncSandboxClient(url, patience=0) as client:
            session = await client.open("counter")
            with pytest.raises(CallTimeout):
                await session.call("late", {})
            with pytest.raises(InstanceError):
                await client.session("none")

    served(play, GatewaySettings(body_limit=1_000_000))


def test_clients_wait_for_room_and_never_repeat_what_may_have_happened() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        def wait_for_room() -> float:
            with SandboxClient(url) as client, client.open("counter"):
                began = time.monotonic()
                client.open("counter")
                return time.monotonic() - began

        waiting = asyncio.create_task(asyncio.to_thread(wait_for_room))
        while len(desk.sessions) < 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        desk.sessions.pop(next(iter(desk.sessions)))
        assert await waiting > 0.5

    served(play, most=1)


def test_a_server_that_is_not_there_is_infrastructure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with SandboxClient(f"http://127.0.0.1:{port}") as client:
        assert type(failure_of(lambda: client.environments())) is InfrastructureError

    async def async_client() -> None:
        async with AsyncSandboxClient(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(InfrastructureError):
                await client.environments()

    asyncio.run(async_client())
    for url in ("ftp://x", "nothing", "unix:"):
        with pytest.raises(InputError):
            SandboxClient(url)


def test_a_connection_that_breaks_under_a_call_is_not_tried_again() -> None:
    seen = []

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()
        await writer.wait_closed()

    async def play() -> None:
        server = await asyncio.start_server(break_off, "127.0.0.1", 0)
        async with server:
            with SandboxClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
                assert type(await asyncio.to_thread(failure_of, lambda: client.open("counter"))) is InfrastructureError
            assert len(seen) == 1

    asyncio.run(play())


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        with SandboxClient(url) as client:
            session = await asyncio.to_thread(client.open, "counter")
            client._idle[0].sock.shutdown(socket.SHUT_RD)
            assert (await asyncio.to_thread(session.call, "read", {}))["ok"]

    served(play)


# The server


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        with pytest.raises(InputError, match="choose another"):
            async with running(Desk(), port=urlsplit(url).port or 0):
                pass

    served(play)
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def over_a_left_socket(url: str, desk: Desk, gateway: Gateway) -> None:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InputError):
            async with running(Desk(), unix=path):
                pass

    served(over_a_left_socket, unix=path)


SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from sandbox_desk import Desk
from agentomnia.sandbox.server import serve
class Told(Desk):
    async def close(self):
        await super().close()
        print("closed", flush=True)
sys.exit(serve(Told(), port=0, ready=lambda address: print(address, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_served_process_says_where_it_is_and_ends_well_when_told_to(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert ask(address, "GET", "/health")[0] == 200
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert rest == "closed\n" and process.returncode == 0, errors
    assert all(json.loads(line) for line in errors.splitlines())

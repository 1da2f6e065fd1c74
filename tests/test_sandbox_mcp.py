"""The MCP face: both eras byte by byte, over HTTP and stdio, and the official clients of both majors and fastmcp."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentomnia.sandbox.faces import mcp
from agentomnia.sandbox.gateway import Gateway, GatewaySettings
from agentomnia.sandbox.stdio import serve_stdio
from client_venvs import client_python, run_client
from sandbox_desk import NAMES, Desk, served
from test_sandbox_rest import Reply, asked, samples

HERE = Path(__file__).parent
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def request_of(method: str, params: Mapping[str, Any] | None = None, id_: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, **({} if params is None else {"params": params})}


def modern_headers(message: Mapping[str, Any]) -> dict[str, str]:
    headers = {**JSON, "mcp-protocol-version": MODERN, "mcp-method": str(message["method"])}
    name = message.get("params", {}).get("name")
    return headers if name is None else {**headers, "mcp-name": name}


async def modern(url: str, path: str, method: str, params: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """A request as a client of the modern revision sends it."""
    message = request_of(method, {**(params or {}), "_meta": META})
    status, _, body = await asked(url, "POST", path, message, headers=modern_headers(message))
    return status, json.loads(body)


async def legacy(url: str, path: str, message: Any, version: str | None = "2025-11-25") -> Reply:
    """A message as a client of the handshake era sends it."""
    return await asked(
        url, "POST", path, message, headers={**JSON, **({"mcp-protocol-version": version} if version else {})}
    )


async def endpoint(desk: Desk, task: str | None = None) -> str:
    return f"/i/{(await desk.open('counter', task=task)).id}/mcp"


def test_the_modern_revision_discovers_lists_and_calls() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)
        status, told = await modern(url, path, "server/discover")
        result = told["result"]
        assert status == 200 and told["jsonrpc"] == "2.0" and told["id"] == 1
        assert result["supportedVersions"] == [MODERN] and result["capabilities"] == {"tools": {}}
        assert result["instructions"] == "You count. Grüße." and result["resultType"] == "complete"
        assert result["ttlMs"] > 0 and result["cacheScope"] == "private"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "agentomnia"
        status, told = await modern(url, path, "tools/list")
        assert [t["name"] for t in told["result"]["tools"]] == list(NAMES)
        assert all(t["inputSchema"]["type"] == "object" for t in told["result"]["tools"])
        assert told["result"]["resultType"] == "complete" and told["result"]["ttlMs"] > 0
        assert told == (await modern(url, path, "tools/list"))[1]
        status, told = await modern(url, path, "tools/call", {"name": "add", "arguments": {"n": 3}})
        result = told["result"]
        assert status == 200 and result["isError"] is False and result["resultType"] == "complete"
        assert result["structuredContent"] == {"ok": True, "data": {"total": 3, "€": "ü"}}
        (block,) = result["content"]
        assert (
            block["type"] == "text"
            and json.loads(block["text"]) == result["structuredContent"]
            and "ü" in block["text"]
        )
        assert (await modern(url, await endpoint(desk, "count-7"), "tools/list"))[1]["result"]["tools"][1][
            "name"
        ] == "add"

    served(play)


@pytest.mark.parametrize("version", [MODERN, *mcp.HANDSHAKE])
def test_mistakes_of_the_agent_are_results_and_everything_else_is_an_error(version: str) -> None:
    now = version == MODERN

    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)

        async def call(params: Any) -> tuple[int, Any]:
            if now:
                return await modern(url, path, "tools/call", params)
            status, _, body = await legacy(url, path, request_of("tools/call", params), version)
            return status, json.loads(body)

        for params in ({"name": "refuse"}, {"name": "add", "arguments": {"n": "three"}}, {"name": "add"}):
            status, told = await call(params)
            assert status == 200 and told["result"]["isError"] is True
            assert ("structuredContent" in told["result"]) == (version >= "2025-06-18")
            assert json.loads(told["result"]["content"][0]["text"])["ok"] is False
        for params in ({"name": "nothing"}, {"name": "add", "arguments": [3]}, {"arguments": {}}):
            status, told = await call(params)
            assert (status, told["error"]["code"], told["id"]) == (400 if now else 200, -32602, 1)
        for tool, status, code, owner in (
            ("fault", 500, -32603, "environment"),
            ("late", 500, -32603, "environment"),
            ("wrong", 500, -32603, "environment"),
            ("gone", 503, -32012, "infrastructure"),
            ("full", 429, -32011, "infrastructure"),
        ):
            got, told = await call({"name": tool})
            assert (got, told["error"]["code"]) == (status if now else 200, code), told
            assert told["error"]["data"]["owner"] == owner and told["id"] == 1
        assert (await call({"name": "read"}))[1]["result"]["isError"] is False
        found = samples((await asked(url, "GET", "/metrics"))[2].decode())
        assert found['omnia_requests_total{face="mcp",status="500"}'] == 3
        assert found['omnia_requests_total{face="mcp",status="429"}'] == 1

    served(play)


HEADERS: tuple[tuple[dict[str, str | None], int | None, int], ...] = (
    ({"mcp-protocol-version": "2025-11-25"}, -32020, 400),
    ({"mcp-protocol-version": None}, -32020, 400),
    ({"mcp-method": "tools/list"}, -32020, 400),
    ({"mcp-method": None}, -32020, 400),
    ({"mcp-name": "add"}, -32020, 400),
    ({"mcp-name": None}, -32020, 400),
    ({"mcp-name": "=?base64?%%%?="}, -32020, 400),
    ({"mcp-name": f"=?base64?{base64.b64encode(b'read').decode()}?="}, None, 200),
    ({"accept": None}, None, 200),
    ({"content-type": "text/plain"}, -32600, 415),
    ({"content-type": "application/json; charset=utf-8"}, None, 200),
    ({"mcp-session-id": "old", "last-event-id": "7"}, None, 200),
)


def test_headers_must_say_what_the_body_says() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        message = request_of("tools/call", {"name": "read", "_meta": META})
        for change, code, status in HEADERS:
            headers = {k: v for k, v in {**modern_headers(message), **change}.items() if v is not None}
            got, replied, body = await asked(url, "POST", await endpoint(desk), message, headers=headers)
            assert got == status and json.loads(body).get("error", {}).get("code") == code, (change, body)
            assert "mcp-session-id" not in replied

    served(play)


MESSAGES: tuple[tuple[Any, int | None, int], ...] = (
    (b"{", -32700, 400),
    (b"\xff", -32700, 400),
    (b"[" * 100_000, -32700, 400),
    (b"[]", -32600, 400),
    (b"7", -32600, 400),
    (b"[{}]", -32600, 400),
    ({"jsonrpc": "2.0", "id": None, "method": "tools/list", "params": {"_meta": META}}, -32600, 400),
    ({"jsonrpc": "2.0", "id": 1.5, "method": "tools/list", "params": {"_meta": META}}, -32600, 400),
    ({"jsonrpc": "1.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}, -32600, 400),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, -32602, 400),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {}}}, -32602, 400),
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META, "cursor": "x"}}, -32602, 400),
    ({"jsonrpc": "2.0", "method": "notifications/cancelled"}, None, 202),
    ({"jsonrpc": "2.0"}, -32600, 400),
)


def test_messages_that_are_none_are_refused() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        headers = {**JSON, "mcp-protocol-version": MODERN, "mcp-method": "tools/list"}
        for message, code, status in MESSAGES:
            sent = {"raw": message} if isinstance(message, bytes) else {"body": message}
            got, _, body = await asked(url, "POST", await endpoint(desk), headers=headers, **sent)
            assert got == status and (json.loads(body)["error"]["code"] if body else None) == code, (message, body)

    served(play)


def test_versions_and_methods_that_are_unknown_are_told_as_the_specification_wants() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)
        meta = {**META, "io.modelcontextprotocol/protocolVersion": "2030-01-01"}
        message = request_of("tools/list", {"_meta": meta})
        headers = {**JSON, "mcp-protocol-version": "2030-01-01", "mcp-method": "tools/list"}
        status, _, body = await asked(url, "POST", path, message, headers=headers)
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (400, -32022)
        assert error["data"] == {"supported": [MODERN], "requested": "2030-01-01"}
        for method in ("resources/list", "initialize", "ping", "subscriptions/listen"):
            status, told = await modern(url, path, method)
            assert (status, told["error"]["code"]) == (404, -32601)
        for method in ("GET", "DELETE", "PUT"):
            status, headers, _ = await asked(url, method, path)
            assert status == 405 and headers["allow"] == "POST"

    served(play)


@pytest.mark.parametrize("version", [*mcp.HANDSHAKE, None])
def test_the_handshake_revisions_are_still_spoken(version: str | None) -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)
        hello = request_of(
            "initialize", {"protocolVersion": version or "1999-01-01", "capabilities": {}, "clientInfo": {}}
        )
        status, headers, body = await legacy(url, path, hello, None)
        result = json.loads(body)["result"]
        assert (
            status == 200 and result["protocolVersion"] == (version or "2025-11-25") and "mcp-session-id" not in headers
        )
        assert result["serverInfo"]["name"] == "agentomnia" and result["capabilities"] == {"tools": {}}
        assert result["instructions"] == "You count. Grüße." and "resultType" not in result
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await legacy(url, path, ready, version))[::2] == (202, b"")
        assert json.loads((await legacy(url, path, request_of("ping", id_="p"), version))[2])["result"] == {}
        listed = json.loads((await legacy(url, path, request_of("tools/list"), version))[2])["result"]
        assert [t["name"] for t in listed["tools"]] == list(NAMES) and "ttlMs" not in listed
        status, _, body = await legacy(url, path, request_of("prompts/list"), version)
        assert status == 200 and json.loads(body)["error"]["code"] == -32601
        assert (await legacy(url, path, {"jsonrpc": "2.0", "id": 9, "result": {}}, version))[0] == 202

    served(play)


def test_batches_are_taken_where_the_revision_has_them() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)
        add = [request_of("tools/call", {"name": "add", "arguments": {"n": n}}, id_=n) for n in (1, 2, 3)]
        batch = [*add, {"jsonrpc": "2.0", "method": "notifications/initialized"}, request_of("nothing", id_=4)]
        status, _, body = await legacy(url, path, batch, "2025-03-26")
        answers = json.loads(body)
        assert status == 200 and [a["id"] for a in answers] == [1, 2, 3, 4] and "error" in answers[3]
        assert json.loads(answers[2]["result"]["content"][0]["text"])["data"]["total"] == 6
        assert (await legacy(url, path, batch[3:4], "2025-03-26"))[0] == 202
        assert (await legacy(url, path, batch * 20, "2025-03-26"))[0] == 400
        assert (await legacy(url, path, batch, "2025-06-18"))[0] == 400

    served(play)


def test_environments_can_be_looked_at_and_not_called() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = "/envs/counter/mcp"
        assert (await modern(url, path, "server/discover"))[1]["result"]["instructions"] == "It counts.\nBe exact."
        assert len((await modern(url, path, "tools/list"))[1]["result"]["tools"]) == len(NAMES)
        status, told = await modern(url, path, "tools/call", {"name": "read"})
        assert (status, told["error"]["code"]) == (400, -32600) and "session" in told["error"]["message"]
        for gone in ("/i/none/mcp", "/envs/none/mcp", "/i/none", "/i"):
            status, told = await modern(url, gone, "tools/list")
            assert status == 404 and told["error"]["code"] in (-32010, -32600)
        assert (await legacy(url, "/i/none/mcp", request_of("tools/list")))[0] == 404

    served(play)


def test_sessions_are_isolated_and_tenants_cannot_reach_each_others() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        one, two = [f"/i/{(await desk.open('counter', tenant=t)).id}/mcp" for t in ("ann", "bob")]
        message = request_of("tools/call", {"name": "add", "arguments": {"n": 3}, "_meta": META})

        async def call(path: str, token: str) -> tuple[int, Any]:
            headers = {**modern_headers(message), "authorization": f"Bearer {token}"}
            status, _, body = await asked(url, "POST", path, message, headers=headers)
            return status, json.loads(body)

        assert (await call(one, "a"))[0] == (await call(two, "b"))[0] == 200
        assert [s.total for s in desk.sessions.values()] == [3, 3]
        status, told = await call(one, "b")
        assert (status, told["error"]["code"]) == (404, -32010)
        status, told = await call(one, "wrong")
        assert status == 401 and told["error"]["data"]["owner"] == "caller"

    served(play, GatewaySettings(tokens={"a": "ann", "b": "bob"}))


def test_a_full_server_is_told_in_the_protocols_own_form() -> None:
    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        path = await endpoint(desk)
        slow = asyncio.create_task(modern(url, path, "tools/call", {"name": "slow"}))
        while not gateway.gauges()["requests_in_flight"]:
            await asyncio.sleep(0.01)
        status, told = await modern(url, path, "tools/call", {"name": "read"})
        assert (status, told["error"]["code"], told["id"]) == (429, -32011, None)
        desk.released.set()
        assert (await slow)[0] == 200

    served(play, GatewaySettings(in_flight=1))


# stdio


def spoken(lines: list[bytes]) -> list[Any]:
    """What a stdio server answers to these lines."""

    async def run() -> bytes:
        out = io.BytesIO()
        await serve_stdio(await Desk().open("counter"), io.BytesIO(b"\n".join(lines)), out)
        return out.getvalue()

    return [json.loads(line) for line in asyncio.run(run()).splitlines()]


def test_stdio_speaks_both_eras() -> None:
    def line(*message: Any, **more: Any) -> bytes:
        return json.dumps(request_of(*message, **more)).encode()

    answers = spoken(
        [
            line("server/discover", {"_meta": META}),
            line("tools/call", {"name": "add", "arguments": {"n": 2}, "_meta": META}),
            line("initialize", {"protocolVersion": "2025-06-18"}),
            b'{"jsonrpc": "2.0", "method": "notifications/initialized"}',
            b"",
            line("tools/call", {"name": "read"}),
            line("tools/call", {"name": "fault"}),
            line("tools/call", {"name": "mistake"}),
            line("tools/call", {"name": "nothing"}, id_="x"),
            b"nonsense",
            b"7",
            b"[" + line("ping", id_=8) + b"," + line("ping", id_=9) + b"]",
        ]
    )
    discovered, added, began, read, fault, mistake, unknown, nonsense, number, batch = answers
    assert discovered["result"]["supportedVersions"] == [MODERN]
    assert (
        added["result"]["structuredContent"]["data"]["total"] == 2
        and began["result"]["protocolVersion"] == "2025-06-18"
    )
    assert read["result"]["structuredContent"]["data"]["total"] == 2 and "resultType" not in read["result"]
    assert fault["error"]["code"] == -32603 and mistake["error"]["code"] == -32012
    assert (unknown["error"]["code"], unknown["id"]) == (-32602, "x")
    assert (nonsense["error"]["code"], number["error"]["code"]) == (-32700, -32600)
    assert [a["id"] for a in batch] == [8, 9]


STDIO = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from sandbox_desk import Desk, DeskSession
from agentomnia.sandbox.stdio import serve_stdio
class Loud(DeskSession):
    async def call(self, tool, arguments):
        print("loud")
        return await super().call(tool, arguments)
async def main():
    await serve_stdio(Loud(Desk(), "s", "local", 0, None))
asyncio.run(main())
"""
COMMAND = [sys.executable, "-c", STDIO, str(HERE)]


def test_a_stdio_server_ends_with_its_input_and_keeps_stdout_clean() -> None:
    sent = json.dumps(request_of("ping")) + "\n" + json.dumps(request_of("tools/call", {"name": "read"})) + "\n"
    done = subprocess.run(COMMAND, input=sent, capture_output=True, text=True, timeout=60, check=True)
    pong, read = map(json.loads, done.stdout.splitlines())
    assert pong == {"jsonrpc": "2.0", "id": 1, "result": {}} and read["result"]["isError"] is False
    assert done.stderr == "loud\n"


# Other people's clients

OLD, NEW, FAST = ("mcp-1", ("mcp>=1.30,<2",)), ("mcp-2", ("mcp>=2.3,<3",)), ("fastmcp", ("fastmcp>=4.2,<5",))


def check_report(report: dict[str, Any]) -> None:
    """What every client must have seen."""
    assert report["tools"] == list(NAMES)
    assert report["added"] == {"ok": True, "data": {"total": 3, "€": "ü"}} == json.loads(report["text"])
    assert report["errors"] == [True, True, False]
    assert {tool: told["code"] for tool, told in report["failures"].items()} == {
        "nothing": -32602, "fault": -32603, "gone": -32012, "full": -32011,
    }  # fmt: skip
    assert report["failures"]["fault"]["data"]["owner"] == "environment"
    assert report["failures"]["gone"]["data"]["owner"] == "infrastructure"


def reported(client: tuple[str, tuple[str, ...]], script: str, *words: str) -> dict[str, Any]:
    """What a client reports of a server with two sessions."""
    python, reports = client_python(*client), []

    async def play(url: str, desk: Desk, gateway: Gateway) -> None:
        urls = [url + await endpoint(desk) for _ in range(2)]
        reports.append(await asyncio.to_thread(run_client, python, HERE / "clients" / script, *words, *urls))
        assert [s.total for s in desk.sessions.values()] == [3, 0]

    served(play)
    report: dict[str, Any] = json.loads(reports[0])
    assert report["other"]["data"]["total"] == 0
    return report


@pytest.mark.slow
def test_the_official_client_of_the_first_major_version() -> None:
    report = reported(OLD, "mcp_old.py")
    check_report(report)
    assert report["version"] == "2025-11-25" and report["instructions"] == "You count. Grüße."
    assert report["hints"][:2] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "version"), [("auto", MODERN), (MODERN, MODERN), ("legacy", "2025-11-25")])
def test_the_official_client_of_the_second_major_version(mode: str, version: str) -> None:
    report = reported(NEW, "mcp_new.py", mode)
    check_report(report)
    assert report["version"] == version


@pytest.mark.slow
def test_the_fastmcp_client() -> None:
    check_report(reported(FAST, "fastmcp_client.py"))


@pytest.mark.slow
@pytest.mark.parametrize(("client", "words"), [(OLD, ()), (NEW, ("auto",)), (NEW, ("legacy",))])
def test_the_official_clients_over_stdio(client: tuple[str, tuple[str, ...]], words: tuple[str, ...]) -> None:
    script = "mcp_old.py" if client is OLD else "mcp_new.py"
    check_report(json.loads(run_client(client_python(*client), HERE / "clients" / script, *words, "--", *COMMAND)))

"""The OpenEnv face: the wire protocol by hand, and the clients that people use."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox.faces.openenv import OpenEnv
from agentomnia.sandbox.gateway import GatewaySettings
from agentomnia.sandbox.host import Host, HostSettings
from client_venvs import client_python, run_client
from sandbox_shop import DEPOT_ID, TILL_ID, Caller, only_face, played, served

WS = f"/e/{TILL_ID}/ws"
MCP = f"/e/{TILL_ID}/mcp"
CLIENTS = Path(__file__).parent / "clients"


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}}


def reset(**data: Any) -> dict[str, Any]:
    return {"type": "reset", "data": data}


def finish(content: str) -> dict[str, Any]:
    return {"type": "step", "data": {"type": "message", "content": content}}


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def rpc_result(caller: Caller, method: str, **params: Any) -> Any:
    told = (await caller.post(MCP, rpc(method, **params))).json
    assert "error" not in told, told
    return told["result"]


async def none_left(host: Host) -> None:
    async with asyncio.timeout(20):
        while host.gauges()["sessions"]:
            await asyncio.sleep(0.01)


# Episodes over the socket


def test_an_episode_is_rewarded_at_its_end_only() -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            begun = (await socket.say(reset(task="leave-7", episode_id="e1")))["data"]
            assert begun["reward"] is None and begun["done"] is False
            assert begun["observation"]["query"] == "Leave 7 in a1 and say so."
            assert "Be exact." in begun["observation"]["prompt"] and begun["observation"]["num_tools"] == 2
            assert begun["metadata"]["episode_id"] == "e1" and begun["observation"]["task_id"] == "leave-7"
            paid = await socket.say(call("pay", account="a1", amount=3))
            assert paid == {
                "type": "observation",
                "data": {
                    "observation": {
                        "tool_name": "pay",
                        "result": {"ok": True, "data": {"left": 7, "memo": "none"}},
                        "error": None,
                        "metadata": {},
                    },
                    "reward": None,
                    "done": False,
                },
            }
            ended = (await socket.say(finish('{"left": 7}')))["data"]
            assert ended["reward"] == 1.0 and ended["done"] is True and ended["metadata"]["failures"] == []
            again = (await socket.say(finish("something else")))["data"]
            assert again["reward"] == 1.0, "a second message must not be graded again"
            refused = await socket.say(call("look", account="a1"))
            assert refused["type"] == "error" and refused["data"]["owner"] == "caller"
            state = (await socket.say({"type": "state"}))["data"]
            assert (state["step_count"], state["episode_id"], state["done"]) == (1, "e1", True)

    played(play)


def test_awm_names_end_an_episode_and_the_environment_s_own_tools_go_first() -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            await socket.say(reset(task="leave-7"))
            judged = (await socket.say(call("verify", verifier_mode="code", final_answer="?")))["data"]
            assert judged["reward"] == 0.0 and judged["done"] and judged["metadata"]["failures"]
            done = (await socket.say(call("done", keep_session=False)))["data"]
            assert done["done"] and done["reward"] == 0.0
            await socket.say(reset())
            unjudged = (await socket.say(call("done")))["data"]
            assert unjudged["done"] and unjudged["reward"] is None

    played(play)


@pytest.mark.parametrize(
    ("chosen", "task"),
    [
        ({"task": "leave-6"}, "leave-6"),
        ({"task_id": "leave-6"}, "leave-6"),
        ({"task": {"id": "leave-6", "query": "…"}}, "leave-6"),
        ({"split": "hard", "index": 0}, "leave-900"),
        ({"task_index": 1}, "leave-6"),
        ({"seed": 3}, "leave-6"),
        ({"seed": 4, "split": "hard"}, "leave-900"),
        ({"state": "rich"}, None),
        ({"seed": None, "unknown": 1}, None),
    ],
)
def test_a_reset_says_where(chosen: dict[str, Any], task: str | None) -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            begun = (await socket.say(reset(**chosen)))["data"]["observation"]
            assert begun["task_id"] == task
            looked = await socket.say(call("look", account="a1"))
            balance = looked["data"]["observation"]["result"]["data"]["balance"]
            assert balance == (1000 if chosen.get("state") == "rich" or task == "leave-900" else 10)
            assert (await socket.say(reset()))["data"]["observation"]["task_id"] == task, "it goes back to where it was"

    played(play)


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "depot-4"}, {"task": "none"}, {"split": "none", "index": 0}, {"index": 9}, {"index": -1},
        {"seed": -1}, {"seed": "x"}, {"seed": True}, {"state": "none"}, {"episode_id": "x" * 256},
    ],
)  # fmt: skip
def test_a_wrong_reset_is_the_caller_s_and_costs_nothing(wrong: dict[str, Any]) -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            await socket.say(reset(task="leave-7"))
            await socket.say(call("pay", account="a1", amount=3))
            refused = await socket.say(reset(**wrong))
            assert (refused["type"], refused["data"]["code"]) == ("error", "VALIDATION_ERROR"), refused
            assert (await socket.say(finish('{"left": 7}')))["data"]["reward"] == 1.0, "the episode goes on"

    played(play)


def test_tools_are_listed_before_a_reset_and_opening_waits_for_the_first_use() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            listed = await socket.say({"type": "step", "data": {"type": "list_tools"}})
            tools = listed["data"]["observation"]["tools"]
            assert [t["name"] for t in tools] == ["pay", "look", "breaks", "talk"]
            assert tools[0].keys() == {"name", "description", "input_schema"}
            assert (await socket.say({"type": "state"}))["data"]["step_count"] == 0
            assert host.gauges()["sessions"] == 0
            await socket.say(reset(task="leave-7"))
            listed = await socket.say({"type": "step", "data": {"type": "list_tools"}})
            assert [t["name"] for t in listed["data"]["observation"]["tools"]] == ["pay", "look"]

    played(play)


# Whose fault it is


def test_the_agent_s_faults_are_observations() -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            await socket.say(reset(task="leave-7"))
            for asked, kind, code in (
                (call("fly"), "tool_not_found", None),
                (call("breaks"), "tool_not_found", None),  # the task does not expose it
                (call("pay", account="a1"), "invalid_args", "invalid_argument"),
                (call("pay", account="a1", amount="3"), "invalid_args", "invalid_argument"),
                (call("pay", account="a1", amount=99), None, "precondition_failed"),
                (call("pay", account="zz", amount=1), None, "not_found"),
            ):
                told = await socket.say(asked)
                seen = told["data"]["observation"]
                assert told["type"] == "observation" and told["data"]["reward"] is None
                assert (seen["error"] or {}).get("error_type") == kind
                assert (seen["result"] or {}).get("error", {}).get("code") == code

    played(play)


def test_the_environment_s_faults_are_error_frames_and_a_reset_clears_them() -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            told = await socket.say(call("breaks"))
            assert (told["type"], told["data"]["code"], told["data"]["owner"]) == (
                "error", "EXECUTION_ERROR", "environment",
            )  # fmt: skip
            assert (await socket.say(call("look", account="a1")))["data"]["code"] == "EXECUTION_ERROR"
            await socket.say(reset())
            assert (await socket.say(call("look", account="a1")))["type"] == "observation"
            by_rpc = await caller.post(MCP, rpc("tools/call", name="breaks"))
            assert by_rpc.json["error"]["code"] == -32603 and by_rpc.json["error"]["data"]["owner"] == "environment"

    played(play)


def test_infrastructure_is_never_an_observation() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            name = (await socket.say(reset(task="leave-7")))["data"]["metadata"]["session_id"]
            host.session(name).call = broken  # type: ignore[method-assign]
            told = await socket.say(call("look", account="a1"))
            assert (told["data"]["code"], told["data"]["owner"]) == ("SESSION_ERROR", "infrastructure")
            by_rpc = (await caller.post(MCP, rpc("tools/call", name="look", session_id=name))).json
            assert by_rpc["error"]["code"] == -32000 and by_rpc["error"]["data"]["owner"] == "infrastructure"
            action = {"session_id": name, "action": {"tool_name": "look"}}
            assert (await caller.post(f"/e/{TILL_ID}/step", action)).status == 503
            metrics = (await caller.get("/metrics")).body.decode()
            counted = re.findall(r'requests_total{face="(openenv\w*)",status="(\d+)"} (\d+)', metrics)
            assert counted == [("openenv", "503", "2"), ("openenv_ws", "200", "1"), ("openenv_ws", "503", "1")]

    async def broken(tool: str, arguments: Any) -> Any:
        raise InfrastructureError("the worker is gone; drop this rollout")

    played(play)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "INVALID_JSON"), ("NaN", "INVALID_JSON"), ([1], "VALIDATION_ERROR"), ({"type": "fly"}, "UNKNOWN_TYPE"),
        ({"type": "step"}, "VALIDATION_ERROR"), ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": [1]}, "VALIDATION_ERROR"), ({"type": "reset", "data": 1}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"tool_name": "look", "args": {}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"tool_name": "look", "arguments": "{}"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": {}}}, "VALIDATION_ERROR"), ({"type": ["x"]}, "UNKNOWN_TYPE"),
        ({"type": "step", "data": {"type": "list_tools"}, "more": 1}, "VALIDATION_ERROR"),
    ],
)  # fmt: skip
def test_frames_that_are_none_are_told_by_code(frame: Any, code: str) -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            told = await socket.say(frame)
            assert (told["type"], told["data"]["code"], told["data"]["owner"]) == ("error", code, "caller")
            assert told["data"]["message"]
            assert (await socket.say({"type": "state"}))["type"] == "state", "the socket goes on"

    played(play)


# Sockets and sessions


def test_sessions_are_apart() -> None:
    async def play(_: Host, caller: Caller) -> None:
        async with caller.socket(WS) as one, caller.socket(WS) as other:
            for socket in (one, other):
                await socket.say(reset(task="leave-7"))
            await one.say(call("pay", account="a1", amount=3))
            seen = await other.say(call("look", account="a1"))
            assert seen["data"]["observation"]["result"]["data"]["balance"] == 10
            digests = {(await s.say({"type": "state"}))["data"]["digest"] for s in (one, other)}
            assert len(digests) == 2

    played(play)


def test_close_ends_a_session_and_a_drop_lets_it_wait() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            name = (await socket.say(reset(task="leave-7")))["data"]["metadata"]["session_id"]
            await socket.say(call("pay", account="a1", amount=3))
        assert host.gauges()["sessions"] == 1
        async with caller.socket(f"{WS}?session_id={name}") as socket:
            assert (await socket.say(finish('{"left": 7}')))["data"]["reward"] == 1.0
            assert (await socket.say({"type": "close"}))["type"] == "websocket.close"
        await none_left(host)
        async with caller.socket(f"{WS}?session_id={name}") as socket:
            told = await socket.hear()
            assert told["data"]["code"] == "SESSION_ERROR"
            assert (await socket.hear())["type"] == "websocket.close"

    played(play)


def test_a_second_socket_takes_a_session_over_from_a_half_open_one() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as old:
            name = (await old.say(reset(task="leave-7")))["data"]["metadata"]["session_id"]
            async with caller.socket(f"{WS}?session_id={name}") as new:
                await new.say(call("pay", account="a1", amount=3))
                assert (await old.hear())["code"] == 4001
                await old.drop()
                assert (await new.say(finish('{"left": 7}')))["data"]["reward"] == 1.0

    played(play)


def test_a_session_of_another_face_can_be_used_here() -> None:
    async def play(host: Host, caller: Caller) -> None:
        session = await host.open(TILL_ID, task="leave-7")
        async with caller.socket(f"{WS}?session_id={session.id}") as socket:
            await socket.say(call("pay", account="a1", amount=3))
            await socket.say({"type": "close"})
        assert (await session.score('{"left": 7}')).reward == 1.0, "it was not this face's to close"
        async with caller.socket(f"/e/{DEPOT_ID}/ws?session_id={session.id}") as socket:
            assert (await socket.hear())["data"]["code"] == "SESSION_ERROR"

    played(play)


def test_a_session_whose_lease_ended_says_so_and_a_reset_opens_another() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as socket:
            name = (await socket.say(reset(task="leave-7")))["data"]["metadata"]["session_id"]
            await host.session(name).close()
            assert (await socket.say(call("look", account="a1")))["data"]["code"] == "SESSION_ERROR"
            begun = await socket.say(reset())
            assert begun["data"]["observation"]["task_id"] == "leave-7"
            assert (await socket.say(call("look", account="a1")))["type"] == "observation"

    played(play)


def test_another_task_is_another_instance_under_every_name() -> None:
    async def play(host: Host, caller: Caller) -> None:
        first = (await rpc_result(caller, "openenv/session/create"))["session_id"]
        async with caller.socket(f"{WS}?session_id={first}") as socket:
            second = (await socket.say(reset(task="leave-900")))["data"]["metadata"]["session_id"]
            assert host.gauges()["sessions"] == 1
        for name in (first, second):
            seen = await rpc_result(caller, "tools/call", name="look", arguments={"account": "a1"}, session_id=name)
            assert seen["data"]["balance"] == 1000

    played(play)


def test_where_there_is_no_room_the_socket_is_told_and_closed() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as one, caller.socket(WS) as other:
            await one.say(reset())
            told = await other.say(reset())
            assert told["data"]["code"] == "CAPACITY_REACHED" and told["data"]["owner"] == "infrastructure"
            assert (await other.hear())["code"] == 1013
            by_rpc = (await caller.post(MCP, rpc("openenv/session/create"))).json
            assert by_rpc["error"]["code"] == -32000 and by_rpc["error"]["data"]["kind"] == "CapacityError"
            assert (await one.say(call("look", account="a1")))["type"] == "observation", "the others go on"

    played(play, HostSettings(sessions=1))


def test_a_dropped_session_gives_its_place_to_a_new_one() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(WS) as gone:
            name = (await gone.say(reset()))["data"]["metadata"]["session_id"]
        async with caller.socket(WS) as fresh:
            assert (await fresh.say(reset()))["type"] == "observation"
            async with caller.socket(f"{WS}?session_id={name}") as back:
                assert (await back.hear())["data"]["code"] == "SESSION_ERROR"

    played(play, HostSettings(sessions=1))


def test_aborted_rollouts_leave_nothing_behind() -> None:
    async def play(host: Host, _: Caller) -> None:
        face = OpenEnv(host, grace_seconds=0.05)
        async with only_face(host, "e", face) as caller:
            for _i in range(20):
                async with caller.socket(WS) as socket:
                    await socket.say(reset(task="leave-7"))
            await none_left(host)
        assert host.gauges()["sessions_opened"] == 20 and not face.episodes._known

    played(play)


def test_tenants_do_not_meet() -> None:
    async def play(host: Host, caller: Caller) -> None:
        one, other = ({"authorization": f"Bearer {token}"} for token in ("t1", "t2"))
        async with caller.socket(WS, **one) as socket:
            name = (await socket.say(reset()))["data"]["metadata"]["session_id"]
            async with caller.socket(f"{WS}?session_id={name}", **other) as thief:
                assert (await thief.hear())["data"]["code"] == "SESSION_ERROR"
            told = await caller.post(MCP, rpc("tools/call", name="look", session_id=name), **other)
            assert told.json["error"]["code"] == -32602
            assert (await caller.post(MCP, rpc("tools/list"))).status == 401

    played(play, gateway=GatewaySettings(tokens={"t1": "one", "t2": "two"}))


# HTTP and JSON-RPC


def test_json_rpc_makes_calls_and_ends_sessions() -> None:
    async def play(host: Host, caller: Caller) -> None:
        listed = await rpc_result(caller, "tools/list")
        assert [t["name"] for t in listed["tools"]][:2] == ["pay", "look"] and "inputSchema" in listed["tools"][0]
        name = (await rpc_result(caller, "openenv/session/create"))["session_id"]
        paid = await rpc_result(
            caller, "tools/call", name="pay", arguments={"account": "a1", "amount": 3}, session_id=name
        )
        assert paid["data"] == {"left": 7, "memo": "none"} and not paid["is_error"]
        assert json.loads(paid["content"][0]["text"]) == paid["structured_content"]
        refused = await rpc_result(
            caller, "tools/call", name="pay", arguments={"account": "a1", "amount": 99}, session_id=name
        )
        assert refused["is_error"] and refused["data"]["error"]["code"] == "precondition_failed"
        async with caller.socket(f"{WS}?session_id={name}") as socket:
            closing = await rpc_result(caller, "openenv/session/close", session_id=name)
            assert closing == {"session_id": name, "closed": False, "closing": True}
            told = await socket.say({"type": "mcp", "data": rpc("openenv/session/close", session_id=name)})
            assert told["data"]["error"]["code"] == -32600
            inside = await socket.say(
                {"type": "mcp", "data": rpc("tools/call", name="look", arguments={"account": "a1"})}
            )
            assert inside["data"]["result"]["data"]["balance"] == 7
        await none_left(host)
        for _ in range(2):
            name = (await rpc_result(caller, "openenv/session/create"))["session_id"]
            assert (await rpc_result(caller, "openenv/session/close", session_id=name))["closed"]
            gone = (await caller.post(MCP, rpc("openenv/session/close", session_id=name))).json
            assert gone["error"]["code"] == -32602
        assert host.gauges()["sessions"] == 0

    played(play)


def test_a_socket_of_bare_json_rpc() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async with caller.socket(MCP) as socket:
            told = await socket.say(rpc("tools/call", name="pay", arguments={"account": "a1", "amount": 3}))
            assert told["result"]["data"]["left"] == 7
            told = await socket.say(rpc("tools/call", name="look", arguments={"account": "a1"}))
            assert told["result"]["data"]["balance"] == 7
            assert (await socket.say("{"))["error"]["code"] == -32700

    played(play)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700), ({}, -32600), ([], -32600), ({"jsonrpc": "2.0", "method": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": [1]}, -32602),
        (rpc("initialize"), -32601), (rpc("tools/call"), -32602), (rpc("tools/call", name="fly"), -32602),
        (rpc("tools/call", name="look", arguments=[1]), -32602), (rpc("openenv/session/close"), -32602),
        (rpc("tools/list", session_id="nobody"), -32602),
    ],
)  # fmt: skip
def test_json_rpc_errors_have_their_numbers(body: Any, code: int) -> None:
    async def play(host: Host, caller: Caller) -> None:
        answer = await caller.post(MCP, body)
        assert answer.status == 200 and answer.json["jsonrpc"] == "2.0" and answer.json["error"]["code"] == code

    played(play)


def test_http_is_stateless_unless_a_session_is_named() -> None:
    async def play(host: Host, caller: Caller) -> None:
        base = f"/e/{TILL_ID}"
        begun = (await caller.post(f"{base}/reset", {"task": "leave-7"})).json
        assert begun["observation"]["query"] and "session_id" not in begun["observation"]["metadata"]
        step = {"action": {"tool_name": "pay", "arguments": {"account": "a1", "amount": 3}}}
        for _ in range(2):
            told = (await caller.post(f"{base}/step", step)).json
            assert told["observation"]["result"]["data"]["left"] == 7 and told["reward"] is None
        assert host.gauges()["sessions"] == 0
        name = (await rpc_result(caller, "openenv/session/create"))["session_id"]
        await caller.post(f"{base}/reset", {"task": "leave-7", "session_id": name})
        await caller.post(f"{base}/step", {**step, "session_id": name})
        ended = {"action": {"type": "message", "content": '{"left": 7}'}, "session_id": name}
        assert (await caller.post(f"{base}/step", ended)).json["reward"] == 1.0
        assert (await caller.get(f"{base}/state?session_id={name}")).json["step_count"] == 1
        assert (await caller.get(f"{base}/state")).json["step_count"] == 0
        assert (await caller.post(f"{base}/step", {"action": 1})).status == 422
        assert (await caller.get(f"{base}/state?session_id=nobody")).status == 404

    played(play)


def test_what_is_told_of_an_environment() -> None:
    async def play(host: Host, caller: Caller) -> None:
        base = f"/e/{TILL_ID}"
        assert (await caller.get(f"{base}/health")).json == {"status": "healthy"}
        assert (await caller.get(f"{base}/metadata")).json["name"] == "Till"
        assert {"action", "observation", "state"} <= (await caller.get(f"{base}/schema")).json.keys()
        described = (await caller.get(f"{base}/openapi.json")).json
        assert described["info"]["version"].startswith("1.")
        assert {"/reset", "/step", "/state"} <= described["paths"].keys()
        assert (await caller.get(f"{base}/list_environments")).json == [TILL_ID]
        own = f"{base}/{TILL_ID.lower()}"
        assert [s["type"] for s in (await caller.get(f"{own}/splits")).json] == ["train", "validation"]
        tasks = (await caller.post(f"{own}/tasks", {"split": "train"})).json["tasks"]
        assert [t["id"] for t in tasks] == ["leave-7", "leave-6"] and "criterion" not in json.dumps(tasks)
        assert (await caller.post(f"{own}/num_tasks", {"split": "hard"})).json == {"num_tasks": 2}
        assert (await caller.post(f"{own}/task", {"split": "train", "index": 1})).json["task"]["id"] == "leave-6"
        ranged = (await caller.post(f"{own}/task_range", {"split": "train", "start": -1})).json["tasks"]
        assert [t["id"] for t in ranged] == ["leave-6"]
        assert (await caller.post(f"{own}/task", {"split": "train", "index": 2})).status == 400
        assert (await caller.get(f"{base}/{DEPOT_ID}/splits")).status == 404
        assert (await caller.get("/e/Nothing/health")).status == 404
        assert (await caller.ask("DELETE", f"{base}/health")).status == 405

    played(play)


# Real clients


@pytest.mark.clients
def test_the_package_s_own_clients() -> None:
    python = client_python("openenv", ["openenv==0.10.0"])

    def play(address: str) -> str:
        return run_client(python, CLIENTS / "openenv_client.py", f"{address}/e/{TILL_ID}", seconds=400)

    told, left = served(play, HostSettings(sessions=3))
    assert json.loads(told.splitlines()[-1]) == {"passed": "all"}
    assert left == 0

"""What the package `openenv` sees of a server: its generic client, its MCP client and its validator.

Runs under an interpreter that has the package; the argument is the base URL of one environment.
"""

import asyncio
import json
import subprocess
import sys

from openenv.cli._validation import validate_running_environment
from openenv.core import GenericEnvClient
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

BASE = sys.argv[1]


def pay(amount, account="a1"):
    return {"type": "call_tool", "tool_name": "pay", "arguments": {"account": account, "amount": amount}}


async def generic():
    async with GenericEnvClient(base_url=BASE) as env:
        begun = await env.reset(task="leave-7")
        assert begun.observation["query"] and begun.reward is None and not begun.done
        listed = await env.step({"type": "list_tools"})
        assert [t["name"] for t in listed.observation["tools"]] == ["pay", "look"]
        assert (await env.step(pay(99))).observation["result"]["error"]["code"] == "precondition_failed"
        assert (await env.step(pay("x"))).observation["error"]["error_type"] == "invalid_args"
        assert (await env.step(pay(3))).observation["result"]["data"]["left"] == 7
        assert (await env.state())["step_count"] == 3
        ended = await env.step({"type": "message", "content": '{"left": 7}'})
        assert ended.reward == 1.0 and ended.done and ended.metadata["failures"] == []
        try:
            await env.reset(task="nothing")
        except RuntimeError as error:
            assert "VALIDATION_ERROR" in str(error)
        else:
            raise AssertionError("an unknown task was taken")


async def two_sessions():
    async with GenericEnvClient(base_url=BASE) as one, GenericEnvClient(base_url=BASE) as other:
        await one.reset(task="leave-7")
        await other.reset(task="leave-7")
        await one.step(pay(3))
        look = {"type": "call_tool", "tool_name": "look", "arguments": {"account": "a1"}}
        assert (await other.step(look)).observation["result"]["data"]["balance"] == 10
        assert (await one.step(look)).observation["result"]["data"]["balance"] == 7


async def mcp():
    async with MCPToolClient(base_url=BASE) as env:
        tools = await env.list_tools()
        assert [t.name for t in tools][:2] == ["pay", "look"] and tools[0].input_schema["required"]
        await env.reset(task="leave-7")
        assert (await env.call_tool("pay", account="a1", amount=3)) == {"left": 7, "memo": "none"}
        refused = await env.call_tool("pay", account="a1", amount=99)
        assert refused["error"]["code"] == "precondition_failed"
        try:
            await env.call_tool("fly")
        except RuntimeError as error:
            assert "not found" in str(error)
        else:
            raise AssertionError("an unknown tool was called")
        seen = await env.step(CallToolAction(tool_name="look", arguments={"account": "a1"}))
        assert seen.observation.result["data"]["balance"] == 7, "both halves of the client see one instance"
        judged = await env.step(CallToolAction(tool_name="verify", arguments={"final_answer": '{"left": 7}'}))
        assert judged.reward == 1.0 and judged.done
        assert (await env.state()).step_count == 3


async def faults():
    async with MCPToolClient(base_url=BASE) as env:
        try:
            await env.call_tool("breaks")
        except RuntimeError as error:
            assert "stuck" in str(error)
        else:
            raise AssertionError("a fault was told as an answer")
        await env.reset()
        assert (await env.call_tool("look", account="a1"))["balance"] == 10


async def capacity():
    clients = [GenericEnvClient(base_url=BASE) for _ in range(3)]
    for client in clients:
        await client.reset()
    one_too_many = GenericEnvClient(base_url=BASE)
    try:
        await one_too_many.reset()
    except RuntimeError as error:
        assert "CAPACITY_REACHED" in str(error), error
    else:
        raise AssertionError("there was room for a fourth session")
    try:
        async with MCPToolClient(base_url=BASE):
            raise AssertionError("there was room for a fourth session")
    except RuntimeError as error:
        assert "no room" in str(error), error
    await one_too_many.close()
    for client in clients:
        await client.close()


async def come_back():
    lost = GenericEnvClient(base_url=BASE)
    name = (await lost.reset(task="leave-7")).metadata["session_id"]
    await lost.step(pay(3))
    lost._ws.transport.abort()  # the network is gone
    back = GenericEnvClient(base_url=BASE)
    back._ws_url += f"?session_id={name}"
    ended = await back.step({"type": "message", "content": '{"left": 7}'})
    assert ended.reward == 1.0
    await back.close()


def synchronous():
    with GenericEnvClient(base_url=BASE).sync() as env:
        env.reset(seed=1)
        assert env.step(pay(4)).observation["result"]["data"]["left"] == 6
        assert env.step({"type": "message", "content": '{"left": 6}'}).reward == 1.0


async def main():
    for play in (generic, two_sessions, mcp, faults, capacity, come_back):
        await asyncio.wait_for(play(), 20)


asyncio.run(main())
synchronous()
report = validate_running_environment(BASE)
assert report["passed"], json.dumps(report, indent=1)
assert report["mode"] == "simulation" and report["standard_profile"] == "openenv-http/1.x"
command = [sys.executable, "-m", "openenv.cli", "validate", "--url", BASE]
done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
assert done.returncode == 0, done.stdout + done.stderr
print(json.dumps({"passed": "all"}))

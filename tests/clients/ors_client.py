"""What the package `openreward` sees of a server. The argument is the server's address."""

import asyncio
import json
import os
import sys

BASE = sys.argv[1]
# the client puts subdomains before a base URL; of a server of one's own, the two addresses are given
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"
os.environ["OPENREWARD_SESSION_URL"] = os.environ["OPENREWARD_API_URL"] = BASE

import aiohttp  # noqa: E402
from openreward import AsyncOpenReward, OpenReward  # noqa: E402
from openreward.api.errors import SessionTerminatedError, ToolCallError, ToolFailed  # noqa: E402

TILL, DEPOT = "Till-1a", "Depot-2b"


async def episode(environments):
    env = environments.get(TILL)
    assert await env.list_splits() == ["train", "hard"]
    assert await env.num_tasks("train") == 2
    tasks = await env.list_tasks("train")
    assert [t.task_spec["id"] for t in tasks] == ["leave-7", "leave-6"]
    assert (await env.get_task("train", 1)).task_spec["id"] == "leave-6"
    assert [t.task_spec["id"] for t in await env.get_task_range("train", start=1)] == ["leave-6"]
    assert await env.is_assistant_message_final()
    async with env.session(task=tasks[0]) as session:
        prompt = await session.get_prompt()
        assert prompt[-1].text == "Leave 7 in a1 and say so."
        assert [m["role"] for m in await session.get_messages("openai")] == ["system", "user"]
        assert [t.name for t in await session.list_tools()] == ["pay", "look", "submit_answer"]
        paid = await session.call_tool("pay", {"account": "a1", "amount": 3})
        assert json.loads(paid.blocks[0].text)["data"]["left"] == 7 and paid.reward is None and not paid.finished
        for name, given, reason in (("fly", {}, "not_found"), ("pay", {"account": "a1"}, "input_validation")):
            try:
                await session.call_tool(name, given)
            except ToolCallError as error:
                assert error.reason == reason
            else:
                raise AssertionError(f"{name} was taken")
        refused = await session.call_tool("pay", {"account": "a1", "amount": 99})
        assert "precondition_failed" in refused.blocks[0].text
        ended = await session.call_terminal_tool('{"left": 7}')
        assert ended.reward == 1.0 and ended.finished
        try:
            await session.call_tool("look", {"account": "a1"})
        except ToolCallError as error:
            assert error.reason == "episode_finished"
        else:
            raise AssertionError("the episode went on")


async def two_sessions(environments):
    one, other = environments.get(TILL, variant=TILL), environments.get("anything", variant=DEPOT)
    async with one.session(split="train", index=0) as here, other.session(split="train", index=0) as there:
        await here.call_tool("pay", {"account": "a1", "amount": 3})
        seen = json.loads((await there.call_tool("look", {"account": "a1"})).blocks[0].text)
        assert seen["data"]["balance"] == 10
        assert (await there.get_prompt())[-1].text == "Leave 4 in a1 and say so."


async def faults(environments):
    async with environments.get(TILL).session(split="hard", index=1) as session:
        try:
            await session.call_tool("breaks")
        except ToolFailed as error:
            assert "stuck" in str(error)
        else:
            raise AssertionError("a fault was told as an answer")
        try:
            await session.call_tool("look", {"account": "a1"})
        except SessionTerminatedError:
            pass
        else:
            raise AssertionError("the session went on")


async def capacity(environments):
    env = environments.get(TILL)
    sessions = [env.session(split="train", index=0) for _ in range(3)]
    for session in sessions:
        await session.__aenter__()
    try:
        async with env.session(split="train", index=0):
            raise AssertionError("there was room for a fourth session")
    except aiohttp.ClientResponseError as error:
        assert error.status == 429, repr(error)
    for session in sessions:
        await session.__aexit__(None, None, None)


async def long_answers(environments):
    async with environments.get(TILL).session(split="hard", index=1) as session:
        told = await session.call_tool("talk", {"times": 4001})
        assert json.loads(told.blocks[0].text)["data"] == "a b  c   " * 4001


async def main():
    async with AsyncOpenReward(api_key="none").environments as environments:
        for play in (episode, two_sessions, faults, long_answers, capacity):
            await asyncio.wait_for(play(environments), 30)


def synchronous():
    with OpenReward(api_key="none") as client:
        env = client.environments.get(TILL)
        with env.session(split="train", index=1) as session:
            session.call_tool("pay", {"account": "a1", "amount": 4, "memo": None})
            assert session.call_tool("submit_answer", {"message": '{"left": 6}'}).reward == 1.0


asyncio.run(main())
synchronous()
print(json.dumps({"passed": "all"}))

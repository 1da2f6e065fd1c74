"""The ORS face: its routes by hand, and the clients that people use."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox.faces.ors import Ors
from agentomnia.sandbox.gateway import GatewaySettings
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.session import HostedSession
from client_venvs import client_python, run_client
from sandbox_shop import DEPOT_ID, TILL_ID, Answer, Caller, only_face, played, served

CLIENTS = Path(__file__).parent / "clients"


async def opened(caller: Caller, **task: Any) -> dict[str, str]:
    """A session at a task; the header that names it."""
    made = await caller.post("/create_session")
    assert [name for name, _ in made.events] == ["task_id", "end"]
    headers = {"x_session_id": made.events[0][1]}
    answer = await caller.post("/create", task or {"split": "train", "index": 0}, **headers)
    assert answer.status == 200 and answer.json == {"sid": headers["x_session_id"]}, answer.body
    return headers


async def call(caller: Caller, headers: dict[str, str], name: str, **arguments: Any) -> Any:
    """One call; the tool's answer."""
    return read(await caller.post(f"/{TILL_ID}/call", {"name": name, "input": arguments}, **headers))


def read(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    events = answer.events
    assert events[0][0] == "task_id" and events[-1][0] == "end", events
    return json.loads("".join(data for name, data in events if name in ("chunk", "end")))


def test_an_episode_is_rewarded_by_its_last_message() -> None:
    async def play(host: Host, caller: Caller) -> None:
        headers = await opened(caller)
        prompt = (await caller.get("/prompt", **headers)).json
        assert "Be exact." in prompt[0]["text"] and prompt[1]["text"] == "Leave 7 in a1 and say so."
        roles = [m["role"] for m in (await caller.get(f"/{TILL_ID}/messages", **headers)).json]
        assert roles == ["system", "user"]
        listed = (await caller.get("/task_tools", **headers)).json
        assert [t["name"] for t in listed["tools"]] == ["pay", "look", "submit_answer"]
        assert listed["terminal_tool"] == {**listed["terminal_tool"], "name": "submit_answer", "arg": "message"}
        paid = await call(caller, headers, "pay", account="a1", amount=3)
        assert paid["ok"] and (paid["output"]["reward"], paid["output"]["finished"]) == (None, False)
        assert json.loads(paid["output"]["blocks"][0]["text"]) == {"ok": True, "data": {"left": 7, "memo": "none"}}
        ended = await call(caller, headers, "submit_answer", message='{"left": 7}')
        assert (ended["output"]["reward"], ended["output"]["finished"]) == (1.0, True)
        assert ended["output"]["metadata"] == {"failures": []}
        for name, arguments in (("look", {"account": "a1"}), ("submit_answer", {"message": "?"})):
            late = await call(caller, headers, name, **arguments)
            assert (late["ok"], late["reason"]) == (False, "episode_finished")
        assert (await caller.post("/delete", **headers)).status == 200
        assert host.gauges()["sessions"] == 0

    played(play)


def test_a_wrong_answer_is_worth_nothing_and_says_why_to_the_trainer_only() -> None:
    async def play(_: Host, caller: Caller) -> None:
        headers = await opened(caller)
        ended = (await call(caller, headers, "submit_answer", message="done"))["output"]
        assert ended["reward"] == 0.0 and len(ended["metadata"]["failures"]) == 2
        assert ended["blocks"][0]["text"] == "The task has ended."

    played(play)


def test_faults_have_their_owners() -> None:
    async def play(_: Host, caller: Caller) -> None:
        headers = await opened(caller)
        for name, arguments, reason in (
            ("fly", {}, "not_found"),
            ("breaks", {}, "not_found"),  # the task does not expose it
            ("pay", {"account": "a1"}, "input_validation"),
            ("submit_answer", {"text": "?"}, "input_validation"),
        ):
            told = await call(caller, headers, name, **arguments)
            assert (told["ok"], told["reason"]) == (False, reason) and told["error"]
        refused = await call(caller, headers, "pay", account="a1", amount=99)
        assert refused["ok"] and "precondition_failed" in refused["output"]["blocks"][0]["text"]
        assert refused["output"]["metadata"] == {"ok": False}

    played(play)


def test_a_fault_of_the_environment_is_an_error_event() -> None:
    async def play(host: Host, caller: Caller) -> None:
        headers = await opened(caller, split="hard", index=1)
        answer = await caller.post("/call", {"name": "breaks", "input": {}}, **headers)
        assert [name for name, _ in answer.events] == ["task_id", "error"]
        assert answer.events[1][1].startswith("environment: ") and "stuck" in answer.events[1][1]

    played(play)


def test_infrastructure_is_an_error_event_too() -> None:
    async def play(host: Host, caller: Caller) -> None:
        async def broken(tool: str, arguments: Any) -> Any:
            raise InfrastructureError("the worker is gone; drop this rollout")

        headers = await opened(caller)
        only_session(host).call = broken  # type: ignore[method-assign]
        answer = await caller.post("/call", {"name": "look", "input": {}}, **headers)
        assert answer.events[1] == ("error", "infrastructure: the worker is gone; drop this rollout")

    played(play)


def only_session(host: Host) -> HostedSession:
    (session,) = host._sessions.values()
    return session


def test_nulls_of_optional_parameters_are_dropped() -> None:
    async def play(_: Host, caller: Caller) -> None:
        headers = await opened(caller)
        assert (await call(caller, headers, "pay", account="a1", amount=3, memo=None))["ok"]
        told = await call(caller, headers, "pay", account="a1", amount=None)
        assert told["reason"] == "input_validation", "a required one stays wrong"

    played(play)


def test_long_answers_come_in_pieces_that_lose_nothing() -> None:
    async def play(host: Host, caller: Caller) -> None:
        headers = await opened(caller, split="hard", index=1)
        for times in (1, 511, 512, 1000, 4001):
            body = {"name": "talk", "input": {"times": times}}
            answer = await caller.post("/call", body, **headers)
            stripped = "".join(data.lstrip() for name, data in answer.events if name in ("chunk", "end"))
            text = json.loads(stripped)["output"]["blocks"][0]["text"]
            assert json.loads(text)["data"] == "a b  c   " * times
            assert all(len(data) < 5000 for _, data in answer.events)

    played(play)


def test_a_broken_connection_gets_the_answer_of_the_one_run() -> None:
    async def play(_: Host, caller: Caller) -> None:
        headers = await opened(caller)
        body = {"name": "pay", "input": {"account": "a1", "amount": 3}}
        first = await caller.post("/call", body, **headers)
        run = first.events[0][1]
        again = await caller.post("/call", {**body, "task_id": run}, **headers)
        assert read(again) == read(first)
        seen = await call(caller, headers, "look", account="a1")
        assert '"balance": 7' in seen["output"]["blocks"][0]["text"].replace('":7', '": 7')
        lost = await caller.post("/call", {**body, "task_id": "nobody"}, **headers)
        assert lost.events == [("error", "unknown task_id")]
        for _ in range(20):
            await call(caller, headers, "look", account="a1")
        lost = await caller.post("/call", {**body, "task_id": run}, **headers)
        assert lost.events == [("error", "unknown task_id")], "only the last answers are kept"

    played(play)


def test_a_run_goes_on_where_its_connection_breaks() -> None:
    async def play(host: Host, caller: Caller) -> None:
        headers, go, calls = await opened(caller), asyncio.Event(), []
        real = only_session(host).call

        async def slow(tool: str, arguments: Any) -> Any:
            calls.append(tool)
            await go.wait()
            return await real(tool, arguments)

        only_session(host).call = slow  # type: ignore[method-assign]
        only_session(host).call_at_once = lambda tool, arguments: None  # type: ignore[method-assign]
        told: list[bytes] = []
        body = {"name": "pay", "input": {"account": "a1", "amount": 3}}
        broken = asyncio.ensure_future(caller.post("/call", body, told=told, **headers))
        while not any(b"task_id" in piece for piece in told):
            await asyncio.sleep(0.001)
        run = next(piece for piece in told if b"task_id" in piece).split(b"data: ")[1].split()[0].decode()
        broken.cancel()
        with pytest.raises(asyncio.CancelledError):
            await broken
        go.set()
        again = read(await caller.post("/call", {**body, "task_id": run}, **headers))
        assert json.loads(again["output"]["blocks"][0]["text"])["data"]["left"] == 7 and calls == ["pay"]

    played(play)


def test_what_is_listed() -> None:
    async def play(_: Host, caller: Caller) -> None:
        assert (await caller.get("/list_environments")).json == [TILL_ID, DEPOT_ID]
        assert (await caller.get("/ors/list_environments")).json == [TILL_ID, DEPOT_ID]
        assert (await caller.get(f"/{TILL_ID.lower()}/splits")).json == [
            {"name": "train", "type": "train"},
            {"name": "hard", "type": "validation"},
        ]
        listed = (await caller.get(f"/{DEPOT_ID}/tools")).json
        assert [t["name"] for t in listed["tools"]] == ["pay", "look", "breaks", "talk", "submit_answer"]
        assert (await caller.post("/num_tasks", {"split": "train"})).json == {"num_tasks": 2}
        deployed = await caller.post("/num_tasks", {"split": "train"}, x_deployment=f"owner/{DEPOT_ID}")
        assert deployed.json == {"num_tasks": 1}
        tasks = (await caller.post(f"/{TILL_ID}/tasks", {"split": "train"})).json
        assert tasks["env_name"] == TILL_ID and [t["id"] for t in tasks["tasks"]] == ["leave-7", "leave-6"]
        ranged = await caller.post(f"/{TILL_ID}/task_range", {"split": "train", "stop": 1})
        assert [t["id"] for t in ranged.json["tasks"]] == ["leave-7"]
        assert (await caller.get("/version")).json["version"]

    played(play)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/Nothing/tasks", {"split": "train"}, 404), (f"/{TILL_ID}/tasks", {"split": "none"}, 400),
        (f"/{TILL_ID}/tasks", {}, 400), (f"/{TILL_ID}/task", {"split": "train", "index": 2}, 400),
        (f"/{TILL_ID}/task", {"split": "train", "index": True}, 400), (f"/{TILL_ID}/tasks", [1], 400),
        (f"/{TILL_ID}/task_range", {"split": "train", "start": "x"}, 422), ("/call", {}, 400),
        ("/ping", None, 400), ("/create", {"split": "train", "index": 0}, 400),
    ],
)  # fmt: skip
def test_wrong_requests_are_told_in_detail(path: str, body: Any, status: int) -> None:
    async def play(_: Host, caller: Caller) -> None:
        answer = await caller.post(path, body)
        assert answer.status == status, answer.body
        assert isinstance(answer.json["detail"], str), "the client reads `detail`"

    played(play)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422), ({"split": "train"}, 422), ({"task_spec": {"id": "leave-7"}, "split": "train", "index": 0}, 422),
        ({"task_spec": {"name": "x"}}, 422), ({"task_spec": {"id": "none"}}, 422),
        ({"split": "train", "index": 5}, 400), ({"split": "train", "index": 0, "toolset_name": "codex"}, 400),
        ({"env_name": "Nothing", "split": "train", "index": 0}, 404),
    ],
)  # fmt: skip
def test_wrong_tasks_open_nothing(body: Any, status: int) -> None:
    async def play(host: Host, caller: Caller) -> None:
        answer = await caller.post("/create", body, x_session_id="s1")
        assert answer.status == status, answer.body
        assert host.gauges()["sessions"] == 0

    played(play)


def test_sessions_are_apart_and_end_once() -> None:
    async def play(host: Host, caller: Caller) -> None:
        one, other = await opened(caller), await opened(caller, task_spec={"id": "depot-4"}, env_name="env")
        await call(caller, one, "pay", account="a1", amount=3)
        seen = await call(caller, other, "look", account="a1")
        assert '"balance":10' in seen["output"]["blocks"][0]["text"].replace(": ", ":")
        assert (await caller.post("/create", {"split": "train", "index": 0}, **one)).status == 400
        assert (await caller.post("/ping", **one)).status == 200
        for _ in range(2):
            assert (await caller.post("/delete", **one)).status == 200
        assert (await caller.post("/ping", **one)).status == 404
        assert host.gauges()["sessions"] == 1

    played(play)


def test_a_session_whose_lease_ended_is_gone() -> None:
    async def play(host: Host, caller: Caller) -> None:
        headers = await opened(caller)
        await only_session(host).close()
        assert (await caller.post("/call", {"name": "look", "input": {}}, **headers)).status == 410
        assert (await caller.post("/ping", **headers)).status == 404

    played(play)


def test_without_room_the_client_is_told_when_to_come_back() -> None:
    async def play(_: Host, caller: Caller) -> None:
        await opened(caller)
        full = await caller.post("/create", {"split": "train", "index": 0}, x_session_id="second")
        assert full.status == 429 and int(full.headers["retry-after"]) > 0

    played(play, HostSettings(sessions=1))


def test_nobody_pings_and_the_session_is_closed() -> None:
    async def play(host: Host, _: Caller) -> None:
        async with only_face(host, "ors", Ors(host, idle_seconds=0.0)) as caller:
            for index in range(256):
                answer = await caller.post("/ors/create", {"split": "train", "index": 0}, x_session_id=f"s{index}")
                assert answer.status == 200
        assert host.gauges()["sessions"] == 1

    played(play)


def test_one_submission_counts_where_two_come_at_once() -> None:
    async def play(_: Host, caller: Caller) -> None:
        headers = await opened(caller)
        await call(caller, headers, "pay", account="a1", amount=3)
        both = await asyncio.gather(*(call(caller, headers, "submit_answer", message='{"left": 7}') for _ in "12"))
        assert sorted(told["ok"] for told in both) == [False, True]

    played(play)


def test_tenants_do_not_meet() -> None:
    async def play(host: Host, caller: Caller) -> None:
        one, other = ({"authorization": f"Bearer {token}"} for token in ("t1", "t2"))
        created = await caller.post("/create", {"split": "train", "index": 0}, x_session_id="same", **one)
        assert created.status == 200
        assert (await caller.get("/prompt", x_session_id="same", **other)).status == 404
        created = await caller.post("/create", {"split": "train", "index": 1}, x_session_id="same", **other)
        assert created.status == 200 and host.gauges()["sessions"] == 2

    played(play, gateway=GatewaySettings(tokens={"t1": "one", "t2": "two"}))


# Real clients


@pytest.mark.clients
def test_the_openreward_client() -> None:
    python = client_python("openreward", ["openreward==0.1.167"])
    told, left = served(
        lambda address: run_client(python, CLIENTS / "ors_client.py", address, seconds=400), HostSettings(sessions=3)
    )
    assert json.loads(told.splitlines()[-1]) == {"passed": "all"}
    assert left == 0


@pytest.mark.clients
def test_the_adapter_of_trl() -> None:
    python = client_python("trl-openreward", ["openreward==0.1.167", "trl==1.16.0", "datasets", "jinja2"])
    told, left = served(lambda address: run_client(python, CLIENTS / "trl_openreward.py", address, seconds=400))
    assert json.loads(told.splitlines()[-1]) == {"passed": "all"}
    assert left == 0

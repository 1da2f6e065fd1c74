from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentomnia.errors import InfrastructureError, InputError, ModelOutputError
from agentomnia.llm.client import ChatClient, Completion, ModelEndpoint, Usage, read_completion
from agentomnia.llm.ledger import CallRequest, Ledger, ModelTotals
from agentomnia.llm.message import Message, ToolCall, check_conversation
from agentomnia.llm.scripted import Answer, Fault, ScriptedServer

ASK = (Message(role="user", content="what is the weather in Oslo?"),)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = ToolCall(id="call_1", name="weather", arguments='{"city":  "Oslo"}')


@pytest.fixture(autouse=True)
def _no_proxy_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def endpoint_of(server: ScriptedServer, **fields: Any) -> ModelEndpoint:
    return ModelEndpoint(model="scripted", base_url=server.base_url, **{"max_retries": 2, **fields})


def ask(
    endpoint: ModelEndpoint,
    messages: Sequence[Message] = ASK,
    tools: Sequence[dict[str, Any]] = (),
    *,
    ledger: Ledger | None = None,
    attempt: int = 0,
) -> Completion:
    async def main() -> Completion:
        async with ChatClient(endpoint, ledger=ledger) as client:
            return await client.complete(messages, tools, attempt=attempt)

    return anyio.run(main)


def body_with(message: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **fields})


# The client


def test_plain_answer() -> None:
    with ScriptedServer([Answer(content="rain")]) as server:
        completion = ask(endpoint_of(server))
    assert completion.message == Message(role="assistant", content="rain")
    assert (completion.finish_reason, completion.cached) == ("stop", False)
    assert completion.usage.prompt_tokens > 0 and completion.usage.completion_tokens > 0
    assert server.requests[0].body == {"model": "scripted", "messages": [ASK[0].to_wire()]}


def test_tool_calls_by_turn_and_reasoning_both_ways() -> None:
    def weather_agent(body: dict[str, Any]) -> Answer:
        if body["messages"][-1]["role"] == "tool":
            return Answer(content="rain in Oslo")
        return Answer(reasoning_content="I look it up.", tool_calls=(CALL,))

    with ScriptedServer(weather_agent) as server:
        first = ask(endpoint_of(server), tools=[TOOL])
        result = Message.tool_result("call_1", {"sky": "regn på vei"})
        conversation = [*ASK, first.message, result]
        second = ask(endpoint_of(server), conversation, [TOOL])
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls == (CALL,)
    assert first.message.reasoning_content == "I look it up."
    assert second.message.content == "rain in Oslo"
    check_conversation([*conversation, second.message])
    sent = server.requests[1].body
    assert sent["tools"] == [TOOL]
    assert sent["messages"][1] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I look it up.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":  "Oslo"}'},
            }
        ],
    }


def test_parameters_reach_the_server_and_attempt_moves_the_seed() -> None:
    with ScriptedServer([Answer(content="rain")]) as server:
        sampled = endpoint_of(server, temperature=0.5, top_p=0.9, max_tokens=7, seed=40, extra={"top_k": 3})
        ask(sampled, attempt=2)
    body = server.requests[0].body
    assert {key: body[key] for key in ("temperature", "top_p", "max_tokens", "top_k", "seed")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "top_k": 3,
        "seed": 42,
    }


def test_extra_cannot_shadow_a_field() -> None:
    with pytest.raises(ValidationError, match="seed, stream cannot be set in extra"):
        ModelEndpoint(model="m", base_url="http://127.0.0.1/v1", extra={"stream": True, "seed": 1})


def test_cut_answer_is_passed_on() -> None:
    cut = CALL.model_copy(update={"arguments": '{"city": "Os'})
    with ScriptedServer([Answer(tool_calls=(cut,), finish_reason="length")]) as server:
        completion = ask(endpoint_of(server))
    assert completion.finish_reason == "length"
    assert completion.message.tool_calls == (cut,)


def test_rate_limit_then_success_waits_as_told() -> None:
    with ScriptedServer([Fault(status=429, retry_after_s=0.3), Answer(content="rain")]) as server:
        started = time.monotonic()
        completion = ask(endpoint_of(server))
    assert completion.message.content == "rain"
    assert len(server.requests) == 2
    assert time.monotonic() - started >= 0.3


def test_dropped_connection_then_success() -> None:
    with ScriptedServer([Fault(dropped=True), Answer(content="rain")]) as server:
        assert ask(endpoint_of(server)).message.content == "rain"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=500, retry_after_s=0.01), "HTTP 500.*scripted fault.*after 2 retries.*run again"),
        (Fault(status=503, retry_after_s=0.01), "HTTP 503.*after 2 retries"),
        (Fault(status=429, retry_after_s=0.01), "HTTP 429.*after 2 retries: lower concurrency"),
        (Fault(dropped=True), "broke the connection.*after 2 retries: check that the server runs"),
    ],
)
def test_endless_fault_is_infrastructure(fault: Fault, words: str) -> None:
    with ScriptedServer(lambda body: fault) as server, pytest.raises(InfrastructureError, match=words):
        ask(endpoint_of(server))
    assert len(server.requests) == 3


def test_silence_and_absence_are_infrastructure() -> None:
    with ScriptedServer([Answer(content="late", delay_s=5)]) as server:
        impatient = endpoint_of(server, timeout_s=0.1, max_retries=0)
        with pytest.raises(InfrastructureError, match=r"was silent for 0.1 s.*raise timeout_s"):
            ask(impatient)
    with pytest.raises(InfrastructureError, match=r"broke the connection.*reachable"):
        ask(impatient)


def test_request_that_the_server_refuses_is_not_retried() -> None:
    with (
        ScriptedServer([]) as server,
        pytest.raises(InfrastructureError, match=r"HTTP 400.*0 turns.*shorten"),
    ):
        ask(endpoint_of(server))
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "words"), [(401, "refused the key"), (404, "does not know model 'scripted'")])
def test_wrong_key_or_model_is_the_users(status: int, words: str) -> None:
    with ScriptedServer([Fault(status=status)]) as server, pytest.raises(InputError, match=words):
        ask(endpoint_of(server))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"choices": [', "is not JSON.*ask again with the next attempt"),
        ("<html>gateway</html>", "is not JSON.*<html>"),
        ('{"choices": [{"message": {"content": NaN}}]}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is not an object"),
        ("{}", "no choice with a message"),
        ('{"choices": []}', "no choice with a message"),
        ('{"choices": [{"message": null}]}', "no choice with a message"),
        (body_with({"role": "user", "content": "hi"}), "role 'user'"),
        (body_with({"content": None, "function_call": {"name": "f", "arguments": "{}"}}), "function_call"),
        (body_with({"content": [{"type": "text", "text": "hi"}]}), "cannot be read.*content"),
        (
            body_with({"content": None, "tool_calls": [{"id": "", "function": {"name": "f"}}]}),
            "cannot be read.*id",
        ),
        (
            body_with({"content": None, "tool_calls": [{"id": "a", "type": "custom", "function": {}}]}),
            "'custom'",
        ),
        (body_with({"content": None, "tool_calls": {}}), "tool_calls is an object"),
    ],
)
def test_unreadable_answer_is_the_models(body: str, words: str) -> None:
    with (
        ScriptedServer([Fault(status=200, body=body)]) as server,
        pytest.raises(ModelOutputError, match=words),
    ):
        ask(endpoint_of(server))


def test_error_reported_with_status_200_is_infrastructure() -> None:
    with pytest.raises(InfrastructureError, match=r"upstream is down.*run again"):
        read_completion('{"error": {"message": "upstream is down", "code": 502}}')


def test_answers_of_other_servers_are_read() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning": "R",
        "refusal": None,
        "annotations": [],
        "tool_calls": [{"id": "a", "index": 0, "function": {"name": "f", "arguments": {"city": "Tromsø"}}}],
    }
    completion = read_completion(json.dumps({"choices": [{"message": message, "finish_reason": None}], "usage": None}))
    assert completion.message.reasoning_content == "R"
    assert completion.message.tool_calls == (ToolCall(id="a", name="f", arguments='{"city": "Tromsø"}'),)
    assert (completion.finish_reason, completion.usage) == ("unknown", Usage())
    assert read_completion(body_with({"content": None, "refusal": "no"})).message.content == "no"


def test_key_comes_from_the_named_variable_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-this-server")
    monkeypatch.setenv("MY_KEY", "sk-secret")
    path = tmp_path / "ledger.sqlite"
    with ScriptedServer(lambda body: Answer(content="rain")) as server, Ledger(path) as ledger:
        ask(endpoint_of(server))
        ask(endpoint_of(server, api_key_env="MY_KEY"), ledger=ledger)
        with pytest.raises(InputError, match=r"OTHER_KEY .* is not set: export it"):
            ask(endpoint_of(server, api_key_env="OTHER_KEY"))
    keys = [request.headers["authorization"] for request in server.requests]
    assert keys == ["Bearer none", "Bearer sk-secret"]
    assert b"sk-secret" not in path.read_bytes()


def test_concurrency_is_bounded() -> None:
    three, lock, running, most = threading.Barrier(3), threading.Lock(), 0, 0

    def slow(body: dict[str, Any]) -> Answer:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(timeout=30)
        time.sleep(0.02)
        with lock:
            running -= 1
        return Answer(content="rain")

    async def main(endpoint: ModelEndpoint) -> None:
        async with ChatClient(endpoint) as client, anyio.create_task_group() as group:
            for attempt in range(9):
                group.start_soon(partial(client.complete, ASK, attempt=attempt))

    with ScriptedServer(slow) as server:
        anyio.run(main, endpoint_of(server, concurrency=3))
    assert most == 3
    assert len(server.requests) == 9


def test_import_is_cheap() -> None:
    code = "import sys, agentomnia.llm.client, agentomnia.llm.scripted; print('openai' in sys.modules)"
    assert run_python(code) == "False"


# The scripted server


def test_server_lists_its_model() -> None:
    import openai

    with (
        ScriptedServer([], model="tiny") as server,
        openai.OpenAI(base_url=server.base_url, api_key="none") as client,
    ):
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="tiny", input="text")
        with pytest.raises(openai.BadRequestError, match="does not stream"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True)


def test_error_in_a_script_is_not_hidden() -> None:
    def broken(body: dict[str, Any]) -> Answer:
        return Answer(content=body["absent"])

    with (
        pytest.raises(KeyError, match="absent"),
        ScriptedServer(broken) as server,
        pytest.raises(InfrastructureError),
    ):
        ask(endpoint_of(server, max_retries=0))


# The ledger


def request(**fields: Any) -> CallRequest:
    return CallRequest(**{"model": "m", "messages": (ASK[0].to_wire(),), "params": {}, **fields})


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


WRITER = """
import sys
from pathlib import Path
from agentomnia.llm.ledger import CallRequest, Ledger
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Ledger(path) as ledger:
    for number in range(count):
        message = {"role": "user", "content": f"{name} {number}"}
        request = CallRequest(model=name, messages=(message,), params={})
        ledger.put(request, {"said": number}, prompt_tokens=2, completion_tokens=1)
        shared = CallRequest(model="shared", messages=(), params={}, attempt=number)
        ledger.put(shared, {"by": name}, prompt_tokens=0, completion_tokens=0)
        print(number, flush=True)
"""


def test_hit_makes_no_second_request(tmp_path: Path) -> None:
    turns = [Answer(content="rain"), Answer(content="snow")]
    with ScriptedServer(turns) as server, Ledger(tmp_path / "ledger.sqlite") as ledger:
        first = ask(endpoint_of(server), tools=[TOOL], ledger=ledger)
        again = ask(endpoint_of(server), tools=[TOOL], ledger=ledger)
        fresh = ask(endpoint_of(server), tools=[TOOL], ledger=ledger, attempt=1)
        totals = ledger.totals()
    assert again == first.model_copy(update={"cached": True})
    assert (fresh.message.content, fresh.cached) == ("snow", False)
    assert len(server.requests) == 2
    assert totals == {
        "scripted": ModelTotals(
            calls=2,
            prompt_tokens=first.usage.prompt_tokens + fresh.usage.prompt_tokens,
            completion_tokens=first.usage.completion_tokens + fresh.usage.completion_tokens,
        )
    }


def test_everything_that_decides_an_answer_is_in_the_key() -> None:
    variants = [
        request(),
        request(model="n"),
        request(messages=()),
        request(tools=(TOOL,)),
        request(params={"temperature": 0.5}),
        request(seed=0),
        request(attempt=1),
    ]
    assert len({variant.identity for variant in variants}) == len(variants)


def test_unreadable_answer_is_not_recorded(tmp_path: Path) -> None:
    with (
        ScriptedServer([Fault(status=200, body="{"), Answer(content="rain")]) as server,
        Ledger(tmp_path / "ledger.sqlite") as ledger,
    ):
        with pytest.raises(ModelOutputError):
            ask(endpoint_of(server), ledger=ledger)
        assert ask(endpoint_of(server), ledger=ledger).message.content == "rain"


def test_first_answer_stays_and_entries_show_the_request(tmp_path: Path) -> None:
    asked = request(messages=(ASK[0].to_wire(), ASK[0].to_wire()), tools=(TOOL,), params={"top_k": 3}, seed=1)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.get(asked) is None
        assert ledger.put(asked, {"a": "ø"}, prompt_tokens=1, completion_tokens=2) == {"a": "ø"}
        assert ledger.put(asked, {"a": "b"}, prompt_tokens=9, completion_tokens=9) == {"a": "ø"}
        ledger.put(request(model="other"), {}, prompt_tokens=0, completion_tokens=0)
        entries = list(ledger.entries())
    assert [entry.request for entry in entries] == [asked, request(model="other")]
    assert (entries[0].key, entries[0].answer, entries[0].completion_tokens) == (
        asked.identity,
        {"a": "ø"},
        2,
    )


def test_ledger_is_kept_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    run_python(WRITER, str(path), "first", "3")
    with Ledger(path) as ledger:
        message = {"role": "user", "content": "first 2"}
        assert ledger.get(CallRequest(model="first", messages=(message,), params={})) == {"said": 2}


def test_processes_write_at_once(tmp_path: Path) -> None:
    path, names = tmp_path / "ledger.sqlite", ("a", "b", "c")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, "100"], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    with Ledger(path) as ledger:
        totals = ledger.totals()
    assert {name: total.calls for name, total in totals.items()} == {
        "a": 100,
        "b": 100,
        "c": 100,
        "shared": 100,
    }
    assert totals["a"].prompt_tokens == 200


def test_kill_loses_nothing_that_was_put(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    command = [sys.executable, "-c", WRITER, str(path), "victim", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        seen = [int(writer.stdout.readline()) for _ in range(50)]
        writer.kill()
        seen += [int(line) for line in writer.stdout if line.endswith("\n")]
    with Ledger(path) as ledger:
        assert ledger.totals()["victim"].calls >= len(seen) == seen[-1] + 1
        ledger.put(request(), {}, prompt_tokens=0, completion_tokens=0)


def test_threads_share_a_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:

        def put(number: int) -> None:
            ledger.put(request(attempt=number), {"n": number}, prompt_tokens=1, completion_tokens=1)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.totals()["m"].calls == 20


def test_replay_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with ScriptedServer([Answer(content="rain")]) as server, Ledger(path) as ledger:
        ask(endpoint_of(server), ledger=ledger)
    with Ledger(path, replay_only=True) as ledger:
        assert ask(endpoint_of(server), ledger=ledger).cached
        with pytest.raises(InfrastructureError, match=r"has no call .* record again without replay_only"):
            ask(endpoint_of(server), ledger=ledger, attempt=1)
        with pytest.raises(InfrastructureError, match="readonly"):
            ledger.put(request(), {}, prompt_tokens=0, completion_tokens=0)
    with pytest.raises(InfrastructureError, match="unable to open"):
        Ledger(tmp_path / "absent.sqlite", replay_only=True)
    assert not (tmp_path / "absent.sqlite").exists()


def write_noise(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def write_other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()


def write_newer_ledger(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_noise, "is damaged or is not one .*move the file away"),
        (write_other_database, "is a database but no ledger.*choose another file"),
        (write_newer_ledger, "version 99, this package reads 1: install"),
        (Path.mkdir, "cannot be used .*check that its folder"),
    ],
)
def test_unusable_file_is_a_clear_error(tmp_path: Path, write: Callable[[Path], None], words: str) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path)
    with pytest.raises(InfrastructureError, match=words):
        Ledger(path)


def test_damage_inside_the_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    run_python(WRITER, str(path), "writer", "200")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with Ledger(path) as ledger, pytest.raises(InfrastructureError, match=r"is damaged .*restore a copy"):
        ledger.totals()


def test_answer_that_is_no_completion_is_a_clear_error(tmp_path: Path) -> None:
    endpoint = ModelEndpoint(model="m", base_url="http://127.0.0.1:1/v1")
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.put(request(), {"said": 1}, prompt_tokens=0, completion_tokens=0)
        with pytest.raises(InfrastructureError, match="not a completion: choose another ledger"):
            ask(endpoint, ledger=ledger)


# Messages

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(ToolCall, id=st.text(min_size=1), name=st.text(), arguments=st.text())
MESSAGES = st.one_of(
    st.builds(
        Message,
        role=st.sampled_from(["system", "developer", "user"]),
        content=st.text(),
        name=st.none() | st.text(),
    ),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.none() | st.text(),
        reasoning_content=st.none() | st.text(),
        tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    ),
    st.builds(Message.tool_result, st.text(min_size=1), JSON_VALUES),
)


@given(MESSAGES)
def test_round_trip_loses_nothing(message: Message) -> None:
    wire = json.loads(json.dumps(message.to_wire()))
    assert Message.from_wire(wire) == message
    assert Message.from_wire(wire).to_wire() == wire
    assert Message.model_validate_json(json.dumps(message.to_json())) == message


@given(JSON_VALUES)
def test_tool_result_is_json_text(value: Any) -> None:
    content = Message.tool_result("a", value).content
    assert content is not None
    assert (content == "") if value == "" else (json.loads(content) == value)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ({"t": 3}, '{"t": 3}'),
        ([{"type": "text"}], '[{"type": "text"}]'),
        (None, "null"),
        (0, "0"),
        ("漢", '"漢"'),
        ("漢\ud83d", '"\\u6f22\\ud83d"'),
        ("", ""),
    ],
)
def test_tool_result_text(value: Any, content: str) -> None:
    assert Message.tool_result("a", value).content == content


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ("hi", "a message is an object, not text"),
        (None, "not null"),
        ({"content": "hi"}, "role"),
        ({"role": "robot", "content": "hi"}, "role"),
        ({"role": "user"}, "text, not null"),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, "content"),
        ({"role": "user", "content": "hi", "mood": "good"}, r"would be lost \(mood\): remove"),
        (
            {"role": "user", "content": "hi", "tool_calls": [CALL.to_wire()]},
            "a user message has no tool_calls",
        ),
        ({"role": "user", "content": "hi", "reasoning_content": "R"}, "no reasoning_content"),
        ({"role": "user", "content": "hi", "tool_call_id": "a"}, "has no tool_call_id"),
        ({"role": "tool", "content": {"t": 3}, "tool_call_id": "a"}, "content"),
        ({"role": "tool", "content": None, "tool_call_id": "a"}, "text, not null"),
        ({"role": "tool", "content": "{'t': 3}", "tool_call_id": "a"}, "JSON text.*Message.tool_result"),
        ({"role": "tool", "content": "NaN", "tool_call_id": "a"}, "NaN is not JSON"),
        ({"role": "assistant", "content": "\ud83d"}, "surrogate"),
        ({"role": "assistant", "content": None, "tool_calls": [3]}, 'object with "id" and "function"'),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            "arguments",
        ),
    ],
)
def test_what_is_no_message_is_refused(wire: Any, words: str) -> None:
    with pytest.raises(ModelOutputError, match=words):
        Message.from_wire(wire)


def test_arguments_are_read_only_as_an_object() -> None:
    assert CALL.parse_arguments() == {"city": "Oslo"}
    assert CALL.model_copy(update={"arguments": " "}).parse_arguments() == {}
    for arguments, words in [("{", "not JSON"), ('{"a": NaN}', "NaN"), ("[1]", "a list, not an object")]:
        with pytest.raises(ModelOutputError, match=words):
            CALL.model_copy(update={"arguments": arguments}).parse_arguments()


def calling(*ids: str) -> Message:
    calls = tuple(ToolCall(id=name, name="f", arguments="{}") for name in ids)
    return Message(role="assistant", content=None, tool_calls=calls)


def result(call_id: str) -> Message:
    return Message.tool_result(call_id, {})


USER, DONE = ASK[0], Message(role="assistant", content="done")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [USER, DONE, USER, DONE],
        [USER, calling("a", "b"), result("b"), result("a"), calling("c"), result("c"), DONE],
        [USER, calling("a", "b"), result("b")],
    ],
)
def test_sound_conversation(messages: list[Message]) -> None:
    check_conversation(messages)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([result("a")], "message 0 is an orphan tool message"),
        ([USER, DONE, result("a")], "message 2 is an orphan tool message"),
        ([calling("a"), result("a"), USER, result("a")], "message 3 is an orphan tool message"),
        (
            [calling("a"), Message(role="tool", content="{}")],
            "message 1 is a tool message without tool_call_id",
        ),
        ([calling("a"), result("b")], "message 1 answers 'b', which is no call"),
        ([calling("a"), result("a"), calling("b"), result("a")], "message 3 answers 'a', which is no call"),
        ([calling("a"), result("a"), result("a")], "message 2 answers 'a' a second time"),
        ([calling("a", "a")], "message 0 uses the call id 'a'"),
        ([calling("a"), result("a"), calling("a")], "message 2 uses the call id 'a'"),
        ([calling("a", "b"), result("a"), USER], r"message 2 comes before the results of calls \['b'\]"),
    ],
)
def test_broken_conversation_names_the_message(messages: list[Message], words: str) -> None:
    with pytest.raises(ModelOutputError, match=words):
        check_conversation(messages)

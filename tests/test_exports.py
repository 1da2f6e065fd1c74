"""Exports against golden files, from a trajectory written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentomnia.errors import InputError, ModelOutputError
from agentomnia.export.openai import openai_row
from agentomnia.export.trl import trl_sft_row
from agentomnia.llm.message import Message, ToolCall, check_conversation
from agentomnia.runs.exports import TARGETS, export_trajectories
from agentomnia.runs.run import read_jsonl
from agentomnia.task.trajectory import Step, Trajectory
from agentomnia.taxonomy.coordinate import Coordinate

Copy = Callable[[], Path]
GOLDEN = Path(__file__).parent / "golden"


def tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    tool(
        "find_book",
        "Finds a book.",
        {
            "type": "object",
            "properties": {"title": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["title"],
            "additionalProperties": False,
        },
    ),
    tool("list_shelves", "Lists shelves.", {"type": "object", "properties": {}, "additionalProperties": False}),
)
MESSAGES = (
    Message(role="system", content="You help a person by calling tools."),
    Message(role="user", content="Put “Åsas bok” on the shelf South, please."),
    Message(
        role="assistant",
        content=None,
        reasoning_content="I need the book and the shelf.",
        tool_calls=(
            ToolCall(id="call_1", name="find_book", arguments='{"title": "Åsas bok",  "limit": 1}'),
            ToolCall(id="call_2", name="list_shelves", arguments=""),
        ),
    ),
    Message.tool_result(
        "call_1",
        {"ok": True, "data": {"books": [{"book_id": "BOO-0001", "title": "Åsas bok", "note": None}]}},
        name="find_book",
    ),
    Message.tool_result(
        "call_2",
        {"ok": False, "error": {"code": "not_found", "message": "There is no shelf.", "hint": ""}},
        name="list_shelves",
    ),
    Message(role="assistant", content='Done. {"answer": 3}'),
)


def trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "id": "move-1-chat-0-deadbeef",
        "task": "move-1",
        "environment": "LendingLibrary-0123abcd",
        "state": "s0",
        "agent": "chat",
        "coordinate": Coordinate(domain=10006, capabilities=("tool_use",)),
        "tools": TOOLS,
        "messages": MESSAGES,
        "steps": (
            Step(
                call_id="call_1",
                tool="find_book",
                arguments={"title": "Åsas bok", "limit": 1},
                ok=True,
                digest="0" * 64,
            ),
            Step(call_id="call_2", tool="list_shelves", arguments={}, ok=False, error="not_found", digest="0" * 64),
        ),
        "stop_reason": "completed",
        "reward": 1.0,
        "initial_digest": "0" * 64,
    }
    return Trajectory.model_validate(fields | changes)


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_rows_are_what_the_golden_file_says(target: str) -> None:
    row = TARGETS[target](trajectory())
    assert row == golden(target)
    assert json.dumps(row, ensure_ascii=False) == json.dumps(golden(target), ensure_ascii=False), "the order of keys"


def test_every_target_has_a_golden_file() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(TARGETS)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_rows_share_nothing_with_the_trajectory_that_counts(target: str) -> None:
    """Writing a row changes nothing, and writing it twice gives the same."""
    subject = trajectory()
    identity = subject.identity
    first = json.dumps(TARGETS[target](subject), ensure_ascii=False)
    assert first == json.dumps(TARGETS[target](subject), ensure_ascii=False) and subject.identity == identity


def test_openai_rows_read_back_into_the_same_messages() -> None:
    wire = json.loads(json.dumps(openai_row(trajectory())))
    messages = [Message.from_wire(m) for m in wire["messages"]]
    assert tuple(messages) == MESSAGES
    check_conversation(messages)
    assert wire["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"title": "Åsas bok",  "limit": 1}'


def test_trl_tools_keep_every_schema_as_it_is() -> None:
    """As text they cannot be filled up with each other's parameters on their way through Arrow."""
    row = trl_sft_row(trajectory())
    assert isinstance(row["tools"], str) and json.loads(row["tools"]) == list(TOOLS)
    assert "null" not in row["tools"] and "\\u" not in row["tools"]


def test_trl_messages_have_text_everywhere_and_objects_as_arguments() -> None:
    for message in trl_sft_row(trajectory())["messages"]:
        assert isinstance(message["content"], str)
        assert message["role"] != "tool" or (json.loads(message["content"]) is not None and message["name"])
        for call in message.get("tool_calls", ()):
            assert set(call) == {"type", "function"} and isinstance(call["function"]["arguments"], dict)


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '{"a": NaN}', '"text"'])
def test_malformed_arguments_are_no_training_data(arguments: str) -> None:
    """A TRL row has objects; what the model wrote as no object is refused, not passed on."""
    call = ToolCall(id="call_1", name="find_book", arguments=arguments)
    bad = trajectory(messages=(*MESSAGES[:2], Message(role="assistant", content=None, tool_calls=(call,))))
    with pytest.raises(ModelOutputError, match="find_book"):
        trl_sft_row(bad)
    assert openai_row(bad)["messages"][2]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("value", [{"t": 3}, [1, "漢"], None, 0, "", "漢", 'a "b"', {"nested": [{"x": None}]}])
def test_results_of_any_kind_survive(value: Any) -> None:
    made = (*MESSAGES[:3], Message.tool_result("call_1", value, name="find_book"))
    for row in (openai_row(trajectory(messages=made)), trl_sft_row(trajectory(messages=made))):
        content = row["messages"][3]["content"]
        assert isinstance(content, str)
        assert content == "" if value == "" else json.loads(content) == value
        assert "漢" in content or "漢" not in json.dumps(value, ensure_ascii=False)


def test_a_run_is_exported_whole(finished_run: Path, run_copy: Copy) -> None:
    path = run_copy()
    wanted = list(read_jsonl(finished_run / "trajectories.jsonl"))
    for target in TARGETS:
        file, count = export_trajectories(path, target)
        before = file.read_bytes()
        rows = list(read_jsonl(file))
        assert count == len(rows) == len(wanted) and [r["id"] for r in rows] == [w["id"] for w in wanted]
        assert file == path / "exports" / f"{target}.jsonl"
        assert rows == [TARGETS[target](Trajectory.model_validate(w)) for w in wanted]
        export_trajectories(path, target)
        assert file.read_bytes() == before


def test_no_privileged_content_is_exported(finished_run: Path, run_copy: Copy) -> None:
    private = (finished_run / "tasks.private.jsonl").read_text()
    words = {"criterion", "mentions", "privileged", "think:0", "sources"}
    assert "think:0" in private and "mentions" in private
    path = run_copy()
    for target in TARGETS:
        file, _ = export_trajectories(path, target)
        for row in read_jsonl(file):
            assert not [w for w in words if f'"{w}' in json.dumps(row["messages"])], row["id"]


def test_what_cannot_be_exported_is_named(run_copy: Copy) -> None:
    path = run_copy()
    with pytest.raises(InputError, match=r"openai, trl|trl, openai"):
        export_trajectories(path, "nothing")
    (path / "trajectories.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(InputError, match=r"trajectories\.jsonl line 1"):
        export_trajectories(path, "trl")
    (path / "trajectories.jsonl").unlink()
    with pytest.raises(InputError, match=r"trajectories\.jsonl"):
        export_trajectories(path, "trl")

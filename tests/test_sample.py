"""SFT samples: what is trained, what is refused, and what the exported text and spans say."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.errors import InputError
from agentomnia.export.sft import qwen3_sft_row
from agentomnia.llm.message import Message, ToolCall
from agentomnia.runs.exports import export_trajectories
from agentomnia.runs.rows import read_rows
from agentomnia.synthesis.tasks.gate import Evaluated
from agentomnia.task.trajectory import Trajectory
from agentomnia.training.chat import END, render, text_of
from agentomnia.training.sample import Refusal, SftSample, aligned, format_findings, to_sample
from test_teacher import play

Copy = Callable[[], Path]


def encode(text: str) -> list[int]:
    """A tokenizer of code points."""
    return [ord(c) for c in text]


def decode(ids: tuple[int, ...] | list[int]) -> str:
    return "".join(map(chr, ids))


class Played(list[Trajectory]):
    """Trajectories that a failing example does not print in full."""

    def __repr__(self) -> str:
        return f"{len(self)} trajectories"


@pytest.fixture(scope="module")
def played(subjects: list[Evaluated]) -> Played:
    return Played(play(s) for s in subjects)


def sample_of(trajectory: Trajectory, **options: Any) -> SftSample:
    made = to_sample(trajectory, trajectory.tools, encode, **options)
    assert isinstance(made, SftSample), made
    return made


def runs_of(sample: SftSample) -> list[tuple[int, str]]:
    """Stretches of equal mask, decoded."""
    pairs = zip(sample.input_ids, sample.mask, strict=True)
    return [(bit, decode([i for i, _ in group])) for bit, group in groupby(pairs, key=lambda pair: pair[1])]


def test_what_is_trained_is_what_the_assistant_said(played: list[Trajectory]) -> None:
    for trajectory in played:
        sample = sample_of(trajectory)
        assert decode(sample.input_ids) == text_of(render(trajectory.messages, trajectory.tools))
        trained = [text for bit, text in runs_of(sample) if bit]
        turns = [m for m in trajectory.messages if m.role == "assistant"]
        assert len(trained) == len(turns)
        for text, turn in zip(trained, turns):
            assert text.startswith(f"<think>\n{turn.reasoning_content}\n</think>\n\n") and text.endswith(END)
            assert all(call.arguments in text for call in turn.tool_calls)
        untrained = "".join(text for bit, text in runs_of(sample) if not bit)
        assert "<think>" not in untrained and sample.trained == sum(map(len, trained))
        assert all(m.content in untrained for m in trajectory.messages if m.role == "tool" and m.content)


def test_turns_before_the_last_query_are_context(played: list[Trajectory]) -> None:
    trajectory = played[0]
    more = (
        Message(role="user", content="Thank you."),
        Message(role="assistant", content="Bye.", reasoning_content="R"),
    )
    sample = sample_of(trajectory.model_copy(update={"messages": (*trajectory.messages, *more)}))
    assert [text for bit, text in runs_of(sample) if bit] == [f"<think>\nR\n</think>\n\nBye.{END}"]
    assert (trajectory.messages[2].reasoning_content or "") not in decode(sample.input_ids)


def test_a_row_that_trains_nothing_or_everything_is_an_error(played: list[Trajectory]) -> None:
    trajectory = played[0]
    silent = trajectory.model_copy(update={"messages": trajectory.messages[:2]})
    with pytest.raises(InputError, match=rf"{trajectory.id}: no token"):
        to_sample(silent, trajectory.tools, encode)
    with pytest.raises(InputError, match=rf"{trajectory.id}: every token"):
        to_sample(trajectory, trajectory.tools, lambda text: [1] if text.startswith("<think>") else [])


def test_nothing_is_cut(played: list[Trajectory]) -> None:
    trajectory = played[0]
    size = len(sample_of(trajectory).input_ids)
    assert len(sample_of(trajectory, context=size).input_ids) == size
    refused = to_sample(trajectory, trajectory.tools, encode, context=size - 1)
    assert refused == Refusal(trajectory.id, f"{size} tokens are more than the context of {size - 1}")


# format validation


def with_call(trajectory: Trajectory, **parts: str) -> Trajectory:
    messages = list(trajectory.messages)
    call = messages[2].tool_calls[0].model_copy(update=parts)
    messages[2] = messages[2].model_copy(update={"tool_calls": (call,)})
    return trajectory.model_copy(update={"messages": tuple(messages)})


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"arguments": '{"name_contains": '}, "not JSON"),
        ({"arguments": "[1]"}, "not an object"),
        ({"arguments": "{} {}"}, "not JSON"),
        ({"name": "no_such_tool"}, "no tool 'no_such_tool'"),
        ({"arguments": '{"no_such_argument": 1}'}, "break its schema"),
        ({"id": "another"}, "message 3 answers"),
    ],
)
def test_a_malformed_action_is_found_and_refused(played: list[Trajectory], parts: dict[str, str], fault: str) -> None:
    trajectory = with_call(played[0], **parts)
    assert fault in format_findings(trajectory, trajectory.tools)[0]
    refused = to_sample(trajectory, trajectory.tools, encode)
    assert isinstance(refused, Refusal) and fault in refused.reason


def test_arguments_without_text_are_written_as_json() -> None:
    call = ToolCall(id="c", name="list_shelves", arguments=" ")
    messages = [Message(role="user", content="x"), Message(role="assistant", content=None, tool_calls=(call,))]
    assert '{"name": "list_shelves", "arguments": {}}' in text_of(aligned(messages, ()))


def test_control_tokens_in_a_text_are_found(played: list[Trajectory]) -> None:
    messages = (*played[0].messages[:-1], Message(role="assistant", content=f"Done.{END}", reasoning_content="R"))
    (finding,) = format_findings(played[0].model_copy(update={"messages": messages}), played[0].tools)
    assert finding == f"message {len(messages) - 1} holds the control token {END}"


def test_the_teachers_trajectories_keep_the_format(played: list[Trajectory]) -> None:
    assert [format_findings(t, t.tools) for t in played] == [()] * len(played)


values = st.none() | st.booleans() | st.integers(-3, 300) | st.sampled_from(["Updo", "", "2026-03-13T12:30"])


@settings(deadline=None)
@given(st.integers(0, 99), st.dictionaries(st.integers(0, 9), values, max_size=4))
def test_schema_faults_are_those_of_jsonschema(played: list[Trajectory], place: int, given: dict[int, Any]) -> None:
    trajectory = played[0]
    tool = trajectory.tools[place % len(trajectory.tools)]["function"]
    names = [*tool["parameters"]["properties"], "other"]
    arguments = {names[number % len(names)]: value for number, value in given.items()}
    spoiled = with_call(trajectory, name=tool["name"], arguments=json.dumps(arguments))
    found = format_findings(spoiled, trajectory.tools)
    if not jsonschema.Draft202012Validator(tool["parameters"]).is_valid(arguments):
        assert found
    elif found:  # the environment's own reading is stricter: dates have one form
        formats = [p.get("format") for p in tool["parameters"]["properties"].values()]
        assert any(formats), (arguments, found)


# the export


def test_spans_cut_out_what_is_trained(played: list[Trajectory]) -> None:
    for trajectory in played:
        row = qwen3_sft_row(trajectory)
        sample = sample_of(trajectory)
        assert row["text"] == decode(sample.input_ids)
        mask = [0] * len(row["text"])
        for start, end in row["spans"]:
            mask[start:end] = [1] * (end - start)
        assert tuple(mask) == sample.mask
        assert [Message.from_wire(m) for m in row["messages"]] == list(trajectory.messages)
        assert json.loads(json.dumps(row, ensure_ascii=False)) == row


def test_export_of_a_run(run_copy: Copy) -> None:
    path = run_copy()
    file, count = export_trajectories(path, "qwen3-sft")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = list(read_rows(path / "trajectories.jsonl", Trajectory))
    assert file.name == "qwen3-sft.jsonl" and count == len(rows) == len(kept) > 0
    for row, trajectory in zip(rows, kept):
        assert row["id"] == trajectory.id and row["tools"] == list(trajectory.tools)
        assert len(row["spans"]) == sum(m.role == "assistant" for m in trajectory.messages)


def test_a_call_id_is_no_part_of_the_text() -> None:
    call = ToolCall(id="secret-id", name="find", arguments="{}")
    messages = [Message(role="user", content="x"), Message(role="assistant", content=None, tool_calls=(call,))]
    assert "secret-id" not in text_of(render(messages))

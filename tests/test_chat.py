"""Qwen3's form: against the official template, against texts written by hand, and against its own inverse."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentomnia.errors import ModelOutputError
from agentomnia.llm.message import Message, ToolCall
from agentomnia.training.chat import (
    END,
    assistant_text,
    generation_prompt,
    parse_assistant,
    render,
    text_of,
    tool_responses,
)

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
CZECH = {"type": "function", "function": {"name": "najdi", "description": "Příklad <b> & 'x'", "parameters": {}}}


def assistant(content: str | None = None, reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, reasoning_content=reasoning, tool_calls=calls)


def call(arguments: str = '{"a": 1}', name: str = "find", call_id: str = "c") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


SYSTEM = Message(role="system", content="Help.")
USER = Message(role="user", content="Hello")
ANSWER = Message.tool_result("c", {"ok": True, "data": "ž"})


# the official template


def official() -> Callable[..., str]:
    """Qwen3's template as the package `trl` ships it (its code is not imported)."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("the official template is read from the package trl, which is not installed")
    text = (Path(found.origin).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    # As transformers sets it up: no HTML escapes, keys in their own order.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(text).render


@pytest.fixture(scope="module")
def template() -> Callable[..., str]:
    return official()


words = st.lists(
    st.sampled_from(["a", " ", "\n", "é漢", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"x": ', "}", '"']),
    max_size=6,
).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words, lambda v: st.dictionaries(words, v, max_size=2)
)
wrapped = words.map(lambda text: f"<tool_response>{text}</tool_response>")


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages = [Message(role="system", content=draw(words))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(Message(role="user", content=draw(words | wrapped)))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"c{turn}.{step}.{i}" for i in range(draw(st.integers(0, 2)))]
            calls = [call(draw(st.just('{"a": 1}') | words.filter(len)), "find", name) for name in ids]
            messages.append(assistant(draw(st.none() | words), draw(st.none() | words), *calls))
            messages += [Message.tool_result(name, draw(values)) for name in ids]
    if draw(st.integers(0, 9)) == 0:
        messages.append(SYSTEM)
    return messages


@settings(max_examples=400, deadline=None)
@given(conversations(), st.sampled_from([[], [TOOL], [TOOL, CZECH]]))
def test_text_is_the_official_templates(
    template: Callable[..., str], messages: list[Message], tools: list[dict[str, Any]]
) -> None:
    wire = [message.to_wire() for message in messages]
    assert text_of(render(messages, tools)) == template(messages=wire, tools=tools)


@settings(max_examples=100, deadline=None)
@given(conversations())
def test_prompt_for_the_next_turn_is_the_official_templates(
    template: Callable[..., str], messages: list[Message]
) -> None:
    wire = [message.to_wire() for message in messages]
    expected = template(messages=wire, tools=[TOOL], add_generation_prompt=True)
    assert text_of(render(messages, [TOOL])) + generation_prompt() == expected


# by hand


def test_one_episode_written_by_hand() -> None:
    messages = [
        SYSTEM,
        USER,
        assistant(None, "I look.", call('{"a": 1}', "find", "c"), call("{}", "find", "d")),
        ANSWER,
        Message.tool_result("d", ""),
        assistant("Done.", "Found."),
    ]
    assert text_of(render(messages, [TOOL])) == (
        "<|im_start|>system\nHelp.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}\n'
        "</tools>\n\nFor each function call, return a json object with function name and arguments within "
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nI look.\n</think>\n\n"
        '<tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"ok": true, "data": "ž"}\n</tool_response>\n'
        "<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\nFound.\n</think>\n\nDone.<|im_end|>\n"
    )


def test_reasoning_before_the_last_query_is_left_out_and_after_it_occurs_once() -> None:
    messages = [USER, assistant("One.", "EARLIER"), USER, assistant(None, "LATER", call()), ANSWER, assistant("Two.")]
    text = text_of(render(messages))
    assert "EARLIER" not in text
    assert text.count("LATER") == 1 and "<think>\nLATER\n</think>" in text
    assert text.endswith("<think>\n\n</think>\n\nTwo.<|im_end|>\n")


def test_trained_is_what_the_assistant_writes() -> None:
    messages = [SYSTEM, USER, assistant(None, "R1", call()), ANSWER, assistant("Done.", "R2")]
    segments = render(messages, [TOOL])
    trained = [(s.message, s.text) for s in segments if s.trained]
    assert trained == [
        (2, '<think>\nR1\n</think>\n\n<tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</tool_call><|im_end|>'),
        (4, "<think>\nR2\n</think>\n\nDone.<|im_end|>"),
    ]
    for segment, following in pairwise(segments):
        if segment.trained:
            assert (following.text, following.trained) == ("\n", False)
        if following.trained:
            assert (segment.text, segment.trained) == (generation_prompt(), False)


def test_system_turn_of_tools_alone_belongs_to_no_message() -> None:
    first = render([USER], [TOOL])[0]
    assert (first.message, first.trained) == (-1, False)
    assert first.text.startswith("<|im_start|>system\n# Tools\n")


def test_what_the_template_drops_silently_is_refused() -> None:
    with pytest.raises(ModelOutputError, match="message 1 has role developer"):
        render([USER, Message(role="developer", content="x")])
    with pytest.raises(ModelOutputError, match="at least the query"):
        render([])


# between turns


@settings(deadline=None)
@given(st.lists(st.one_of(values), min_size=1, max_size=4))
def test_tool_responses_continue_a_conversation(results: list[Any]) -> None:
    calls = [call("{}", "find", f"c{i}") for i in range(len(results))]
    before = [SYSTEM, USER, assistant(None, "R", *calls)]
    answers = [Message.tool_result(c.id, value) for c, value in zip(calls, results)]
    prompt = text_of(render(before, [TOOL])).removesuffix("\n")
    assert prompt.endswith(END)
    continued = prompt + tool_responses([m.content or "" for m in answers])
    assert continued == text_of(render([*before, *answers], [TOOL])) + generation_prompt()


def test_no_tool_response_is_an_error() -> None:
    with pytest.raises(ModelOutputError, match="answer each call"):
        tool_responses([])


# the inverse

plain = st.text(st.sampled_from('ab {}"\\,:é\n'), max_size=12).map(str.strip)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=6)
    | st.just('}{ </x> <tool_call> </tool_call>"\n'),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(max_size=3), json_values, max_size=3).map(
    lambda v: json.dumps(v, ensure_ascii=False)
)


@settings(deadline=None)
@given(plain, plain, st.lists(st.tuples(st.sampled_from(["find", "book_room"]), arguments), max_size=3))
def test_parse_is_the_inverse_of_writing(reasoning: str, content: str, calls: list[tuple[str, str]]) -> None:
    made = tuple(ToolCall(id=f"call_3_{i}", name=n, arguments=a) for i, (n, a) in enumerate(calls))
    message = Message(
        role="assistant", content=content or (None if made else ""), reasoning_content=reasoning, tool_calls=made
    )
    text = assistant_text(message, thinking=True)
    assert parse_assistant(text + END + "\nrest", turn=3) == message


def test_text_without_block_and_with_a_block_opened_in_the_prompt() -> None:
    assert parse_assistant("Done.") == assistant("Done.")
    assert parse_assistant("thought\n</think>\n\nDone.") == assistant("Done.", "thought")


def test_calls_inside_reasoning_are_not_calls() -> None:
    draft = '<tool_call>\n{"name": "drop", "arguments": {}}\n</tool_call>'
    both = parse_assistant(
        f'<think>\n{draft}\n</think>\n\n<tool_call>\n{{"name": "find", "arguments": {{}}}}\n</tool_call>'
    )
    assert [c.name for c in both.tool_calls] == ["find"]
    assert parse_assistant(f"{draft}\n</think>\n\nNo.").tool_calls == ()
    open_block = parse_assistant(f"<think>\n{draft}")
    assert open_block == assistant("", draft)


@pytest.mark.parametrize(
    ("body", "name", "raw"),
    [
        ('{"name": "find", "arguments": {"a": 1}', "find", None),  # the brace of the call is missing
        ('{"name": "find", "arguments": {"a": }}', "find", '{"a": }'),
        ('{"name": "find", "arguments": [1]}', "find", "[1]"),
        ('{"name": "find", "arguments": {"a": 1} x}', "find", '{"a": 1} x'),
        ('{"name": "find", "arguments": {"a": NaN}}', "find", '{"a": NaN}'),
        ("find(a=1)", "", "find(a=1)"),
        ("", "", "null"),
    ],
)
def test_a_malformed_call_is_answered_as_malformed(body: str, name: str, raw: str | None) -> None:
    (made,) = parse_assistant(f"<think>\nx\n</think>\n\n<tool_call>\n{body}\n</tool_call>").tool_calls
    assert made.name == name
    assert raw is None or made.arguments == raw
    with pytest.raises(ModelOutputError):
        made.parse_arguments()


def test_another_order_of_keys_is_read() -> None:
    (made,) = parse_assistant('<tool_call>{"arguments": {"a": 1}, "name": "find"}</tool_call>').tool_calls
    assert (made.name, made.parse_arguments()) == ("find", {"a": 1})


def test_an_open_call_is_content() -> None:
    text = '<tool_call>\n{"name": "find", "arguments": {}}'
    assert parse_assistant(text) == assistant(text)


def test_text_around_calls_is_kept() -> None:
    message = parse_assistant('before\n<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>\nafter')
    assert message.content == "before\n\nafter"
    assert len(message.tool_calls) == 1


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "', '", "arguments": ', "{", "}",
             '"\\ud800"', "\n", "x", END, '"name"', "[" * 2000]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
def test_any_text_is_read_without_an_exception(text: str) -> None:
    message = parse_assistant(text)
    assert message.role == "assistant"
    assert len({c.id for c in message.tool_calls}) == len(message.tool_calls)

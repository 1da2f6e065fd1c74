"""Qwen3's chat template as own code, piece by piece, so that every character knows whether it is trained.

The joined text equals what the official template renders (tests compare them). Beside it stand the two things
that a rollout needs and a template cannot give: the inverse for generated text, and the text between two turns
of the assistant, so that a sampler appends tokens and never renders a conversation again (paper, section 5.2.4).

Trained is what the assistant generates, from the first character after its header to its `<|im_end|>`. Never:
prompts, tool responses, the header `<|im_start|>assistant\\n`, the newline after `<|im_end|>`.

Reasoning is kept only after the last query of a person (context alignment, paper, section 5.1): earlier turns
are written as the model sees them at inference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentomnia.errors import ModelOutputError
from agentomnia.llm.message import Message, ToolCall, parse_json
from agentomnia.row import encodes

START = "<|im_start|>"
END = "<|im_end|>"
CONTROL_TOKENS = (START, END, "<|endoftext|>")
"""Tokens of their own in Qwen3's vocabulary; text of messages must not hold them."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
RESPONSE_OPEN = "<tool_response>"
RESPONSE_CLOSE = "</tool_response>"

TOOLS_HEADER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)

_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*', re.DOTALL)
_CALL_TAIL = re.compile(r"\s*\}\s*</tool_call>")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Segment:
    """A piece of a rendered conversation."""

    text: str
    trained: bool
    """Whether the assistant generates it."""
    message: int
    """Index of the message it belongs to; -1 where the system turn holds tools alone."""


def render(messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[Segment, ...]:
    """A conversation in Qwen3's form, without a generation prompt at the end.

    Args:
        messages: the conversation, a system message first if there is one.
        tools: the tools shown, in OpenAI function form.

    Returns:
        Segments in order; their joined text is the official template's.

    Raises:
        ModelOutputError: no message, or a role that the template would leave out without a word.
    """
    if not messages:
        raise ModelOutputError("a conversation without messages cannot be rendered: give at least the query")
    query = last_query(messages)
    segments = _system_segments(messages[0], tools)
    for index, message in enumerate(messages):
        if message.role == "developer":
            raise ModelOutputError(f"message {index} has role developer, which Qwen3 lacks: make it a system message")
        if message.role == "assistant":
            segments += _assistant_segments(messages, index, query)
        elif message.role == "tool":
            segments.append(Segment(_tool_text(messages, index), False, index))
        elif index or message.role == "user":
            segments.append(Segment(f"{START}{message.role}\n{message.content}{END}\n", False, index))
    return tuple(segments)


def text_of(segments: Sequence[Segment]) -> str:
    """The joined text of segments."""
    return "".join(segment.text for segment in segments)


def generation_prompt() -> str:
    """What stands before the text that the assistant generates."""
    return f"{START}assistant\n"


def tool_responses(texts: Sequence[str]) -> str:
    """What follows an assistant's `<|im_end|>` when its calls are answered, up to the next generation.

    It begins with the newline after `<|im_end|>` and ends with the next generation prompt, so
    `ids + encode(tool_responses(texts))` is the next prompt of a token-in/token-out rollout.

    Args:
        texts: the contents of the tool messages, in the order of the calls.

    Raises:
        ModelOutputError: there is no text; a call is always answered.
    """
    if not texts:
        raise ModelOutputError("no tool response was given: answer each call before the next generation")
    return f"\n{START}user{''.join(_response(text) for text in texts)}{END}\n{generation_prompt()}"


def last_query(messages: Sequence[Message]) -> int:
    """Index of the last query of a person; the last message's where there is none, as in the template."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user" and not _is_response(messages[index].content or ""):
            return index
    return len(messages) - 1


def assistant_text(message: Message, *, thinking: bool) -> str:
    """What the assistant generates for a message, without its `<|im_end|>`.

    Args:
        message: an assistant message.
        thinking: whether the turn opens with its think block, empty where it has no reasoning.
    """
    reasoning, content = _split_reasoning(message)
    text = content
    if thinking:
        stripped = reasoning.strip("\n")
        text = f"{THINK_OPEN}\n{stripped}\n{THINK_CLOSE}\n\n" + content.lstrip("\n")
    for number, call in enumerate(message.tool_calls):
        if number or content:
            text += "\n"
        text += f'{CALL_OPEN}\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n{CALL_CLOSE}'
    return text


def parse_assistant(text: str, turn: int = 0) -> Message:
    """The message that generated text stands for: the inverse of `assistant_text`.

    - Text after the first `<|im_end|>` is no part of the message.
    - A call drafted inside the think block is not a call. A block that never closes is reasoning to its end.
    - A call whose arguments are not JSON keeps them as written, and one without a readable name has the name "" and
      keeps its whole text, so that the episode answers both with an error that the model can correct.
    - A `<tool_call>` that never closes is plain content.

    Args:
        text: what the model wrote after the generation prompt.
        turn: number of the assistant's turn; makes the ids `call_TURN_NUMBER` of its calls unique.

    Returns:
        The message; `reasoning_content` is `None` where there is no think block, `content` where calls stand alone.
    """
    reasoning, rest = _split_think(text.split(END, 1)[0])
    content, calls = _split_calls(rest, turn)
    return Message(
        role="assistant", content=None if calls and not content else content, reasoning_content=reasoning,
        tool_calls=calls,
    )  # fmt: skip


def _system_segments(first: Message, tools: Sequence[dict[str, Any]]) -> list[Segment]:
    index = 0 if first.role == "system" else -1
    told = first.content or "" if index == 0 else ""
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        told = (f"{told}\n\n" if index == 0 else "") + TOOLS_HEADER + listed + TOOLS_FOOTER
    elif index < 0:
        return []
    return [Segment(f"{START}system\n{told}{END}\n", False, index)]


def _assistant_segments(messages: Sequence[Message], index: int, query: int) -> list[Segment]:
    message = messages[index]
    last = index == len(messages) - 1
    thinking = index > query and (last or bool(_split_reasoning(message)[0]))
    return [
        Segment(generation_prompt(), False, index),
        Segment(assistant_text(message, thinking=thinking) + END, True, index),
        Segment("\n", False, index),
    ]


def _tool_text(messages: Sequence[Message], index: int) -> str:
    """A tool message; neighbours share one user turn."""
    first = index == 0 or messages[index - 1].role != "tool"
    last = index == len(messages) - 1 or messages[index + 1].role != "tool"
    opening = f"{START}user" if first else ""
    return opening + _response(messages[index].content or "") + (f"{END}\n" if last else "")


def _response(text: str) -> str:
    return f"\n{RESPONSE_OPEN}\n{text}\n{RESPONSE_CLOSE}"


def _is_response(text: str) -> bool:
    return text.startswith(RESPONSE_OPEN) and text.endswith(RESPONSE_CLOSE)


def _split_reasoning(message: Message) -> tuple[str, str]:
    """Reasoning and content as the template takes them: from the field, or else from a block inside the content."""
    content = message.content or ""
    if message.reasoning_content is not None:
        return message.reasoning_content, content
    if THINK_CLOSE not in content:
        return "", content
    parts = content.split(THINK_CLOSE)
    return parts[0].rstrip("\n").split(THINK_OPEN)[-1].lstrip("\n"), parts[-1].lstrip("\n")


def _split_think(text: str) -> tuple[str | None, str]:
    """Reasoning and the rest of generated text; the opening tag may have stood in the prompt."""
    opened = text.lstrip().startswith(THINK_OPEN)
    inside = text.lstrip()[len(THINK_OPEN) :] if opened else text
    if THINK_CLOSE not in inside:
        return (inside.strip("\n"), "") if opened else (None, text)
    reasoning, rest = inside.split(THINK_CLOSE, 1)
    return reasoning.strip("\n"), rest.lstrip("\n")


def _split_calls(text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
    """Content and calls; text that stands after or between calls joins the content."""
    told: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while (opening := text.find(CALL_OPEN, position)) >= 0:
        read = _read_call(text, opening + len(CALL_OPEN), f"call_{turn}_{len(calls)}")
        if read is None:
            break
        told.append(text[position:opening].removesuffix("\n"))
        position = read[1]
        calls.append(read[0])
    told.append(text[position:])
    return (text, ()) if not calls else ("\n".join(part for part in told if part.strip()), tuple(calls))


def _read_call(text: str, start: int, call_id: str) -> tuple[ToolCall, int] | None:
    """The call that begins at a place, and where it ends; `None` where it never closes."""
    head = _CALL_HEAD.match(text, start)
    if head is not None:
        try:
            _, end = _DECODER.raw_decode(text, head.end())
        except (ValueError, RecursionError):
            end = -1
        tail = _CALL_TAIL.match(text, end) if end >= 0 else None
        if tail is not None:
            return ToolCall(id=call_id, name=_name(head[1]), arguments=text[head.end() : end]), tail.end()
    return _read_broken_call(text, start, head, call_id)


def _read_broken_call(text: str, start: int, head: re.Match[str] | None, call_id: str) -> tuple[ToolCall, int] | None:
    """A call outside the template's form, up to the next closing tag: keys in another order, or not JSON."""
    close = text.find(CALL_CLOSE, start)
    if close < 0:
        return None
    body = text[start:close].strip()
    end = close + len(CALL_CLOSE)
    try:
        whole = parse_json(body)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("name"), str):
        arguments = whole.get("arguments", {})
        return ToolCall(id=call_id, name=_name(json.dumps(whole["name"])), arguments=json.dumps(arguments)), end
    if head is not None:
        raw = text[head.end() : close].rstrip().removesuffix("}")
        return ToolCall(id=call_id, name=_name(head[1]), arguments=raw or body), end
    return ToolCall(id=call_id, name="", arguments=body or "null"), end


def _name(quoted: str) -> str:
    """A name in its JSON quotes; as written where the quotes hold no JSON string, or one that cannot be encoded."""
    try:
        name = str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]
    return name if encodes(name) else quoted[1:-1]

"""SFT samples: a verified trajectory as token ids with a mask (paper, section 5.1).

Format validation comes first: parsable actions, known functions, arguments that keep their schema. Then context
alignment: a conversation is written as the model sees it when it answers the last query, so reasoning of turns before
that query is gone. Such turns are context and not trained: trained, they would teach to answer without reasoning. To
train on them, give the part of the conversation that ends before the next query as a sample of its own.

A sample is never cut: what does not fit the context is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentomnia.environment.schema import Validator, compile_validator
from agentomnia.errors import InputError, ModelOutputError
from agentomnia.llm.message import Message, ToolCall, check_conversation
from agentomnia.task.trajectory import Trajectory
from agentomnia.training.chat import CONTROL_TOKENS, Segment, last_query, render

Encode = Callable[[str], list[int]]
"""A tokenizer's way from text to ids; it must know the control tokens and add nothing of its own."""


@dataclass(frozen=True)
class SftSample:
    """One row of supervised training."""

    trajectory: str
    """Id of the trajectory."""
    input_ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the token is trained, as long as `input_ids`."""

    @property
    def trained(self) -> int:
        """How many tokens are trained."""
        return sum(self.mask)


@dataclass(frozen=True)
class Refusal:
    """A trajectory that gives no sample."""

    trajectory: str
    reason: str


def format_findings(trajectory: Trajectory, tools: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What in a trajectory breaks the interface (paper, section 5.1 "Format Validation").

    Args:
        trajectory: the trajectory.
        tools: the tools shown in it, in OpenAI function form.

    Returns:
        One text for each fault, with the index of its message; none for a trajectory that may be trained on.
    """
    called = {c.name for m in trajectory.messages for c in m.tool_calls}
    shown = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    validators = {name: compile_validator(schema) for name, schema in shown.items() if name in called}
    return tuple(_findings(trajectory.messages, validators))


def to_sample(
    trajectory: Trajectory, tools: Sequence[dict[str, Any]], encode: Encode, *, context: int | None = None
) -> SftSample | Refusal:
    """A trajectory as a training row, encoded segment by segment, so that the mask is exact.

    Args:
        trajectory: a trajectory without format findings.
        tools: the tools shown in it, in OpenAI function form.
        encode: text to token ids.
        context: the most tokens that the model reads; no bound where `None`.

    Returns:
        The sample, or why there is none: a format finding, or too many tokens.

    Raises:
        InputError: no token of the row would be trained, or every one; names the trajectory.
    """
    finding = next(iter(format_findings(trajectory, tools)), None)
    if finding is not None:
        return Refusal(trajectory.id, finding)
    ids: list[int] = []
    mask: list[int] = []
    for segment in aligned(trajectory.messages, tools):
        encoded = encode(segment.text)
        ids += encoded
        mask += [int(segment.trained)] * len(encoded)
    if context is not None and len(ids) > context:
        return Refusal(trajectory.id, f"{len(ids)} tokens are more than the context of {context}")
    if sum(mask) in (0, len(mask)):
        part = "every token" if sum(mask) else "no token"
        raise InputError(
            f"trajectory {trajectory.id}: {part} of its row would be trained; check its roles and template"
        )
    return SftSample(trajectory.id, tuple(ids), tuple(mask))


def aligned(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> tuple[Segment, ...]:
    """The segments of a conversation, those of turns before its last query not trained.

    Arguments without any text are written as `{}`, which is what they mean; the template would write no JSON.
    """
    query = last_query(messages)
    segments = render([_with_arguments(m) for m in messages], tools)
    return tuple(Segment(s.text, s.trained and s.message > query, s.message) for s in segments)


def _with_arguments(message: Message) -> Message:
    if all(call.arguments.strip() for call in message.tool_calls):
        return message
    calls = (c if c.arguments.strip() else c.model_copy(update={"arguments": "{}"}) for c in message.tool_calls)
    return message.model_copy(update={"tool_calls": tuple(calls)})


def _findings(messages: Sequence[Message], validators: dict[str, Validator]) -> Iterator[str]:
    try:
        check_conversation(messages)
    except ModelOutputError as error:
        yield str(error)
    for index, message in enumerate(messages):
        texts = (message.content or "", message.reasoning_content or "", *(c.arguments for c in message.tool_calls))
        for token in CONTROL_TOKENS:
            if any(token in text for text in texts):
                yield f"message {index} holds the control token {token}"
        for call in message.tool_calls:
            fault = _call_fault(call, validators)
            if fault is not None:
                yield f"message {index}: {fault}"


def _call_fault(call: ToolCall, validators: dict[str, Validator]) -> str | None:
    validator = validators.get(call.name)
    if validator is None:
        return f"there is no tool {call.name!r}"
    try:
        arguments = call.parse_arguments()
    except ModelOutputError as error:
        return str(error)
    problem = validator(arguments)
    return None if problem is None else f"the arguments of {call.name} break its schema: {problem}"

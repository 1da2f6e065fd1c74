"""One message of a conversation, as it is stored and as it travels: the OpenAI chat form, without loss.

- `arguments` of a tool call is the JSON *string* that the model wrote, never parsed and written again.
- `reasoning_content` stays beside `content`; ids are kept.
- The content of a tool message is JSON text or "": a plain-text result is the JSON string of that text.
  `Message.tool_result` writes it, so that no Python `repr` can end up in a training row.
- `Message.from_wire(message.to_wire()) == message`. A key that no `Message` can hold is refused, not dropped.
- A single message is checked when it is made; how messages fit together is `check_conversation`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from agentomnia.errors import ModelOutputError
from agentomnia.row import Row, encodes


def _encodable(text: str) -> str:
    # JSON can spell half of a surrogate pair, which no file, hash or request can hold afterwards.
    if not encodes(text):
        raise ValueError("the text holds half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_encodable)]
"""Text that can be encoded as UTF-8."""

Role = Literal["system", "developer", "user", "assistant", "tool"]

WIRE_KEYS = frozenset({"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"})
"""Every key that a message may have on the wire."""


class ToolCall(Row):
    """A call that a model asks for."""

    id: Text = Field(min_length=1)
    name: Text
    """Not checked here: an unknown name is answered by the environment, as any other mistake of a model."""
    arguments: Text
    """JSON text exactly as the model wrote it, so it may be malformed."""

    def parse_arguments(self) -> dict[str, Any]:
        """The arguments as values; no text at all means no arguments.

        Raises:
            ModelOutputError: the text is not one JSON object.
        """
        if not self.arguments.strip():
            return {}
        try:
            values = parse_json(self.arguments)
        except ValueError as error:
            raise self._unusable(f"not JSON ({error})") from error
        if not isinstance(values, dict):
            raise self._unusable(f"{_json_kind(values)}, not an object")
        if not encodes(json.dumps(values, ensure_ascii=False)):
            raise self._unusable("text with half of a surrogate pair")
        return values

    def _unusable(self, fault: str) -> ModelOutputError:
        return ModelOutputError(
            f"the arguments of call {self.id!r} to {self.name!r} are {fault}: answer the call with an error, "
            "so that the model can write them again"
        )

    def to_wire(self) -> dict[str, Any]:
        """The call as the wire has it."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Read a call; arguments that came as an object (some servers, some data sets) become JSON text.

        Raises:
            ModelOutputError: the value is not a function call.
        """
        if not isinstance(wire, dict) or not isinstance(wire.get("function"), dict):
            raise ModelOutputError('a tool call is an object with "id" and "function": correct the message')
        if wire.get("type", "function") != "function":
            raise ModelOutputError(f"a tool call has type {wire['type']!r}: offer function tools only")
        function = wire["function"]
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = _json_text(arguments)
        try:
            return cls.model_validate({"id": wire.get("id"), "name": function.get("name"), "arguments": arguments})
        except ValidationError as error:
            raise ModelOutputError(f"a tool call cannot be read ({_first_fault(error)}): correct it") from error


class Message(Row):
    """One message; what a role cannot carry is refused."""

    role: Role
    content: Text | None
    reasoning_content: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError(f"a {self.role} message has no tool_calls and no reasoning_content")
        if self.role != "assistant" and self.content is None:
            raise ValueError(f"the content of a {self.role} message is text, not null")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError(f"a {self.role} message has no tool_call_id")
        if self.role == "tool" and self.content:
            _check_json_text(self.content)
        return self

    @classmethod
    def tool_result(cls, tool_call_id: str, value: Any, *, name: str | None = None) -> Self:
        """The answer to a call, with any JSON value written as JSON text ("" stays "").

        Args:
            tool_call_id: The id of the call that is answered.
            value: The result; text becomes a JSON string. Non-ASCII characters are kept, except that a value
                with half of a surrogate pair is written with escapes.
            name: The tool's name, for the templates that print it.

        Raises:
            TypeError: the value holds something JSON does not have.
            ValueError: the value holds NaN or an infinity.
        """
        content = value if value == "" else _json_text(value)
        return cls(role="tool", content=content, tool_call_id=tool_call_id, name=name)

    def to_wire(self) -> dict[str, Any]:
        """The message as the wire has it: `role` and `content` always, other keys only when present."""
        # Templates and servers ask for `content` even beside calls; null is what OpenAI itself answers there.
        wire: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            wire["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            wire["name"] = self.name
        return wire

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Read a message; keys that are null count as absent.

        Raises:
            ModelOutputError: the value is not a message, or has a key that would be lost.
        """
        if not isinstance(wire, dict):
            raise ModelOutputError(f"a message is an object, not {_json_kind(wire)}: correct the message")
        present = {key: value for key, value in wire.items() if value is not None}
        unknown = sorted(set(present) - WIRE_KEYS)
        if unknown:
            raise ModelOutputError(f"a message has keys that would be lost ({', '.join(unknown)}): remove them")
        calls = present.get("tool_calls", [])
        if not isinstance(calls, list):
            raise ModelOutputError(f"tool_calls is {_json_kind(calls)}, not a list: correct the message")
        fields = {"content": None, **present, "tool_calls": tuple(ToolCall.from_wire(call) for call in calls)}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ModelOutputError(f"a message cannot be read ({_first_fault(error)}): correct it") from error


def check_conversation(messages: Sequence[Message]) -> None:
    """Prove that calls and results pair up, as every endpoint and chat template expects.

    Calls of the last assistant message may be unanswered: an episode can stop there.

    Args:
        messages: The conversation, oldest first.

    Raises:
        ModelOutputError: a tool message without call, a result for an unknown or already answered call, a
            call id used twice, or a call left unanswered before the next message. The text names the
            message's index.
    """
    made: set[str] = set()
    open_calls: set[str] = set()
    last_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message.role == "tool":
            open_calls.discard(_answered_call(index, message, last_calls, open_calls))
            continue
        if open_calls:
            _refuse(index, f"comes before the results of calls {sorted(open_calls)}", "put the results first")
        last_calls = _new_calls(index, message, made)
        made |= last_calls
        open_calls = set(last_calls)


def parse_json(text: str) -> Any:
    """The value of a strict JSON text.

    Raises:
        ValueError: the text is not JSON, holds NaN or an infinity, or is nested too deeply to read.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _answered_call(index: int, message: Message, last_calls: set[str], open_calls: set[str]) -> str:
    call_id = message.tool_call_id
    if call_id is None:
        _refuse(index, "is a tool message without tool_call_id", "give it the id of the call it answers")
    if not last_calls:
        _refuse(index, "is an orphan tool message: no message with calls precedes it", "add the calls")
    if call_id not in last_calls:
        _refuse(index, f"answers {call_id!r}, which is no call of the message before it", "correct the id")
    if call_id not in open_calls:
        _refuse(index, f"answers {call_id!r} a second time", "keep one result for each call")
    return call_id


def _new_calls(index: int, message: Message, made: set[str]) -> set[str]:
    calls: set[str] = set()
    for call in message.tool_calls:
        if call.id in made or call.id in calls:
            _refuse(index, f"uses the call id {call.id!r} of an earlier call", "give each call its own id")
        calls.add(call.id)
    return calls


def _refuse(index: int, fault: str, action: str) -> NoReturn:
    raise ModelOutputError(f"message {index} {fault}: {action}")


def _check_json_text(content: str) -> None:
    try:
        parse_json(content)
    except ValueError as error:
        raise ValueError(
            f'the content of a tool message is JSON text or "" ({error}); Message.tool_result writes it'
        ) from error


def _finite_float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if encodes(text) else json.dumps(value, allow_nan=False)


def _json_kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]

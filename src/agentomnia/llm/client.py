"""The client of any OpenAI-compatible chat endpoint.

- `ModelEndpoint` says what is asked and where. It holds the *name* of the variable with the key, never the
  key, and no key is sent anywhere unless that name is given.
- The SDK retries network errors, 408, 409, 429 and 5xx, and waits as `Retry-After` says. What remains is an
  `InfrastructureError`; a refused key or an unknown model is an `InputError`; an answer that is no chat
  completion is a `ModelOutputError`. A cut answer (`finish_reason` "length") is an answer.
- One limiter for each client bounds its concurrent calls, waits for retries included.
- With a ledger, a known call is answered from it, and only readable answers are recorded.
- `openai` is imported at the first call that goes out. A client belongs to one event loop; close it there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
from pydantic import Field, ValidationError, field_validator

from agentomnia.errors import InfrastructureError, InputError, ModelOutputError, OmniaError
from agentomnia.llm.ledger import CallRequest, Ledger
from agentomnia.llm.message import WIRE_KEYS, Message, parse_json
from agentomnia.row import Row

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_CONNECT_TIMEOUT_S = 10.0
_QUOTED_CHARACTERS = 300
_OWN_KEYS = frozenset({"model", "messages", "tools", "temperature", "top_p", "max_tokens", "seed", "stream", "n"})


class ModelEndpoint(Row):
    """A model, where it is served, and how it is sampled; None leaves a parameter to the server."""

    model: str
    base_url: str
    """Usually ends with `/v1`."""
    api_key_env: str | None = None
    """Name of the environment variable with the key; None for a server that needs none."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    """More keys of the request body, such as `max_completion_tokens`, `top_k` or `chat_template_kwargs`."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence of the server."""
    max_retries: int = Field(default=5, ge=0)
    concurrency: int = Field(default=16, ge=1)

    @field_validator("extra")
    @classmethod
    def _leaves_own_keys(cls, extra: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_OWN_KEYS & set(extra))
        if taken:
            raise ValueError(f"{', '.join(taken)} cannot be set in extra: use the endpoint's own fields")
        return extra

    def sampling_params(self) -> dict[str, Any]:
        """The keys of the request body that shape the answer, the seed apart."""
        own = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return {**self.extra, **{key: value for key, value in own.items() if value is not None}}


class Usage(Row):
    """Tokens of one call; zero where the server does not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(Row):
    """An answer of a model."""

    message: Message
    finish_reason: str
    """As the server says it: "stop", "tool_calls", "length", ...; "unknown" when it says nothing."""
    usage: Usage = Usage()
    cached: bool = False
    """True when the ledger had the answer, so that nothing was paid."""


class ChatClient:
    """Asks one endpoint; use it as `async with ChatClient(endpoint) as client`."""

    def __init__(self, endpoint: ModelEndpoint, *, ledger: Ledger | None = None) -> None:
        """Make a client; nothing is imported or connected yet.

        Args:
            endpoint: Whom to ask, and how.
            ledger: Answers known calls and records new ones; stays open when the client closes.
        """
        self.endpoint = endpoint
        self._ledger = ledger
        self._limiter = anyio.CapacityLimiter(endpoint.concurrency)
        self._sdk: AsyncOpenAI | None = None

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, attempt: int = 0
    ) -> Completion:
        """Ask for the next message.

        Args:
            messages: The conversation, oldest first.
            tools: Function tools in wire form.
            attempt: 0 for the first sample of this request, 1 for a fresh one, and so on. It is part of the
                call's name in the ledger, and is added to a fixed seed, which would otherwise give the same
                answer again.

        Raises:
            InfrastructureError: the endpoint did not answer, or the ledger only replays and lacks the call.
            InputError: the key is not set or is refused, or the endpoint does not have the model.
            ModelOutputError: the answer is not a chat completion.
        """
        request = self._request(messages, tools, attempt)
        recorded = None if self._ledger is None else self._ledger.get(request)
        if recorded is not None:
            return _recorded_completion(recorded).model_copy(update={"cached": True})
        async with self._limiter:
            body = await self._send(request)
        completion = read_completion(body)
        return completion if self._ledger is None else _record(self._ledger, request, completion)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._sdk is not None:
            await self._sdk.close()
            self._sdk = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _request(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], attempt: int) -> CallRequest:
        return CallRequest(
            model=self.endpoint.model,
            messages=tuple(message.to_wire() for message in messages),
            tools=tuple(tools),
            params=self.endpoint.sampling_params(),
            seed=self.endpoint.seed,
            attempt=attempt,
        )

    async def _send(self, request: CallRequest) -> str:
        import openai

        sdk = self._connected_sdk()
        try:
            # The raw text, because the SDK builds its objects without checking what the server sent.
            response = await sdk.chat.completions.with_raw_response.create(**_sdk_arguments(request))
        except openai.APITimeoutError as error:
            raise _unanswered(self.endpoint, f"was silent for {self.endpoint.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            raise _unanswered(self.endpoint, f"broke the connection ({error.__cause__ or error})") from error
        except openai.APIStatusError as error:
            raise _refused(self.endpoint, error) from error
        body: str = response.text
        return body

    def _connected_sdk(self) -> AsyncOpenAI:
        if self._sdk is None:
            import openai

            self._sdk = openai.AsyncOpenAI(
                base_url=self.endpoint.base_url,
                api_key=_api_key(self.endpoint),
                timeout=openai.Timeout(
                    self.endpoint.timeout_s, connect=min(_CONNECT_TIMEOUT_S, self.endpoint.timeout_s)
                ),
                max_retries=self.endpoint.max_retries,
            )
        return self._sdk


def read_completion(body: str) -> Completion:
    """The completion in the body of an answer.

    Raises:
        ModelOutputError: the body is not a chat completion with a message.
        InfrastructureError: the body reports an error, as some routers do with status 200.
    """
    try:
        answer = parse_json(body)
    except ValueError as error:
        raise _unreadable(f"is not JSON ({error})", body) from error
    if not isinstance(answer, dict):
        raise _unreadable("is not an object", body)
    if answer.get("error") and not answer.get("choices"):
        raise InfrastructureError(
            f"the endpoint answered with an error ({_quoted(str(answer['error']))}): run again later"
        )
    choice = _first_choice(answer, body)
    return Completion(
        message=_answered_message(choice["message"]),
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        usage=_usage(answer),
    )


def _first_choice(answer: dict[str, Any], body: str) -> dict[str, Any]:
    match answer.get("choices"):
        case [{"message": {}} as choice, *_]:
            return dict(choice)
        case _:
            raise _unreadable("has no choice with a message", body)


def _answered_message(wire: dict[str, Any]) -> Message:
    """The message without the keys that servers add (`refusal`, `annotations`, `audio`, ...)."""
    if wire.get("function_call"):
        raise ModelOutputError(
            "the answer uses function_call, which tool_calls replaced: update the server or choose another"
        )
    known = {key: value for key, value in wire.items() if key in WIRE_KEYS}
    known.setdefault("role", "assistant")
    if known["role"] != "assistant":
        raise ModelOutputError(f"the answer has role {known['role']!r}, not assistant: check the server's template")
    if known.get("content") is None:
        known["content"] = wire.get("refusal")
    if known.get("reasoning_content") is None:
        # vLLM and OpenRouter call it `reasoning`; on the way back every server reads `reasoning_content`.
        known["reasoning_content"] = wire.get("reasoning")
    return Message.from_wire(known)


def _usage(answer: dict[str, Any]) -> Usage:
    reported = answer.get("usage")
    if not isinstance(reported, dict):
        return Usage()
    counts = {key: reported.get(key) for key in ("prompt_tokens", "completion_tokens")}
    return Usage(**{key: count for key, count in counts.items() if isinstance(count, int)})


def _sdk_arguments(request: CallRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": request.model,
        "messages": list(request.messages),
        "extra_body": dict(request.params),
    }
    if request.tools:  # several servers refuse an empty list
        arguments["tools"] = list(request.tools)
    if request.seed is not None:
        arguments["seed"] = request.seed + request.attempt
    return arguments


def _record(ledger: Ledger, request: CallRequest, completion: Completion) -> Completion:
    usage = completion.usage
    stored = ledger.put(
        request,
        completion.to_json(),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )
    return _recorded_completion(stored)


def _recorded_completion(stored: dict[str, Any]) -> Completion:
    try:
        return Completion.model_validate(stored)
    except ValidationError as error:
        raise InfrastructureError(
            "the ledger holds an answer that is not a completion: choose another ledger file"
        ) from error


def _api_key(endpoint: ModelEndpoint) -> str:
    if endpoint.api_key_env is None:
        return "none"  # the SDK refuses to start without a key, and would look for OPENAI_API_KEY itself
    key = os.environ.get(endpoint.api_key_env)
    if not key:
        raise InputError(
            f"the environment variable {endpoint.api_key_env} with the key of {endpoint.base_url} is not "
            "set: export it, or leave api_key_env out for a server that needs no key"
        )
    return key


def _unanswered(endpoint: ModelEndpoint, fault: str) -> InfrastructureError:
    return InfrastructureError(
        f"{endpoint.base_url} {fault}, after {endpoint.max_retries} retries: check that the server runs and "
        "is reachable, raise timeout_s or max_retries, and run again"
    )


def _refused(endpoint: ModelEndpoint, error: APIStatusError) -> OmniaError:
    status = error.status_code
    if status in (401, 403):
        where = endpoint.api_key_env or "a variable named by api_key_env"
        return InputError(f"{endpoint.base_url} refused the key (HTTP {status}): put a valid key into {where}")
    if status == 404:
        return InputError(
            f"{endpoint.base_url} does not know model {endpoint.model!r} or the path (HTTP 404): compare "
            f"with {endpoint.base_url.rstrip('/')}/models"
        )
    said = f"{endpoint.base_url} answered HTTP {status} ({_quoted(error.message)})"
    if status == 429:
        return InfrastructureError(
            f"{said} after {endpoint.max_retries} retries: lower concurrency (now {endpoint.concurrency}), "
            "raise max_retries, or run again later"
        )
    if status >= 500 or status in (408, 409):
        return InfrastructureError(
            f"{said} after {endpoint.max_retries} retries: look at the server's log and run again"
        )
    return InfrastructureError(
        f"{said}: shorten the conversation if it exceeds the model's context, or correct the endpoint's parameters"
    )


def _unreadable(fault: str, body: str) -> ModelOutputError:
    return ModelOutputError(
        f"the answer {fault}: ask again with the next attempt, and check that base_url is a chat endpoint; "
        f"the answer begins {_quoted(body)!r}"
    )


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}..."

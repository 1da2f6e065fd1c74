"""A real OpenAI-compatible server on loopback that answers from a script: for tests, docs and quick starts.

    with ScriptedServer([Answer(content="hello")]) as server:
        endpoint = ModelEndpoint(model="scripted", base_url=server.base_url)

- A script is a list of turns, given in the order of the requests, or a function from the request's body to a
  turn. Use a function when conversations run at the same time; it is called from several threads.
- Each request, a retry of the SDK too, takes one turn. A list that is used up answers HTTP 400, which no
  client retries. `server.requests` holds what was received.
- An error inside a script function drops the connection and is raised again when the server closes.
- Serves `POST /v1/chat/completions` (no streaming) and `GET /v1/models`. Answers depend on the request and
  the script only: no clock, no random ids.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from agentomnia.llm.message import Message, ToolCall, parse_json
from agentomnia.row import Row

_CHARACTERS_PER_TOKEN = 4
_SILENT_CLIENT_S = 5.0


class Answer(Row):
    """A turn that is an answer of the model."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """None stands for "tool_calls" or "stop"; give "length" for a cut answer."""
    delay_s: float = 0.0


class Fault(Row):
    """A turn in which the server misbehaves.

    `Fault(status=429, retry_after_s=0.1)` limits the rate, `Fault()` is a server error, `Fault(status=200,
    body="{")` is malformed JSON, `Fault(dropped=True)` closes the connection in the middle of an answer.
    """

    status: int = 500
    body: str = '{"error": {"message": "scripted fault", "type": "server_error"}}'
    retry_after_s: float | None = None
    dropped: bool = False


Turn = Answer | Fault
Script = Sequence[Turn] | Callable[[dict[str, Any]], Turn]


@dataclass(frozen=True)
class ReceivedRequest:
    """A chat request as the server got it."""

    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class ScriptedServer:
    """The server; listens between `__enter__` and `__exit__` on a free port of 127.0.0.1."""

    def __init__(self, script: Script, *, model: str = "scripted") -> None:
        """Prepare a server.

        Args:
            script: The turns, or what makes them.
            model: The name that `/v1/models` lists; requests may name any model.
        """
        self._http = _HttpServer(script, model)
        # The short poll lets `with` blocks end at once: the default makes each of them last half a second.
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.005,), daemon=True)

    @property
    def base_url(self) -> str:
        """The address to give to a client."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The chat requests so far, oldest first."""
        return list(self._http.received)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        if self._http.script_errors:
            raise self._http.script_errors[0]


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for the requests in progress
    request_queue_size = 128

    def __init__(self, script: Script, model: str) -> None:
        self.model = model
        self.received: list[ReceivedRequest] = []
        self.script_errors: list[BaseException] = []
        self.stopping = threading.Event()
        self._script = script
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask DNS for the name of the host, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def next_turn(self, request: ReceivedRequest) -> tuple[int, Turn]:
        """Take note of a request; its number and the turn that answers it."""
        with self._lock:
            number = len(self.received)
            self.received.append(request)
        if not isinstance(self._script, Sequence):
            return number, self._script(request.body)
        if number < len(self._script):
            return number, self._script[number]
        return number, _bad_request(f"the script has {len(self._script)} turns, this is request {number + 1}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # a client that went away is no fault
            self.script_errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    timeout = _SILENT_CLIENT_S

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._send(404, _error_body(f"no path {self.path}"))
            return
        model = {"id": self.server.model, "object": "model", "created": 0, "owned_by": "agentomnia"}
        self._send(200, json.dumps({"object": "list", "data": [model]}))

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path != "/v1/chat/completions":
            self._send(404, _error_body(f"no path {self.path}"))
            return
        body = _request_body(text)
        if isinstance(body, Fault):
            self._send(body.status, body.body)
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        number, turn = self.server.next_turn(ReceivedRequest(headers=headers, body=body))
        if isinstance(turn, Fault):
            self._misbehave(turn)
        else:
            self.server.stopping.wait(turn.delay_s)
            self._send(200, json.dumps(_completion(turn, body, number), ensure_ascii=False))

    def _misbehave(self, fault: Fault) -> None:
        if fault.dropped:
            self._send(200, '{"id": "cut', announced_bytes=1000)
            return
        self._send(fault.status, fault.body, retry_after_s=fault.retry_after_s)

    def _send(
        self,
        status: int,
        body: str,
        *,
        retry_after_s: float | None = None,
        announced_bytes: int | None = None,
    ) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(announced_bytes or len(data)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the requests are in `ScriptedServer.requests`."""


def _request_body(text: str) -> dict[str, Any] | Fault:
    try:
        body = parse_json(text)
    except ValueError as error:
        return _bad_request(f"the body is not JSON ({error})")
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return _bad_request("the body has no list of messages")
    if body.get("stream"):
        return _bad_request("the scripted server does not stream: leave stream out")
    return body


def _completion(turn: Answer, body: dict[str, Any], number: int) -> dict[str, Any]:
    message = Message(
        role="assistant",
        content=turn.content,
        reasoning_content=turn.reasoning_content,
        tool_calls=turn.tool_calls,
    ).to_wire()
    prompt_tokens, completion_tokens = _token_count(body["messages"]), _token_count(message)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(turn)}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def _finish_reason(turn: Answer) -> str:
    return turn.finish_reason or ("tool_calls" if turn.tool_calls else "stop")


def _token_count(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False)) // _CHARACTERS_PER_TOKEN


def _bad_request(message: str) -> Fault:
    return Fault(status=400, body=_error_body(message))


def _error_body(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error"}})

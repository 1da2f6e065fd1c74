"""MCP over stdin and stdout, for desktop clients that start their servers themselves (`omnia mcp ENV`).

One JSON-RPC message a line, of either era (see `faces.mcp`); messages are answered in the order in which they came.
Nothing but messages goes to stdout; logs go to stderr. The end of stdin is the end.

Source: modelcontextprotocol.io/specification/2026-07-28/basic/transports/stdio.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from agentomnia.errors import InfrastructureError, OmniaError
from agentomnia.sandbox.api import Session
from agentomnia.sandbox.faces import mcp
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.faces.text import read_json

log = logging.getLogger("agentomnia.stdio")

_LINE_LIMIT = 4 * 2**20
"""Bytes of the longest message."""
_AHEAD = 16
"""Messages that are read before the first of them is answered."""


async def serve_stdio(session: Session, source: BinaryIO | None = None, sink: BinaryIO | None = None) -> None:
    """Serve one session until stdin ends; the session is the caller's to close."""
    if sink is None:
        with _own_stdout() as own:
            await serve_stdio(session, source, own)
        return
    peer = _Peer(session)
    async for line in _lines(source if source is not None else sys.stdin.buffer):
        if line.strip():
            answer = await peer.answer(line)
            if answer is not None:
                sink.write(answer.encode("ascii") + b"\n")
                sink.flush()


@contextmanager
def _own_stdout() -> Iterator[BinaryIO]:
    """Stdout for messages alone: whatever else the process prints meanwhile goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "wb", closefd=False) as own:
            yield own
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


async def _lines(source: BinaryIO) -> AsyncIterator[bytes]:
    """Lines as they come; a thread reads them, since stdin may be a pipe, a terminal or a file."""
    lines: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:
            line = source.readline(_LINE_LIMIT + 1)
            try:
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            except RuntimeError:  # the loop has ended
                return
            if not line:
                return

    # a daemon: the process must end although the thread waits for a line that never comes
    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await lines.get():
        yield line


class _Peer:
    """What was agreed with the one client."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._version = "2025-03-26"
        """The handshake revision that is spoken, once `initialize` has settled it."""

    async def answer(self, line: bytes) -> str | None:
        """The answer to a line; `None` where none is due."""
        try:
            if len(line) > _LINE_LIMIT:
                raise Refusal(413, f"the message is over {_LINE_LIMIT} bytes; send less")
            message = read_json(line)
        except Refusal as error:
            return mcp.error_text(mcp.RpcError(mcp.PARSE_ERROR, str(error)), None)
        if isinstance(message, list) and 0 < len(message) <= mcp.LONGEST_BATCH:
            answers = [a for m in message if (a := await self._one(m)) is not None]
            return f"[{','.join(answers)}]" if answers else None
        return await self._one(message)

    async def _one(self, message: Any) -> str | None:
        if isinstance(message, dict) and ("id" not in message or "method" not in message):
            return None  # a notification, or a response to what nobody asked
        id_: str | int | None = None
        try:
            if not isinstance(message, dict):
                raise mcp.RpcError(mcp.INVALID_REQUEST, "a message must be one JSON-RPC object")
            id_ = mcp.valid_id(message)
            return mcp.success_text(id_, await self._result(message))
        except mcp.RpcError as error:
            return mcp.error_text(error, id_)
        except OmniaError as error:
            log.warning("fault", extra={"kind": type(error).__name__})
            return mcp.error_text(mcp.rpc_error(error), id_)
        except Exception as error:  # the boundary of this process, as the gateway has one
            number = secrets.token_hex(6)
            log.error("unexpected exception", exc_info=error, extra={"incident": number})
            told = InfrastructureError(f"the server made a mistake (incident {number}); look for it in its log")
            return mcp.error_text(mcp.rpc_error(told), id_)

    async def _result(self, message: Mapping[str, Any]) -> str:
        if mcp.has_envelope(message):
            mcp.check_envelope(message, header=None)
            return await mcp.answer(self._session, message, mcp.MODERN)
        params = message.get("params")
        if message.get("method") == "initialize" and isinstance(params, dict):
            self._version = mcp.negotiated(params)
        return await mcp.answer(self._session, message, self._version)

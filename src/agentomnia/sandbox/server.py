"""The gateway on a socket: our own HTTP on uvloop and httptools (extra `serve`), logs as JSON lines on stderr."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from agentomnia.errors import InputError
from agentomnia.sandbox.api import Sandbox
from agentomnia.sandbox.gateway import DRAIN_SECONDS, LOOPBACK, Gateway, GatewaySettings

log = logging.getLogger("agentomnia.server")

DEFAULT_PORT = 8321
_BACKLOG = 4096


class JsonLines(logging.Formatter):
    """One JSON object a line, with what `extra` gave."""

    _known = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, object] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in self._known}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write what the package logs to stderr, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("agentomnia")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


@contextmanager
def listening(host: str, port: int, unix: Path | None) -> Iterator[socket.socket]:
    """A listening socket; a Unix socket is its owner's only, and its file goes with it.

    Raises:
        InputError: the address is taken or no address of this machine.
    """
    where = str(unix) if unix is not None else f"{host}:{port}"
    try:
        listener = _unix_socket(unix) if unix is not None else _tcp_socket(host, port)
    except OSError as error:
        raise InputError(f"cannot listen at {where}: {error.strerror or error}; choose another address") from error
    try:
        yield listener
    finally:
        listener.close()
        if unix is not None:
            unix.unlink(missing_ok=True)


def _tcp_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left by a server that was killed
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _address(listener: socket.socket, host: str, unix: Path | None) -> str:
    if unix is not None:
        return f"unix://{unix}"
    return (
        f"http://[{host}]:{listener.getsockname()[1]}" if ":" in host else f"http://{host}:{listener.getsockname()[1]}"
    )


@asynccontextmanager
async def running(
    sandbox: Sandbox,
    settings: GatewaySettings | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    unix: Path | None = None,
) -> AsyncIterator[tuple[str, Gateway]]:
    """A server inside the running event loop; leaving finishes the calls in flight and closes the sandbox.

    Yields:
        The address for clients, and the gateway.

    Raises:
        InputError: it cannot listen there.
    """
    from agentomnia.sandbox.http import Connections, Limits

    loop, loopback = asyncio.get_running_loop(), unix is not None or host in LOOPBACK
    gateway = Gateway(sandbox, replace(settings or GatewaySettings(), loopback=loopback))
    connections = Connections(gateway, Limits(gateway.settings.body_limit, gateway.settings.body_seconds))
    with listening(host, port, unix) as listener:
        address = _address(listener, host, unix)
        serving = loop.create_unix_server if unix is not None else loop.create_server
        server = await serving(connections.make, sock=listener, backlog=_BACKLOG)
        try:
            yield address, gateway
        finally:
            gateway.entrance.draining = True
            server.close()
            await connections.close(DRAIN_SECONDS)
            await gateway.close()


def serve(
    sandbox: Sandbox,
    settings: GatewaySettings | None = None,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    unix: Path | None = None,
    ready: Callable[[str], None] = lambda address: None,
    begin: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGINT or SIGTERM, then finish the calls in flight and close the sandbox.

    Args:
        sandbox: what is served; belongs to the server from here on.
        settings: who may ask, and how much at once.
        host: the address to listen at; one that others can reach should come with tokens.
        port: the port; 0 takes a free one.
        unix: a Unix socket instead.
        ready: gets the address once the server answers.
        begin: called in the event loop before anybody is let in.

    Returns:
        The exit code of the process.

    Raises:
        InputError: it cannot listen there.
    """
    import uvloop

    async def until_stopped() -> None:
        stop = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        begin()
        async with running(sandbox, settings, host, port, unix) as (address, gateway):
            if not (gateway.settings.loopback or gateway.settings.tokens):
                log.warning("anybody who reaches this address may open sessions; give tokens")
            ready(address)
            await stop.wait()

    log_to_stderr()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_stopped())
    return 0

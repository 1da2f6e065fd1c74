"""The process that workers are forked from: everything a worker needs is imported here, before there is foreign code.

Started by `sandbox.zygote` as `python -m agentomnia.sandbox.forkserver FD`, with one end of a socket of the host's.
Says hello, is told limits and level, gets ready, then forks a worker for every socket that it is sent, and answers with
the worker's process as a file descriptor (`pidfd`), which means the same process in whatever namespace it is used.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox import kernel, seccomp
from agentomnia.sandbox.heap import filling
from agentomnia.sandbox.isolation import Isolation, WorkerLimits, lock_down

HELLO, READY = b"hello", b"ready"
LOCKED, NOT_LOCKED = b"\x01", b"\x00"
"""The first byte of every worker: whether it is locked down; after `NOT_LOCKED` comes why."""
MESSAGE_BYTES = 1 << 16

PRELOADED = (
    "abc array ast base64 binascii bisect calendar cmath codecs collections collections.abc colorsys contextlib "
    "contextvars copy copyreg csv dataclasses datetime decimal difflib enum fnmatch fractions functools gettext "
    "graphlib hashlib heapq hmac html html.entities html.parser inspect io ipaddress itertools json keyword "
    "linecache locale logging marshal math numbers operator pathlib pickle posixpath pprint queue random re reprlib "
    "sched secrets shlex signal statistics string stringprep struct textwrap threading time timeit token tokenize "
    "traceback types typing unicodedata urllib.parse uuid warnings weakref zlib zoneinfo _strptime "
    "typing_extensions pydantic jsonschema agentomnia.environment.instance agentomnia.environment.imported "
    "agentomnia.environment.program agentomnia.environment.schema agentomnia.environment.state "
    "agentomnia.sandbox.worker"
).split()
"""What environments may import; nothing else can be, since no file can be opened later."""
_ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-32", "idna", "punycode", "unicode_escape")

_SOCKET = 3
"""The only file descriptor of a worker besides the three standard ones."""
_MOST_DESCRIPTORS = 1 << 20
_HELD: list[Any] = []
"""Must live as long as workers are forked."""


@dataclass(frozen=True)
class _Settings:
    """What the host says once."""

    isolation: Isolation
    limits: WorkerLimits
    held_bytes: int
    serve: str
    """The worker's main job, as `module:function`."""


def main() -> None:
    """Fork workers until the host closes its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    control.send(HELLO)
    settings = _told(control.recv(MESSAGE_BYTES))
    if settings.isolation.seccomp:
        # once, for all workers
        seccomp.build(kernel.machine(), settings.limits.deny_randomness)
    serve: Callable[[socket.socket, float, int], None] = _found(settings.serve)
    signal.signal(signal.SIGCHLD, _reap)
    _settle()
    control.send(READY)
    descriptor = _fork_on_demand(control)
    if descriptor is None:
        return
    status = 1
    try:
        _work(descriptor, settings, serve)
        status = 0
    finally:
        # no exit handlers, no destructors: those of the forkserver are not the worker's to run
        os._exit(status)


def _preload() -> None:
    gc.disable()
    for name in PRELOADED:
        import_module(name)
    for encoding in _ENCODINGS:
        "a".encode(encoding).decode(encoding)
    _validate_once()
    kernel.prepare()


def _validate_once() -> None:
    """Validators read files of their own when they are first used."""
    from jsonschema import Draft202012Validator

    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"pattern": "a"}]}}}
    Draft202012Validator.check_schema(schema)
    list(Draft202012Validator(schema).iter_errors({"a": {}}))


def _told(message: bytes) -> _Settings:
    told: dict[str, Any] = json.loads(message)
    return _Settings(Isolation(**told["isolation"]), WorkerLimits(**told["limits"]), told["held"], told["serve"])


def _found(name: str) -> Any:
    module, _, function = name.partition(":")
    return vars(import_module(module))[function]


def _settle() -> None:
    """From here on nothing is imported or printed; what exists now is never looked at by the collector."""
    os.dup2(0, 2)
    os.environ.clear()
    sys.path.clear()
    sys.path_importer_cache.clear()
    gc.collect()
    _HELD.append(filling())
    gc.freeze()


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _fork_on_demand(control: socket.socket) -> int | None:
    """Fork for every request; comes back with a socket in every child, and with `None` when the host has gone."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not request:
            return None
        # a child that dies at once must not be reaped before its pidfd exists
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        child = os.fork()
        if child == 0:
            control.detach()
            return descriptors[0]
        os.close(descriptors[0])
        _answer(control, request, child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _answer(control: socket.socket, request: bytes, child: int) -> None:
    pidfd = os.pidfd_open(child)
    try:
        socket.send_fds(control, [request], [pidfd])
    finally:
        os.close(pidfd)


def _work(descriptor: int, settings: _Settings, serve: Callable[[socket.socket, float, int], None]) -> None:
    """Be a worker: keep nothing but one socket, lock down, serve."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    if descriptor != _SOCKET:
        os.dup2(descriptor, _SOCKET)
    os.closerange(_SOCKET + 1, _MOST_DESCRIPTORS)
    sock = socket.socket(fileno=_SOCKET)
    try:
        lock_down(settings.limits, settings.isolation, settings.held_bytes)
    except InfrastructureError as error:
        sock.sendall(NOT_LOCKED + str(error).encode())
        return
    sock.sendall(LOCKED)
    serve(sock, settings.limits.soft_seconds, settings.limits.answer_bytes)


if __name__ == "__main__":
    main()

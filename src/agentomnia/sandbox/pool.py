"""Connections that threads share, and forked children must not: what the blocking clients have in common."""

from __future__ import annotations

import os
import select
import threading
from typing import Generic, Protocol, Self, TypeVar


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """End it."""
        ...


C = TypeVar("C", bound=Closable)


class Pooled(Generic[C]):
    """Keeps connections alive, as many as requests were in flight at once; closes them at the end of a `with`."""

    def __init__(self) -> None:
        """Begin without a connection."""
        self._idle: list[C] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    def _gone(self, idle: C) -> bool:
        """Whether the server has ended an idle connection."""
        raise NotImplementedError

    def _taken(self) -> C | None:
        """A connection for the caller alone: an idle one that the server has not ended, or `None`."""
        with self._lock:
            if self._process != os.getpid():  # a forked child must not talk over its parent's connections
                self._process = os.getpid()
                self._idle.clear()
            while self._idle:
                connection = self._idle.pop()
                if not self._gone(connection):
                    return connection
                connection.close()
            return None

    def _given_back(self, connection: C) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """End every connection; sessions stay until they are closed or their lease ends."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ended(idle: int) -> bool:
    """Whether the peer has ended a connection that nothing was asked over: then its descriptor can be read."""
    # not `select`, which knows no descriptor over 1023
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))

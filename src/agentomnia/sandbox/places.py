"""Where a bench stands, seen from the host: in this process, or behind the socket of an isolated worker.

An isolated worker answers in order, so the first request without an answer is the one it is at. A watchdog gives that
one `hard_seconds`; then the process is killed, whatever it is doing. When a worker dies, the request it was at is the
suspect, and all later ones are innocent: they were never begun.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from agentomnia.environment.program import Program
from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError
from agentomnia.sandbox.bench import Bench
from agentomnia.sandbox.catalog import Source
from agentomnia.sandbox.wire import FrameReader, WireError, frame
from agentomnia.sandbox.worker import LOAD_FACTOR
from agentomnia.sandbox.zygote import Forked


class BrokenCall(Exception):
    """The call was stopped inside the worker; the instance is gone, the worker lives."""

    def __init__(self, why: str, *, late: bool) -> None:
        """Keep why; `late` where it ran past its time."""
        super().__init__(why)
        self.late = late


class WorkerGone(Exception):
    """The worker died before it answered."""

    def __init__(self, *, suspect: bool, late: bool = False) -> None:
        """Keep whether the worker was at this request, and whether the watchdog killed it for that."""
        super().__init__("the worker is gone")
        self.suspect, self.late = suspect, late


class Place(Protocol):
    """A bench somewhere."""

    handles: int
    """Instances there."""

    @property
    def alive(self) -> bool:
        """Whether requests can be answered."""
        ...

    async def ask(self, operation: str, handle: int, *arguments: Any) -> Any:
        """Do an operation of `Bench`.

        Raises:
            EnvironmentFault: the environment's code failed.
            BrokenCall: it was stopped.
            WorkerGone: the worker died first.
            CapacityError: too many requests are waiting already.
        """
        ...

    def drop(self, handle: int) -> None:
        """Forget an instance, without waiting for that."""
        ...

    def close(self) -> None:
        """End it; what was there is lost."""
        ...


Vacate = Callable[[Callable[["Place"], bool]], Awaitable[None]]
"""Lets the sessions sleep whose instances are at a place for which the argument is true."""


class Places(Protocol):
    """Where benches can stand: this machine, or several."""

    vacate: Vacate | None
    """Set by the host, for places that go away while their sessions go on."""

    async def find(self, source: Source, sample: bytes) -> Place:
        """A place for one more instance of an environment.

        Args:
            source: the environment.
            sample: a packed state of it, from which a worker learns what of an imported class is state.

        Raises:
            EnvironmentFault: the source does not load.
            CapacityError: no room for another worker.
            InfrastructureError: nothing here can hold untrusted code, or no worker starts.
        """
        ...

    def all(self) -> Iterator[Place]:
        """Every place that is alive."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """What runs now, by Prometheus name without prefix."""
        ...

    async def close(self) -> None:
        """Stop everything."""
        ...


class InProcess:
    """A bench in the host's own process, for trusted programs."""

    alive = True

    def __init__(self, program: Program) -> None:
        """Begin without an instance."""
        self.bench = Bench(program)
        self.handles = 0

    async def ask(self, operation: str, handle: int, *arguments: Any) -> Any:
        """Do it now."""
        return self.bench.do(operation, handle, *arguments)

    def drop(self, handle: int) -> None:
        """Forget an instance."""
        self.bench.drop(handle)

    def close(self) -> None:
        """Nothing to stop."""


class Isolated(asyncio.Protocol):
    """A bench in a worker process."""

    def __init__(self, forked: Forked, hard_seconds: float, most_waiting: int, answer_bytes: int) -> None:
        """Take over a worker; `connect` must follow.

        Args:
            forked: its socket and its process.
            hard_seconds: for one request, before the worker is killed.
            most_waiting: requests without an answer at most.
            answer_bytes: longest answer.
        """
        self.handles = 0
        self._forked = forked
        self._hard = hard_seconds
        self._most = most_waiting
        self._reader = FrameReader(answer_bytes + 64)
        self._out: list[bytes] = []
        self._waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0
        """Loop time at which the timer rings."""
        self._deadline = 0.0
        """Loop time by which the request that the worker is at must be answered."""
        self._transport: asyncio.Transport | None = None
        self._late = False

    async def connect(self) -> None:
        """Attach to the event loop."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._forked.socket)

    @property
    def alive(self) -> bool:
        """Whether the socket is open."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    async def ask(self, operation: str, handle: int, *arguments: Any) -> Any:
        """Send a request and wait for its answer."""
        if self._transport is None or self._transport.is_closing():
            raise WorkerGone(suspect=False)
        if len(self._waiting) >= self._most:
            raise CapacityError(f"{self._most} calls are waiting for this environment already; try again")
        return await self._send(self._transport, operation, handle, *arguments)

    def drop(self, handle: int) -> None:
        """Forget an instance; nobody waits for the answer."""
        if self._transport is not None and not self._transport.is_closing():
            self._send(self._transport, "drop", handle).cancel()

    def _send(self, transport: asyncio.Transport, *request: Any) -> asyncio.Future[Any]:
        self._number += 1
        framed = frame([self._number, *request])
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((self._number, future))
        if len(self._waiting) == 1:
            self._watch()
        if not self._out:
            loop.call_soon(self._flush, transport)
        self._out.append(framed)
        return future

    def _flush(self, transport: asyncio.Transport) -> None:
        """Send the requests of one turn of the event loop in one write: the worker then wakes once for all of them."""
        if not transport.is_closing():
            transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Answers, in the order of the requests; anything else ends the worker."""
        try:
            for value in self._reader.feed(data):
                self._take(value)
        except (WireError, TypeError, ValueError):
            self.close()

    def _take(self, value: Any) -> None:
        number, status, answer = value
        expected, future = self._waiting[0] if self._waiting else (None, None)
        if future is None or type(number) is not int or number != expected:
            raise WireError("an answer that nobody asked for; the sender is no worker of ours")
        if type(status) is not str or status not in _STATUSES:
            raise WireError("an answer of no known kind; the sender is no worker of ours")
        self._waiting.popleft()
        self._watch()
        if not future.done():  # its caller may have gone away
            _settle(future, status, answer)

    def _watch(self) -> None:
        """Start the time of the request that the worker is at now."""
        if not self._waiting:
            return
        loads = self._waiting[0][0] == 1
        self._deadline = asyncio.get_running_loop().time() + self._hard * (LOAD_FACTOR if loads else 1)
        if self._timer is None or self._deadline < self._rings:
            self._ring_at(self._deadline)

    def _ring_at(self, moment: float) -> None:
        """Have the watchdog look then: nearly always for nothing, so that it is not set anew for every request."""
        if self._timer is not None:
            self._timer.cancel()
        self._rings = moment
        self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        if asyncio.get_running_loop().time() < self._deadline:
            self._ring_at(self._deadline)
        else:
            self._late = True
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The worker died: tell everybody who waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._kill()
        waiting, self._waiting = self._waiting, deque()
        for place, (_, future) in enumerate(waiting):
            if not future.done():
                future.set_exception(WorkerGone(suspect=place == 0, late=place == 0 and self._late))

    def close(self) -> None:
        """Kill the process; whoever waits is told."""
        self._kill()
        if self._transport is not None:
            self._transport.abort()

    def _kill(self) -> None:
        self._forked.kill(signal.SIGKILL)


_STATUSES = frozenset(("ok", "fault", "broken", "refused"))
_TOLD_CHARACTERS = 2_500
"""Of what a worker says of itself, which may be anything."""


def _settle(future: asyncio.Future[Any], status: Any, answer: Any) -> None:
    if status == "ok":
        future.set_result(answer)
        return
    told = answer[:_TOLD_CHARACTERS] if isinstance(answer, str) else "it gives no reason"
    if status == "broken":
        future.set_exception(BrokenCall(told, late="past its time" in told))
    elif status == "fault":
        future.set_exception(EnvironmentFault(told))
    else:
        future.set_exception(InfrastructureError(f"a worker refused: {told}; open the session again"))

"""The host's side of the forkserver: starts it, asks it for workers, starts it again when it has died.

A worker costs a fork, not the start of an interpreter. It inherits one socket, no environment variable and no other
file descriptor of the host's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox import bubblewrap
from agentomnia.sandbox.forkserver import HELLO, LOCKED, MESSAGE_BYTES, READY
from agentomnia.sandbox.isolation import Isolation, WorkerLimits

WORKER = "agentomnia.sandbox.worker:serve"
_START_SECONDS, _FORK_SECONDS = 60.0, 30.0
"""Far over what it takes (0.5 s and 3 ms), since a busy machine is no reason to fail."""
_CREDENTIALS = struct.Struct("3i")
_TOLD_BYTES = 2_000
_VICTIM_SCORE = "500"
"""Half of the scale of the kernel's out-of-memory score."""


class Forked:
    """A worker process: the host's end of its socket, and the process itself."""

    def __init__(self, sock: socket.socket, pidfd: int) -> None:
        """Take both over."""
        self.socket = sock
        self.pidfd = pidfd

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; to a process that has ended it does nothing. SIGKILL lets go of the process for good."""
        if self.pidfd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
        if number == signal.SIGKILL:
            os.close(self.pidfd)
            self.pidfd = -1

    @property
    def silent(self) -> bool:
        """Whether it lives and has said nothing since it was locked."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Kill it and close the socket."""
        self.kill()
        self.socket.close()


async def _unless_cancelled(spare: asyncio.Task[Forked]) -> Forked:
    """The worker of a task; where the caller is cancelled, the worker is ended, since nobody else knows of it."""
    try:
        return await asyncio.shield(spare)
    except asyncio.CancelledError:
        spare.add_done_callback(_discard)
        raise


def _discard(spare: asyncio.Task[Forked]) -> None:
    if not spare.cancelled() and spare.exception() is None:
        spare.result().close()


class Zygote:
    """A running forkserver. Belongs to the event loop, and to the thread, that started it: it dies with that thread."""

    def __init__(
        self, isolation: Isolation, limits: WorkerLimits, serve: str = WORKER, roots: Sequence[Path] = ()
    ) -> None:
        """Prepare; `start` is what callers use.

        Args:
            isolation: what holds the workers.
            limits: what each may take.
            serve: the workers' main job, as `module:function`.
            roots: directories to import from besides the package's own.
        """
        self._isolation, self._limits, self._serve = isolation, limits, serve
        self._roots = bubblewrap.import_roots(roots)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._spare: asyncio.Task[Forked] | None = None

    @classmethod
    async def start(
        cls, isolation: Isolation, limits: WorkerLimits, serve: str = WORKER, roots: Sequence[Path] = ()
    ) -> Zygote:
        """Start a forkserver.

        Raises:
            InfrastructureError: it does not start.
        """
        zygote = cls(isolation, limits, serve, roots)
        await zygote._launch()
        return zygote

    @property
    def alive(self) -> bool:
        """Whether the forkserver runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process that the host started: bubblewrap, or the forkserver itself; -1 when closed."""
        return self._process.pid if self._process is not None else -1

    @property
    def spares(self) -> int:
        """Workers that wait for a source, or will soon."""
        return int(self._spare is not None)

    def prepare(self) -> None:
        """Fork a worker ahead, in the background: the next `spawn` takes it, and waits for nothing."""
        if self._spare is None:
            self._spare = asyncio.create_task(self._spawn())

    async def spawn(self) -> Forked:
        """A worker, locked down: the one that was prepared, else a new one.

        Starts a new forkserver where the old one has died.

        Raises:
            InfrastructureError: no worker can be had.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(InfrastructureError, OSError):
                worker = await _unless_cancelled(spare)
                if worker.silent:
                    return worker
                worker.close()
        return await self._spawn()

    async def _spawn(self) -> Forked:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pidfd = -1
        try:
            try:
                pidfd = await self._fork(theirs)
            finally:
                theirs.close()
            await _locked(ours)
        except BaseException:
            Forked(ours, pidfd).close()
            raise
        return Forked(ours, pidfd)

    async def close(self) -> None:
        """Stop the forkserver, and every worker of it."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.cancel()
            (worker,) = await asyncio.gather(spare, return_exceptions=True)
            if isinstance(worker, Forked):
                worker.close()
        self._stop()

    async def _fork(self, theirs: socket.socket) -> int:
        async with self._lock:
            try:
                return await self._ask(theirs)
            except OSError:
                await self._launch()
            try:
                return await self._ask(theirs)
            except OSError as error:
                raise InfrastructureError(
                    f"the forkserver dies at every request ({error}); look at this machine's memory and process limits"
                ) from error

    async def _ask(self, theirs: socket.socket) -> int:
        """One request; its number tells the answer from that to a request whose caller has gone away."""
        if self._control is None:
            raise ConnectionError("not running")
        number = str(next(self._numbers)).encode()
        socket.send_fds(self._control, [number], [theirs.fileno()])
        while True:
            await _readable(self._control, _FORK_SECONDS)
            answer, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
            if answer == number:
                return descriptors[0]
            for descriptor in descriptors:
                os.close(descriptor)
            if not answer:
                raise ConnectionError("the forkserver has ended")

    async def _launch(self) -> None:
        self._stop()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._control = control
        with theirs, tempfile.TemporaryFile() as said:
            self._process = self._begin(theirs.fileno(), said)
            theirs.close()
            try:
                process = await _hello(control)
                _prefer_as_victim(process)
                control.send(self._settings(_held_bytes(process)))
                await _readable(control, _START_SECONDS)
                if control.recv(MESSAGE_BYTES) != READY:
                    raise ConnectionError("it ended before it was ready")
            except OSError as error:
                self._stop()
                said.seek(0)
                told = said.read()[-_TOLD_BYTES:].decode(errors="replace").strip()
                raise InfrastructureError(
                    f"the forkserver does not start ({error}): {told}; run `omnia serve` with PATH as usual, "
                    "and check that this Python can import agentomnia"
                ) from error

    def _begin(self, descriptor: int, said: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, self._roots))}
        # -S: nothing that is installed beside the package runs at start
        command = [bubblewrap.python(), "-B", "-P", "-S", "-s", "-m", "agentomnia.sandbox.forkserver", str(descriptor)]
        if self._isolation.jail is not None:
            command = bubblewrap.wrap(self._isolation.jail, command, environment, self._roots)
            environment = {}
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return subprocess.Popen(
                command, stdin=null, stdout=null, stderr=said, env=environment, cwd="/",
                pass_fds=[descriptor], start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(null)

    def _settings(self, held: int) -> bytes:
        told = {
            "isolation": asdict(self._isolation), "limits": asdict(self._limits), "held": held, "serve": self._serve,
        }  # fmt: skip
        return json.dumps(told).encode()

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def _readable(sock: socket.socket, seconds: float) -> None:
    """Wait until there is something to read.

    Raises:
        TimeoutError: nothing came; an `OSError`, like every other end of the forkserver.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock.fileno(), ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    finally:
        loop.remove_reader(sock.fileno())


async def _hello(control: socket.socket) -> int:
    """The forkserver's process id as this process sees it: the kernel translates it between namespaces."""
    await _readable(control, _START_SECONDS)
    message, extra, _, _ = control.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    if message != HELLO:
        raise ConnectionError("it ended while it began")
    data = next(d for level, kind, d in extra if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS))
    process: int = _CREDENTIALS.unpack(data)[0]
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    return process


def _prefer_as_victim(process: int) -> None:
    """Where memory runs out, the kernel ends workers, which inherit this, before the host."""
    with suppress(OSError):
        Path(f"/proc/{process}/oom_score_adj").write_text(_VICTIM_SCORE)


def _held_bytes(process: int) -> int:
    """Address space of a process, in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


async def _locked(sock: socket.socket) -> None:
    """Wait until a worker says that it is locked down.

    Raises:
        InfrastructureError: it is not, or it died.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_FORK_SECONDS):
        first = await loop.sock_recv(sock, 1)
        if first == LOCKED:
            return
        why = (await loop.sock_recv(sock, _TOLD_BYTES)).decode(errors="replace") if first else ""
    raise InfrastructureError(why or "a worker died before it was locked down; look at this machine's memory limits")

"""The lock around workers, and the forkserver they come from."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox import bubblewrap, isolation, kernel, landlock, seccomp
from agentomnia.sandbox.heap import filling
from agentomnia.sandbox.isolation import Isolation, WorkerLimits, lock_down, probe
from agentomnia.sandbox.zygote import Forked, Zygote

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="workers are isolated by Linux")

FOUND = probe()
LEVELS = [
    level
    for level in (
        FOUND,
        replace(FOUND, namespaces=False),
        replace(FOUND, namespaces=False, landlock=0),
        replace(FOUND, namespaces=False, seccomp=False),
    )
    if level.enough
]
LIMITS = WorkerLimits()
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000

X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "mmap": 9, "mprotect": 10, "ioctl": 16,
    "shmget": 29, "dup": 32, "setitimer": 38, "sendfile": 40, "socket": 41, "connect": 42, "sendto": 44, "recvfrom": 45,
    "sendmsg": 46, "recvmsg": 47, "bind": 49, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59,
    "kill": 62, "fcntl": 72, "ptrace": 101, "prctl": 157, "setrlimit": 160, "mount": 165, "tkill": 200, "futex": 202,
    "clock_gettime": 228, "exit_group": 231, "tgkill": 234, "keyctl": 250, "openat": 257, "unshare": 272,
    "prlimit64": 302, "process_vm_readv": 310, "seccomp": 317, "getrandom": 318, "memfd_create": 319, "bpf": 321,
    "execveat": 322, "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "landlock_create_ruleset": 444, "landlock_restrict_self": 446,
}  # fmt: skip
AARCH64 = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "mmap": 222, "mprotect": 226, "ioctl": 29, "shmget": 194,
    "dup": 23, "setitimer": 103, "sendfile": 71, "socket": 198, "connect": 203, "sendto": 206, "recvfrom": 207,
    "sendmsg": 211, "recvmsg": 212, "bind": 200, "socketpair": 199, "clone": 220, "execve": 221, "kill": 129,
    "fcntl": 25, "ptrace": 117, "prctl": 167, "setrlimit": 164, "mount": 40, "tkill": 130, "futex": 98,
    "clock_gettime": 113, "exit_group": 94, "tgkill": 131, "keyctl": 219, "openat": 56, "unshare": 97,
    "prlimit64": 261, "process_vm_readv": 270, "seccomp": 277, "getrandom": 278, "memfd_create": 279, "bpf": 280,
    "execveat": 281, "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "landlock_create_ruleset": 444, "landlock_restrict_self": 446,
}  # fmt: skip
"""Another reading of the kernel's tables than the filter's own: it is compared by name with what must be allowed."""
NEEDED = {"read", "write", "close", "mmap", "mprotect", "setitimer", "sendto", "recvfrom", "futex", "clock_gettime"}
NEEDED |= {"exit_group", "getrandom"}


def decide(program: bytes, architecture: int, number: int, third: int = 0) -> int:
    """What the kernel would do: runs a filter over one call."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, 0, 0, third, 0, 0, 0)
    lines = list(struct.iter_unpack("<HBBI", program))
    place, accumulator = 0, 0
    for _ in range(1000):
        code, yes, no, value = lines[place]
        place += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
        place += yes if holds else no
    raise AssertionError("the filter does not end")


# The filter


@pytest.mark.parametrize(("machine", "numbers"), [("x86_64", X86_64), ("aarch64", AARCH64)])
def test_the_filter_lets_through_what_computes_and_talks_and_nothing_else(
    machine: str, numbers: dict[str, int]
) -> None:
    program, architecture = seccomp.build(machine), seccomp.AUDIT_ARCH[machine]
    for name, number in numbers.items():
        assert decide(program, architecture, number) == (ALLOW if name in NEEDED else REFUSE), name
    assert sum(decide(program, architecture, number) == ALLOW for number in range(1024)) < 45


@pytest.mark.parametrize("machine", seccomp.AUDIT_ARCH)
def test_memory_is_never_executable(machine: str) -> None:
    program, architecture = seccomp.build(machine), seccomp.AUDIT_ARCH[machine]
    numbers = {"x86_64": X86_64, "aarch64": AARCH64}[machine]
    for name in ("mmap", "mprotect"):
        for protection in range(16):
            expected = REFUSE if protection & 4 else ALLOW
            assert decide(program, architecture, numbers[name], protection) == expected
            assert decide(program, architecture, numbers[name], protection | 1 << 33) == expected


@pytest.mark.parametrize("machine", seccomp.AUDIT_ARCH)
def test_calls_in_the_numbering_of_another_architecture_are_refused(machine: str) -> None:
    program, architecture = seccomp.build(machine), seccomp.AUDIT_ARCH[machine]
    others = {0x40000003, 0xC0000028, *seccomp.AUDIT_ARCH.values()} - {architecture}  # i386, arm and the other one
    for number in range(600):
        assert decide(program, architecture, 0x40000000 | number) == REFUSE
        assert all(decide(program, other, number) == KILL for other in others)


@pytest.mark.parametrize("machine", seccomp.AUDIT_ARCH)
def test_randomness_can_be_refused(machine: str) -> None:
    number = {"x86_64": X86_64, "aarch64": AARCH64}[machine]["getrandom"]
    assert decide(seccomp.build(machine, True), seccomp.AUDIT_ARCH[machine], number) == REFUSE
    assert len(seccomp.build(machine)) // 8 < 256, "jumps reach 255 instructions"


def test_landlock_is_asked_for_every_right_that_an_abi_knows() -> None:
    sizes = {abi: len(landlock.attributes(abi)) for abi in range(1, 9)}
    assert sizes == {1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24, 7: 24, 8: 24}
    files = [struct.unpack_from("Q", landlock.attributes(abi))[0] for abi in range(1, 6)]
    assert files == [0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF]


# What is found, and what is said of it


def test_the_level_is_told() -> None:
    full = Isolation(landlock=7, seccomp=True, bubblewrap="/usr/bin/bwrap", namespaces=True)
    assert full.level == "bubblewrap + Landlock + seccomp + rlimits" and full.enough
    assert full.describe() == f"isolation of untrusted environments: {full.level}"
    assert replace(full, namespaces=False).level == "Landlock + seccomp + rlimits"
    assert "user namespaces" in replace(full, namespaces=False).describe()
    assert "install bubblewrap" in Isolation(landlock=7, seccomp=True).describe()
    assert Isolation(seccomp=True).enough and Isolation(landlock=1).enough
    assert not Isolation().enough and "refused" in Isolation().describe()
    assert not Isolation(bubblewrap="/usr/bin/bwrap", namespaces=True).enough


def test_the_namespaces_show_no_more_than_python_needs() -> None:
    command = bubblewrap.wrap("bwrap", ["python"], {"A": "b"}, bubblewrap.import_roots())
    bound = {command[n + 2] for n, word in enumerate(command) if word.startswith("--ro-bind")}
    assert not bound & {"/", "/home", "/root", "/etc", "/proc", "/dev", "/tmp", "/var", "/run", "/sys"}
    assert not {"--bind", "--dev-bind", "--proc", "--dev", "--share-net"} & set(command)
    assert {"--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop"} <= set(command)


# Locking


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda abi: None, "can still open"),
        (lambda abi: os.open("/nowhere", os.O_RDONLY), "No such file"),
    ],
    ids=["does nothing", "fails"],
)
def test_a_lock_that_was_promised_and_does_not_hold_is_an_error(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[int], object], error: str
) -> None:
    monkeypatch.setattr(isolation, "_give_up_privileges", lambda: None)
    monkeypatch.setattr(landlock, "restrict", step)
    monkeypatch.setattr(isolation, "_limit", lambda *_: pytest.fail("went on"))
    with pytest.raises(InfrastructureError, match=error):
        lock_down(LIMITS, Isolation(landlock=1), 0)


# The forkserver


class Yard:
    """An event loop with one forkserver for each level."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.zygotes: dict[str, Zygote] = {}

    def play(self, play: Callable[[Zygote], Awaitable[None]], level: Isolation = FOUND) -> None:
        async def run() -> None:
            if level.level not in self.zygotes:
                self.zygotes[level.level] = await start(level)
            await asyncio.wait_for(play(self.zygotes[level.level]), 60)

        self.runner.run(run())

    def close(self) -> None:
        for zygote in self.zygotes.values():
            self.runner.run(zygote.close())
            assert not zygote.alive
        self.runner.close()


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    yard = Yard()
    yield yard
    yard.close()


def start(level: Isolation, limits: WorkerLimits = LIMITS) -> Awaitable[Zygote]:
    return Zygote.start(level, limits, serve="sandbox_answers:serve", roots=[Path(__file__).parent])


def apart(limits: WorkerLimits, play: Callable[[Zygote], Awaitable[None]]) -> None:
    """Play with a forkserver of its own."""

    async def run() -> None:
        zygote = await start(FOUND, limits)
        try:
            await asyncio.wait_for(play(zygote), 60)
        finally:
            await zygote.close()

    asyncio.run(run())


def entries(path: str) -> list[str]:
    return sorted(entry.name for entry in Path(path).iterdir())


async def ask(worker: Forked, question: str) -> str:
    """What a worker's own Python says to an expression."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(worker.socket, question.encode())
    return (await loop.sock_recv(worker.socket, 1 << 16)).decode()


def process_of(worker: Forked) -> int:
    fields = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{worker.pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def status_of(worker: Forked) -> dict[str, str]:
    lines = Path(f"/proc/{process_of(worker)}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def gone(process: int) -> bool:
    for _ in range(400):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.level)
def test_workers_are_locked_and_have_nothing_of_the_hosts(
    yard: Yard, level: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIA_CANARY", "of the host")

    async def play(zygote: Zygote) -> None:
        with socket.socket() as leaked, Path(os.devnull).open() as other:
            os.set_inheritable(leaked.fileno(), True)
            os.set_inheritable(other.fileno(), True)
            worker = await zygote.spawn()
        status = status_of(worker)
        assert Path(f"/proc/{process_of(worker)}/oom_score_adj").read_text().strip() == "500"
        assert status["NoNewPrivs"] == "1" and int(status["CapEff"], 16) == 0
        assert status["Seccomp"] == ("2" if level.seccomp else "0")
        assert entries(f"/proc/{process_of(worker)}/fd") == ["0", "1", "2", "3"]
        assert await ask(worker, "dict(os.environ)") == "{}"
        assert await ask(worker, "sys.flags.hash_randomization") == "0"
        assert await ask(worker, "'ctypes' in sys.modules") == "False"
        assert "No module" in await ask(worker, "__import__('ctypes')")
        assert "Error" in await ask(worker, "os.open('/etc/passwd', 0)")
        assert await ask(worker, "__import__('datetime').datetime.strptime('2026-01-02', '%Y-%m-%d').day") == "2"
        worker.close()

    yard.play(play, level)


def test_every_worker_hashes_alike_and_draws_apart(yard: Yard) -> None:
    async def play(zygote: Zygote) -> None:
        workers = [await zygote.spawn() for _ in range(3)]
        for question, different in (("hash('a')", 1), ("__import__('random').random()", 3), ("os.urandom(8)", 3)):
            assert len({await ask(worker, question) for worker in workers}) == different
        for worker in workers:
            worker.close()

    yard.play(play)


def test_memory_is_limited_beyond_what_the_forkserver_holds_and_randomness_can_be_denied() -> None:
    async def play(zygote: Zygote) -> None:
        worker = await zygote.spawn()
        assert await ask(worker, "len(bytearray(40 << 20))") == str(40 << 20)
        assert "MemoryError" in await ask(worker, "len(bytearray(80 << 20))")
        if FOUND.seccomp:
            assert "Error" in await ask(worker, "__import__('uuid').uuid4()")
        worker.close()

    apart(replace(LIMITS, memory_bytes=64 << 20, deny_randomness=True), play)


def test_a_worker_that_cannot_be_locked_never_serves() -> None:
    async def play(zygote: Zygote) -> None:
        with pytest.raises(InfrastructureError, match="cannot be locked down"):
            await zygote.spawn()

    apart(replace(LIMITS, memory_bytes=1 << 70), play)


@pytest.mark.parametrize("level", LEVELS[:2], ids=lambda level: level.level)
def test_a_dead_forkserver_takes_its_workers_along_and_is_replaced(yard: Yard, level: Isolation) -> None:
    async def play(zygote: Zygote) -> None:
        first = await zygote.spawn()
        process = process_of(first)
        os.kill(zygote.pid, signal.SIGKILL)
        assert await gone(process)
        second = await zygote.spawn()
        assert await ask(second, "1 + 1") == "2"
        for worker in (first, second):
            worker.close()

    yard.play(play, level)


def test_a_killed_worker_is_reaped_and_nobody_else_hurt(yard: Yard) -> None:
    async def play(zygote: Zygote) -> None:
        killed, other = await zygote.spawn(), await zygote.spawn()
        process = process_of(killed)
        killed.kill()
        for _ in range(400):
            if not Path(f"/proc/{process}").exists():
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("a zombie stays")
        assert await ask(other, "2 + 2") == "4"
        for worker in (killed, other):
            worker.close()
            worker.close()

    yard.play(play)


def test_a_prepared_worker_is_the_next_one_and_as_locked_as_any(yard: Yard) -> None:
    async def play(zygote: Zygote) -> None:
        zygote.prepare()
        zygote.prepare()
        assert zygote.spares == 1
        worker = await zygote.spawn()
        assert zygote.spares == 0
        assert status_of(worker)["NoNewPrivs"] == "1" and status_of(worker)["Seccomp"] == (
            "2" if FOUND.seccomp else "0"
        )
        assert entries(f"/proc/{process_of(worker)}/fd") == ["0", "1", "2", "3"]
        assert "Error" in await ask(worker, "os.open('/etc/passwd', 0)")
        worker.close()

    yard.play(play)


@pytest.mark.parametrize("turns", range(4))
def test_a_prepared_worker_whose_taker_is_cancelled_ends(yard: Yard, turns: int) -> None:
    async def play(zygote: Zygote) -> None:
        before = entries("/proc/self/fd")
        zygote.prepare()
        taker = asyncio.create_task(zygote.spawn())
        for _ in range(turns + 1):
            await asyncio.sleep(0.001 * turns)
        taker.cancel()
        with suppress(asyncio.CancelledError):
            (await taker).close()
        for _ in range(500):
            if entries("/proc/self/fd") == before:
                return
            await asyncio.sleep(0.01)
        assert entries("/proc/self/fd") == before

    yard.play(play)


@pytest.mark.parametrize("dies", ["the worker", "the forkserver"])
def test_a_prepared_worker_that_died_is_not_given_out(dies: str) -> None:
    async def play(zygote: Zygote) -> None:
        zygote.prepare()
        assert zygote._spare is not None
        spare = await zygote._spare
        process = process_of(spare)
        os.kill(process if dies == "the worker" else zygote.pid, signal.SIGKILL)
        assert await gone(process)
        worker = await zygote.spawn()
        try:
            assert worker is not spare and spare.pidfd == -1
            assert await ask(worker, "1 + 1") == "2"
        finally:
            worker.close()

    apart(LIMITS, play)


@pytest.mark.parametrize("seconds", [0.0, 0.2], ids=["coming", "ready"])
def test_closing_ends_a_prepared_worker(seconds: float) -> None:
    spares: list[Forked] = []

    async def run() -> None:
        zygote = await start(FOUND)
        before = len(entries("/proc/self/fd"))
        zygote.prepare()
        await asyncio.sleep(seconds)
        if seconds:
            spares.append(await zygote._spare)
        await zygote.close()
        assert len(entries("/proc/self/fd")) < before

    asyncio.run(run())
    assert all(spare.pidfd == -1 for spare in spares)


def test_a_heap_without_holes_takes_new_values_side_by_side() -> None:
    held = filling()
    assert sum(map(sys.getsizeof, held)) < 64 << 20
    for size in (20, 200, 400):
        made = [bytes(size) for _ in range(1_000)]
        pools = {id(one) >> 14 for one in made}
        assert len(pools) <= 1_000 * (size + 48) // (1 << 14) + 4


def test_closing_ends_the_workers() -> None:
    processes: list[int] = []
    workers: list[Forked] = []

    async def play(zygote: Zygote) -> None:
        workers.extend([await zygote.spawn() for _ in range(3)])
        processes.extend(map(process_of, workers))

    apart(LIMITS, play)
    assert all(asyncio.run(gone(process)) for process in processes)
    for worker in workers:
        worker.close()


def test_a_caller_that_goes_away_leaves_no_worker_and_mixes_nothing_up(yard: Yard) -> None:
    async def play(zygote: Zygote) -> None:
        for wait in (0.0, 0.0005, 0.002):
            doomed = [asyncio.create_task(zygote.spawn()) for _ in range(4)]
            await asyncio.sleep(wait)
            for task in doomed:
                task.cancel()
            told = await asyncio.gather(*doomed, return_exceptions=True)
            workers = [await zygote.spawn() for _ in range(2)]
            assert [await ask(worker, "1 + 2") for worker in workers] == ["3", "3"]
            assert len({process_of(worker) for worker in workers}) == 2
            for worker in (*workers, *(t for t in told if isinstance(t, Forked))):
                worker.close()
        before = len(entries("/proc/self/fd"))
        await asyncio.gather(*(_spawn_and_close(zygote) for _ in range(8)))
        assert len(entries("/proc/self/fd")) == before

    yard.play(play)


async def _spawn_and_close(zygote: Zygote) -> None:
    (await zygote.spawn()).close()


def test_a_forkserver_that_cannot_start_says_why() -> None:
    with pytest.raises(InfrastructureError, match="no_such_module"):
        asyncio.run(Zygote.start(FOUND, LIMITS, serve="no_such_module:serve"))


def test_kernel_calls_tell_why_they_fail() -> None:
    with pytest.raises(OSError) as caught:
        kernel.landlock_restrict(-1)
    assert caught.value.errno in (errno.EBADF, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)

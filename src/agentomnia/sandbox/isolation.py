"""What holds untrusted code: probed once, and put around every worker before it sees any (paper, section 4.3).

    bubblewrap   no process, network, file or name of the host's in sight; holds the forkserver and all its workers
    Landlock     no file, TCP port, abstract socket or signal, whatever is in sight
    seccomp      no system call but those that compute and talk over the worker's own socket
    rlimits      memory, open files, processes, file sizes, core dumps

Each holds where the others are missing or fail; a step that the probe promised and the kernel then refuses ends the
worker before it has read a line of foreign code.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from dataclasses import dataclass

from agentomnia.errors import InfrastructureError
from agentomnia.sandbox import bubblewrap, kernel, landlock, seccomp

_NOBODY = 65534


@dataclass(frozen=True)
class WorkerLimits:
    """What one worker may take."""

    memory_bytes: int = 1 << 30
    """Address space over what the forkserver itself holds (RLIMIT_AS)."""
    cpu_seconds: int | None = None
    """Processor time over the worker's whole life; `None` for no limit, since workers live long."""
    open_files: int = 4
    """File descriptors: the socket and three to /dev/null."""
    processes: int = 0
    file_bytes: int = 0
    """Longest file it could write (RLIMIT_FSIZE)."""
    core_bytes: int = 0
    answer_bytes: int = 8 << 20
    """Longest answer."""
    soft_seconds: float = 5.0
    """Time of one call, after which it is interrupted."""
    hard_seconds: float = 10.0
    """Time of one call, after which the worker is killed."""
    deny_randomness: bool = False
    """Refuse the kernel's randomness, so that an environment that draws on it shows."""


@dataclass(frozen=True)
class Isolation:
    """What this machine has."""

    landlock: int = 0
    """Version of Landlock's ABI; 0 without."""
    seccomp: bool = False
    bubblewrap: str | None = None
    """Path of `bwrap`, whether or not it works here."""
    namespaces: bool = False
    """Whether `bwrap` really starts Python in namespaces of its own; some machines forbid them."""

    @property
    def jail(self) -> str | None:
        """Path of a `bwrap` that works."""
        return self.bubblewrap if self.namespaces else None

    @property
    def level(self) -> str:
        """What holds workers, in a few words."""
        parts = {"bubblewrap": self.jail, "Landlock": self.landlock, "seccomp": self.seccomp, "rlimits": True}
        return " + ".join(name for name, there in parts.items() if there)

    @property
    def enough(self) -> bool:
        """Whether untrusted code may run: with neither Landlock nor seccomp nothing would hold it."""
        return bool(self.landlock or self.seccomp)

    def describe(self) -> str:
        """One line to print at start: the level in force, and what would make it stronger."""
        missing = [] if self.landlock else ["Landlock needs Linux 5.13 or later, and lsm=landlock where it is off"]
        if not self.seccomp:
            missing.append(f"no seccomp filter for {kernel.machine()} on this kernel")
        if self.bubblewrap is None:
            missing.append("install bubblewrap for namespaces")
        elif not self.namespaces:
            missing.append("bubblewrap is installed, but user namespaces are forbidden here")
        if not self.enough:
            missing.append("untrusted environments are refused")
        return "; ".join([f"isolation of untrusted environments: {self.level}", *missing])


def probe() -> Isolation:
    """Find out what this kernel can do; starts one short process where bubblewrap is installed."""
    path = bubblewrap.found()
    return Isolation(
        landlock=kernel.landlock_abi(),
        seccomp=seccomp.available(),
        bubblewrap=path,
        namespaces=path is not None and bubblewrap.works(path),
    )


def lock_down(limits: WorkerLimits, isolation: Isolation, held_bytes: int) -> None:
    """Put this process under everything the probe promised; there is no way back.

    Args:
        limits: what it may take.
        isolation: what the probe found.
        held_bytes: address space that it has already.

    Raises:
        InfrastructureError: the kernel refuses a step, or a step does not hold.
    """
    try:
        _give_up_privileges()
        if isolation.landlock:
            landlock.restrict(isolation.landlock)
            _prove(errno.EACCES)
        _limit(limits, held_bytes)
        if isolation.seccomp:
            seccomp.install(limits.deny_randomness)
            _prove(errno.EPERM)
    except (OSError, ValueError, OverflowError) as error:
        raise InfrastructureError(
            f"a worker cannot be locked down: {error}; the kernel has changed since the start or forbids it here: "
            "start again, and compare the level that is printed"
        ) from error
    kernel.forget()


def _give_up_privileges() -> None:
    """Become nobody where this is root; die with the forkserver; gain no right by executing anything."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    # after the change of user, which clears it
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: WorkerLimits, held_bytes: int) -> None:
    wanted = {
        resource.RLIMIT_AS: held_bytes + limits.memory_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: limits.core_bytes,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, most in wanted.items():
        if most is not None:
            _lower(kind, most)


def _lower(kind: int, most: int) -> None:
    """Set a limit for good, unless it is lower already."""
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def _prove(expected: int) -> None:
    """Try what must fail now.

    Raises:
        ValueError: it succeeds, or fails for another reason than the one that was just installed.
    """
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError as error:
        if error.errno == expected:
            return
        raise ValueError(f"opening / fails with {error.strerror}, not with {os.strerror(expected)}") from error
    raise ValueError("a locked process can still open /")

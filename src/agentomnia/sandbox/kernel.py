"""System calls that Python has no name for, through ctypes.

Only the forkserver and the probe come here. A locked-down worker may still find what is left of ctypes in its memory;
every call it makes that way goes through the same filter (`sandbox.seccomp`).
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
"""The same number on every architecture."""


def prepare() -> None:
    """Import what the functions below need: later no file can be opened."""
    _libc()


def machine() -> str:
    """The architecture as the tables here call it."""
    found = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(found, found)


@cache
def _libc() -> ctypes.CDLL:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _checked(answer: int) -> int:
    import ctypes

    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    import ctypes

    given = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _checked(_libc().syscall(ctypes.c_long(number), *given))


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: the kernel refuses.
    """
    import ctypes

    zero = ctypes.c_ulong(0)
    _checked(_libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def seccomp(operation: int, argument: bytes) -> None:
    """The system call `seccomp` without flags.

    Raises:
        OSError: the kernel refuses, or this architecture is unknown here (`ENOSYS`).
    """
    if machine() not in _SECCOMP:
        raise OSError(38, f"no system call table for {machine()}")
    _syscall(_SECCOMP[machine()], operation, 0, argument)


def filter_program(instructions: bytes) -> bytes:
    """A `struct sock_fprog` over instructions of 8 bytes each, which must outlive it."""
    import ctypes
    import struct

    address = ctypes.cast(ctypes.c_char_p(instructions), ctypes.c_void_p).value
    return struct.pack("HxxxxxxQ", len(instructions) // 8, address)


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 without.

    Raises:
        OSError: never for a kernel without Landlock.
    """
    try:
        return _syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def landlock_ruleset(attributes: bytes) -> int:
    """A new rule set as a file descriptor.

    Raises:
        OSError: the kernel refuses.
    """
    return _syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)


def landlock_restrict(ruleset: int) -> None:
    """Put this process under a rule set for good.

    Raises:
        OSError: the kernel refuses.
    """
    _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


def forget() -> None:
    """Take ctypes out of this process, so that `import ctypes` fails where no file can be opened.

    No boundary: what was imported stays in memory. The filter is the boundary.
    """
    _libc.cache_clear()
    for name in ("ctypes", "ctypes._endian", "_ctypes"):
        sys.modules.pop(name, None)

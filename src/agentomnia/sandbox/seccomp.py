"""The system calls a worker may make, as a seccomp filter.

An allow-list: what computes, keeps time, handles its own signals and talks over the socket it was given. Every other
call fails with `EPERM`; memory that can be executed is refused by its flag; a call in the numbering of another
architecture ends the process. Numbers: `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`
of Linux.
"""

from __future__ import annotations

import struct
from functools import cache

from agentomnia.sandbox import kernel

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The word by which a filter knows the numbering of a call, for every architecture that has a table here."""

_X86_64 = {
    "recvfrom": 45, "sendto": 44, "setitimer": 38, "rt_sigreturn": 15, "read": 0, "write": 1, "futex": 202, "brk": 12,
    "munmap": 11, "mremap": 25, "madvise": 28, "rt_sigaction": 13, "rt_sigprocmask": 14, "sigaltstack": 131,
    "getitimer": 36, "clock_gettime": 228, "clock_getres": 229, "gettimeofday": 96, "time": 201, "nanosleep": 35,
    "clock_nanosleep": 230, "poll": 7, "ppoll": 271, "readv": 19, "writev": 20, "shutdown": 48, "close": 3,
    "getpid": 39, "gettid": 186, "sched_yield": 24, "restart_syscall": 219, "exit": 60, "exit_group": 231,
    "getrandom": 318,
}  # fmt: skip
_AARCH64 = {
    "recvfrom": 207, "sendto": 206, "setitimer": 103, "rt_sigreturn": 139, "read": 63, "write": 64, "futex": 98,
    "brk": 214, "munmap": 215, "mremap": 216, "madvise": 233, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "sigaltstack": 132, "getitimer": 102, "clock_gettime": 113, "clock_getres": 114, "gettimeofday": 169,
    "nanosleep": 101, "clock_nanosleep": 115, "ppoll": 73, "readv": 65, "writev": 66, "shutdown": 210, "close": 57,
    "getpid": 172, "gettid": 178, "sched_yield": 124, "restart_syscall": 128, "exit": 93, "exit_group": 94,
    "getrandom": 278,
}  # fmt: skip
_ALLOWED = {"x86_64": _X86_64, "aarch64": _AARCH64}
_NOT_EXECUTABLE = {"x86_64": (9, 10), "aarch64": (222, 226)}
"""`mmap` and `mprotect`: allowed unless their third argument has `PROT_EXEC`."""

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _THIRD_ARGUMENT_AT = 0, 4, 32
"""Offsets in `struct seccomp_data`; of the argument the low half, both architectures being little-endian."""
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_X32 = 0x40000000
_PROT_EXEC = 4
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2


def available() -> bool:
    """Whether this kernel takes such a filter, and there is a table for this architecture."""
    try:
        kernel.seccomp(_GET_ACTION_AVAIL, struct.pack("I", 0x00050000))
    except OSError:
        return False
    return kernel.machine() in AUDIT_ARCH


@cache
def build(machine: str, deny_randomness: bool = False) -> bytes:
    """The filter of an architecture as instructions of 8 bytes.

    Args:
        machine: a key of `AUDIT_ARCH`.
        deny_randomness: refuse `getrandom` too, so that hidden randomness shows.
    """
    allowed = [n for name, n in _ALLOWED[machine].items() if not (deny_randomness and name == "getrandom")]
    checked = _NOT_EXECUTABLE[machine]
    check = 5 + len(allowed) + len(checked)
    deny, allow = check + 2, check + 3
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, deny - 5, 0, _X32),
    ]
    for number in allowed:
        lines.append((_EQUAL, allow - len(lines) - 1, 0, number))
    for number in checked:
        past = deny - len(lines) - 1 if number == checked[-1] else 0
        lines.append((_EQUAL, check - len(lines) - 1, past, number))
    lines += [
        (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (_HAS_BITS, 0, 1, _PROT_EXEC),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def install(deny_randomness: bool) -> None:
    """Put this process under the filter for good; needs `no_new_privs`.

    Raises:
        OSError: the kernel refuses.
    """
    instructions = build(kernel.machine(), deny_randomness)
    kernel.seccomp(_SET_MODE_FILTER, kernel.filter_program(instructions))

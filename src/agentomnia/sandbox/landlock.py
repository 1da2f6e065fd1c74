"""Landlock with an empty rule set: no file, TCP port, abstract socket or signal outside (Linux 5.13 and later)."""

from __future__ import annotations

import os
import struct

from agentomnia.sandbox import kernel

_FILES_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many access rights to files an ABI knows; the rights are the lowest bits."""
_PORTS, _SCOPES = 0b11, 0b11
"""Bind and connect of TCP (ABI 4); abstract Unix sockets and signals (ABI 6)."""


def attributes(abi: int) -> bytes:
    """A `struct landlock_ruleset_attr` that handles every right an ABI knows; rights of later ABIs are left out."""
    rights = max(count for since, count in _FILES_BY_ABI.items() if since <= abi)
    words = [(1 << rights) - 1]
    if abi >= 4:
        words.append(_PORTS)
    if abi >= 6:
        words.append(_SCOPES)
    return struct.pack(f"{len(words)}Q", *words)


def restrict(abi: int) -> None:
    """Give up every right that an ABI knows; needs `no_new_privs`.

    Raises:
        OSError: the kernel refuses.
    """
    ruleset = kernel.landlock_ruleset(attributes(abi))
    try:
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)

"""The holes of a heap, filled before a process is forked many times.

What a child writes it gets as a page of its own. The heap of a process that has imported much is full of small holes,
and a child that allocates a few hundred kilobytes would put them into holes on as many different pages. Where every
hole is taken, a child's objects lie side by side on new pages: less memory, and fewer page faults.

A heuristic throughout: it knows the pools of CPython's allocator, and that the C library's heap grows upwards. Where
that is not so it wastes at most `_MOST_BYTES`, and forked processes are as large as without.
"""

from __future__ import annotations

from typing import Any

_POOL_BYTES, _POOL_HEAD_BYTES = 1 << 14, 48
_STEP, _LARGEST_SMALL = 16, 512
"""CPython: sizes that pools serve, each pool one of them."""
_LARGEST = 100_000
"""Below the size from which the C library maps memory apart."""
_FINE_BELOW = 2_048
_MOST_BYTES = 16 << 20
_BYTES_HEAD, _OBJECT_BYTES, _FLOAT_BYTES, _INTEGER_BYTES = 40, 16, 32, 32


def filling() -> list[Any]:
    """What fills the holes; they stay filled as long as it lives."""
    return [*_small(), *_large()]


def _small() -> list[Any]:
    """Blocks of each size of CPython's pools, until a pool is full of them: it was empty, so no other has holes."""
    made: list[Any] = []
    for size in range(_STEP, _LARGEST_SMALL + 1, _STEP):
        taken: dict[int, int] = {}
        full = (_POOL_BYTES - _POOL_HEAD_BYTES) // size
        if size == _INTEGER_BYTES:  # the numbers that this loop needs are of that size too
            full -= 16
        for _ in range(_MOST_BYTES // _LARGEST_SMALL):
            made.append(_of_size(size))
            pool = id(made[-1]) // _POOL_BYTES
            taken[pool] = taken.get(pool, 0) + 1
            if taken[pool] >= full:
                break
    return made


def _of_size(size: int) -> Any:
    if size == _OBJECT_BYTES:
        return object()
    return float(size) if size == _FLOAT_BYTES else bytes(size - _BYTES_HEAD)


def _large() -> list[bytes]:
    """Blocks from large to small, of each size until one comes from the heap's end: then no hole is left for it."""
    made, left = [bytes(_LARGEST)], _MOST_BYTES
    end, size = id(made[0]), _LARGEST
    while size > _LARGEST_SMALL:
        while left > 0:
            made.append(bytes(size))
            left -= size
            if id(made[-1]) > end:
                break
        size = size - _STEP if size <= _FINE_BELOW else size * 7 // 8
    return made

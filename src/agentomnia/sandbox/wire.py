"""Frames between a host and its workers, and between machines: four bytes of length, then msgpack.

Only plain values travel, within limits; nothing that is read can run. A worker of a hostile environment may send any
bytes it likes: what cannot be read is a `WireError`, and the host then ends that worker.
"""

from __future__ import annotations

import gc
import struct
from typing import Any

import msgpack

from agentomnia.errors import InfrastructureError

_LENGTH = struct.Struct(">I")
_Packer, _unpack = msgpack.Packer, msgpack.unpackb

FRAME_BYTES = 64 * 1024 * 1024
"""Longest frame."""
_LARGE_BYTES = 1 << 16


class WireError(InfrastructureError):
    """Bytes that are no frame."""


def frame(value: Any) -> bytes:
    """A value as a frame.

    Raises:
        WireError: the value is longer than a frame may be.
    """
    body: bytes = _Packer().pack(value)
    if len(body) > FRAME_BYTES:
        raise WireError(f"a frame of {len(body)} bytes is over {FRAME_BYTES}; send less at once")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Takes bytes as they come, gives values as they are whole."""

    def __init__(self, most: int = FRAME_BYTES) -> None:
        """Refuse frames longer than `most` bytes."""
        self._most = most
        self._buffer = bytearray()
        self._needed = 0
        """Bytes of the buffer from which the frame in it is whole."""

    def feed(self, data: bytes | bytearray) -> list[Any]:
        """The values that have become whole with `data`.

        Raises:
            WireError: a frame is too long, or is not msgpack.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data, self._buffer = self._buffer, bytearray()
        values, start, end = [], 0, len(data)
        try:
            while end - start >= 4:
                (length,) = _LENGTH.unpack_from(data, start)
                if length > self._most:
                    raise WireError(f"a frame of {length} bytes is over {self._most}; the sender is no worker of ours")
                begin, stop = start + 4, start + 4 + length
                if stop > end:
                    break
                large = length > _LARGE_BYTES
                values.append(_large_value(memoryview(data)[begin:stop]) if large else _unpack(data[begin:stop]))
                start = stop
        except (ValueError, RecursionError, TypeError) as error:
            why = type(error).__name__
            raise WireError(f"a frame cannot be read ({why}); the sender is no worker of ours") from None
        if start < end:
            self._buffer += data[start:]
            self._needed = 4 if end - start < 4 else 4 + _LENGTH.unpack_from(data, start)[0]
        return values


def _large_value(body: memoryview) -> Any:
    """Without a copy, and without the collector: millions of empty lists would call it ten thousand times."""
    pause = gc.isenabled()
    gc.disable()
    try:
        return _unpack(body)
    finally:
        if pause:
            gc.enable()

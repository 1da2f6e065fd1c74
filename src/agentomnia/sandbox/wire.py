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
    body: bytes = msgpack.packb(value)
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

    def feed(self, data: bytes) -> list[Any]:
        """The values that have become whole with `data`.

        Raises:
            WireError: a frame is too long, or is not msgpack.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        values, start, end = [], 0, len(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > self._most:
                raise WireError(f"a frame of {length} bytes is over {self._most}; the sender is no worker of ours")
            if end - start - 4 < length:
                break
            values.append(_value(data[start + 4 : start + 4 + length]))
            start += 4 + length
        if start < end:
            self._buffer += data[start:]
            self._needed = 4 if end - start < 4 else 4 + _LENGTH.unpack_from(data, start)[0]
        return values


def _value(body: bytes) -> Any:
    # millions of empty lists fit into a frame, and would call the collector ten thousand times
    pause = len(body) > _LARGE_BYTES and gc.isenabled()
    if pause:
        gc.disable()
    try:
        return msgpack.unpackb(body)
    except (ValueError, RecursionError, TypeError) as error:
        raise WireError(f"a frame cannot be read ({type(error).__name__}); the sender is no worker of ours") from None
    finally:
        if pause:
            gc.enable()

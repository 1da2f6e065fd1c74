"""Frames of WebSockets as a server reads and writes them. There are no extensions.

Source: RFC 6455, section 5.
"""

from __future__ import annotations

from typing import NamedTuple

_AGAIN, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_FINAL, _MASKED = 0x80, 0x80
_WHOLE_TEXT, _WHOLE_BINARY = 0x81, 0x82
_CODES = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014))
"""What a close frame may say; beside them 3000 to 4999."""
_LONG = 800
"""Bytes from which on unmasking by table is quicker than as one number: measured."""
_TABLES = [bytes(byte ^ mask for byte in range(256)) for mask in range(256)]


class Control(NamedTuple):
    """A control frame."""

    opcode: int
    payload: bytes


class Broken(Exception):
    """What the other side sends is no WebSocket; the code says why, and the connection ends."""

    def __init__(self, code: int, reason: str) -> None:
        """Name it."""
        super().__init__(reason)
        self.code, self.reason = code, reason


def unmask(payload: bytes, mask: bytes) -> bytes:
    """A payload without its mask."""
    size = len(payload)
    if size > _LONG:
        plain = bytearray(size)
        for lane in range(4):
            plain[lane::4] = payload[lane::4].translate(_TABLES[mask[lane]])
        return bytes(plain)
    key = int.from_bytes((mask * ((size >> 2) + 1))[:size], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


def frame(opcode: int, payload: bytes) -> bytes:
    """A whole message as a server sends it."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, size)) + payload
    if size < 1 << 16:
        return b"%c\x7e%b%b" % (_FINAL | opcode, size.to_bytes(2, "big"), payload)
    return b"%c\x7f%b%b" % (_FINAL | opcode, size.to_bytes(8, "big"), payload)


def close_frame(code: int | None, reason: str = "") -> bytes:
    """A goodbye; without a code it says nothing."""
    told = b"" if code is None else code.to_bytes(2, "big") + reason.encode()[:123].decode("utf-8", "ignore").encode()
    return frame(CLOSE, told)


def close_code(payload: bytes) -> int | None:
    """The code of a goodbye; `None` where it says none.

    Raises:
        Broken: it is no code.
    """
    if not payload:
        return None
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (code in _CODES or 3000 <= code < 5000):
        raise Broken(1002, "this is no close code")
    _text_of(payload[2:])
    return code


def _text_of(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise Broken(1007, "a text must be UTF-8") from None


Message = str | bytes | Control


class FrameReader:
    """Cuts what a client sends into messages."""

    def __init__(self, most: int) -> None:
        """Read messages of at most so many bytes."""
        self._most = most
        self._rest = bytearray()
        self._need = 0
        """Bytes of the rest from which on it is worth a look."""
        self._opcode = _AGAIN
        """Of the message whose frames come; `_AGAIN` where none has begun."""
        self._parts: list[bytes] = []
        self._size = 0
        self.broken: Broken | None = None
        """Why nothing can be read any more."""

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._rest) or self._opcode != _AGAIN

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now, in order; what is wrong after them is in `broken`."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        messages: list[Message] = []
        position, there = 0, len(data)
        try:
            while position < there and (end := self._cut(data, position, messages)):
                position = end
        except Broken as broken:
            self.broken = broken
            return messages
        if position < there:
            self._rest += data[position:]
        return messages

    def _cut(self, data: bytes, position: int, messages: list[Message]) -> int:
        """Read the frame at a position; where it ends, or 0 where it is not whole."""
        there = len(data) - position
        if there < 2:
            self._need = 2
            return 0
        first, size = data[position], data[position + 1] - _MASKED
        if size < 0:
            raise Broken(1002, "frames of a client must be masked")
        start = position + 6
        if size > 125:
            width = 2 if size == 126 else 8
            if there < 2 + width:
                self._need = 2 + width
                return 0
            size = int.from_bytes(data[position + 2 : position + 2 + width], "big")
            start += width
        if first != _WHOLE_TEXT or size > self._most or self._opcode != _AGAIN:
            self._check(first, size)
        end = start + size
        if end > len(data):
            self._need = end - position
            return 0
        payload = unmask(data[start:end], data[start - 4 : start])
        if first == _WHOLE_TEXT:
            messages.append(_text_of(payload))
        else:
            self._take(first, payload, messages)
        return end

    def _check(self, first: int, size: int) -> None:
        """Check a frame's head, before its payload is waited for."""
        opcode, final = first & 15, first & _FINAL
        if first & 0x70 or opcode not in (_AGAIN, TEXT, BINARY, CLOSE, PING, PONG):
            raise Broken(1002, "no extension is agreed on, and there is no such frame")
        if opcode >= CLOSE:
            if size > 125 or not final:
                raise Broken(1002, "a control frame is short and whole")
            return
        if (opcode == _AGAIN) != (self._opcode != _AGAIN):
            raise Broken(1002, "a message begins with its type and goes on without")
        if self._size + size > self._most:
            raise Broken(1009, f"a message is at most {self._most} bytes")

    def _take(self, first: int, payload: bytes, messages: list[Message]) -> None:
        opcode = first & 15
        if opcode >= CLOSE:
            messages.append(Control(opcode, payload))
        elif first == _WHOLE_BINARY:
            messages.append(payload)
        else:
            self._parts.append(payload)
            self._size += len(payload)
            self._opcode = opcode or self._opcode
            if first & _FINAL:
                self._join(messages)

    def _join(self, messages: list[Message]) -> None:
        whole, opcode = b"".join(self._parts), self._opcode
        self._parts, self._size, self._opcode = [], 0, _AGAIN
        messages.append(_text_of(whole) if opcode == TEXT else whole)

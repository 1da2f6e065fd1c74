"""A worker's main job for tests: evaluates what it is sent, and answers with the text of the value or the error."""

from __future__ import annotations

import os  # noqa: F401 - for what is evaluated
import socket
import sys  # noqa: F401


def serve(sock: socket.socket, soft_seconds: float, answer_bytes: int) -> None:
    """Answer until the socket closes."""
    while question := sock.recv(1 << 16):
        try:
            answer = repr(eval(question.decode()))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the test asks for all kinds of failures
            answer = f"{type(error).__name__}: {error}"
        sock.sendall(answer.encode())

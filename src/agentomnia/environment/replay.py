"""Replay in another process: the same calls on the same state must give the same answers and states.

The worker is `python -m agentomnia.environment.replay`: one JSON request a line on standard input, one JSON
answer a line on standard output. It runs with its own hash seed, so that anything that depends on the order of
a set, on the clock or on the process shows as a difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.environment.state import State
from agentomnia.errors import InfrastructureError, OmniaError
from agentomnia.row import digest

Call = tuple[str, dict[str, Any]]


def trace(program: Program, state: State, calls: Sequence[Call]) -> list[str]:
    """Digests of every answer and of the state after it, from a fresh instance."""
    instance = Instance(program, state)
    marks, before, after = [], b"", ""
    for name, arguments in calls:
        answer = instance.call(name, arguments)
        snapshot = instance.snapshot()
        if snapshot != before:
            before, after = snapshot, instance.digest()
        marks.append(digest([answer, after]))
    return marks


class ReplayProcess:
    """A second interpreter that replays calls; start one and use it for many environments."""

    def __init__(self, hash_seed: int = 4242) -> None:
        """Start the process with a hash seed of its own."""
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentomnia.environment.replay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )

    def __enter__(self) -> ReplayProcess:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the process."""
        self.close()

    def trace(self, program: Program, state: State, calls: Sequence[Call]) -> list[str]:
        """What `trace` gives, computed over there.

        Raises:
            InfrastructureError: the process died.
            OmniaError: the replay failed over there; the message is its own.
        """
        tools = [vars(t) for t in program.tools.values()]
        request = {
            "name": program.name,
            "source": program.source,
            "tools": tools,
            "state": state,
            "calls": calls,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError as error:
            raise InfrastructureError(f"the replay process is gone ({error}); run again") from error
        if not line:
            raise InfrastructureError("the replay process is gone; run again")
        answer = json.loads(line)
        if "error" in answer:
            raise OmniaError(f"replay in another process failed: {answer['error']}")
        marks: list[str] = answer["marks"]
        return marks

    def close(self) -> None:
        """Stop the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(timeout=30)


def _serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            program = Program(
                name=request["name"],
                source=request["source"],
                cls=load_class(request["source"], request["name"]),
                tools={t["name"]: ToolSchema(**t) for t in request["tools"]},
            )
            answer: dict[str, Any] = {"marks": trace(program, request["state"], request["calls"])}
        except OmniaError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()

"""Several processes that train one policy: weights in shared memory, each step's work in a fixed number of shares.

The number of shares does not depend on the number of processes, and gradients are added in the order of the shares, so
that one process and two give the same bytes. Each process runs torch on one thread: at this size two processes are
faster than two threads, and threads on a busy machine are much slower than either.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from agentomnia.errors import InfrastructureError
from agentomnia.training.engines.local.optimizer import FlatWeights
from agentomnia.training.engines.local.policy import Policy, PolicyShape
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.engines.local.worker import Worker

SHARES = 2
"""Parts that a step's work is divided into."""


class Crew:
    """A policy, and the processes that work on it. Use as a context manager."""

    def __init__(self, policy: Policy, tokenizer: Path, jobs: int) -> None:
        """Start the processes; with one job, or on a GPU, the work is done in this process.

        Args:
            policy: its weights move to shared memory; change them only through `weights`.
            tokenizer: file of the tokenizer.
            jobs: processes, at most `SHARES` are used.
        """
        torch.set_num_threads(1)
        self.policy = policy
        size = sum(p.numel() for p in policy.parameters())
        device = policy.model.embed_tokens.weight.device
        storage = torch.zeros(size, device=device)
        self.gradients = torch.zeros(SHARES, size, device=device)
        if device.type == "cpu":
            storage.share_memory_()  # type: ignore[no-untyped-call]
            self.gradients.share_memory_()  # type: ignore[no-untyped-call]
        storage.copy_(torch.cat([p.detach().reshape(-1) for p in policy.parameters()]))
        self.weights = FlatWeights(policy, storage)
        self._own = Worker(policy, WordTokenizer.load(tokenizer))
        self._members: list[tuple[Any, Connection]] = []
        if jobs > 1 and device.type == "cpu":
            for _ in range(min(jobs, SHARES) - 1):
                self._members.append(self._start(policy.shape, tokenizer, storage))

    def _start(self, shape: PolicyShape, tokenizer: Path, storage: Tensor) -> tuple[Any, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (shape, tokenizer, storage, self.gradients, theirs)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of `Worker` once for each share, on as many processes as there are.

        Args:
            method: its name.
            arguments: of each share; `SHARES` of them.

        Returns:
            The results in the order of the shares. A gradient that a share leaves is in `gradients[share]`.

        Raises:
            InfrastructureError: a process died or failed.
        """
        here = [n for n in range(len(arguments)) if not self._members or n % (len(self._members) + 1) == 0]
        for number, (_, pipe) in enumerate(self._members, 1):
            theirs = [n for n in range(len(arguments)) if n % (len(self._members) + 1) == number]
            try:
                pipe.send((method, [(n, arguments[n]) for n in theirs]))
            except OSError as error:
                raise _lost() from error
        results = {n: _work(self._own, self.weights, self.gradients, method, n, arguments[n]) for n in here}
        for _, pipe in self._members:
            try:
                answer, problem = pipe.recv()
            except (EOFError, OSError) as error:
                raise _lost() from error
            if problem is not None:
                raise InfrastructureError(f"a training process failed; start the command again:\n{problem}")
            results |= answer
        return [results[n] for n in range(len(arguments))]

    def gradient(self) -> Tensor:
        """The sum of the shares' gradients, in their order."""
        return self.gradients.sum(dim=0)

    def close(self) -> None:
        """Stop the processes."""
        for process, pipe in self._members:
            pipe.close()
            process.join(timeout=5)
            process.kill()
            process.join()
        self._members = []

    def __enter__(self) -> Crew:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _lost() -> InfrastructureError:
    return InfrastructureError("a training process died; start the same command again to go on")


def _work(
    worker: Worker, weights: FlatWeights, gradients: Tensor, method: str, share: int, arguments: tuple[Any, ...]
) -> Any:
    """One share's call; what it adds to the gradient goes to the share's row."""
    result = getattr(worker, method)(*arguments)
    if method.startswith("learn"):
        gradients[share].copy_(weights.gradient())
    return result


def _serve(shape: PolicyShape, tokenizer: Path, storage: Tensor, gradients: Tensor, pipe: Connection) -> None:
    """The life of a member: calls in, results out, until the pipe closes."""
    torch.set_num_threads(1)
    worker = Worker.load(shape, tokenizer)
    weights = FlatWeights(worker.policy, storage)
    while True:
        try:
            method, calls = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = {n: _work(worker, weights, gradients, method, n, arguments) for n, arguments in calls}
        except Exception:  # noqa: BLE001 - the boundary of the process: whatever failed is told to the other side
            pipe.send(({}, traceback.format_exc()))
        else:
            pipe.send((answer, None))

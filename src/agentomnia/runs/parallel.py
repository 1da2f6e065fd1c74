"""Work on several cores with results in order, and progress that says how far it is."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from agentomnia.errors import InfrastructureError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4
"""Items a worker may be ahead of the writer: bounds memory, keeps workers busy."""


def in_order(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[Result]:
    """Results of `work` in the order of `items`, on `jobs` processes; in this one where `jobs` is 1.

    Raises:
        InfrastructureError: a worker process died.
    """
    if jobs <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    pool = _pool(jobs)
    waiting: list[Future[Result]] = []
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= jobs * _AHEAD:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    except BrokenProcessPool as error:
        _pool.cache_clear()
        raise InfrastructureError("a worker process died; start the same command again to go on") from error
    finally:
        for future in waiting:
            future.cancel()


@cache
def _pool(jobs: int) -> ProcessPoolExecutor:
    """One pool for the life of this process: stages follow each other, and starting workers costs seconds."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
    """Show progress on standard error: a bar on a terminal, a line now and then elsewhere.

    Yields:
        A function to call after each item, with a short note.
    """
    if sys.stderr.isatty():
        yield from _bar(what, total, done)
    else:
        yield from _lines(what, total, done)


def _bar(what: str, total: int, done: int) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, completed=done, note="")
        yield lambda note: bar.update(task, advance=1, note=note)


def _lines(what: str, total: int, done: int) -> Iterator[Callable[[str], None]]:
    count = done

    def advance(note: str) -> None:
        nonlocal count
        count += 1
        if count == total or count % max(1, total // 5) == 0:
            print(f"{what}: {count}/{total} {note}", file=sys.stderr, flush=True)

    yield advance

"""Coroutines that are begun by hand: one that waits for nothing needs no task, and most calls wait for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Resumed:
    """A coroutine that has been begun by hand, to be awaited to its end."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        """Take it over, with what it waits for first."""
        self._coroutine, self._waits_for = coroutine, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for what it waits for, and go on."""
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - handed on: cancellation belongs to the coroutine
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(sent)
        except StopIteration as done:
            return done.value


class _OwnTask:
    """What a coroutine yields that asks for a task."""

    def __await__(self) -> Generator[_OwnTask, None, None]:
        yield self


OWN_TASK = _OwnTask()


async def own_task() -> None:
    """Go on in a task, which `asyncio.timeout` and cancellation need; to be awaited before what may wait."""
    if asyncio.current_task() is None:
        await OWN_TASK


def begin(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine up to where it waits.

    Returns:
        The task in which it goes on; `None` where it has ended.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return _task(coroutine, waits_for)


def begun(coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run a coroutine up to where it waits; what it gives, or will give."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as ended:
        future = asyncio.get_running_loop().create_future()
        future.set_result(ended.value)
        return future
    return _task(coroutine, waits_for)


def _task(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> asyncio.Task[T]:
    goes_on = coroutine if waits_for is OWN_TASK else _awaited(Resumed(coroutine, waits_for))
    return asyncio.get_running_loop().create_task(goes_on)


async def _awaited(resumed: Resumed) -> Any:
    return await resumed

"""What is in flight: a bound over all tenants, one of each, and an end for requests whose body does not come."""

from __future__ import annotations

import asyncio
from typing import Any

from agentomnia.errors import CapacityError


class Lane:
    """The calls in flight of one tenant; itself what a call holds, so that entering costs nothing."""

    __slots__ = ("_traffic", "live")

    def __init__(self, traffic: Traffic) -> None:
        """No call yet."""
        self._traffic = traffic
        self.live = 0

    def __enter__(self) -> None:
        """Take a place.

        Raises:
            CapacityError: there is none.
        """
        traffic = self._traffic
        if traffic.live >= traffic.most or self.live >= traffic.most_per_tenant:
            raise CapacityError("too many requests are in flight; try again after the time in Retry-After")
        traffic.live += 1
        self.live += 1

    def __exit__(self, *_: object) -> None:
        self._traffic.live -= 1
        self.live -= 1


class Traffic:
    """What is in flight now, over all tenants and of each."""

    def __init__(self, most: int, most_per_tenant: int) -> None:
        """Nothing yet."""
        self.most, self.most_per_tenant = most, most_per_tenant
        self.live = 0
        self._lanes: dict[str, Lane] = {}

    def lane(self, tenant: str) -> Lane:
        """A tenant's lane; there are as many as tokens name tenants."""
        found = self._lanes.get(tenant)
        if found is None:
            found = self._lanes[tenant] = Lane(self)
        return found


BODY_SECONDS = 30.0
"""How long a body may take to come."""


class SlowBodies:
    """Ends the reading of bodies that do not come, so that nobody keeps a place with half a request.

    One look now and then at all readers: a timer for each would cost a tenth of a call.
    """

    def __init__(self, seconds: float = BODY_SECONDS) -> None:
        """Allow each body so many seconds, and up to half as many again."""
        self.seconds = seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._looking = False

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Note that a task begins to read."""
        loop = asyncio.get_running_loop()
        self._since[task] = loop.time()
        if not self._looking:
            self._looking = True
            loop.call_later(self.seconds / 2, self._look)

    def overdue(self, task: asyncio.Task[Any]) -> bool:
        """Whether it was cancelled from here."""
        return task in self._overdue

    def end(self, task: asyncio.Task[Any]) -> None:
        """Note that it has ended."""
        del self._since[task]
        self._overdue.discard(task)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() - self.seconds
        for task in [t for t, since in self._since.items() if since < latest and t not in self._overdue]:
            self._overdue.add(task)
            task.cancel()
        self._looking = bool(self._since)
        if self._looking:
            loop.call_later(self.seconds / 2, self._look)

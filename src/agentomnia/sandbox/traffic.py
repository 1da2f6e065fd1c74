"""What is in flight: a bound over all tenants, and one of each."""

from __future__ import annotations

from agentomnia.errors import CapacityError


class Lane:
    """The calls in flight of one tenant; itself what a call holds, so that entering costs nothing."""

    __slots__ = ("live", "tenant", "traffic")

    def __init__(self, traffic: Traffic, tenant: str) -> None:
        """No call yet."""
        self.traffic, self.tenant = traffic, tenant
        self.live = 0

    def enter(self) -> None:
        """Take a place.

        Raises:
            CapacityError: there is none.
        """
        traffic = self.traffic
        if traffic.live >= traffic.most or self.live >= traffic.most_per_tenant:
            raise CapacityError("too many requests are in flight; try again after the time in Retry-After")
        traffic.live += 1
        self.live += 1

    def leave(self) -> None:
        """Give the place back."""
        self.traffic.live -= 1
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
            found = self._lanes[tenant] = Lane(self, tenant)
        return found

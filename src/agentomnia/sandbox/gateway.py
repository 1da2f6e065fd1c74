"""The gateway: checks who asks, bounds what is in flight, and hands requests to the faces.

Nothing queues without bound: over the limits a request is refused at once, with 429 and a time to come back. The first
segment of the path names the face:

    /i/{instance}/mcp, /envs/{environment}/mcp      MCP (`faces.mcp`)
    /v1/…                                           REST and its WebSocket (`faces.rest`)
    /e/{environment}/…                              OpenEnv (`faces.openenv`)
    /ors/…, and at the root what its clients ask    ORS (`faces.ors`)
    /health, /metrics                               for operators
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError, OmniaError
from agentomnia.sandbox.api import LOCAL_TENANT, EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.faces.refusal import Refusal, owner_of, status_of
from agentomnia.sandbox.metrics import Metrics, Tally
from agentomnia.sandbox.request import Request
from agentomnia.sandbox.traffic import Lane, Traffic
from agentomnia.sandbox.websocket import WebSocket

if TYPE_CHECKING:
    from agentomnia.sandbox.faces.ors import Ors

log = logging.getLogger("agentomnia.gateway")

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
METRICS_TYPE = b"text/plain; version=0.0.4"
DRAIN_SECONDS = 30.0
BODY_LIMIT = 4 * 2**20
"""Bytes of the largest body or frame that is read."""
_CALLERS_KNOWN = 4096


@dataclass(frozen=True)
class GatewaySettings:
    """Who may ask, and how much at once."""

    tokens: Mapping[str, str] = field(default_factory=dict)
    """Bearer tokens and whose they are; where there are none, everybody is the tenant `local`."""
    in_flight: int = 4096
    """Requests and frames being answered, over all tenants."""
    tenant_in_flight: int = 1024
    """The same of one tenant."""
    body_limit: int = BODY_LIMIT
    """Bytes of the largest body or frame."""
    body_seconds: float = 30.0
    """How long a body may take to come."""
    origins: frozenset[str] = frozenset()
    """Origins of web pages that may ask, besides those on this machine."""
    loopback: bool = True
    """Whether only this machine can reach the server; then a `Host` of another name is a rebinding attack."""
    hosts: frozenset[str] = frozenset()
    """Host names that are right besides the loopback ones."""


class FramePassage:
    """One call asked for by a WebSocket frame: takes a place, and is counted like a request."""

    __slots__ = ("_began", "_face", "_lane", "_tally", "status")

    def __init__(self, face: str, lane: Lane, tally: Tally) -> None:
        """Not entered yet."""
        self._face, self._lane, self._tally = face, lane, tally
        self._began = 0.0
        self.status = 200

    def __enter__(self) -> FramePassage:
        self._began = perf_counter()
        try:
            self._lane.enter()
        except CapacityError:
            self._tally.observe(429, 0.0)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._lane.leave()
        if error is None:
            self._tally.observe(self.status, perf_counter() - self._began)
        else:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        mistake = isinstance(error, Exception) and not isinstance(error, OmniaError)
        if isinstance(error, OmniaError):
            self.status = status_of(error)
        self._tally.observe(503 if mistake else self.status, perf_counter() - self._began)
        if isinstance(error, Exception) and mistake:  # the boundary once more, for what runs in tasks of its own
            raise _unexpected(self._face, error) from error


class Entrance:
    """The sandbox as the faces see it: a server that goes down opens no session any more."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Open."""
        self._sandbox = sandbox
        self.draining = False
        self.environments: Mapping[str, EnvironmentInfo] = sandbox.environments
        self.task = sandbox.task
        self.session = sandbox.session
        self.gauges = sandbox.gauges
        self.close = sandbox.close

    def admit(self) -> None:
        """Check that sessions may be opened.

        Raises:
            InfrastructureError: the server is going down.
        """
        if self.draining:
            raise InfrastructureError("this server is going down and opens no session; open it on another server")

    async def open(
        self, environment: str, *, task: str | None = None, state: str | None = None, tenant: str = LOCAL_TENANT
    ) -> Session:
        """Open a session; see `Sandbox.open`."""
        self.admit()
        return await self._sandbox.open(environment, task=task, state=state, tenant=tenant)


class Face(Protocol):
    """One protocol over the instance API; made with the sandbox it serves."""

    async def http(self, request: Request) -> None:
        """Answer a request; an `OmniaError` that escapes is answered in the face's form.

        It may be begun outside of a task: `await own_task()` before what may wait.
        """
        ...


class SocketFace(Face, Protocol):
    """A face that speaks WebSocket too."""

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation; call `accept` first, or `refuse`. It may be driven outside of a task, as `http`."""
        ...


@dataclass(frozen=True)
class Route:
    """A face under its name in metrics and logs."""

    name: str
    face: Face
    tally: Tally
    fail: Callable[[Request, OmniaError], None] = Request.problem
    """Tells an error in the face's own form."""
    socket: SocketFace | None = None
    bounded: bool = True
    """Whether its requests need a place among those in flight; operators must get through when all is full."""


class Gateway:
    """What answers over one sandbox; implements `http.Application`."""

    def __init__(self, sandbox: Sandbox, settings: GatewaySettings | None = None) -> None:
        """Serve a sandbox; closing the gateway closes it."""
        self.settings = settings if settings is not None else GatewaySettings()
        self.metrics = Metrics()
        self.entrance = Entrance(sandbox)
        self._traffic = Traffic(self.settings.in_flight, self.settings.tenant_in_flight)
        self._tenants = {_fingerprint(token): tenant for token, tenant in self.settings.tokens.items()}
        self._callers: dict[tuple[bytes | None, ...], Lane] = {}
        """Lanes by the headers that say who asks and from where, for those that were let in."""
        self._operators = Route("operators", Operators(self), self.metrics.tally("operators"), bounded=False)
        self._routes, self._ors = _faces(self.entrance, self.metrics)

    async def http(self, request: Request) -> None:
        """Answer a request."""
        began = perf_counter()
        route, lane = self._route(request.path), request.lane
        try:
            if request.refusal is not None:
                raise request.refusal
            if lane is None:
                lane = self._let_in(request, route)
            await route.face.http(request)
        except OmniaError as error:
            _tell(route, request, error)
        except Exception as error:  # noqa: BLE001 - the one boundary: a face's mistake must not end the server
            _tell(route, request, _unexpected(route.name, error))
        finally:
            if lane is not None:
                lane.leave()
        seconds = perf_counter() - began
        route.tally.observe(request.status if request.error is None else status_of(request.error), seconds)
        if request.error is not None or log.isEnabledFor(logging.DEBUG):
            _log_request(route.name, request, seconds)

    def hold(self, request: Request) -> None:
        """Take a place for a request whose body is still to come; see `http.Application`."""
        try:
            request.lane = self._let_in(request, self._route(request.path))
        except OmniaError as error:
            request.refusal = error

    def _let_in(self, request: Request, route: Route) -> Lane | None:
        """Check a caller and take a place; `None` where none is needed."""
        lane = self._lane_of(request)
        request.tenant = lane.tenant
        if not route.bounded:
            return None
        lane.enter()
        return lane

    def _route(self, path: tuple[str, ...]) -> Route:
        found = self._routes.get(path[0])
        if found is not None:
            return found
        return self._routes["ors"] if self._ors.takes(path) else self._operators

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation."""
        request = socket.request
        route = self._route(request.path)
        frames, tally = f"{route.name}_ws", self.metrics.tally(f"{route.name}_ws")
        try:
            lane = self._lane_of(request)
            socket.tenant = lane.tenant
            socket.in_flight = lambda: FramePassage(frames, lane, tally)
            if route.socket is None:
                raise Refusal(404, "there is no WebSocket here; use /v1/ws or /e/{environment}/ws")
            await route.socket.websocket(socket)
        except OmniaError as error:
            _refuse(socket, error)
        except Exception as error:  # noqa: BLE001 - the one boundary, as above
            _refuse(socket, _unexpected(route.name, error))

    def _lane_of(self, request: Request) -> Lane:
        """Who asks, and from where.

        Raises:
            Refusal: a foreign web page (403), a rebound host name (421), or no valid token (401).
        """
        get = request.headers.get
        said = (get(b"host"), get(b"origin"), get(b"authorization"), get(b"x-api-key"))
        lane = self._callers.get(said)
        return lane if lane is not None else self._check_caller(request, said)

    def _check_caller(self, request: Request, said: tuple[bytes | None, ...]) -> Lane:
        origin, tenant = request.header(b"origin"), LOCAL_TENANT
        if origin is not None and not self._right_origin(origin):
            raise Refusal(403, "this origin may not ask here; add it to the allowed origins of the server")
        if self.settings.loopback and not self._right_host(request.header(b"host")):
            raise Refusal(421, "this server answers for loopback names only; use http://127.0.0.1 and its port")
        if self._tenants:
            if request.path[0] == "health":
                return self._traffic.lane(tenant)  # anybody may ask this, but that lets nobody in elsewhere
            tenant = self._tenant(request.header(b"authorization"), request.header(b"x-api-key"))
        if len(self._callers) >= _CALLERS_KNOWN:
            self._callers.clear()
        lane = self._callers[said] = self._traffic.lane(tenant)
        return lane

    def _right_origin(self, origin: str) -> bool:
        if origin in self.settings.origins:
            return True
        try:
            return urlsplit(origin).hostname in LOOPBACK
        except ValueError:
            return False

    def _right_host(self, host: str | None) -> bool:
        if host is None:
            return True
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        return name in LOOPBACK or name in self.settings.hosts

    def _tenant(self, authorization: str | None, key: str | None) -> str:
        """Whose token it is; clients of ORS send theirs as `X-API-Key`."""
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else key
        tenant = self._tenants.get(_fingerprint(given)) if given else None
        if tenant is None:
            message = "a valid token is missing; send the header Authorization: Bearer TOKEN"
            raise Refusal(401, message, ((b"www-authenticate", b"Bearer"),))
        return tenant

    async def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Open no session any more, and wait for the calls in flight.

        Args:
            seconds: how long to wait at most.

        Returns:
            Whether all of them finished.
        """
        self.entrance.draining = True
        deadline = perf_counter() + seconds
        while self._traffic.live and perf_counter() < deadline:
            await asyncio.sleep(0.02)
        return self._traffic.live == 0

    async def close(self) -> None:
        """Drain, then close every session and stop every worker."""
        await self.drain()
        await self.entrance.close()

    def gauges(self) -> dict[str, float]:
        """What is live now: the sandbox's gauges and the gateway's own."""
        own = {"requests_in_flight": float(self._traffic.live), "draining": float(self.entrance.draining)}
        return {**self.entrance.gauges(), **own}


class Operators:
    """`/health` and `/metrics`, and the answer to everything else that has no face."""

    def __init__(self, gateway: Gateway) -> None:
        """Look at a gateway."""
        self._gateway = gateway

    async def http(self, request: Request) -> None:
        """Answer an operator."""
        match request.path:
            case ("health",):
                draining = self._gateway.entrance.draining
                request.json(503 if draining else 200, {"status": "draining" if draining else "healthy"})
            case ("metrics",):
                text = self._gateway.metrics.text(self._gateway.gauges())
                request.raw(200, text.encode(), METRICS_TYPE)
            case _:
                raise Refusal(404, "there is nothing here; see /v1/environments, /i/{session}/mcp and /health")


def _faces(sandbox: Sandbox, metrics: Metrics) -> tuple[dict[str, Route], Ors]:
    """Every face by the first segment of its paths; ORS has paths at the root too."""
    from agentomnia.sandbox.faces.mcp import Mcp
    from agentomnia.sandbox.faces.openenv import OpenEnv
    from agentomnia.sandbox.faces.ors import Ors
    from agentomnia.sandbox.faces.rest import Rest

    mcp, rest, openenv, ors = Mcp(sandbox), Rest(sandbox), OpenEnv(sandbox), Ors(sandbox)
    mcp_route = Route("mcp", mcp, metrics.tally("mcp"), fail=mcp.fail)
    routes = {
        "i": mcp_route,
        "envs": mcp_route,
        "v1": Route("rest", rest, metrics.tally("rest"), socket=rest),
        "e": Route("openenv", openenv, metrics.tally("openenv"), socket=openenv),
        "ors": Route("ors", ors, metrics.tally("ors")),
    }
    return routes, ors


def _fingerprint(token: str) -> bytes:
    """What is compared instead of a token, so that the time of comparing tells nothing."""
    return hashlib.sha256(token.encode()).digest()


def _unexpected(face: str, error: Exception) -> InfrastructureError:
    """A mistake of the server's own: logged with its traceback, told by a number only."""
    number = secrets.token_hex(6)
    log.error("unexpected exception", exc_info=error, extra={"face": face, "incident": number})
    return InfrastructureError(f"the server made a mistake (incident {number}); look for it in the server's log")


def _tell(route: Route, request: Request, error: OmniaError) -> None:
    """Answer with an error, where nothing was answered yet; a stream that has begun just ends."""
    request.error = error
    if request.status == 0:
        route.fail(request, error)


def _refuse(socket: WebSocket, error: OmniaError) -> None:
    if socket.open:
        socket.close(1011, str(error)[:100])
    elif not socket.accepted:
        socket.refuse(error)


def _log_request(face: str, request: Request, seconds: float) -> None:
    """One line a request at DEBUG, one a fault at WARNING; never arguments, tokens or what a tool said."""
    error = request.error
    fields: dict[str, object] = {"face": face, "status": request.status, "tenant": request.tenant}
    fields["milliseconds"] = round(seconds * 1000, 3)
    if isinstance(error, EnvironmentFault):
        fields["where"] = ": ".join(str(error).split(": ")[:2])[:200]
    elif isinstance(error, InfrastructureError):
        fields["where"] = str(error)[:500]
    if error is not None:
        fields |= {"owner": owner_of(error), "kind": type(error).__name__}
    fault = isinstance(error, EnvironmentFault | InfrastructureError) and not isinstance(error, CapacityError)
    log.log(logging.WARNING if fault else logging.DEBUG, "fault" if fault else "request", extra=fields)

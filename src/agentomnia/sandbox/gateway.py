"""The gateway: one ASGI application that checks who asks, bounds what is in flight, and hands requests to the faces.

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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError, InputError, OmniaError
from agentomnia.sandbox.api import LOCAL_TENANT, EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.faces.asgi import (
    BODY_LIMIT,
    Face,
    Receive,
    Refusal,
    Request,
    Scope,
    Send,
    SocketFace,
    WebSocket,
    owner_of,
    status_of,
)
from agentomnia.sandbox.metrics import Metrics
from agentomnia.sandbox.traffic import BODY_SECONDS, Lane, SlowBodies, Traffic

if TYPE_CHECKING:
    from agentomnia.sandbox.faces.ors import Ors

log = logging.getLogger("agentomnia.gateway")

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
METRICS_TYPE = b"text/plain; version=0.0.4"
DRAIN_SECONDS = 30.0


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
    body_seconds: float = BODY_SECONDS
    """How long a body may take to come."""
    origins: frozenset[str] = frozenset()
    """Origins of web pages that may ask, besides those on this machine."""
    loopback: bool = True
    """Whether only this machine can reach the server; then a `Host` of another name is a rebinding attack."""
    hosts: frozenset[str] = frozenset()
    """Host names that are right besides the loopback ones."""


class FramePassage:
    """One call asked for by a WebSocket frame: takes a place, and is counted like a request."""

    __slots__ = ("_began", "_lane", "_metrics", "_name", "status")

    def __init__(self, name: str, lane: Lane, metrics: Metrics) -> None:
        """Not entered yet."""
        self._name, self._lane, self._metrics = name, lane, metrics
        self._began = 0.0
        self.status = 200

    def __enter__(self) -> FramePassage:
        self._began = perf_counter()
        try:
            self._lane.__enter__()
        except CapacityError:
            self._metrics.observe(self._name, 429, 0.0)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._lane.__exit__()
        mistake = isinstance(error, Exception) and not isinstance(error, OmniaError)
        if isinstance(error, OmniaError):
            self.status = status_of(error)
        self._metrics.observe(self._name, 503 if mistake else self.status, perf_counter() - self._began)
        if isinstance(error, Exception) and mistake:  # the boundary once more, for what runs in tasks of its own
            raise _unexpected(self._name, error) from error


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


@dataclass(frozen=True)
class Route:
    """A face under its name in metrics and logs."""

    name: str
    face: Face
    fail: Callable[[Request, OmniaError], Awaitable[None]] = Request.problem
    """Tells an error in the face's own form."""
    socket: SocketFace | None = None
    bounded: bool = True
    """Whether its requests need a place among those in flight; operators must get through when all is full."""


class Gateway:
    """The ASGI application over one sandbox."""

    def __init__(self, sandbox: Sandbox, settings: GatewaySettings | None = None) -> None:
        """Serve a sandbox; closing the gateway closes it."""
        self.settings = settings if settings is not None else GatewaySettings()
        self.metrics = Metrics()
        self.entrance = Entrance(sandbox)
        self._traffic = Traffic(self.settings.in_flight, self.settings.tenant_in_flight)
        self._slow = SlowBodies(self.settings.body_seconds)
        self._tenants = {_fingerprint(token): tenant for token, tenant in self.settings.tokens.items()}
        self._operators = Route("operators", Operators(self), bounded=False)
        self._routes, self._ors = _faces(self.entrance)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request, WebSocket or lifespan."""
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case kind:
                raise InputError(
                    f"the gateway speaks HTTP and WebSocket, not {kind!r}; check the server in front of it"
                )

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        request = Request(scope, receive, send, body_limit=self.settings.body_limit, slow=self._slow)
        route = self._route(request.path)
        try:
            self._check_caller(request)
            with self._traffic.lane(request.tenant) if route.bounded else nullcontext():
                await route.face.http(request)
        except OmniaError as error:
            await _tell(route, request, error)
        except Exception as error:  # noqa: BLE001 - the one boundary: a face's mistake must not end the server
            await _tell(route, request, _unexpected(route.name, error))
        seconds = perf_counter() - began
        status = request.status if request.error is None else status_of(request.error)
        self.metrics.observe(route.name, status, seconds)
        if request.error is not None or log.isEnabledFor(logging.DEBUG):
            _log_request(route.name, request, seconds)

    def _route(self, path: tuple[str, ...]) -> Route:
        if path[0] in self._routes:
            return self._routes[path[0]]
        return self._routes["ors"] if self._ors.takes(path) else self._operators

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        route = self._route(request.path)
        lane, frames = self._traffic.lane(LOCAL_TENANT), f"{route.name}_ws"
        socket = WebSocket(scope, receive, send, LOCAL_TENANT, lambda: FramePassage(frames, lane, self.metrics))
        try:
            self._check_caller(request)
            socket.tenant, lane = request.tenant, self._traffic.lane(request.tenant)
            if route.socket is None:
                raise Refusal(404, "there is no WebSocket here; use /v1/ws or /e/{environment}/ws")
            await route.socket.websocket(socket)
        except OmniaError as error:
            await _refuse(socket, error)
        except Exception as error:  # noqa: BLE001 - the one boundary, as above
            await _refuse(socket, _unexpected(route.name, error))

    def _check_caller(self, request: Request) -> None:
        """Who asks, and from where; sets the tenant.

        Raises:
            Refusal: a foreign web page (403), a rebound host name (421), or no valid token (401).
        """
        origin = request.header(b"origin")
        if origin is not None and not self._right_origin(origin):
            raise Refusal(403, "this origin may not ask here; add it to the allowed origins of the server")
        if self.settings.loopback and not self._right_host(request.header(b"host")):
            raise Refusal(421, "this server answers for loopback names only; use http://127.0.0.1 and its port")
        if self._tenants and request.path[0] != "health":
            request.tenant = self._tenant(request.header(b"authorization"), request.header(b"x-api-key"))

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

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

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
                await request.json(503 if draining else 200, {"status": "draining" if draining else "healthy"})
            case ("metrics",):
                text = self._gateway.metrics.text(self._gateway.gauges())
                await request.raw(200, text.encode(), METRICS_TYPE)
            case _:
                raise Refusal(404, "there is nothing here; see /v1/environments, /i/{session}/mcp and /health")


def _faces(sandbox: Sandbox) -> tuple[dict[str, Route], Ors]:
    """Every face by the first segment of its paths; ORS has paths at the root too."""
    from agentomnia.sandbox.faces.mcp import Mcp
    from agentomnia.sandbox.faces.openenv import OpenEnv
    from agentomnia.sandbox.faces.ors import Ors
    from agentomnia.sandbox.faces.rest import Rest

    mcp, rest, openenv, ors = Mcp(sandbox), Rest(sandbox), OpenEnv(sandbox), Ors(sandbox)
    mcp_route = Route("mcp", mcp, fail=mcp.fail)
    routes = {
        "i": mcp_route,
        "envs": mcp_route,
        "v1": Route("rest", rest, socket=rest),
        "e": Route("openenv", openenv, socket=openenv),
        "ors": Route("ors", ors),
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


async def _tell(route: Route, request: Request, error: OmniaError) -> None:
    """Answer with an error, where nothing was answered yet; a stream that has begun just ends."""
    request.error = error
    if request.status == 0:
        await route.fail(request, error)


async def _refuse(socket: WebSocket, error: OmniaError) -> None:
    if socket.open:
        await socket.close(1011, str(error)[:100])
    elif not socket.accepted:
        await socket.refuse(error)


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

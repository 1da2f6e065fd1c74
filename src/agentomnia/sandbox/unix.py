"""A sandbox behind a Unix socket, for trainers on the same machine: the face with the least between caller and tool.

Frames of `link.py`, `[number, operation, …]`, with many requests in flight:

    open           environment or nil, task or nil, state or nil    gives what the session is
    session        id                                              the same, of one that is open
    call           session, tool, arguments                        gives the result
    batch          session, [[tool, arguments], …]                 gives the results
    reset, snapshot, restore, fork, digest, score, close           session, …
    environments, task, tasks, gauges                              what can be opened, what is live

Errors come back as the classes that were raised. Sessions outlive connections. `unix_client.py` has the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from agentomnia.errors import InputError, OmniaError
from agentomnia.sandbox.api import LOCAL_TENANT, EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.faces.operations import described
from agentomnia.sandbox.link import OK, Endpoint, told
from agentomnia.sandbox.served import Listener, ServedLink


class UnixServer:
    """A sandbox on a socket. Belongs to the sandbox's event loop."""

    def __init__(
        self, sandbox: Sandbox, endpoint: Endpoint, token: str = "", tenant: str = LOCAL_TENANT, in_flight: int = 4096
    ) -> None:
        """Prepare; `start` listens.

        Args:
            sandbox: what is served; whoever made it closes it.
            endpoint: a Unix socket, which only this user can open, or a TCP port, which needs a token.
            token: what clients must hold.
            tenant: whose sessions are opened here.
            in_flight: requests of one connection that may wait.
        """
        self.sandbox, self.tenant, self._endpoint = sandbox, tenant, endpoint
        self._listener = Listener(lambda listener: _Trainer(self, listener), token, most_in_flight=in_flight)

    async def start(self) -> Endpoint:
        """Listen; gives back where.

        Raises:
            InputError: that is not possible there.
        """
        return await self._listener.start(self._endpoint)

    async def close(self) -> None:
        """End every connection; sessions stay."""
        await self._listener.close()


class _Trainer(ServedLink):
    """One client's connection."""

    def __init__(self, server: UnixServer, listener: Listener) -> None:
        super().__init__(listener)
        self._sandbox, self._tenant = server.sandbox, server.tenant

    def request(self, number: int, operation: str, rest: list[Any]) -> None:
        """Take a request."""
        try:
            if operation == "call":
                self._call(number, rest)
            elif operation in _SESSION_OPERATIONS:
                self._ask_session(number, operation, rest)
            else:
                self._ask_sandbox(number, operation, rest)
        except OmniaError as error:
            self.answer(number, *told(error))
        except (TypeError, ValueError, IndexError):
            problem = InputError(f"a request {operation[:40]!r} has other arguments; use a client of the same version")
            self.answer(number, *told(problem))

    def _call(self, number: int, rest: list[Any]) -> None:
        name, tool, arguments = rest
        if type(tool) is not str or type(arguments) is not dict:
            raise TypeError
        session = self._sandbox.session(name, self._tenant)
        answer = session.call_at_once(tool, arguments)
        if answer is not None:
            self.answer(number, OK, answer)
        else:
            self.run(number, session.call(tool, arguments), at_once=session.environment.trusted)

    def _ask_session(self, number: int, operation: str, rest: list[Any]) -> None:
        session = self._sandbox.session(rest[0], self._tenant)
        self.run(number, _SESSION_OPERATIONS[operation](session, *rest[1:]), at_once=session.environment.trusted)

    def _ask_sandbox(self, number: int, operation: str, rest: list[Any]) -> None:
        sandbox = self._sandbox
        match operation, rest:
            case "open", [environment, task, state]:
                self.run(number, self._open(environment, task, state), at_once=False)
            case "session", [str(name)]:
                self.run(number, described(sandbox.session(name, self._tenant)), at_once=False)
            case "environments", []:
                self.answer(number, OK, [_outline(info) for info in sandbox.environments.values()])
            case "task", [str(name)]:
                self.answer(number, OK, sandbox.task(name).model_dump(mode="json"))
            case "tasks", [str(environment), str(split)]:
                ids = self._environment(environment).splits.get(split, ())
                self.answer(number, OK, [sandbox.task(name).model_dump(mode="json") for name in ids])
            case "gauges", []:
                self.answer(number, OK, dict(sandbox.gauges()))
            case _:
                raise InputError(f"there is no operation {operation[:40]!r}; use a client of the same version")

    async def _open(self, environment: str | None, task: str | None, state: str | None) -> dict[str, Any]:
        if environment is None:
            if task is None:
                raise InputError("neither an environment nor a task is named; name one of them")
            environment = self._sandbox.task(task).environment
        return await described(await self._sandbox.open(environment, task=task, state=state, tenant=self._tenant))

    def _environment(self, name: str) -> EnvironmentInfo:
        found = self._sandbox.environments.get(name)
        if found is None:
            raise InputError(f"there is no environment {name[:80]!r}; list them and choose one")
        return found


def _outline(info: EnvironmentInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "introduction": info.introduction,
        "tools": len(info.tools),
        "states": list(info.states),
        "splits": {split: len(ids) for split, ids in info.splits.items()},
    }


async def _batch(session: Session, calls: list[Any]) -> list[Any]:
    if not all(map(_is_call, calls)):
        raise InputError("a call of the batch is no tool with an object of arguments; nothing was called")
    return await session.batch([(tool, arguments) for tool, arguments in calls])


def _is_call(given: Any) -> bool:
    match given:
        case [str(), dict()]:
            return True
    return False


async def _fork(session: Session) -> dict[str, Any]:
    return await described(await session.fork())


async def _score(session: Session, message: str) -> dict[str, Any]:
    if type(message) is not str:
        raise InputError("what the agent said last must be a text; give it, or nothing")
    grade = await session.score(message)
    return {"reward": grade.reward, "failures": grade.failures}


_SESSION_OPERATIONS: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "batch": _batch,
    "reset": lambda session: session.reset(),
    "snapshot": lambda session: session.snapshot(),
    "restore": lambda session, snapshot: session.restore(snapshot),
    "fork": _fork,
    "digest": lambda session: session.digest(),
    "score": _score,
    "close": lambda session: session.close(),
}
"""What each makes of a session: a coroutine."""

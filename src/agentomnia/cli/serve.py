"""`omnia serve` and `omnia mcp`: environments of a run for other people's programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentomnia.cli.options import Json, print_json

if TYPE_CHECKING:
    from agentomnia.sandbox.catalog import Catalog

Path_ = Annotated[Path, typer.Argument(help="A run, the folder of an import, or one environment package.")]
Isolate = Annotated[bool, typer.Option("--isolate", help="Run proved environments in isolated workers, too.")]
Unsafe = Annotated[
    bool, typer.Option("--unsafe", help="Run untrusted code although this machine has neither Landlock nor seccomp.")
]


def serve(
    path: Path_,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; only this machine by default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8321,
    unix: Annotated[Path | None, typer.Option("--unix", help="Listen at a Unix socket instead.")] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="File of lines `TOKEN TENANT`; without one, everybody may ask.")
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="Listen beyond this machine without tokens: anybody there may ask.")
    ] = False,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="Origin of a web page that may ask; may be repeated.")
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions at once.")] = 100_000,
    idle: Annotated[float, typer.Option("--idle", help="Seconds after which an unused session hibernates.")] = 60.0,
    lease: Annotated[float, typer.Option("--lease", help="Seconds after which an unused session is closed.")] = 3600.0,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="HOST:PORT of a node agent for the instances; may be repeated."),
    ] = None,
    node_token: Annotated[Path | None, typer.Option("--node-token", help="File with the token of the nodes.")] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="File in which sessions outlive a restart: written on SIGTERM.")
    ] = None,
    isolate: Isolate = False,
    unsafe: Unsafe = False,
    json_output: Json = False,
) -> None:
    """Serve environments over MCP, OpenEnv, ORS, REST and WebSocket until interrupted."""
    from agentomnia.runs.serving import KeptHost, catalog_of, host_of, node_addresses, read_tokens
    from agentomnia.sandbox.gateway import LOOPBACK, GatewaySettings
    from agentomnia.sandbox.host import HostSettings
    from agentomnia.sandbox.server import serve as serve_sandbox

    known = read_tokens(tokens) if tokens is not None else {}
    if unix is None and host not in LOOPBACK and not known and not everybody:
        raise typer.BadParameter(
            f"{host} can be reached by others: give --tokens FILE, or --everybody", param_hint="--host"
        )
    catalog = catalog_of(path, isolate=isolate)
    settings = GatewaySettings(tokens=known, origins=frozenset(origin or ()))
    limits = HostSettings(sessions=sessions, idle_seconds=idle, lease_seconds=lease)
    served = host_of(catalog, limits, unsafe=unsafe, nodes=node_addresses(node or (), node_token), keep=keep)

    def ready(address: str) -> None:
        if json_output:
            print_json({"address": address, "environments": len(catalog.sources), "tasks": len(catalog.tasks)})
        else:
            typer.echo(_paste(address, catalog))

    begin = served.begin if isinstance(served, KeptHost) else lambda: None
    raise typer.Exit(serve_sandbox(served, settings, host, port, unix, ready, begin))


def mcp(
    path: Annotated[Path, typer.Argument(help="An environment package: runs/NAME/environments/ID.")],
    task: Annotated[str | None, typer.Option("--task", help="Id of a task of its run; its state and tools.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Name of an initial state; the first by default.")
    ] = None,
    isolate: Isolate = False,
    unsafe: Unsafe = False,
) -> None:
    """One environment as an MCP server on standard input and output, for desktop clients."""
    import asyncio

    from agentomnia.runs.serving import catalog_of, host_of
    from agentomnia.sandbox.server import log_to_stderr
    from agentomnia.sandbox.stdio import serve_stdio

    run = path.resolve().parent.parent
    catalog = catalog_of(run if task is not None else path, isolate=isolate)

    async def play() -> None:
        served = host_of(catalog, unsafe=unsafe)
        try:
            session = await served.open(path.resolve().name, task=task, state=state)
            await serve_stdio(session)
        finally:
            await served.close()

    log_to_stderr()
    asyncio.run(play())


def _paste(address: str, catalog: Catalog) -> str:
    """What a client needs, ready to be copied."""
    untrusted = [s for s in catalog.sources.values() if s.program is None]
    name = next(iter(catalog.sources))
    task = next((t.task.id for t in catalog.tasks.values() if t.task.environment == name), None)
    chosen = {"environment": name, **({"task": task} if task is not None else {})}
    what = f'"{name}"' + (f', task="{task}"' if task is not None else "")
    lines = [
        f"{len(catalog.sources)} environments, {len(catalog.tasks)} tasks at {address}",
        *([_isolation_line(len(untrusted))] if untrusted else []),
        "",
        "Python      from agentomnia.sandbox.client import SandboxClient",
        f'            with SandboxClient("{address}") as client, client.open({what}) as session:',
        "                session.info.tools, session.call(tool, arguments), session.score(message)",
        f"REST        curl -X POST {address}/v1/sessions -H 'content-type: application/json' -d '{json.dumps(chosen)}'",
        f"MCP         {address}/i/SESSION/mcp       the id comes from REST; omnia mcp PACKAGE for desktop clients",
        f"OpenEnv     base URL {address}/e/{name}",
        f'ORS         OpenRewardSpec("{address}", env_name="{name}"), after',
        f"            export OPENREWARD_SESSION_URL={address} OPENREWARD_API_URL={address}",
        "trainers    docs/adapters.md",
        f"metrics     {address}/metrics",
    ]
    return "\n".join(lines)


def _isolation_line(untrusted: int) -> str:
    from agentomnia.sandbox.isolation import probe

    return f"{untrusted} of them in workers; {probe().describe()}"

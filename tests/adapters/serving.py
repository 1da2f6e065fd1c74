"""For the tests of adapters: a run served on loopback, its tasks with their solutions, and foreign interpreters."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.run import read_jsonl
from agentomnia.runs.serving import catalog_of
from agentomnia.sandbox.host import Host
from agentomnia.sandbox.server import running
from agentomnia.task.task import answer_message
from client_venvs import client_python, run_client

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of a server on a thread; at the end no session may be left open."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    host = Host(catalog_of(run))
    server = running(host)
    try:
        address, _ = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        try:
            yield address
            left = host.gauges()["sessions"]
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
    assert left == 0, f"{left} sessions were left open"


def solved(run: Path, most: int = 4, suite: str | None = None) -> list[dict[str, Any]]:
    """Some tasks with the calls and the last message that earn the reward; the shortest."""
    suites = {r["task"]: r["suite"] for r in read_jsonl(run / "splits.jsonl")} if suite is not None else {}
    pairs = sorted(read_tasks(run), key=lambda pair: (len(pair[1].calls), pair[0].id))
    chosen = [(t, p) for t, p in pairs if len(p.calls) > 1 and p.criterion.changes and suites.get(t.id) == suite][:most]
    return [
        {
            "environment": task.environment,
            "task": task.id,
            "query": task.query,
            "calls": [[call.tool, call.arguments] for call in private.calls],
            "answer": answer_message(private.answer),
        }
        for task, private in chosen
    ]


def run_script(
    name: str, requirements: Sequence[str], script: str, source: str, episodes: Sequence[dict[str, Any]], folder: Path,
    seconds: float = 120,
) -> dict[str, Any]:  # fmt: skip
    """What a script of this folder prints last, run where its trainer is installed beside this package."""
    python = client_python(name, [*requirements, "--editable", str(ROOT)])
    told = folder / "episodes.json"
    told.write_text(json.dumps(episodes))
    printed = run_client(python, SCRIPTS / script, source, str(told), seconds=seconds)
    answer: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return answer

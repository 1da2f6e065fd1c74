"""Runs in verifiers' virtual environment. Arguments: a source, and a file of solved episodes.

The environment, the interception of model traffic and the program that plays (verifiers' own chat loop with its MCP
client) are verifiers'; only the model is a double, an OpenAI-compatible server that streams what a script says.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

TASKSET = '''
import sys

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE

from agentomnia.adapters.verifiers import OmniaEnv, OmniaTaskset

__all__ = ["HereHarness", "OmniaEnv", "OmniaTaskset"]


class HereHarness(NullHarness):
    """verifiers' chat program under this interpreter, instead of one that uv downloads first."""

    async def setup(self, runtime):
        pass

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        import json

        await runtime.write("chat.py", CHAT_PROGRAM_SOURCE.encode())
        servers = {name: {"url": url, "timeout": 30} for name, url in mcp_urls.items()}
        told = ["--base-url=" + endpoint, "--api-key=" + secret, "--model=" + ctx.model,
                "--system-prompt=" + data.system_prompt, "--prompt=" + data.prompt,
                "--mcp-config=" + json.dumps({"mcpServers": servers})]
        return await runtime.run_program([sys.executable, "chat.py", *told], {})
'''


class Model(ThreadingHTTPServer):
    """Answers with the turns of the task whose query it reads; a task with no turns left says it gives up."""

    daemon_threads = True

    def __init__(self, scripts: dict[str, list[Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts = scripts
        self.seen: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        told = json.dumps(body["messages"])
        turns = next((t for q, t in self.server.scripts.items() if json.dumps(q)[1:-1] in told), [])
        answered = sum(m["role"] == "assistant" for m in body["messages"])
        delta, reason = _delta(turns[answered] if answered < len(turns) else "Sorry.", answered)
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        lines = [
            {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**chunk, "choices": [], "usage": usage},
        ]
        sent = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(sent.encode())))
        self.end_headers()
        self.wfile.write(sent.encode())

    def log_message(self, *_: object) -> None:
        pass


def _delta(turn: Any, number: int) -> tuple[dict[str, Any], str]:
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}, "stop"
    function = {"name": turn[0], "arguments": json.dumps(turn[1])}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"


@contextmanager
def model(scripts: dict[str, list[Any]]) -> Iterator[Model]:
    server = Model(scripts)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def play(source: str, episodes: list[dict[str, Any]], server: Model) -> None:
    taskset = {"id": "omnia-tasks", "task": {"url": source}}
    here = {"runtime": {"type": "subprocess"}}  # elsewhere the harness would need a tunnel to this machine
    config = vf.SingleAgentEnvConfig.model_validate({"taskset": taskset, "agent": here})
    env = vf.load_environment(config)
    assert type(env).__name__ == "OmniaEnv"
    tasks = {task.data.id: task for task in env.taskset}
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NO_KEY")
    ctx = vf.ModelContext(client=client, model="scripted", sampling=vf.Sampling())
    async with env.serving():
        for episode in episodes:
            task = tasks[episode["task"]]
            server.scripts = {episode["query"]: [*episode["calls"], episode["answer"]]}
            played = await env.run_episode(task, ctx)
            check(played, 1.0)
            server.scripts = {}
            check(await env.run_episode(task, ctx), 0.0)
        await at_once(env, tasks, ctx, server, episodes)
        await refused(env, tasks[episodes[0]["task"]], ctx, server, episodes[0])
        await broken(env, tasks[episodes[0]["task"]], ctx)


async def at_once(env: Any, tasks: Any, ctx: Any, server: Model, episodes: list[dict[str, Any]]) -> None:
    """Rollouts of one task and of several at the same time: no session sees another."""
    server.scripts = {e["query"]: [*e["calls"], e["answer"]] for e in episodes}
    started = [tasks[e["task"]] for e in episodes] + [tasks[episodes[0]["task"]]]
    for played in await asyncio.gather(*(env.run_episode(task, ctx) for task in started)):
        check(played, 1.0)


def check(played: Any, reward: float) -> None:
    assert played.ok, (played.errors, [t.errors for t in played.traces])
    (trace,) = played.traces
    assert trace.rewards["grade"].value == reward, trace.transcript


async def refused(env: Any, task: Any, ctx: Any, server: Model, episode: dict[str, Any]) -> None:
    """A refused call is told to the model, and the tools have their own names."""
    tool = episode["calls"][0][0]
    server.seen.clear()
    server.scripts = {episode["query"]: [[tool, {"no_such_argument": 1}], *episode["calls"], episode["answer"]]}
    check(await env.run_episode(task, ctx), 1.0)
    assert tool in [t["function"]["name"] for t in server.seen[0]["tools"]]
    assert "no_such_argument" in str(server.seen[1]["messages"][-1]["content"])


async def broken(env: Any, task: Any, ctx: Any) -> None:
    """Without a server there is an error and no reward."""
    lost = task.with_data()
    lost.config = task.config.model_copy(update={"url": "http://127.0.0.1:9"})
    played = await env.run_episode(lost, ctx)
    assert not played.ok and "no server answers" in played.errors[0].message
    assert all("grade" not in trace.rewards for trace in played.traces)


def main(source: str, episodes: Path) -> None:
    solved = json.loads(episodes.read_text())
    with tempfile.TemporaryDirectory() as folder, model({}) as server:
        (Path(folder) / "omnia_tasks.py").write_text(TASKSET)
        sys.path.insert(0, folder)
        asyncio.run(play(source, solved, server))
    print(json.dumps({"version": version("verifiers"), "episodes": len(solved)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""The demo: every stage of a run in order, readable in one sitting.

1  environments   every card, one OpenAPI file and one MCP dump of the project's own
2  tasks          DAG-Standard tasks on enriched initial states
3  gate           every environment and task again, from disk
4  episodes       reference trajectories; then the floors and the scripted agent over all tasks
5  chat           a scripted model behind a real HTTP server plays some tasks, as a remote model would
6  exports and report
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from time import perf_counter
from typing import Any

from agentomnia.llm.client import ModelEndpoint
from agentomnia.llm.message import ToolCall
from agentomnia.llm.scripted import Answer, ScriptedServer
from agentomnia.report.write import write_report
from agentomnia.runs.environments import card_items, environment_settings, file_items, make_environments
from agentomnia.runs.episodes import evaluate, make_references, read_tasks
from agentomnia.runs.exports import TARGETS, export_trajectories
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.tasks import make_tasks
from agentomnia.runs.validate import validate_environments, validate_tasks
from agentomnia.synthesis.environments.author import BuiltinAuthor
from agentomnia.task.task import PrivateTask, Task, answer_message

TASKS_PER_ENVIRONMENT = 10
CHAT_TASKS = 30
SCRIPTED_MODEL = "scripted-reference"
FLOORS = ("null", "apology", "random")


@dataclass(frozen=True)
class DemoOutcome:
    """What the demo made and found."""

    environments: int
    tools: int
    tasks: int
    environments_passed: int
    tasks_passed: int
    trajectories: int
    pass_at_1: dict[str, float | None]
    report: str
    out: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Everything kept passes its gate, the floors earn nothing, the reference everything."""
        gates = self.environments_passed == self.environments and self.tasks_passed == self.tasks > 0
        floors = all(self.pass_at_1[name] == 0.0 for name in FLOORS)
        return gates and floors and self.pass_at_1["scripted"] == self.pass_at_1["chat"] == 1.0

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return asdict(self)

    def text(self) -> str:
        """The outcome for people."""
        scores = ", ".join(f"{name} {100 * (score or 0):.0f} %" for name, score in self.pass_at_1.items())
        return (
            f"{self.environments} environments with {self.tools} tools ({self.environments_passed} pass their gate)\n"
            f"{self.tasks} tasks ({self.tasks_passed} pass their gate), {self.trajectories} reference trajectories\n"
            f"Pass@1: {scores}\n"
            f"{self.seconds:.0f} s; read {self.report}"
        )


def example_files() -> list[Path]:
    """The seed files that ship with the package."""
    folder = resources.files("agentomnia.seeds").joinpath("examples")
    return sorted(Path(str(f)) for f in folder.iterdir() if f.name.endswith(".json"))


def run_demo(out: Path, seed: int, jobs: int, per_environment: int = TASKS_PER_ENVIRONMENT) -> DemoOutcome:
    """Run, or continue, the demo in a run directory."""
    started = perf_counter()
    domains, files = BuiltinAuthor().domains, example_files()
    with Run(out) as run:
        run.configure("environments", environment_settings(domains, files, 1, seed))
        make_environments(run, [*card_items(domains, 1, seed), *file_items(files, seed)], jobs)
        run.configure("tasks", {"per_environment": per_environment, "seed": seed})
        make_tasks(run, per_environment, seed, jobs)
        environments, tasks = validate_environments(out, jobs), validate_tasks(out, jobs)
        run.configure("trajectories", {"agent": "scripted", "seed": seed})
        references = make_references(run, jobs)
        scores = {name: _offline_score(run, name, seed, jobs) for name in (*FLOORS, "scripted")}
        scores["chat"] = _chat_score(run, seed)
        for target in TARGETS:
            export_trajectories(out, target)
        report = write_report(out)
        run.write_manifest()
    return DemoOutcome(
        environments=environments.subjects,
        tools=sum(row["tools"] for row in read_jsonl(out / "environments.jsonl")),
        tasks=tasks.subjects,
        environments_passed=environments.passed,
        tasks_passed=tasks.passed,
        trajectories=references.kept,
        pass_at_1=scores,
        report=str(report),
        out=str(out),
        seconds=round(perf_counter() - started, 1),
    )


def _offline_score(run: Run, agent: str, seed: int, jobs: int) -> float | None:
    run.configure(f"evaluation-{agent}", {"agent": agent, "seed": seed})
    return evaluate(run, agent, seed=seed, jobs=jobs).pass_at_1


def _chat_score(run: Run, seed: int) -> float | None:
    """The chat agent over HTTP, on the first tasks; the "model" behind the server plays the references."""
    run.configure("evaluation-chat", {"agent": "chat", "model": SCRIPTED_MODEL, "seed": seed})
    script = reference_script(read_tasks(run.path))
    with ScriptedServer(script, model=SCRIPTED_MODEL) as server:
        endpoint = ModelEndpoint(model=SCRIPTED_MODEL, base_url=server.base_url)
        return evaluate(run, "chat", seed=seed, jobs=1, endpoint=endpoint, most=CHAT_TASKS, ledger=False).pass_at_1


def reference_script(tasks: Iterable[tuple[Task, PrivateTask]]) -> Callable[[dict[str, Any]], Answer]:
    """A script for a model that recognises a task by its query and plays the reference, one call a turn."""
    known = {task.query: private for task, private in tasks}

    def turn(body: dict[str, Any]) -> Answer:
        query = next(m["content"] for m in body["messages"] if m["role"] == "user")
        private = known[query]
        number = sum(1 for m in body["messages"] if m["role"] == "assistant")
        if number == len(private.calls):
            return Answer(content=answer_message(private.answer))
        call = private.calls[number]
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return Answer(tool_calls=(ToolCall(id=f"call_{number}", name=call.tool, arguments=arguments),))

    return turn

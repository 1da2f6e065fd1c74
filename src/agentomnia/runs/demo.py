"""The demo: the whole loop in one run directory, readable in one sitting.

1  environments   cards, an OpenAPI file and an MCP dump of the project's own
2  tasks          DAG-Standard tasks on enriched initial states, for models with a long context
3  gate           every environment and task again, from disk
4  episodes       the floors and the scripted agent over all tasks; a scripted model behind a real HTTP server
5  loop           `runs/loop.py`: teacher, SFT, RL, comparison, diagnosis, PRDs, second round
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
from agentomnia.report.write import FILE as REPORT
from agentomnia.report.write import write_report
from agentomnia.runs.environments import card_items, environment_settings, file_items, make_environments
from agentomnia.runs.episodes import evaluate, make_references, read_tasks
from agentomnia.runs.exports import TARGETS, export_trajectories
from agentomnia.runs.loop import LoopOutcome, run_loop
from agentomnia.runs.parallel import in_order
from agentomnia.runs.plans import demo_plan
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.tasks import make_tasks
from agentomnia.runs.validate import validate_environments, validate_tasks
from agentomnia.synthesis.environments.package import write_text
from agentomnia.task.task import PrivateTask, Task, answer_message

CHAT_TASKS = 12
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
    """Of the floors and of the agents that know the reference, on the tasks for a long context."""
    loop: LoopOutcome
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
        """The outcome as plain values, the loop's numbers among them."""
        values = asdict(self)
        return {**values.pop("loop"), "made": {k: values.pop(k) for k in list(values)[:7]}, **values}

    def text(self) -> str:
        """The outcome for people."""
        scores = ", ".join(f"{name} {_percent(score)}" for name, score in self.pass_at_1.items())
        loop = self.loop
        lines = [
            f"{self.environments} environments with {self.tools} tools ({self.environments_passed} pass their gate)",
            f"{self.tasks} tasks ({self.tasks_passed} pass their gate), {self.trajectories} reference trajectories",
            f"Pass@1 of the floors and of the reference: {scores}",
            f"Pass@1 of the policy on {loop.held_out_tasks} unseen tasks: {_line(loop.policy)}",
            f"  the same, greedily: {_line(loop.policy_greedy)}",
            f"  in domains that the second round aims at: {_line(loop.policy_target)}",
            f"  in domains never seen: {_line(loop.policy_domains)}",
            f"KL to the failures: original data {loop.kl['original']:.2f}, PRD data {loop.kl['prd']:.2f}",
            "tasks that always failed, rescued with equal rollouts: "
            f"GRPO {loop.rescued['grpo']}, RCRL {loop.rescued['rcrl']}, of {loop.rescued['of']}",
            f"{self.seconds:.0f} s; read {self.report}",
        ]
        return "\n".join(lines)


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.0f} %"


def _line(scores: dict[str, float | None]) -> str:
    return " → ".join(f"{name} {_percent(score)}" for name, score in scores.items())


def example_files() -> list[Path]:
    """The seed files that ship with the package."""
    folder = resources.files("agentomnia.seeds").joinpath("examples")
    return sorted(Path(str(f)) for f in folder.iterdir() if f.name.endswith(".json"))


def run_demo(out: Path, seed: int, jobs: int, quick: bool = False) -> DemoOutcome:
    """Run, or continue, the demo in a run directory; `quick` is the same at a size that shows only that it runs."""
    started = perf_counter()
    plan, files = demo_plan(quick), example_files()
    with Run(out) as run:
        run.configure("environments", environment_settings(plan.domains, files, 1, seed))
        make_environments(run, [*card_items(plan.domains, 1, seed), *file_items(files, seed)], jobs)
        run.configure("tasks", {"per_environment": plan.tasks, "seed": seed})
        make_tasks(run, plan.tasks, seed, jobs)
        gates = _gates(run, jobs)
        run.configure("trajectories", {"agent": "teacher", "seed": seed})
        references = make_references(run, jobs, "teacher", seed)
        scores = {name: _offline_score(run, name, seed, jobs) for name in (*FLOORS, "scripted")}
        scores["chat"] = _chat_score(run, seed)
        run.configure("loop", plan.loop.to_config())
        loop = run_loop(run, plan.loop, seed, jobs)
        list(in_order(_finish, [(out, what) for what in (REPORT, *TARGETS)], jobs))
        run.write_manifest()
    return DemoOutcome(
        environments=gates["environments"],
        tools=sum(row["tools"] for row in read_jsonl(out / "environments.jsonl")),
        tasks=gates["tasks"],
        environments_passed=gates["environments_passed"],
        tasks_passed=gates["tasks_passed"],
        trajectories=references.kept,
        pass_at_1=scores,
        loop=loop,
        report=str(out / REPORT),
        out=str(out),
        seconds=round(perf_counter() - started, 1),
    )


def _finish(item: tuple[Path, str]) -> None:
    """The report, or one export; none needs another."""
    out, what = item
    if what == REPORT:
        write_report(out)
    else:
        export_trajectories(out, what)


def _gates(run: Run, jobs: int) -> dict[str, int]:
    """Both gates over everything made so far, from disk; once."""
    path = run.path / "gates.json"
    if run.finished("gates") is None:
        stage = run.stage("gates", ())
        environments, tasks = validate_environments(run.path, jobs), validate_tasks(run.path, jobs)
        counts = {
            "environments": environments.subjects, "environments_passed": environments.passed,
            "tasks": tasks.subjects, "tasks_passed": tasks.passed,
        }  # fmt: skip
        write_text(path, json.dumps(counts) + "\n")
        stage.end()
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return found


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

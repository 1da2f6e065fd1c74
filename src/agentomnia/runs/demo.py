"""The demo: every stage of a run in order, readable in one sitting.

1  environments   every card, one OpenAPI file and one MCP dump of the project's own
2  tasks          DAG-Standard tasks on enriched initial states
3  gate           every environment and task again, from disk
4  episodes       reference trajectories; then the floors and the scripted agent over all tasks
5  chat           a scripted model behind a real HTTP server answers a few tasks as a remote model would
6  exports and report
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from time import perf_counter
from typing import Any

from agentomnia.report.write import write_report
from agentomnia.runs.environments import card_items, file_items, make_environments
from agentomnia.runs.episodes import evaluate, make_references
from agentomnia.runs.exports import TARGETS, export_trajectories
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.tasks import make_tasks
from agentomnia.runs.validate import validate_environments, validate_tasks
from agentomnia.synthesis.environments.author import BuiltinAuthor

TASKS_PER_ENVIRONMENT = 10
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
        return gates and floors and self.pass_at_1["scripted"] == 1.0

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
        run.configure(
            "environments",
            {"domains": list(domains), "files": [f.name for f in files], "per_domain": 1, "seed": seed},
        )
        make_environments(run, [*card_items(domains, 1, seed), *file_items(files, seed)], jobs)
        run.configure("tasks", {"per_environment": per_environment, "seed": seed})
        make_tasks(run, per_environment, seed, jobs)
        environments, tasks = validate_environments(out, jobs), validate_tasks(out, jobs)
        run.configure("trajectories", {"agent": "scripted", "seed": seed})
        references = make_references(run, jobs)
        scores = {}
        for name in (*FLOORS, "scripted"):
            run.configure(
                f"evaluation-{name}",
                {"agent": name, "model": "", "base_url": "", "temperature": 0.5, "seed": seed},
            )
            scores[name] = evaluate(run, name, seed=seed, jobs=jobs).pass_at_1
        for target in TARGETS:
            export_trajectories(out, target)
        report = write_report(out)
        run.write_manifest()
    tools = sum(row["tools"] for row in read_jsonl(out / "environments.jsonl"))
    return DemoOutcome(
        environments=environments.subjects,
        tools=tools,
        tasks=tasks.subjects,
        environments_passed=environments.passed,
        tasks_passed=tasks.passed,
        trajectories=references.kept,
        pass_at_1=scores,
        report=str(report),
        out=str(out),
        seconds=round(perf_counter() - started, 1),
    )

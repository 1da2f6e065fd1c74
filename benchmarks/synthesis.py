"""How fast verified environments and tasks are made by the builtin author, and how large they are.

    python benchmarks/synthesis.py [--environments 12] [--tasks 10] [--jobs 2] [--json]

The stages of a run, as `omnia synth` calls them, over variants of every domain card present, in a folder that is
thrown away: weave, correct and verify environments; then write and verify tasks. The worker processes are started
before the clock runs. What is kept is divided by wall time, and by the CPU time of the workers, which other programs
on the machine disturb less; the process that replays for a worker is in the wall time only. The size that the paper
reports is extrapolated in proportion, which is a projection and is labelled so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentomnia.runs.environments import EnvironmentItem, make_environments
from agentomnia.runs.parallel import in_order
from agentomnia.runs.run import Run, StageReport, read_jsonl
from agentomnia.runs.tasks import make_tasks
from agentomnia.synthesis.environments.author import BuiltinAuthor

PAPER_ENVIRONMENTS = 5_018
PAPER_TASKS = 52_361
SIZES = ("tools", "entities", "attributes")
_SEED = 0


@dataclass(frozen=True)
class StageTime:
    """What a stage made and how long it took."""

    what: str
    tried: int
    kept: int
    rejected: dict[str, int]
    seconds: float
    cpu_seconds: float

    @property
    def per_kept(self) -> float:
        """Wall seconds for each thing kept."""
        return self.seconds / max(1, self.kept)

    @property
    def cpu_per_kept(self) -> float:
        """CPU seconds of the workers for each thing kept."""
        return self.cpu_seconds / max(1, self.kept)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=12, help="how many, spread over the cards")
    parser.add_argument("--tasks", type=int, default=10, help="how many for each environment")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stages, sizes = measure(Path(folder), options.environments, options.tasks, options.jobs)
    if options.json:
        rows = [{**asdict(s), "per_kept": s.per_kept, "cpu_per_kept": s.cpu_per_kept} for s in stages]
        told: dict[str, Any] = {"jobs": options.jobs, "stages": rows, "sizes": sizes}
        told["projected_hours"] = projection(stages, options.jobs)
        print(json.dumps(told))
    else:
        print(table(stages, sizes, options.jobs))


def items(count: int) -> list[EnvironmentItem]:
    """Variants of all cards in turn; of cards evenly apart where there are more than `count`."""
    domains = BuiltinAuthor().domains
    if count < len(domains):
        domains = tuple(domains[i * len(domains) // count] for i in range(count))
    places = [(domains[i % len(domains)], i // len(domains)) for i in range(count)]
    return [
        EnvironmentItem(name=f"{domain}/{variant}", seed=f"{_SEED}/{domain}/{variant}", domain=domain, variant=variant)
        for domain, variant in places
    ]


def measure(folder: Path, environments: int, tasks: int, jobs: int) -> tuple[list[StageTime], dict[str, list[float]]]:
    """Run both stages; returns their times, and mean and standard deviation of the sizes."""
    wanted = items(environments)
    marks = [_mark(jobs)]
    with Run(folder / "run") as run:
        made = make_environments(run, wanted, jobs)
        marks.append(_mark(jobs))
        written = make_tasks(run, tasks, _SEED, jobs)
        marks.append(_mark(jobs))
        rows = list(read_jsonl(run.path / "environments.jsonl"))
    stages = [_stage("environments", made, marks[0], marks[1]), _stage("tasks", written, marks[1], marks[2])]
    return stages, {size: spread([float(row[size]) for row in rows]) for size in SIZES}


@dataclass(frozen=True)
class Mark:
    """A moment between stages."""

    asked: float
    """When the workers were asked for their CPU time: the stage before ended here."""
    answered: float
    """When all had answered: the next stage starts here."""
    cpu: dict[int, float]
    """CPU seconds by worker."""


def _mark(jobs: int) -> Mark:
    """Ask every worker of the run's pool for its CPU time, which starts those that have not started."""
    asked = time.perf_counter()
    cpu: dict[int, float] = {}
    while len(cpu) < jobs:
        cpu |= dict(in_order(_usage, range(2 * jobs), jobs))
    return Mark(asked, time.perf_counter(), cpu)


def _usage(_: int) -> tuple[int, float]:
    """Runs in a worker, and keeps it busy until the others had their turn."""
    time.sleep(0.1)
    return os.getpid(), time.process_time()


def _stage(what: str, report: StageReport, before: Mark, after: Mark) -> StageTime:
    rejected = report.sorted_reasons()
    cpu = sum(after.cpu.values()) - sum(before.cpu.values())
    tried = report.kept + sum(rejected.values())
    return StageTime(what, tried, report.kept, rejected, after.asked - before.answered, cpu)


def spread(values: list[float]) -> list[float]:
    """Mean and sample standard deviation."""
    return [statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0] if values else [0.0, 0.0]


def projection(stages: list[StageTime], jobs: int) -> dict[str, dict[str, float]]:
    """Hours for the paper's numbers: at the measured rate, and on as many cores with nothing else to do."""
    wanted = {"environments": PAPER_ENVIRONMENTS, "tasks": PAPER_TASKS}
    wall = {s.what: wanted[s.what] * s.per_kept / 3600 for s in stages}
    cpu = {s.what: wanted[s.what] * s.cpu_per_kept / jobs / 3600 for s in stages}
    return {
        "at_this_rate": {**wall, "together": sum(wall.values())},
        "by_cpu_time": {**cpu, "together": sum(cpu.values())},
    }


def table(stages: list[StageTime], sizes: Mapping[str, list[float]], jobs: int) -> str:
    """The outcome as text."""
    lines = [f"{'stage':<14} {'tried':>6} {'kept':>6} {'s':>8} {'s / kept':>9} {'CPU s / kept':>13}   {jobs} workers"]
    for s in stages:
        lines.append(
            f"{s.what:<14} {s.tried:>6} {s.kept:>6} {s.seconds:>8.1f} {s.per_kept:>9.3f} {s.cpu_per_kept:>13.3f}"
        )
        lines += [f"    dropped {count:>4}  {reason}" for reason, count in s.rejected.items()]
    lines += ["", "size of an environment, mean ± standard deviation (Table 5 of the paper)"]
    lines += [f"    {name:<11} {mean:6.1f} ± {deviation:.1f}" for name, (mean, deviation) in sizes.items()]
    hours = projection(stages, jobs)
    wall, cpu = hours["at_this_rate"], hours["by_cpu_time"]
    lines += ["", f"EXTRAPOLATED from this run in proportion, not measured; {jobs} workers:"]
    lines.append(f"    {'':<22} {'at this rate':>13} {'by CPU time alone':>18}")
    for name, what in (
        ("environments", f"{PAPER_ENVIRONMENTS:,} environments"),
        ("tasks", f"{PAPER_TASKS:,} tasks"),
        ("together", "together"),
    ):
        lines.append(f"    {what:<22} {wall[name]:>11.2f} h {cpu[name]:>16.2f} h")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""The loop's figures over several seeds: `python benchmarks/loop.py RUN RUN … [--json]`.

Each RUN is what `omnia demo --seed N --out RUN` left. Pass@1 of every policy with Wilson 95 % intervals, seed by seed
and pooled; the harder half of the suite (by reference calls) the same way, with the difference between policies on the
same tasks (Newcombe's interval for pairs); greedy scores; tasks rescued in the comparison with plain GRPO; divergences.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentomnia.evaluation.compare import newcombe
from agentomnia.evaluation.outcome import harder_half
from agentomnia.evaluation.summary import wilson
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.run import read_jsonl

SUITES = ("held_out", "held_out_greedy", "held_out_target", "held_out_domains")
POLICIES = ("null", "random", "base", "sft", "rl", "evolved")
CHANGES = (("sft", "rl"), ("rl", "evolved"), ("sft", "evolved"))


@dataclass(frozen=True)
class Passed:
    """Outcomes of one policy on one suite, by task, over all runs."""

    tasks: dict[tuple[str, str], bool]
    """By run and task."""

    def share(self) -> dict[str, Any]:
        """Pass@1 with its interval."""
        passed, total = sum(self.tasks.values()), len(self.tasks)
        low, high = wilson(passed, total)
        return {"pass_at_1": round(passed / total, 4), "low": round(low, 4), "high": round(high, 4), "of": total}

    def of(self, kept: frozenset[tuple[str, str]]) -> Passed:
        """The outcomes of some tasks."""
        return Passed({task: passed for task, passed in self.tasks.items() if task in kept})


def outcomes(runs: Sequence[Path], policy: str, suite: str) -> Passed:
    """What a policy did on a suite."""
    found = {}
    for run in runs:
        path = run / "evaluations" / f"{policy}@{suite}" / "results.jsonl"
        for row in read_jsonl(path) if path.exists() else ():
            if row.get("reward") is not None:
                found[run.name, row["task"]] = row["reward"] == 1.0
    return Passed(found)


@cache
def _calls(run: Path) -> dict[str, int]:
    return {task.id: len(private.calls) for task, private in read_tasks(run)}


def harder(runs: Sequence[Path], passed: Passed) -> frozenset[tuple[str, str]]:
    """Of each run's tasks, the half with more reference calls."""
    kept: set[tuple[str, str]] = set()
    for run in runs:
        mine = {task: _calls(run)[task] for name, task in passed.tasks if name == run.name}
        kept |= {(run.name, task) for task in harder_half(mine)}
    return frozenset(kept)


def change(before: Passed, after: Passed) -> dict[str, Any]:
    """The difference of two policies on the same tasks."""
    both = before.tasks.keys() & after.tasks.keys()
    pairs = [(before.tasks[t], after.tasks[t]) for t in both]
    counts = [
        sum(1 for p in pairs if p == kind) for kind in ((True, True), (False, True), (True, False), (False, False))
    ]
    low, high = newcombe(*counts)
    difference = (counts[1] - counts[2]) / len(pairs)
    return {"difference": round(difference, 4), "low": round(low, 4), "high": round(high, 4), "of": len(pairs)}


def figures(runs: Sequence[Path]) -> dict[str, Any]:
    """Everything, as plain values."""
    loops = [json.loads((run / "loop.json").read_text(encoding="utf-8")) for run in runs]
    found: dict[str, Any] = {"runs": [run.name for run in runs], "suites": {}, "harder": {}, "changes": {}}
    for suite in SUITES:
        for policy in POLICIES:
            passed = outcomes(runs, policy, suite)
            if passed.tasks:
                each = [outcomes([run], policy, suite).share() for run in runs]
                found["suites"].setdefault(suite, {})[policy] = {"pooled": passed.share(), "each": each}
    base = outcomes(runs, "sft", "held_out")
    half = harder(runs, base)
    for policy in POLICIES:
        passed = outcomes(runs, policy, "held_out").of(half)
        if passed.tasks:
            found["harder"][policy] = passed.share()
    for one, other in CHANGES:
        before, after = outcomes(runs, one, "held_out"), outcomes(runs, other, "held_out")
        found["changes"][f"{one} → {other}"] = {
            "all": change(before, after), "harder half": change(before.of(half), after.of(half)),
        }  # fmt: skip
    found["rescued"] = [loop["rescued"] for loop in loops]
    found["arms"] = [loop["arms"] for loop in loops]
    found["kl"] = [loop["kl"] for loop in loops]
    return found


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| suite | policy | " + " | ".join(found["runs"]) + " | pooled |", "|---" * (3 + len(found["runs"])) + "|"]
    for suite, policies in found["suites"].items():
        for policy, scores in policies.items():
            each = " | ".join(_percent(s) for s in scores["each"])
            lines.append(f"| {suite} | {policy} | {each} | {_with_interval(scores['pooled'])} |")
    lines += ["", "| harder half | pooled |", "|---|---|"]
    lines += [f"| {policy} | {_with_interval(scores)} |" for policy, scores in found["harder"].items()]
    lines += ["", "| change | all | harder half |", "|---|---|---|"]
    changes = found["changes"].items()
    lines += [f"| {name} | {_points(c['all'])} | {_points(c['harder half'])} |" for name, c in changes]
    lines += ["", f"rescued {found['rescued']}", f"arms {found['arms']}", f"KL {found['kl']}"]
    return "\n".join(lines)


def _percent(share: dict[str, Any]) -> str:
    return f"{100 * share['pass_at_1']:.1f} %"


def _with_interval(share: dict[str, Any]) -> str:
    return f"{_percent(share)} ({100 * share['low']:.1f}–{100 * share['high']:.1f}) of {share['of']}"


def _points(found: dict[str, Any]) -> str:
    return (
        f"{100 * found['difference']:+.1f} ({100 * found['low']:+.1f} to {100 * found['high']:+.1f}) of {found['of']}"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = figures(arguments.runs)
    print(json.dumps(found, ensure_ascii=False) if arguments.json else table(found))


if __name__ == "__main__":
    main()

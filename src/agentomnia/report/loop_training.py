"""Training as curves: the loss of supervised training, and what reinforcement learning saw step by step.

A thin count of steps is drawn as it is; where a run has many, a running mean over a twentieth of them is drawn, and
the chart says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentomnia.report.loop_figures import Chart, Series, running_mean
from agentomnia.report.loop_rows import LoopRow, PrefixRow, RlRow, SftRow, rows_of

_PREFIX_TASKS = 8
_SMOOTH_FROM = 40
"""Steps from which a running mean is drawn."""
_SIGNAL = "mixed"

Curve = Callable[[RlRow], float | None]


@dataclass(frozen=True)
class Alarm:
    """A step at which training raised an alarm."""

    run: str
    step: int
    text: str


@dataclass(frozen=True)
class PrefixView:
    """The golden prefix of one task over time, as a share of its golden turns."""

    task: str
    golden_turns: int
    points: tuple[tuple[float, float], ...]
    last_step: int
    most: int
    last: int
    retries: int
    rewards: tuple[float, float] | None
    """Reward at the first and at the last visit, where both are known."""


@dataclass(frozen=True)
class RlRun:
    """One run of reinforcement learning in numbers."""

    name: str
    steps: int
    epochs: int
    tokens: int
    silent: float | None
    """Share of groups without a signal, over all steps."""
    dropped: tuple[tuple[str, int], ...]
    negative: int
    alarms: int


@dataclass(frozen=True)
class Rescued:
    """Tasks that the policy before RL never passed and the one after it does, by kind of run."""

    name: str
    count: int


@dataclass(frozen=True)
class TrainingView:
    """Everything that training left behind."""

    sft_steps: int
    sft_tokens: int
    charts: tuple[Chart, ...]
    stability: tuple[Chart, ...]
    runs: tuple[RlRun, ...]
    alarms: tuple[Alarm, ...]
    prefixes: tuple[tuple[str, tuple[PrefixView, ...], int], ...]
    """For each run: some tasks' prefixes, and the number of tasks that had one."""
    rescued: tuple[Rescued, ...]
    rescued_of: int


def training_view(run_path: Path, loop: LoopRow) -> TrainingView | None:
    """Read the training files; nothing where there are none.

    Raises:
        InputError: a row cannot be read; names file and line.
    """
    sft = list(rows_of(run_path / "sft" / "metrics.jsonl", SftRow))
    folders = sorted(p.parent for p in run_path.glob("rl/*/metrics.jsonl"))
    runs = {f.name: list(rows_of(f / "metrics.jsonl", RlRow)) for f in folders}
    runs = {name: rows for name, rows in runs.items() if rows}
    if not sft and not runs and not loop.rescued:
        return None
    return TrainingView(
        sft_steps=len(sft),
        sft_tokens=sum(r.tokens for r in sft),
        charts=tuple(c for c in (*_sft_charts(sft), *_rl_charts(runs)) if c.series),
        stability=tuple(c for c in _stability_charts(runs) if c.series),
        runs=tuple(_run(name, rows) for name, rows in runs.items()),
        alarms=tuple(Alarm(n, r.step, r.alarm) for n, rows in runs.items() for r in rows if r.alarm),
        prefixes=tuple(_prefixes(f) for f in folders if f.name in runs and (f / "prefixes.jsonl").exists()),
        rescued=tuple(Rescued(n, count) for n, count in loop.rescued.items() if n != "of"),
        rescued_of=loop.rescued.get("of", 0),
    )


def _sft_charts(rows: Sequence[SftRow]) -> Iterator[Chart]:
    points = [(float(r.step), r.loss) for r in rows]
    if points:
        yield Chart("SFT loss", (Series("loss", _smooth(points)),), _note(len(points)), named=False)


def _rl_charts(runs: dict[str, list[RlRow]]) -> Iterator[Chart]:
    yield _chart("RL reward", runs, lambda r: r.reward)
    yield _chart("RL pass rate", runs, lambda r: r.pass_rate, share=True)
    yield _chart("Groups without a signal", runs, silent_share, share=True)
    if all(r.rollouts for rows in runs.values() for r in rows):
        yield _chart("Rollouts dropped", runs, lambda r: sum(r.dropped.values()) / r.rollouts, share=True, alarms=True)
    else:
        yield _chart("Rollouts dropped in a step", runs, lambda r: float(sum(r.dropped.values())), alarms=True)
    yield _chart("Golden prefix, mean turns", _with_prefix(runs), lambda r: r.prefix_mean)


def _stability_charts(runs: dict[str, list[RlRow]]) -> Iterator[Chart]:
    yield _chart("Clipped tokens", runs, lambda r: r.clip_fraction, share=True)
    yield _chart("Mean ratio to the behaviour policy", runs, lambda r: r.ratio_mean)
    yield _chart("RL loss", runs, lambda r: r.loss_rl)
    yield _chart("Loss on golden prefixes", _with_prefix(runs), lambda r: r.loss_ce)


def _with_prefix(runs: dict[str, list[RlRow]]) -> dict[str, list[RlRow]]:
    """The runs, without the steps of those that never used a golden prefix."""
    return {name: rows if any(r.prefix_mean for r in rows) else [] for name, rows in runs.items()}


def _chart(
    title: str, runs: dict[str, list[RlRow]], value: Curve, *, share: bool = False, alarms: bool = False
) -> Chart:
    series, longest = [], 0
    for style, (name, rows) in enumerate(runs.items()):
        points = [(float(r.step), found) for r in rows if (found := value(r)) is not None]
        longest = max(longest, len(points))
        if points:
            series.append(Series(name, _smooth(points), style))
    raised = [(name, r) for name, rows in runs.items() for r in rows if alarms and r.alarm]
    marks = tuple((float(r.step), f"{name}, step {r.step}: {r.alarm}") for name, r in raised)
    return Chart(title, tuple(series), _note(longest), share=share, marks=marks)


def _smooth(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return running_mean(points, len(points) // 20) if len(points) >= _SMOOTH_FROM else tuple(points)


def _note(count: int) -> str:
    return f"running mean over {count // 20} steps" if count >= _SMOOTH_FROM else ""


def silent_share(row: RlRow) -> float | None:
    """The share of a step's groups that carry no signal: all rollouts alike, one rollout, or none left."""
    groups = sum(row.groups.values())
    return 1 - row.groups.get(_SIGNAL, 0) / groups if groups else None


def _run(name: str, rows: Sequence[RlRow]) -> RlRun:
    groups = sum(sum(r.groups.values()) for r in rows)
    mixed = sum(r.groups.get(_SIGNAL, 0) for r in rows)
    kinds = dict.fromkeys(kind for r in rows for kind in r.dropped)
    return RlRun(
        name=name,
        steps=len(rows),
        epochs=len({r.epoch for r in rows}),
        tokens=sum(r.tokens for r in rows),
        silent=1 - mixed / groups if groups else None,
        dropped=tuple((kind, sum(r.dropped.get(kind, 0) for r in rows)) for kind in kinds),
        negative=sum(r.negative for r in rows),
        alarms=sum(1 for r in rows if r.alarm),
    )


def _prefixes(folder: Path) -> tuple[str, tuple[PrefixView, ...], int]:
    """Some of the tasks that had a prefix, at even distances over their ids."""
    by_task: dict[str, list[PrefixRow]] = {}
    for row in rows_of(folder / "prefixes.jsonl", PrefixRow):
        by_task.setdefault(row.task, []).append(row)
    last = max((r.step for rows in by_task.values() for r in rows), default=0)
    helped = sorted(task for task, rows in by_task.items() if any(r.prefix for r in rows))
    shown = min(len(helped), _PREFIX_TASKS)
    chosen = [helped[i * len(helped) // shown] for i in range(shown)]
    return folder.name, tuple(_prefix(task, by_task[task], last) for task in chosen), len(helped)


def _prefix(task: str, rows: Sequence[PrefixRow], last_step: int) -> PrefixView:
    rewards = (rows[0].reward, rows[-1].reward)
    turns = max(1, *(r.golden_turns for r in rows), *(r.prefix for r in rows))
    return PrefixView(
        task=task,
        golden_turns=rows[-1].golden_turns,
        points=tuple((float(r.step), r.prefix / turns) for r in rows),
        last_step=last_step,
        most=max(r.prefix for r in rows),
        last=rows[-1].prefix,
        retries=sum(r.retries for r in rows),
        rewards=None if rewards[0] is None or rewards[1] is None else (rewards[0], rewards[1]),
    )

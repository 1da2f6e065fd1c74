"""Training and evaluating a policy of a run by name: what `omnia train` does.

The stages are those of `runs/training.py`, which the loop runs too. Here names are checked: a policy's name is its
folder under `checkpoints/`, and what the loop or an earlier command made under a name is never trained over. A command
with the settings it was started with goes on where it was stopped, or finds its result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from agentomnia.errors import InputError, RunError
from agentomnia.evaluation.summary import Summary
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.training import (
    TrainingSite,
    begin_policy,
    demonstration_lengths,
    demonstrations,
    evaluate_policy,
    golden_trajectories,
    make_tokenizer,
    suites,
    train_rl,
    train_sft,
)
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Trajectory

if TYPE_CHECKING:
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.engines.local.sft import SftSettings

BASE = "base"
"""The policy that training begins from; made where it is asked for first."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Trained:
    """What a training command made."""

    policy: str
    path: str
    last: dict[str, Any]
    """The last row of its metrics."""


def fine_tune(run: Run, name: str, start: str, suite: str, settings: SftSettings, *, seed: int, jobs: int) -> Trained:
    """SFT of a policy on the verified trajectories of a suite.

    Raises:
        InputError: the suite, its trajectories, the policy to start from or its tokenizer are missing.
        RunError: the name is taken, or its training was begun with other settings.
    """
    from agentomnia.training.engines.local.tokenizer import WordTokenizer

    chosen = tasks_of(run, suite)
    _take_name(run, name, "sft", {"start": start, "suite": suite, "seed": seed, **_plain(settings)})
    site = _site(run, suite if start == BASE else None, seed, jobs)
    if start == BASE and not _checkpoint(run, BASE):
        begin_policy(site, BASE)
    _require_policy(run, start)
    shown = demonstrations(run, WordTokenizer.load(site.tokenizer), chosen, settings.context, site.seed)
    train_sft(site, name, start, shown, settings)
    return _trained(run, name, f"{name}/metrics.jsonl")


def reinforce(run: Run, name: str, start: str, suite: str, settings: RlSettings, *, seed: int, jobs: int) -> Trained:
    """Reinforcement learning of a policy on the tasks of a suite whose golden trajectories fit its context.

    Raises:
        InputError, RunError: as `fine_tune`.
    """
    chosen = tasks_of(run, suite)
    _require_policy(run, start)
    _take_name(run, name, "rl", {"start": start, "suite": suite, "seed": seed, **_plain(settings)})
    site = _site(run, None, seed, jobs)
    golden = golden_trajectories(run)
    train_rl(site, name, start, site.tasks(fitting(site, chosen, golden, settings.context), golden), settings)
    return _trained(run, name, f"rl/{name}/metrics.jsonl")


def score_policy(
    run: Run, policy: str, suite: str, *, trials: int, temperature: float, seed: int, jobs: int
) -> Summary:
    """Play the tasks of a suite with a policy, in the context of RL, into `evaluations/POLICY@SUITE`.

    Raises:
        InputError, RunError: as `fine_tune`.
    """
    from agentomnia.training.engines.local.rl import RlSettings

    chosen = tasks_of(run, suite)
    _require_policy(run, policy)
    named = f"{policy}@{suite}"
    _claim(run, f"evaluation-{named}", f"evaluation {named}", f"read evaluations/{named}/summary.json",
           {"trials": trials, "temperature": temperature, "seed": seed})  # fmt: skip
    site, context = _site(run, None, seed, jobs), RlSettings().context
    return evaluate_policy(site, policy, suite, chosen, temperature=temperature, context=context, trials=trials)


def fitting(
    site: TrainingSite, chosen: Sequence[tuple[Task, PrivateTask]], golden: Mapping[str, Trajectory], context: int
) -> list[tuple[Task, PrivateTask]]:
    """The tasks whose golden trajectory, in the policy's view, has at most `context` tokens."""
    from agentomnia.training.engines.local.tokenizer import WordTokenizer

    known = [pair for pair in chosen if pair[0].id in golden]
    lengths = demonstration_lengths(site.run, WordTokenizer.load(site.tokenizer), known)
    return [(t, p) for t, p in known if lengths[t.id] <= context]


def tasks_of(run: Run, suite: str) -> list[tuple[Task, PrivateTask]]:
    """The tasks of a suite, in file order.

    Raises:
        InputError: the run has no suites, or not this one; names those there are.
    """
    if not (run.path / "splits.jsonl").exists():
        raise InputError(
            f"{run.path} has no splits.jsonl, so no task of it belongs to a suite; train in a run that `omnia demo` "
            "made, or make tasks with suites (docs/training.md)"
        )
    found = suites(run)
    if suite not in found:
        raise InputError(f"{run.path} has no suite {suite!r}; use one of {', '.join(sorted(found))}")
    return found[suite]


def _site(run: Run, vocabulary: str | None, seed: int, jobs: int) -> TrainingSite:
    """Tokenizer and shape; a missing tokenizer is trained on the suite `vocabulary`, where there is one."""
    from agentomnia.training.engines.local.policy import PolicyShape
    from agentomnia.training.engines.local.tokenizer import WordTokenizer

    if vocabulary is None and not (run.path / "checkpoints" / "tokenizer.json").exists():
        raise InputError(
            f"{run.path} has no checkpoints/tokenizer.json, without which its policies cannot read; restore it, or "
            "begin with: omnia train sft --start base"
        )
    tokenizer = make_tokenizer(run, vocabulary or "")
    return TrainingSite(run, tokenizer, PolicyShape(vocab_size=WordTokenizer.load(tokenizer).size), jobs, str(seed))


def _take_name(run: Run, name: str, kind: Literal["sft", "rl"], settings: Mapping[str, Any]) -> None:
    """Claim a name for a training; refuse one that anything else in the run has."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a policy; use small letters, digits, - and _")
    section, sections = f"{kind} {name}", run.config()
    other = f"{'rl' if kind == 'sft' else 'sft'} {name}" in sections
    if other or (section not in sections and (_checkpoint(run, name) or (run.path / name).exists())):
        raise RunError(f"{run.path} uses the name {name!r} already; choose another --name")
    _claim(run, section, name if kind == "sft" else section, "choose another --name", settings)


def _claim(run: Run, section: str, stage: str, otherwise: str, settings: Mapping[str, Any]) -> None:
    """Write the settings of a stage, or check them; refuse a stage that something else began."""
    if section not in run.config() and any(entry["stage"] == stage for entry in run.journal):
        raise RunError(f"{run.path} has {stage!r} from somewhere else, perhaps the loop; {otherwise}")
    run.configure(section, settings)


def _checkpoint(run: Run, name: str) -> bool:
    return (run.path / "checkpoints" / name / "model.safetensors").exists()


def _require_policy(run: Run, name: str) -> None:
    if not _checkpoint(run, name):
        known = sorted(p.parent.name for p in run.path.glob("checkpoints/*/model.safetensors"))
        told = f"it has {', '.join(known)}" if known else "first run: omnia train sft"
        raise InputError(f"{run.path} has no policy {name!r}; {told}")


def _plain(settings: SftSettings | RlSettings) -> dict[str, Any]:
    """Settings as values of `config.toml`: what is no scalar is told as text."""
    return {n: v if isinstance(v, bool | int | float | str) else repr(v) for n, v in vars(settings).items()}


def _trained(run: Run, name: str, metrics: str) -> Trained:
    *_, last = read_jsonl(run.path / metrics)
    return Trained(name, str(run.path / "checkpoints" / name), last)


def require_training() -> None:
    """Refuse to begin where the packages of the local engine are missing.

    Raises:
        InputError: they are; says what to install.
    """
    missing = [name for name in ("torch", "tokenizers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(f"training needs {', '.join(missing)}; install them with: pip install 'agentomnia[train]'")

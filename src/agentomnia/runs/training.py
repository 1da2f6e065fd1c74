"""The training stages of a run: tokenizer and demonstrations, SFT, reinforcement learning, and evaluation of a policy.

Every stage commits as it goes. A checkpoint to resume from is written before the commit that counts it and removed
after the next, so that a killed stage goes on from its last commit and ends with the same bytes; a finished policy is
`checkpoints/NAME/` as transformers reads it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from agentomnia.environment.state import State
from agentomnia.errors import InputError
from agentomnia.evaluation.summary import Summary, summarize
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.parallel import progress
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run, Stage, read_jsonl
from agentomnia.synthesis.environments.package import package_of, write_text
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Trajectory

if TYPE_CHECKING:
    from agentomnia.training.engines.local.crew import Crew
    from agentomnia.training.engines.local.policy import PolicyShape
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.engines.local.sft import SftSettings
    from agentomnia.training.engines.local.tokenizer import WordTokenizer
    from agentomnia.training.engines.local.worker import Demonstration, PolicyTask
    from agentomnia.training.rl.rollback import PromptState

_SFT_CHUNK = 50
"""Updates between commits."""
_EVALUATION_CHUNK = 64
"""Tasks between commits."""
_VARIANTS = 3
"""Drawings of distractor tools for each demonstration."""


def suites(run: Run) -> dict[str, list[tuple[Task, PrivateTask]]]:
    """The run's tasks by suite, in file order."""
    files = ("splits.jsonl", "tasks.jsonl", "tasks.private.jsonl")
    return _read_suites(run.path, tuple((run.path / f).stat().st_size if (run.path / f).exists() else 0 for f in files))


@lru_cache(maxsize=2)
def _read_suites(path: Path, sizes: tuple[int, ...]) -> dict[str, list[tuple[Task, PrivateTask]]]:
    """Read once, since thousands of rows cost seconds. The files only grow, so their sizes tell them apart."""
    names = {row["task"]: row["suite"] for row in read_jsonl(path / "splits.jsonl")}
    found: dict[str, list[tuple[Task, PrivateTask]]] = {}
    for task, private in read_tasks(path):
        if task.id in names:
            found.setdefault(names[task.id], []).append((task, private))
    return found


def golden_trajectories(run: Run) -> dict[str, Trajectory]:
    """The teacher's verified trajectories by task."""
    path = run.path / "trajectories.jsonl"
    return _read_golden(path, path.stat().st_size if path.exists() else 0)


@lru_cache(maxsize=2)
def _read_golden(path: Path, size: int) -> dict[str, Trajectory]:
    return {t.task: t for t in read_rows(path, Trajectory)}


def make_tokenizer(run: Run, suite: str) -> Path:
    """Train the tokenizer on the demonstrations of a suite and the names in all environments of the run; once.

    Names of environments that no task is trained in are in the vocabulary, as any tokenizer's is wider than the
    training set; their tokens' embeddings are never trained.
    """
    from agentomnia.training.engines.local.tokenizer import train_tokenizer

    path = run.path / "checkpoints" / "tokenizer.json"
    if path.exists():
        return path
    golden = golden_trajectories(run)
    chosen = [(task, golden[task.id]) for task, _ in suites(run).get(suite, []) if task.id in golden]
    if not chosen:
        raise InputError(f"{run.path} has no verified trajectory of suite {suite}; make tasks and trajectories first")
    texts = (text for task, trajectory in chosen for text in _texts(run, task, trajectory))
    path.parent.mkdir(exist_ok=True)
    write_text(path, train_tokenizer(texts, sorted(_identifiers(run))).inner.to_str())
    return path


@lru_cache(maxsize=4)
def _initial_state(environments: Path, environment: str, name: str) -> State:
    """To read and not to change: neighbouring tasks stand on the same one."""
    return package_of(environments, environment).state(name)


def _texts(run: Run, task: Task, trajectory: Trajectory) -> Iterator[str]:
    from agentomnia.training.engines.local import view

    state = _initial_state(run.path / "environments", task.environment, task.state)
    yield view.opening(task, state, trajectory.tools)
    for message in trajectory.messages[2:]:
        yield view.observation(message.content or "") if message.role == "tool" else view.said(message)


def _identifiers(run: Run) -> set[str]:
    names: set[str] = set()
    for row in read_jsonl(run.path / "environments.jsonl"):
        spec = package_of(run.path / "environments", row["id"]).spec
        names.update(t.name for t in spec.tools)
        names.update(p.name for t in spec.tools for p in t.parameters)
        names.update(n for e in spec.entities for n in (e.key, e.plural, *(a.name for a in e.attributes)))
    return names


def demonstrations(
    run: Run, tokenizer: WordTokenizer, chosen: Sequence[tuple[Task, PrivateTask]], context: int, seed: str
) -> list[list[Demonstration]]:
    """For each task with a verified trajectory that fits the context, its variants; shortest task first."""
    from agentomnia.synthesis.tasks.dag.generate import Candidate
    from agentomnia.synthesis.tasks.exposure import Exposure, expose
    from agentomnia.training.engines.local.sft import demonstration, dialogue_tokens

    golden = golden_trajectories(run)
    found = []
    for task, private in chosen:
        if task.id not in golden:
            continue
        package = package_of(run.path / "environments", task.environment)
        dialogue = dialogue_tokens(golden[task.id].messages, tokenizer)
        state, variants = _initial_state(package.path.parent, package.id, task.state), []
        for number in range(_VARIANTS):
            drawn = expose(Candidate(task, private), package.spec, Exposure(), f"{seed}/{task.id}/{number}").public
            tools = [package.program.tools[name].to_openai() for name in (drawn if number else task).tools]
            made = demonstration(task, state, tools, dialogue, tokenizer)
            variants += [made] if len(made.ids) <= context else []
        found += [variants] if variants else []
    return sorted(found, key=lambda group: len(group[0].ids))


def demonstration_lengths(
    run: Run, tokenizer: WordTokenizer, chosen: Sequence[tuple[Task, PrivateTask]]
) -> dict[str, int]:
    """Tokens of each task's golden trajectory in the policy's view; tasks without one are left out."""
    from agentomnia.training.engines.local import view
    from agentomnia.training.engines.local.sft import dialogue_tokens

    golden = golden_trajectories(run)
    found = {}
    for task, _ in chosen:
        if task.id in golden:
            state = _initial_state(run.path / "environments", task.environment, task.state)
            opening = tokenizer.encode(view.opening(task, state, golden[task.id].tools))
            found[task.id] = len(opening) + len(dialogue_tokens(golden[task.id].messages, tokenizer).ids)
    return found


@dataclass(frozen=True)
class TrainingSite:
    """What the training stages of a run share."""

    run: Run
    tokenizer: Path
    shape: PolicyShape
    jobs: int
    seed: str
    _crews: list[Crew] = field(default_factory=list, repr=False, compare=False)
    """The crew once it is needed: starting its processes costs seconds, and every stage wants one."""

    def tasks(
        self, chosen: Iterable[tuple[Task, PrivateTask]], golden: Mapping[str, Trajectory]
    ) -> dict[str, PolicyTask]:
        """Tasks as the policy plays them, by id."""
        from agentomnia.training.engines.local.rollout import Golden
        from agentomnia.training.engines.local.worker import PolicyTask

        environments = self.run.path / "environments"
        return {
            t.id: PolicyTask(environments, t, p, Golden.of(golden[t.id]) if t.id in golden else None) for t, p in chosen
        }

    @contextmanager
    def crew(self, start: str | None) -> Iterator[Crew]:
        """The site's crew with a policy of the run, or with a new one; its processes live until `close`."""
        from agentomnia.training.engines.local.crew import Crew
        from agentomnia.training.engines.local.mimetic import new_policy
        from agentomnia.training.engines.local.policy import load_policy
        from agentomnia.training.engines.local.tokenizer import WordTokenizer

        if start is None:
            parts = WordTokenizer.load(self.tokenizer).parts()
            policy = new_policy(self.shape, Random(f"{self.seed}/policy").getrandbits(31), parts)
        else:
            policy = load_policy(self.run.path / "checkpoints" / start)
        if self._crews:
            self._crews[0].weights.take(policy)
        else:
            self._crews.append(Crew(policy, self.tokenizer, self.jobs))
        yield self._crews[0]

    def close(self) -> None:
        """Stop the crew's processes."""
        while self._crews:
            self._crews.pop().close()


def begin_policy(site: TrainingSite, name: str) -> None:
    """Write the policy that training starts from."""
    from agentomnia.training.engines.local.policy import save_policy

    if site.run.finished(f"policy {name}") is None:
        stage = site.run.stage(f"policy {name}", ())
        with site.crew(None) as crew:
            save_policy(crew.policy, site.run.path / "checkpoints" / name)
        stage.end()


def train_sft(
    site: TrainingSite, name: str, start: str, variants: Sequence[Sequence[Demonstration]], settings: SftSettings
) -> None:
    """Fine-tune a policy on demonstrations: `checkpoints/START` becomes `checkpoints/NAME`."""
    from agentomnia.training.engines.local.sft import draw_batch, sft_step

    if site.run.finished(name) is not None:
        return
    if not variants:
        raise InputError(f"no demonstration for {name} fits {settings.context} tokens; make shorter tasks")
    stage = site.run.stage(name, (f"{name}/metrics.jsonl",))
    chunks = -(-settings.steps // _SFT_CHUNK)
    with site.crew(start) as crew, progress(name, chunks, len(stage.done)) as advance:
        _resume(site.run, name, len(stage.done), crew)
        for chunk in range(len(stage.done), chunks):
            losses, tokens, step = [], 0, 0
            for step in range(chunk * _SFT_CHUNK, min(settings.steps, (chunk + 1) * _SFT_CHUNK)):
                batch = draw_batch(variants, settings, f"{site.seed}/{name}", step)
                losses.append(sft_step(crew, batch, settings, step))
                tokens += sum(len(d.ids) for d in batch)
            row = {
                "step": step + 1, "tokens": tokens, "loss": round(sum(losses) / len(losses), 6),
                "lr": settings.rate * settings.scale(step),
            }  # fmt: skip
            _commit(stage, name, chunk + 1, crew, {f"{name}/metrics.jsonl": [row]})
            advance(f"loss {row['loss']:.3f}")
        _finish(stage, name, crew)


def train_rl(
    site: TrainingSite,
    name: str,
    start: str,
    tasks: Mapping[str, PolicyTask],
    settings: RlSettings,
    most_rollouts: int | None = None,
) -> list[PromptState]:
    """Reinforcement learning with rollback curriculum: `checkpoints/START` becomes `checkpoints/NAME`.

    Args:
        site: run, tokenizer and processes.
        name: of the policy; its metrics go to `rl/NAME`.
        start: the policy to begin with.
        tasks: with golden trajectories; those without are left out.
        settings: of the training.
        most_rollouts: go on until so many are spent, however many steps that takes; the last step draws fewer tasks.

    Returns:
        Where each prompt ended up.
    """
    from agentomnia.training.engines.local.rl import rl_step
    from agentomnia.training.rl.rollback import PromptState

    files = (f"rl/{name}/metrics.jsonl", f"rl/{name}/prefixes.jsonl")
    states = {
        t.task.id: PromptState(task=t.task.id, golden_turns=len(t.golden.turns))
        for t in tasks.values() if t.golden is not None
    }  # fmt: skip
    if not states:
        raise InputError(f"no task for {name} has a golden trajectory; run: omnia synth trajectories")
    stage = site.run.stage(f"rl {name}", files)
    for row in read_jsonl(site.run.path / files[1]) if stage.done else ():
        states[row["task"]] = PromptState.model_validate(row["state"])
    if site.run.finished(stage.name) is not None:
        return list(states.values())
    spent = sum(row["rollouts"] for row in read_jsonl(site.run.path / files[0])) if stage.done else 0
    with site.crew(start) as crew, progress(stage.name, settings.steps, len(stage.done)) as advance:
        _resume(site.run, name, len(stage.done), crew)
        for step in itertools.count(len(stage.done)):
            left = None if most_rollouts is None else (most_rollouts - spent) // settings.group
            if step >= settings.steps if left is None else left <= 0:
                break
            epoch, drawn = _mini_batch(sorted(states), settings.prompts, f"{site.seed}/{name}", step)
            drawn = drawn[:left]
            report = rl_step(
                crew, tasks, [states[t] for t in drawn], settings, step=step, epoch=epoch, seed=f"{site.seed}/{name}"
            )
            states |= {c.state.task: c.state for c in report.collected}
            spent += report.metrics["rollouts"]
            rows = [
                {"step": step + 1, "epoch": epoch, "task": c.state.task, "prefix": c.prefix,
                 "golden_turns": c.state.golden_turns, "reward": c.attempts[-1].reward, "retries": c.retries,
                 "state": c.state.to_json()}
                for c in report.collected
            ]  # fmt: skip
            _commit(stage, name, step + 1, crew, {files[0]: [report.metrics], files[1]: rows})
            advance(f"pass {report.metrics['pass_rate'] or 0:.2f}, prefix {report.metrics['prefix_mean']:.1f}")
        _finish(stage, name, crew)
    return list(states.values())


def _mini_batch(tasks: Sequence[str], size: int, seed: str, step: int) -> tuple[int, list[str]]:
    """Epoch and tasks of a step: each epoch in its own order, its last mini-batch may be smaller."""
    per_epoch = -(-len(tasks) // size)
    epoch, place = divmod(step, per_epoch)
    order = Random(f"{seed}/epoch/{epoch}").sample(tasks, len(tasks))
    return epoch, order[place * size : (place + 1) * size]


def evaluate_policy(
    site: TrainingSite,
    policy: str,
    suite: str,
    chosen: Sequence[tuple[Task, PrivateTask]],
    *,
    temperature: float = 1.0,
    context: int = 768,
    trials: int = 1,
) -> Summary:
    """Play a suite with `checkpoints/POLICY`, `trials` times, into `evaluations/POLICY@SUITE`."""
    folder = f"evaluations/{policy}@{suite}"
    results = f"{folder}/results.jsonl"
    stage = site.run.stage(f"evaluation {policy}@{suite}", (results,))
    if site.run.finished(stage.name) is None:
        tasks = list(site.tasks(chosen, {}).values())
        plays = [(task, trial) for trial in range(trials) for task in tasks]
        chunks = [plays[i : i + _EVALUATION_CHUNK] for i in range(0, len(plays), _EVALUATION_CHUNK)]
        with site.crew(policy) as crew, progress(stage.name, len(chunks), len(stage.done)) as advance:
            for number in range(len(stage.done), len(chunks)):
                seed = f"{site.seed}/evaluation/{policy}/{suite}/{number}"
                rows = _play(crew, chunks[number], policy, seed, temperature, context)
                stage.commit(str(number), {results: rows}, len(rows), ())
                advance("")
        stage.end()
    summary = summarize(read_rows(site.run.path / results, Trajectory))
    text = json.dumps(summary.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    write_text(site.run.path / folder / "summary.json", text)
    return summary


def _play(
    crew: Crew, plays: Sequence[tuple[PolicyTask, int]], policy: str, seed: str, temperature: float, context: int
) -> list[dict[str, Any]]:
    from agentomnia.training.engines.local.crew import SHARES
    from agentomnia.training.engines.local.sampler import Sampling

    how = Sampling(temperature=temperature, context=context)
    shares = [plays[i::SHARES] for i in range(SHARES)]
    arguments = [([(task, 0) for task, _ in share], policy, f"{seed}/{i}", how) for i, share in enumerate(shares)]
    rows: list[dict[str, Any]] = [{}] * len(plays)
    for i, (share, rollouts) in enumerate(zip(shares, crew.share("roll", arguments))):
        for number, ((_, trial), rollout) in enumerate(zip(share, rollouts)):
            trajectory = rollout.trajectory.model_copy(update={"seed": trial, "tools": ()})
            rows[i + number * SHARES] = {k: v for k, v in trajectory.to_json().items() if k != "tools"}
    return rows


def _checkpoint(run: Run, name: str, number: int) -> Path:
    return run.path / "checkpoints" / f".{name}-{number}.safetensors"


def _commit(stage: Stage, name: str, number: int, crew: Crew, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Write the checkpoint, then count it, then remove the one before."""
    from safetensors.torch import save

    path = _checkpoint(stage.run, name, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(save(crew.weights.state()))
    partial.replace(path)
    stage.commit(str(number), rows, 1, ())
    _checkpoint(stage.run, name, number - 1).unlink(missing_ok=True)


def _resume(run: Run, name: str, number: int, crew: Crew) -> None:
    from safetensors.torch import load

    if number:
        crew.weights.restore(load(_checkpoint(run, name, number).read_bytes()))


def _finish(stage: Stage, name: str, crew: Crew) -> None:
    """Write the finished policy, end the stage, and remove what was only for resuming."""
    from agentomnia.training.engines.local.policy import save_policy

    save_policy(crew.policy, stage.run.path / "checkpoints" / name)
    stage.end()
    for number in range(len(stage.done) + 1):
        _checkpoint(stage.run, name, number).unlink(missing_ok=True)


def drop_leftovers(run: Run) -> None:
    """Remove checkpoints to resume from that a kill has left behind a stage's end; for when nothing is in training."""
    for leftover in sorted((run.path / "checkpoints").glob(".*")):
        leftover.unlink()

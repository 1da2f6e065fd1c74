"""The loop: synthesis, teacher, SFT, reinforcement learning, evaluation, diagnosis, PRDs, and a second round.

Three kinds of domains. *Training* domains give the base distribution. *Target* domains are evaluated from the
beginning but not trained in the first round: the diagnosis finds what fails there, and PRDs may aim at it. *External*
domains are seen in no round, nor by the diagnosis; they show what transfers. All judged tasks stand on initial states
of their own.

    suite             domains            what for
    sft               training           the teacher's demonstrations
    rl                training           online rollouts, with golden trajectories
    hard              training           long tasks, for the comparison of the curriculum with plain GRPO
    diagnosis         training, target   round one is diagnosed on these, and judged on none of them
    held_out          training           unseen tasks on unseen states
    held_out_target   target             the same, where the second round is aimed
    held_out_domains  external           domains never seen
    prd-sft, prd-rl   as the PRDs say    the second round's tasks
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from agentomnia.evaluation.summary import Summary
from agentomnia.evolution.alignment import kl, level1_counts
from agentomnia.evolution.guidance import SynthesisOrder, plan
from agentomnia.runs.environments import EnvironmentItem, card_items, make_environments
from agentomnia.runs.episodes import evaluate as floor_score
from agentomnia.runs.episodes import make_references
from agentomnia.runs.evolution import diagnose_evaluation, read_prds
from agentomnia.runs.guided import conditioned, made_environments
from agentomnia.runs.policies import fitting
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.tasks import TaskItem, make_task_items
from agentomnia.runs.training import (
    TrainingSite,
    begin_policy,
    demonstrations,
    drop_leftovers,
    evaluate_policy,
    golden_trajectories,
    make_tokenizer,
    suites,
    train_rl,
    train_sft,
)
from agentomnia.synthesis.environments.package import read_spec, write_text
from agentomnia.synthesis.tasks.dag.generate import DagProfile
from agentomnia.synthesis.tasks.dag.groups import GroupProfile
from agentomnia.synthesis.tasks.exposure import Exposure
from agentomnia.synthesis.tasks.repertoire import repertoire
from agentomnia.training.engines.local.view import RECORDS

if TYPE_CHECKING:
    from agentomnia.task.task import PrivateTask, Task
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.engines.local.sft import SftSettings
    from agentomnia.training.engines.local.worker import Demonstration

Pairs = Sequence[tuple["Task", "PrivateTask"]]
Role = Literal["training", "target", "external"]

SHORT = DagProfile(most_goals=1, most_questions=1, question_share=0.15, only_questions=0.15)
LONG = DagProfile(most_goals=2, most_questions=1, question_share=0.4, only_questions=0.0)
"""Task variants for a short context: one thing to do, and one or two with what is asked about them."""
DIRECT = GroupProfile(chains=(1, 2), scattered=(0, 0))
"""Tool groups without lookups that check a record before it is changed: each would cost a quarter of the context."""


@dataclass(frozen=True)
class Domains:
    """Level-2 domains by role."""

    training: tuple[int, ...] = (10006, 10012, 10021, 10026, 20014, 20097, 30003, 30017)
    target: tuple[int, ...] = (10058, 30056)
    external: tuple[int, ...] = (20137, 20064, 30038)

    def role(self, domain: int) -> Role | None:
        """What a domain is for; `None` where the loop has no use for it."""
        roles: tuple[tuple[Role, tuple[int, ...]], ...] = (
            ("training", self.training), ("target", self.target), ("external", self.external),
        )  # fmt: skip
        return next((role for role, domains in roles if domain in domains), None)

    @property
    def all(self) -> tuple[int, ...]:
        """Every domain of the loop."""
        return (*self.training, *self.target, *self.external)


@dataclass(frozen=True)
class SuiteSize:
    """Tasks of a suite in each environment of its domains."""

    suite: str
    short: int
    long: int
    roles: tuple[Role, ...] = ("training",)


@dataclass(frozen=True)
class LoopSizes:
    """How much of everything: what a loop costs."""

    suites: tuple[SuiteSize, ...] = (
        SuiteSize("sft", 380, 60),
        SuiteSize("rl", 14, 6),
        SuiteSize("hard", 0, 5),
        SuiteSize("diagnosis", 8, 8, ("training", "target")),
        SuiteSize("held_out", 14, 14),
        SuiteSize("held_out_target", 20, 12, ("target",)),
        SuiteSize("held_out_domains", 12, 12, ("external",)),
    )
    scale: float = 0.4
    """Size of initial states: short observations for a short context."""


def task_items(run: Run, domains: Domains, sizes: LoopSizes, seed: int) -> list[TaskItem]:
    """The items of the task stage: for each environment and suite, short and long tasks."""
    items = []
    for row in read_jsonl(run.path / "environments.jsonl"):
        role = domains.role(row["domains"][0]) if row["lineage"]["kind"] == "card" else None
        for suite in sizes.suites:
            if role not in suite.roles:
                continue
            for kind, profile, count in (("short", SHORT, suite.short), ("long", LONG, suite.long)):
                if count:
                    name = f"{suite.suite}-{kind}"
                    items.append(policy_item(run, row["id"], name, suite.suite, profile, count, sizes.scale, seed))
    return items


def policy_item(
    run: Run,
    environment: str,
    name: str,
    suite: str,
    profile: DagProfile,
    count: int,
    scale: float,
    seed: int,
    tools: Sequence[str] = (),
) -> TaskItem:
    """Tasks that a policy with a short context can see whole, about its domain's repertoire and the tools given."""
    path = run.path / "environments" / environment
    spec = read_spec(path / "spec.json")
    known = repertoire(spec, str(spec.domains[0])).union(t.name for t in spec.tools if t.name in tools)
    return TaskItem(
        environment=path,
        count=count,
        seed=f"{seed}/{environment}/{name}",
        name=f"{environment}/{name}",
        states=f"{name}-",
        profile=replace(profile, repertoire=known),
        groups=DIRECT,
        focus=known,
        records=RECORDS,
        exposure=Exposure(),
        suite=suite,
        scale=scale,
        per_state=8,
    )


@dataclass(frozen=True)
class LoopSettings:
    """Everything a loop is made of."""

    domains: Domains
    sizes: LoopSizes
    shape: Mapping[str, int]
    """Sizes of the policy but its vocabulary, as `PolicyShape` names them."""
    sft: SftSettings
    rl: RlSettings
    evolved_sft: SftSettings
    evolved_rl: RlSettings
    arms: RlSettings
    prd_tasks: int
    """Tasks of the second round, before the gate."""
    prds: int
    """PRDs at most."""
    arm_trials: int
    """Rollouts by which a task counts as failed before, and as rescued after, the comparison."""

    @property
    def context(self) -> int:
        """Tokens of an episode at most."""
        return self.rl.context

    def to_config(self) -> dict[str, str]:
        """The settings as a section of `config.toml`, one text for each part."""
        return {name: repr(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class LoopOutcome:
    """The numbers of a loop; `loop.json`."""

    policy: dict[str, float | None]
    """Pass@1 on `held_out`, at temperature 1 and top-p 1 as in training."""
    policy_greedy: dict[str, float | None]
    """The same tasks with the likeliest token each time."""
    policy_target: dict[str, float | None]
    policy_domains: dict[str, float | None]
    held_out_tasks: int
    kl: dict[str, float]
    rescued: dict[str, int]
    arms: dict[str, dict[str, float]]
    """Of each arm of the comparison: rollouts spent, Pass@1 on the tasks afterwards."""
    tasks: dict[str, int]
    """Tasks by suite."""
    prds: int
    domains: dict[str, dict[str, int]]
    """Tasks by level-1 domain: of the base distribution, of the second round, of the diagnosed failures."""


def run_loop(run: Run, settings: LoopSettings, seed: int, jobs: int) -> LoopOutcome:
    """Run, or continue, the whole loop in a run directory."""
    synthesize(run, settings, seed, jobs)
    site = training_site(run, settings, seed, jobs)
    try:
        return _train_and_judge(site, settings, seed, jobs)
    finally:
        site.close()


def _train_and_judge(site: TrainingSite, settings: LoopSettings, seed: int, jobs: int) -> LoopOutcome:
    run = site.run
    train_round_one(site, settings)
    for floor in FLOORS:
        floor_score(run, floor, name=f"{floor}@held_out", suite="held_out", seed=seed, jobs=jobs)
    scores = {policy: judge(site, policy, settings) for policy in ("base", "sft", "rl")}
    rescued, arms = compare_curriculum(site, settings)
    evaluate(site, "rl", "diagnosis", settings)
    diagnose_evaluation(run, "rl@diagnosis", most=settings.prds)
    second_round(site, settings, seed, jobs)
    scores["evolved"] = judge(site, "evolved", settings)
    drop_leftovers(run)
    outcome = _outcome(run, scores, rescued, arms)
    write_text(run.path / "loop.json", json.dumps(asdict(outcome), indent=1, ensure_ascii=False) + "\n")
    return outcome


def synthesize(run: Run, settings: LoopSettings, seed: int, jobs: int) -> None:
    """Environments of every domain, tasks of every suite, the teacher's trajectories."""
    make_environments(run, card_items(settings.domains.all, 1, seed), jobs)
    if run.finished(POLICY_TASKS) is None:
        make_task_items(run, POLICY_TASKS, task_items(run, settings.domains, settings.sizes, seed), jobs)
    make_references(run, jobs, "teacher", seed, name="policy trajectories", suites=("sft", "rl", "hard"))


def training_site(run: Run, settings: LoopSettings, seed: int, jobs: int) -> TrainingSite:
    """Tokenizer and shape of the policy."""
    from agentomnia.training.engines.local.policy import PolicyShape
    from agentomnia.training.engines.local.tokenizer import WordTokenizer

    tokenizer = make_tokenizer(run, "sft")
    shape = PolicyShape(vocab_size=WordTokenizer.load(tokenizer).size, **settings.shape)
    return TrainingSite(run, tokenizer, shape, jobs, str(seed))


def train_round_one(site: TrainingSite, settings: LoopSettings) -> None:
    """From random weights to `sft`, and on to `rl`."""
    begin_policy(site, "base")
    if site.run.finished("sft") is None:
        train_sft(site, "sft", "base", _demonstrations(site, ("sft",), settings.sft.context), settings.sft)
    train_rl(site, "rl", "sft", site.tasks(*_pool(site, ("rl",), settings)), settings.rl)


def judge(site: TrainingSite, policy: str, settings: LoopSettings) -> dict[str, Summary]:
    """Evaluate a policy on everything it is judged on; random weights need one suite to show that they know nothing."""
    scores = {"held_out": evaluate(site, policy, "held_out", settings)}
    if policy == "base":
        return scores
    scores |= {suite: evaluate(site, policy, suite, settings) for suite in ("held_out_target", "held_out_domains")}
    chosen = suites(site.run)["held_out"]
    greedy = evaluate_policy(site, policy, "held_out_greedy", chosen, temperature=0.0, context=settings.context)
    return {**scores, "held_out_greedy": greedy}


def evaluate(site: TrainingSite, policy: str, suite: str, settings: LoopSettings, trials: int = 1) -> Summary:
    """Pass@1 of a policy on a suite, at temperature 1 as in training."""
    chosen = suites(site.run)[suite]
    return evaluate_policy(site, policy, suite, chosen, context=settings.context, trials=trials)


def compare_curriculum(
    site: TrainingSite, settings: LoopSettings
) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """Plain GRPO against the rollback curriculum on the tasks where the SFT policy never succeeds.

    Both arms begin with the SFT policy, see the same mini-batch of tasks in every step and spend the same number of
    rollouts; a task is rescued where an arm's policy, from the start and without a prefix, then succeeds in a quarter
    of the trials or more.
    """
    evaluate(site, "sft", "hard", settings, settings.arm_trials)
    pool, golden = _pool(site, ("hard",), settings)
    shares = pass_shares(site, "sft@hard")
    chosen = [(t, p) for t, p in pool if shares[t.id] == 0.0][: settings.arms.prompts]
    tasks = site.tasks(chosen, golden)
    rescued = {"grpo": 0, "rcrl": 0, "of": len(tasks)}
    arms: dict[str, dict[str, float]] = {}
    if not tasks:
        return rescued, arms
    budget: int | None = None
    for arm in ("rcrl", "grpo"):
        train_rl(site, arm, "sft", tasks, _arm(settings.arms, arm), most_rollouts=budget)
        spent = sum(row["rollouts"] for row in read_jsonl(site.run.path / f"rl/{arm}/metrics.jsonl"))
        budget = budget or spent
        evaluate_policy(site, arm, "rescue", chosen, context=settings.context, trials=settings.arm_trials)
        shares = pass_shares(site, f"{arm}@rescue")
        rescued[arm] = sum(1 for share in shares.values() if share >= RESCUED)
        arms[arm] = {"rollouts": spent, "pass_at_1": round(sum(shares.values()) / len(shares), 6)}
    return rescued, arms


FLOORS = ("null", "random")
POLICY_TASKS = "policy tasks"
RESCUED = 0.25
"""Share of trials from which a task that always failed counts as rescued."""


def _arm(settings: RlSettings, arm: str) -> RlSettings:
    """The settings of an arm: they differ in the rollback and in nothing else."""
    plain = settings.rollback.model_copy(update={"retries": 0, "rollback": False})
    return settings if arm == "rcrl" else replace(settings, rollback=plain)


def pass_shares(site: TrainingSite, evaluation: str) -> dict[str, float]:
    """The share of passed trials of each task."""
    outcomes: dict[str, list[bool]] = {}
    for row in read_jsonl(site.run.path / f"evaluations/{evaluation}/results.jsonl"):
        outcomes.setdefault(row["task"], []).append(row.get("reward") == 1.0)
    return {task: sum(passed) / len(passed) for task, passed in outcomes.items()}


def second_round(site: TrainingSite, settings: LoopSettings, seed: int, jobs: int) -> None:
    """What the PRDs ask for, mixed with the base distribution: `rl` becomes `evolved` (paper, sections 6.2 and 6.3)."""
    run = site.run
    orders = plan(read_prds(run.path / "prds"), settings.prd_tasks, settings.domains.training + settings.domains.target)
    make_environments(run, prd_environments(orders, seed), jobs, "prd environments")
    if run.finished("prd tasks") is None:
        make_task_items(run, "prd tasks", prd_task_items(run, orders, settings, seed), jobs)
    make_references(run, jobs, "teacher", seed, name="prd trajectories", suites=("prd-sft", "prd-rl"))
    if run.finished("evolved-sft") is None:
        mixed = _demonstrations(site, ("prd-sft", "sft"), settings.evolved_sft.context, base=settings.prd_tasks)
        train_sft(site, "evolved-sft", "rl", mixed, settings.evolved_sft)
    tasks = site.tasks(*_pool(site, ("prd-rl", "rl"), settings))
    train_rl(site, "evolved", "evolved-sft", tasks, settings.evolved_rl)


def prd_environments(orders: Sequence[SynthesisOrder], seed: int) -> list[EnvironmentItem]:
    """One new variant of each domain that is ordered; a small loop has few tasks for each."""
    domains = sorted({order.domain for order in orders})
    return [EnvironmentItem(f"prd/{d}", f"{seed}/prd/{d}", domain=d, variant=1) for d in domains]


def prd_task_items(run: Run, orders: Sequence[SynthesisOrder], settings: LoopSettings, seed: int) -> list[TaskItem]:
    """For each order, demonstrations' tasks and a fifth as many for rollouts.

    They stand on the new variant of its domain, or on the first where the new one failed its gate.
    """
    newest = {row["domains"][0]: row["id"] for row in read_jsonl(run.path / "environments.jsonl")}
    newest |= {int(i.removeprefix("prd/")): id for i, id in made_environments(run, "prd environments").items()}
    items = []
    for order in orders:
        profile = LONG if order.goals[1] > 2 else SHORT
        for suite, count in (("prd-sft", order.tasks), ("prd-rl", max(1, order.tasks // 5))):
            name = f"{suite}-{order.prd}"
            item = policy_item(
                run, newest[order.domain], name, suite, profile, count, settings.sizes.scale, seed, order.tools
            )
            items.append(conditioned(item, order))
    return items


def _demonstrations(
    site: TrainingSite, names: Sequence[str], context: int, base: int | None = None
) -> list[list[Demonstration]]:
    """Demonstrations of suites; of the last suite at most `base`, spread over it."""
    from agentomnia.training.engines.local.tokenizer import WordTokenizer

    found = suites(site.run)
    tokenizer = WordTokenizer.load(site.tokenizer)
    chosen = [pair for name in names[:-1] for pair in found.get(name, [])]
    last = found.get(names[-1], [])
    step = max(1, len(last) // base) if base else 1
    return demonstrations(site.run, tokenizer, [*chosen, *last[::step]], context, site.seed)


def _pool(site: TrainingSite, names: Sequence[str], settings: LoopSettings) -> tuple[Pairs, Mapping[str, Any]]:
    """Tasks for rollouts whose golden trajectory fits the context, and the golden trajectories."""
    found, golden = suites(site.run), golden_trajectories(site.run)
    chosen = [pair for name in names for pair in found.get(name, [])]
    return fitting(site, chosen, golden, settings.context), golden


def _outcome(
    run: Run, scores: Mapping[str, Mapping[str, Summary]], rescued: dict[str, int], arms: dict[str, dict[str, float]]
) -> LoopOutcome:
    found = suites(run)
    by_suite = {name: [t.coordinate.domain for t, _ in pairs] for name, pairs in sorted(found.items())}
    diagnosed = [row["coordinate"]["domain"] for row in read_jsonl(run.path / "diagnosis/tasks.jsonl")]
    counts = {
        "original": level1_counts([*by_suite["sft"], *by_suite["rl"]]),
        "prd": level1_counts([*by_suite.get("prd-sft", []), *by_suite.get("prd-rl", [])]),
        "failures": level1_counts(diagnosed),
    }
    return LoopOutcome(
        policy={p: s["held_out"].pass_at_1 for p, s in scores.items()},
        policy_greedy={p: s["held_out_greedy"].pass_at_1 for p, s in scores.items() if "held_out_greedy" in s},
        policy_target={p: s["held_out_target"].pass_at_1 for p, s in scores.items() if "held_out_target" in s},
        policy_domains={p: s["held_out_domains"].pass_at_1 for p, s in scores.items() if "held_out_domains" in s},
        held_out_tasks=len(found["held_out"]),
        kl={name: round(kl(counts[name], counts["failures"]), 6) for name in ("original", "prd")},
        rescued=rescued,
        arms=arms,
        tasks={name: len(domains) for name, domains in by_suite.items()},
        prds=sum(1 for _ in read_jsonl(run.path / "prds/prds.jsonl")),
        domains=counts,
    )

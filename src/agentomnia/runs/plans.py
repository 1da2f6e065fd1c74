"""How large a loop is: the demo's sizes, and the quick demo's.

Every number that decides what the demo costs and how well it does stands here. The learning rates are those at which
a policy of a million weights learns and is not destroyed; sizes are chosen for ten minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentomnia.runs.loop import Domains, LoopSettings, LoopSizes, SuiteSize


@dataclass(frozen=True)
class DemoPlan:
    """What the demo makes."""

    domains: tuple[int, ...]
    """Level-2 domains of the environments; the loop's are among them."""
    tasks: int
    """Tasks for a long context, in each environment."""
    loop: LoopSettings


def demo_plan(quick: bool) -> DemoPlan:
    """The demo's plan, or a tenth of it."""
    return _quick() if quick else _whole()


def _whole() -> DemoPlan:
    from agentomnia.synthesis.environments.author import BuiltinAuthor
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.engines.local.sft import SftSettings
    from agentomnia.training.rl.rollback import RollbackSettings

    steep = RollbackSettings(alpha=0.34, retries=3)
    loop = LoopSettings(
        domains=Domains(),
        sizes=LoopSizes(),
        shape={},
        sft=SftSettings(steps=1000),
        rl=RlSettings(steps=10, prompts=12, group=8),
        evolved_sft=SftSettings(steps=180, rate=1e-3, embedding_rate=2e-4, confidence_rate=0.0, growth=0.0),
        evolved_rl=RlSettings(steps=4, prompts=12, group=8),
        arms=RlSettings(
            steps=4,
            prompts=4,
            group=4,
            iterations=10,
            rate=5e-4,
            embedding_rate=1e-4,
            confidence_rate=5e-4,
            lambda_ce=1.0,
            rollback=steep,
        ),
        prd_tasks=400,
        prds=12,
        arm_trials=6,
    )
    return DemoPlan(BuiltinAuthor().domains, 3, loop)


def _quick() -> DemoPlan:
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.engines.local.sft import SftSettings

    domains = Domains(training=(10006, 30003), target=(10058,), external=(30056,))
    sizes = LoopSizes(
        suites=(
            SuiteSize("sft", 40, 0),
            SuiteSize("rl", 4, 2),
            SuiteSize("hard", 0, 3),
            SuiteSize("diagnosis", 6, 2, ("training", "target")),
            SuiteSize("held_out", 6, 4),
            SuiteSize("held_out_target", 6, 4, ("target",)),
            SuiteSize("held_out_domains", 6, 4, ("external",)),
        )
    )
    small = RlSettings(steps=2, prompts=4, group=4)
    loop = LoopSettings(
        domains=domains,
        sizes=sizes,
        shape={"num_hidden_layers": 2},
        sft=SftSettings(steps=100, batch=4),
        rl=small,
        evolved_sft=SftSettings(steps=20, batch=4),
        evolved_rl=RlSettings(steps=1, prompts=4, group=4),
        arms=RlSettings(steps=1, prompts=4, group=4),
        prd_tasks=24,
        prds=4,
        arm_trials=2,
    )
    return DemoPlan(domains.all, 2, loop)

"""Supervised fine-tuning of the local policy: demonstrations as tokens, one step over a batch (paper, section 5.1).

A demonstration is a verified trajectory in the policy's view; the loss is on what the assistant says and nowhere else.
Each task is seen with several drawings of distractor tools, so that the policy reads the list instead of learning it by
heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from agentomnia.environment.state import State
from agentomnia.errors import InputError
from agentomnia.llm.message import Message
from agentomnia.task.task import Task
from agentomnia.training.chat import END, tool_responses
from agentomnia.training.engines.local import view
from agentomnia.training.engines.local.crew import SHARES, Crew
from agentomnia.training.engines.local.optimizer import AdamW
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.engines.local.worker import Demonstration


@dataclass(frozen=True)
class SftSettings:
    """How long and how fast; the defaults suit a policy of a million weights."""

    steps: int = 1_000
    batch: int = 4
    """Demonstrations of a step."""
    context: int = 512
    """Longest demonstration in tokens; longer ones are rejected, never cut."""
    rate: float = 3e-3
    embedding_rate: float = 6e-4
    confidence_rate: float | None = None
    """See `optimizer`. 0 keeps what reinforcement learning taught of confidence."""
    warmup: int = 20
    growth: float = 0.5
    """Share of the steps in which long demonstrations join the short ones."""
    decay_from: float = 0.1
    """Share of the steps after which the rate falls in a straight line, to 2 % at the end."""

    def optimizer(self) -> AdamW:
        """AdamW with these rates."""
        return AdamW(self.rate, self.embedding_rate, self.confidence_rate)

    def scale(self, step: int) -> float:
        """Factor on the rates in a step, counted from 0."""
        left = (self.steps - step) / max(1.0, self.steps * (1 - self.decay_from))
        return min(1.0, (step + 1) / self.warmup) * max(0.02, min(1.0, left))


def demonstration(
    task: Task, state: State, tools: Sequence[dict[str, Any]], dialogue: Demonstration, tokenizer: WordTokenizer
) -> Demonstration:
    """A trajectory as tokens in the policy's view, with some tools shown.

    Args:
        task: what was asked.
        state: the initial state, for the clock.
        tools: the tools to show.
        dialogue: what follows the opening, see `dialogue_tokens`.
        tokenizer: of the policy.

    Raises:
        InputError: nothing of it, or all of it, would be trained.
    """
    opening = tokenizer.encode(view.opening(task, state, tools))
    mask = (*([0] * len(opening)), *dialogue.mask)
    if not any(mask) or all(mask):
        raise InputError(f"task {task.id}: a demonstration must have trained tokens and others; drop the trajectory")
    return Demonstration((*opening, *dialogue.ids), mask)


def dialogue_tokens(messages: Sequence[Message], tokenizer: WordTokenizer) -> Demonstration:
    """The turns of a trajectory behind its opening, as tokens; trained is what the assistant says.

    Args:
        messages: the trajectory's, from its system message on.
        tokenizer: of the policy.
    """
    ids: list[int] = []
    mask: list[int] = []
    observed: list[str] = []
    for message in messages[2:]:
        if message.role == "tool":
            observed.append(view.observation(message.content or ""))
            continue
        said = tokenizer.encode(view.said(message) + END)
        read = tokenizer.encode(tool_responses(observed)) if observed else []
        observed = []
        ids += [*read, *said]
        mask += [*([0] * len(read)), *([1] * len(said))]
    return Demonstration(tuple(ids), tuple(mask))


def draw_batch(
    variants: Sequence[Sequence[Demonstration]], settings: SftSettings, seed: str, step: int
) -> list[Demonstration]:
    """The demonstrations of one step, tasks in epochs, each epoch in its own order, a random variant of each.

    Short ones come first: in the early steps only the shortest share of the tasks is drawn from, growing to all of them
    after `growth` of the steps. They teach the form of calls and the copying of arguments for half the cost.

    Args:
        variants: of each task, shortest task first.
        settings: of the training.
        seed: names the randomness.
        step: counted from 0.
    """
    grown = min(1.0, 0.3 + 0.7 * step / max(1.0, settings.steps * settings.growth))
    chosen = []
    for place in range(step * settings.batch, (step + 1) * settings.batch):
        epoch, index = divmod(place, len(variants))
        found = variants[int(_order(f"{seed}/sft/{epoch}", len(variants))[index] * grown)]
        chosen.append(found[Random(f"{seed}/sft/{place}").randrange(len(found))])
    return chosen


@lru_cache(maxsize=4)
def _order(seed: str, n: int) -> list[int]:
    return Random(seed).sample(range(n), n)


def sft_step(crew: Crew, batch: Sequence[Demonstration], settings: SftSettings, step: int) -> float:
    """One update; the mean loss of the trained tokens."""
    total = sum(sum(d.mask[1:]) for d in batch)
    ordered = sorted(batch, key=lambda d: len(d.ids))  # shares of like lengths waste less padding
    shares = [ordered[i::SHARES] for i in range(SHARES)]
    losses = crew.share("learn_demonstrations", [(share, total) for share in shares])
    crew.weights.step(crew.gradient(), settings.optimizer(), settings.scale(step))
    return float(sum(losses))

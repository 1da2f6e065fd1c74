"""The task gate: what must be proved before a task is kept (paper, section 4.4.1 "Quality Assurance").

reference      the reference replays without an error and earns exactly 1.0, twice, from fresh instances
null           an agent that does nothing, and one that only apologises, earn 0
random         random valid callers earn 0
omission       leaving out any modifying call earns less than 1
alteration     any single required effect undone, altered or doubled earns less than 1
unrelated      one more accepted write earns less than 1
reordered      independent calls in another order still earn 1.0
derivable      every argument of the reference follows from the query, an observation, the clock or a computation
leakage        the query names no tool, no parameter key, no identifier, no answer
mentions       the query says every phrase that stands for a record or a value
evidence       each difficulty label has measures past its threshold
frame          the reference changes exactly what the criterion wants
dag            the augmented DAG has no circle, names only its nodes, and agrees with the order of the calls
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import networkx as nx

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State
from agentomnia.episodes.agent import APOLOGY
from agentomnia.errors import EnvironmentFault
from agentomnia.row import Row
from agentomnia.synthesis.tasks.dag.ground import resolve
from agentomnia.synthesis.tasks.evidence import THRESHOLDS
from agentomnia.synthesis.tasks.leakage import leaks
from agentomnia.synthesis.tasks.query import value_kind, value_unit, value_words
from agentomnia.task.diff import state_diff
from agentomnia.task.grade import grade
from agentomnia.task.render import same_value, say, unsay
from agentomnia.task.task import PrivateTask, ReferenceCall, Source, Task, answer_message

_RANDOM_CALLERS = 3
_ORDERS = 3


class TaskFinding(Row):
    """One failed check of one task."""

    task: str
    check: str
    evidence: str


@dataclass(frozen=True)
class Evaluated:
    """A task with everything its checks need."""

    task: Task
    private: PrivateTask
    spec: EnvironmentSpec
    program: Program
    state: State

    @cached_property
    def replayed(self) -> tuple[Instance, list[Any]] | str:
        """The reference replayed from a fresh instance: where it ends and what was answered, or why it cannot be."""
        return _replay(self, range(len(self.private.calls)))

    @property
    def finished(self) -> Instance:
        """Where the reference ends; to read, never to call."""
        assert not isinstance(self.replayed, str)  # the check `reference` comes first and ends the gate
        return self.replayed[0]


def verify_task(subject: Evaluated) -> list[TaskFinding]:
    """Run every check of the task gate; nothing is found for a task that may be kept."""
    found = []
    for name, check in _CHECKS.items():
        try:
            evidence = next(check(subject), None)
        except EnvironmentFault as error:
            evidence = f"environment fault: {error}"
        if evidence is not None:
            found.append(TaskFinding(task=subject.task.id, check=name, evidence=evidence))
            if name == "reference":
                return found  # nothing else means anything then
    return found


def _score(subject: Evaluated, instance: Instance, text: str) -> float:
    return grade(subject.private.criterion, subject.state, instance.live_state, text).reward


def _replay(subject: Evaluated, order: Sequence[int], strict: bool = True) -> tuple[Instance, list[Any]] | str:
    """Make reference calls in an order, observed arguments taken from what was really observed."""
    instance = Instance(subject.program, subject.state)
    answers: list[Any] = [None] * len(subject.private.calls)
    for index in order:
        call = subject.private.calls[index]
        arguments = _bound(call, answers)
        answer = instance.call(call.tool, arguments)
        if not answer["ok"] and strict:
            return f"call {index} ({call.tool}) is refused: {answer['error']['message']}"
        answers[index] = answer.get("data")
    return instance, answers


def _bound(call: ReferenceCall, answers: list[Any]) -> dict[str, Any]:
    arguments = dict(call.arguments)
    for name, source in call.sources.items():
        if name in arguments and source.origin == "observation" and source.call is not None:
            try:
                if answers[source.call] is not None:
                    arguments[name] = resolve(source, answers)
            except (KeyError, IndexError, TypeError):
                continue  # the stored value stands; a wrong one shows in the reward
    return arguments


def _reference(subject: Evaluated) -> Iterator[str]:
    digests = set()
    for outcome in (subject.replayed, _replay(subject, range(len(subject.private.calls)))):
        if isinstance(outcome, str):
            yield outcome
            return
        instance, _ = outcome
        result = grade(
            subject.private.criterion, subject.state, instance.live_state, answer_message(subject.private.answer)
        )
        if result.reward != 1.0:
            yield f"the reference earns {result.reward}: {'; '.join(result.failures[:3])}"
            return
        if instance.broken_rules():
            yield f"the reference breaks {', '.join(instance.broken_rules())}"
        digests.add(instance.digest())
    if len(digests) > 1:
        yield "two replays of the reference end in different states"


def _null(subject: Evaluated) -> Iterator[str]:
    instance = Instance(subject.program, subject.state)
    for text in ("", APOLOGY):
        if _score(subject, instance, text) != 0.0:
            yield "doing nothing earns a reward" if not text else "apologising earns a reward"


def _random(subject: Evaluated) -> Iterator[str]:
    for number in range(_RANDOM_CALLERS):
        rng = Random(f"{subject.task.id}/random/{number}")
        instance = Instance(subject.program, subject.state)
        sampler = ArgumentSampler(subject.program, rng)
        names = sorted(subject.program.tools)
        for _ in range(max(4, len(subject.private.calls))):
            name = rng.choice(names)
            instance.call(name, sampler.sample(name, instance.live_state))
            if _score(subject, instance, "Done.") != 0.0:
                yield f"random caller {number} earns a reward"
                return


def _modifying(subject: Evaluated) -> list[int]:
    return [i for i, c in enumerate(subject.private.calls) if subject.program.tools[c.tool].kind == "modify"]


def _omission(subject: Evaluated) -> Iterator[str]:
    text = answer_message(subject.private.answer)
    for left_out in _modifying(subject):
        order = [i for i in range(len(subject.private.calls)) if i != left_out]
        outcome = _replay(subject, order, strict=False)
        if not isinstance(outcome, str) and _score(subject, outcome[0], text) >= 1.0:
            yield f"without call {left_out} ({subject.private.calls[left_out].tool}) the task still earns 1.0"
    if subject.private.criterion.answers and _score(subject, subject.finished, "Done.") >= 1.0:
        yield "without the answer the task still earns 1.0"


def _alteration(subject: Evaluated) -> Iterator[str]:
    final, text = subject.finished.state, answer_message(subject.private.answer)
    prose = frozenset((e.plural, a.name) for e in subject.spec.entities for a in e.attributes if a.type == "text")
    for what, altered in altered_states(subject.state, final, prose):
        if grade(subject.private.criterion, subject.state, altered, text).reward >= 1.0:
            yield f"{what} still earns 1.0"
    for name, value in subject.private.answer.items():
        wrong = {
            **subject.private.answer,
            name: value + 1 if isinstance(value, int | float) else f"{value} or so",
        }
        if grade(subject.private.criterion, subject.state, final, answer_message(wrong)).reward >= 1.0:
            yield f"a wrong answer {name} still earns 1.0"


def altered_states(
    before: State, after: State, prose: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[tuple[str, State]]:
    """The final state with one effect undone, altered or doubled, for every effect; to be read only.

    Text of the fields in `prose`, `(container, field)`, may be worded otherwise; it is only taken away.
    """
    diff = state_diff(before, after)
    for (container, key), record in diff.created.items():
        yield f"{container}/{key} not created", _without(after, container, key)
        twin = {**record, next(iter(record)): f"{key}-TWIN"}
        yield f"{container}/{key} created twice", _with(after, container, f"{key}-TWIN", twin)
        for field in list(record)[1:]:
            for other in _others(record[field], (container, field) in prose):
                altered = {**record, field: other}
                yield f"{container}/{key}.{field} altered", _with(after, container, key, altered)
    for (container, key), fields in diff.updated.items():
        record = after[container][key]
        for field in fields:
            undone = {**record, field: before[container][key][field]}
            yield f"{container}/{key}.{field} unchanged", _with(after, container, key, undone)
            for other in _others(fields[field], (container, field) in prose):
                altered = {**record, field: other}
                yield f"{container}/{key}.{field} altered", _with(after, container, key, altered)
    for container, key in diff.deleted:
        yield f"{container}/{key} not deleted", _with(after, container, key, before[container][key])


def _with(state: State, container: str, key: str, record: dict[str, Any]) -> State:
    """The state with one other record; everything else is shared, so it is to be read only."""
    return {**state, container: {**state[container], key: record}}


def _without(state: State, container: str, key: str) -> State:
    return {**state, container: {k: v for k, v in state[container].items() if k != key}}


def _others(value: Any, prose: bool) -> list[Any]:
    """Values unlike the given one: null where it was something, and another value of its type."""
    if value is None:
        return ["something"]
    if isinstance(value, bool):
        return [None, not value]
    if isinstance(value, int | float):
        return [None, value + 1]
    return [None, f"{value} or so"] if isinstance(value, str) and not prose else [None]


def _unrelated(subject: Evaluated) -> Iterator[str]:
    instance, rng = subject.finished.fork(), Random(f"{subject.task.id}/unrelated")
    sampler = ArgumentSampler(subject.program, rng)
    writers = sorted(n for n, t in subject.program.tools.items() if t.kind == "modify")
    text, tried = answer_message(subject.private.answer), 0
    snapshot = instance.snapshot()
    for _ in range(60):
        name = rng.choice(writers)
        answer = instance.call(name, sampler.sample(name, instance.live_state))
        if answer["ok"] and instance.snapshot() != snapshot:
            tried += 1
            if _score(subject, instance, text) >= 1.0 and not _only_free_text(subject, instance):
                yield f"one more accepted write by {name} still earns 1.0"
            instance.restore(snapshot)
        if tried == 5:
            return


def _only_free_text(subject: Evaluated, instance: Instance) -> bool:
    """A second write may only have reworded free prose that the criterion leaves to the agent."""
    diff = state_diff(subject.finished.live_state, instance.live_state)
    changed = {(container, field) for (container, _), fields in diff.updated.items() for field in fields}
    wanted = subject.private.criterion.changes
    free = {(c.container, f) for c in wanted for f, expected in c.values.items() if expected.comparison == "free"}
    return not diff.created and not diff.deleted and changed <= free


def _reordered(subject: Evaluated) -> Iterator[str]:
    problem = _misordered(subject.private.calls)
    if problem is not None:
        yield problem
        return
    rng = Random(f"{subject.task.id}/order")
    text = answer_message(subject.private.answer)
    for _ in range(_ORDERS):
        order = _random_order(subject.private.calls, rng)
        outcome = _replay(subject, order)
        if isinstance(outcome, str):
            yield f"in the order {order}: {outcome}"
        elif _score(subject, outcome[0], text) != 1.0:
            yield f"in the order {order} the reference no longer earns 1.0"


def _misordered(calls: tuple[ReferenceCall, ...]) -> str | None:
    """Whether a call waits for what is no earlier call, or does not wait for what it learns an argument from."""
    before: list[set[int]] = []
    for index, call in enumerate(calls):
        strangers = [i for i in call.after if not 0 <= i < index]
        if strangers:
            return f"call {index} waits for call {strangers[0]}, which is no earlier one"
        before.append(set(call.after).union(*(before[i] for i in call.after)))
        for name, source in call.sources.items():
            known_late = source.origin == "observation" and source.call in range(index)
            if known_late and source.call not in before[index]:
                return f"call {index} takes {name} from call {source.call} but may come before it"
    return None


def _random_order(calls: tuple[ReferenceCall, ...], rng: Random) -> list[int]:
    """A random topological order of the calls under their `after`."""
    left, order = set(range(len(calls))), []
    while left:
        ready = sorted(i for i in left if not left & set(calls[i].after))
        chosen = rng.choice(ready)
        order.append(chosen)
        left.remove(chosen)
    return order


def _derivable(subject: Evaluated) -> Iterator[str]:
    assert not isinstance(subject.replayed, str)
    answers = subject.replayed[1]
    for index, call in enumerate(subject.private.calls):
        for name in call.sources.keys() - call.arguments.keys():
            yield f"call {index} ({call.tool}): a source is recorded for {name}, which it is not given"
        for name, value in call.arguments.items():
            source = call.sources.get(name)
            problem = (
                "no source is recorded"
                if source is None
                else _underivable(subject, call, name, value, source, answers, index)
            )
            if problem is not None:
                yield f"call {index} ({call.tool}), {name} = {value!r}: {problem}"


def _underivable(
    subject: Evaluated,
    call: ReferenceCall,
    name: str,
    value: Any,
    source: Source,
    answers: list[Any],
    index: int,
) -> str | None:
    match source.origin:
        case "observation":
            if source.call is None or not 0 <= source.call < index:
                return "it is observed too late"
            try:
                seen = resolve(source, answers)
            except (KeyError, IndexError, TypeError):
                return "the observation does not show it"
            return None if same_value(seen, value) else f"the observation shows {seen!r}"
        case "query":
            return _unsaid(subject, call, name, value, source.text or "")
        case "clock":
            return (
                None
                if value in (subject.state["clock"]["now"], subject.state["clock"]["now"][:10])
                else "the clock differs"
            )
        case _:
            schema = subject.program.tools[call.tool].parameters["properties"][name]
            # a free choice among listed values: any of them leads to the same answer
            return None if value in schema.get("enum", ()) else "no declared computation gives it"


def _unsaid(subject: Evaluated, call: ReferenceCall, name: str, value: Any, text: str) -> str | None:
    if not _says(subject.task.query, text):
        return f"the query does not say {text!r}"
    parameter = subject.spec.tool(call.tool).parameter(name)
    kind, unit = value_kind(subject.spec, parameter), value_unit(subject.spec, parameter)
    if kind in ("enum", "boolean"):
        choices = parameter.json_schema.get("enum", (True, False))
        meant = [
            c for c in choices if text in (value_words(subject.spec, parameter, c), say(c, kind, subject.spec.clock))
        ]
        return None if meant == [value] else f"{text!r} means {meant}"
    if kind == "list":
        return None if say(value, "list", subject.spec.clock) == text else f"{text!r} is another list"
    meant_value = unsay(text, kind, subject.spec.clock, unit)
    return None if same_value(meant_value, value) else f"{text!r} means {meant_value!r}"


def _says(query: str, words: str) -> bool:
    """Whether a query says the words, and not only as a part of others: `15 EUR` does not say `5 EUR`."""
    return bool(words) and re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(words)}(?!\w)(?![.,]\d)", query) is not None


def _leakage(subject: Evaluated) -> Iterator[str]:
    yield from leaks(subject.task, subject.private, subject.program, subject.state)


def _mentions(subject: Evaluated) -> Iterator[str]:
    for phrase in subject.private.mentions:
        if not _says(subject.task.query, phrase):
            yield f"the query does not say {phrase!r}"


def _evidence(subject: Evaluated) -> Iterator[str]:
    labels = {e.label for e in subject.private.evidence}
    for atom in subject.task.coordinate.difficulty:
        if atom not in labels:
            yield f"the label {atom} has no evidence"
    for item in subject.private.evidence:
        if item.threshold != THRESHOLDS.get(item.label, item.threshold):
            yield f"{item.label}: {item.threshold!r} is not its threshold, {THRESHOLDS[item.label]!r}"
        problem = _below_threshold(item.threshold, item.measures)
        if problem:
            yield f"{item.label}: {problem}"


def _below_threshold(threshold: str, measures: dict[str, float]) -> str | None:
    """Evaluate a stored threshold, `a ≥ 3 and b ≥ 2` or `a ≥ 3 or b ≥ 2`, on the stored measures."""
    joined = " or " if " or " in threshold else " and "
    holds = []
    for part in threshold.split(joined):
        name, _, bound = part.partition(" ≥ ")
        try:
            holds.append(measures.get(name, 0.0) >= float(bound))
        except ValueError:
            return f"{threshold!r} is no threshold"
    met = any(holds) if joined == " or " else all(holds)
    return None if met else f"{threshold} does not hold for {measures}"


def _dag(subject: Evaluated) -> Iterator[str]:
    private = subject.private
    graph = nx.DiGraph()
    graph.add_nodes_from(f"call:{i}" for i in range(len(private.calls)))
    graph.add_nodes_from(node.id for node in private.dag.virtual)
    known = set(graph)
    for earlier, later in private.dag.edges:
        if earlier not in known or later not in known:
            yield f"edge {earlier} → {later} names no node"
            return
    graph.add_edges_from(private.dag.edges)
    graph.add_edges_from((f"call:{e}", f"call:{i}") for i, call in enumerate(private.calls) for e in call.after)
    if not nx.is_directed_acyclic_graph(graph):
        yield "the augmented DAG has a circle"
        return
    reach = {n: nx.descendants(graph, n) for n in graph if n.startswith("call:")}
    for index in range(len(private.calls)):
        if any(f"call:{i}" in reach[f"call:{index}"] for i in range(index)):
            yield f"call {index} comes after one that depends on it"


def _frame(subject: Evaluated) -> Iterator[str]:
    diff = state_diff(subject.state, subject.finished.live_state)
    wanted = {(c.container, c.key) for c in subject.private.criterion.changes if c.kind != "created"}
    happened = {*diff.updated, *diff.deleted}
    if wanted != happened:
        yield f"wanted changes of {sorted(wanted)}, happened {sorted(happened)}"
    created = sum(1 for c in subject.private.criterion.changes if c.kind == "created")
    if created != len(diff.created):
        yield f"wanted {created} new records, got {len(diff.created)}"


_CHECKS: dict[str, Callable[[Evaluated], Iterator[str]]] = {
    "reference": _reference,
    "null": _null,
    "random": _random,
    "omission": _omission,
    "alteration": _alteration,
    "unrelated": _unrelated,
    "reordered": _reordered,
    "derivable": _derivable,
    "leakage": _leakage,
    "mentions": _mentions,
    "evidence": _evidence,
    "frame": _frame,
    "dag": _dag,
}

TASK_CHECKS = tuple(_CHECKS)
"""The checks of the gate in the order they run; nothing after a failed `reference` means anything."""

"""What a reference solution means to somebody who plays it: when each call is needed, what it finds, what it answers.

The reference of a task makes its readers first and its changes after. A person looks things up when the need
arises. `order_by_need` is that order; `Reading` says of each call why it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentomnia.environment.spec import EnvironmentSpec, Search, Summary
from agentomnia.task.task import PrivateTask, ReferenceCall, Source, Task, TaskDag, VirtualNode

_ASKED = ("AGGREGATE", "EXTRACT", "LOGIC")
"""Types of the virtual nodes that end in an answer, where nothing comes after them."""


def order_by_need(calls: Sequence[ReferenceCall], dag: TaskDag | None = None) -> tuple[int, ...]:
    """The order of calls in which each reader stands right before the first call that needs it.

    A call's need is what it waits for (`after`) and what its arguments come from; the changes, and the readings that
    nobody needs, keep the reference's order.

    Args:
        calls: the reference calls, each waiting for earlier ones only (the task gate's `reordered`).
        dag: the task's DAG. Where a list is filtered by what other calls show (a FILTER node), those calls come before
            the list: whose identifier it is must be known when the record is picked.

    Returns:
        Indices of the calls, a topological order of `after`.
    """
    joins = _joins(dag) if dag is not None else {}
    needs = [_needs(call, joins.get(index, set())) for index, call in enumerate(calls)]
    behind: list[set[int]] = []
    for waited in needs:
        behind.append(set(waited).union(*(behind[i] for i in waited)))
    order: dict[int, None] = {}

    def emit(index: int) -> None:
        for earlier in needs[index]:
            # what another need waits for as well comes with that one
            if earlier not in order and not any(earlier in behind[other] for other in needs[index]):
                emit(earlier)
        order[index] = None

    needed = {earlier for waited in needs for earlier in waited}
    for index in range(len(calls)):
        if index not in needed:
            emit(index)
    return tuple(order)


def _needs(call: ReferenceCall, joins: set[int]) -> tuple[int, ...]:
    """What a call waits for; what its arguments come from stands last, so that it is looked up right before."""
    seen_at = {s.call for s in call.sources.values() if s.call is not None}
    return (*sorted({*call.after, *joins} - seen_at), *sorted(seen_at))


def _joins(dag: TaskDag) -> dict[int, set[int]]:
    """For each list behind a FILTER node, the earlier calls that the filter knows its values from."""
    found: dict[int, set[int]] = {}
    for node in dag.virtual:
        if node.type == "FILTER":
            calls = [int(a.removeprefix("call:")) for a, b in dag.edges if b == node.id and a.startswith("call:")]
            if calls:
                listed = max(calls)  # what a filter joins with was found before the list was read
                found.setdefault(listed, set()).update(c for c in calls if c < listed)
    return found


def resolve(source: Source, observed: Mapping[int, Any]) -> Any:
    """The value at an observation source, in what was really observed.

    Raises:
        KeyError, IndexError, TypeError: nothing is there.
    """
    value = observed[source.call if source.call is not None else -1]
    for step in source.path:
        value = value[step]
    return value


class Reading:
    """A reference solution, read for the reasons behind its calls."""

    def __init__(self, task: Task, private: PrivateTask, spec: EnvironmentSpec) -> None:
        """Read the privileged part; nothing is changed in it."""
        self.task = task
        self.calls = private.calls
        self.spec = spec
        self._private = private
        self._nodes = {node.id: node for node in private.dag.virtual}
        inner = {earlier for earlier, _ in private.dag.edges}
        asked = [n for n in private.dag.virtual if n.id not in inner and n.type in _ASKED]
        self._questions = [(call, n) for n in asked for call in self._calls_before(n)[:1]]

    def _calls_before(self, node: VirtualNode) -> list[int]:
        edges = self._private.dag.edges
        return [
            int(earlier.removeprefix("call:")) for earlier, later in edges if later == node.id and "call:" in earlier
        ]

    def nodes_after(self, call: int, kind: str) -> list[VirtualNode]:
        """Virtual nodes of a kind right behind a call."""
        later = [b for a, b in self._private.dag.edges if a == f"call:{call}" and b in self._nodes]
        return [self._nodes[b] for b in later if self._nodes[b].type == kind]

    def questions_of(self, call: int) -> list[VirtualNode]:
        """The thinking that turns a call's observation into an answer; none for calls that answer nothing."""
        return [node for index, node in self._questions if index == call]

    def found_by(self, call: int) -> tuple[Source, ...]:
        """Where later calls take identifiers from in this call's observation, each place once."""
        found = {
            s.path: s
            for later in self.calls[call + 1 :]
            for s in later.sources.values()
            if s.origin == "observation" and s.call == call
        }
        return tuple(found.values())

    def purpose_of(self, call: int) -> int | None:
        """The first call, other than a search, that this call's observation leads to."""
        for index in range(call + 1, len(self.calls)):
            if any(s.call == call for s in self.calls[index].sources.values()):
                if not isinstance(self.spec.tool(self.calls[index].tool).action, Search):
                    return index
                return self.purpose_of(index)
        return None

    def answers(self, observed: Mapping[int, Any]) -> dict[str, Any]:
        """The answers of the task, read from what was observed.

        An answer whose way is not one of the four that `dag/answers.py` asks (count, field, largest group, total) is
        the reference's own; whether it was observable is for the quality check to say.
        """
        names = [field.name for field in self.task.answer]
        values = dict(self._private.answer)
        if len(names) == len(self._questions):
            for name, (call, node) in zip(names, self._questions):
                value = answer_value(self, call, node, observed.get(call))
                values[name] = values.get(name) if value is None else value
        return {name: values[name] for name in names if name in values}


def answer_value(reading: Reading, call: int, node: VirtualNode, data: Any) -> Any:
    """What the observation of a call answers, or `None` where it does not say it."""
    if not isinstance(data, dict):
        return None
    action = reading.spec.tool(reading.calls[call].tool).action
    if isinstance(action, Search):
        return data.get("total")
    if isinstance(action, Summary):
        groups = data.get("groups", [])
        if node.type == "LOGIC":
            return max(groups, key=lambda g: g["count"])["group"] if groups else None
        totals = [g["total"] for g in groups if "total" in g]
        return round(sum(totals), 2) if totals else None
    return data.get(node.note.removesuffix(" of the answer").replace(" ", "_"))

"""Grounding: real calls on a real instance, with the source of every argument.

The grounder answers one question for the generator: how would an agent that knows only the query come to
know this record's identifier? It makes the calls, records what each shows, and says where every
argument came from, so that the task gate can check the derivation instead of believing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.spec import EnvironmentSpec, Search, Tool
from agentomnia.synthesis.tasks.dag.describe import Describer, Description, Descriptor
from agentomnia.task.task import ReferenceCall, Source, VirtualNode

_DEEPEST = 3


@dataclass
class Plan:
    """The calls of a reference solution as they are found, and the DAG that grows with them."""

    calls: list[ReferenceCall] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    """The data of each call's answer."""
    virtual: list[VirtualNode] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    known: dict[tuple[str, str], Source] = field(default_factory=dict)
    """Where the identifier of a record was seen."""
    candidates: list[int] = field(default_factory=list)
    """How many records each locating call showed."""
    joins: int = 0

    def think(self, kind: Any, note: str, after: Sequence[str]) -> str:
        """Add a virtual node behind others."""
        node = VirtualNode(id=f"think:{len(self.virtual)}", type=kind, note=note)
        self.virtual.append(node)
        self.edges += [(earlier, node.id) for earlier in after]
        return node.id


class Grounder:
    """Finds records by calls, on one instance, for one speaker."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        instance: Instance,
        describer: Describer,
        prefer: frozenset[str],
        rng: Random,
    ) -> None:
        """Ground on `instance`, with the tools of a sampled group preferred."""
        self.spec = spec
        self.instance = instance
        self.describer = describer
        self.prefer = prefer
        self.rng = rng
        self.plan = Plan()
        self.described: dict[tuple[str, str], Description] = {}

    def describe(self, entity: str, key: str) -> Description | None:
        """The description of a record that existed before the task, remembered."""
        place = (entity, key)
        if place not in self.described:
            found = self.describer.describe(entity, key)
            if found is None:
                return None
            self.described[place] = found
        return self.described[place]

    def locate(self, entity: str, key: str, depth: int = 0) -> Source | None:
        """Make the calls by which an agent learns the record's identifier.

        Returns:
            Where the identifier was seen, or `None` where no reader shows it.
        """
        place = (entity, key)
        if place in self.plan.known:
            return self.plan.known[place]
        description = self.describe(entity, key)
        if description is None or depth > _DEEPEST:
            return None
        for descriptor in description.descriptors:
            if (
                descriptor.target is not None
                and self.locate(descriptor.target, str(descriptor.value), depth + 1) is None
            ):
                return None
        if place in self.plan.known:
            return self.plan.known[place]
        for tool in self._readers(entity):
            source = self._try_reader(tool, description)
            if source is not None:
                return source
        return None

    def _readers(self, entity: str) -> list[Tool]:
        found = [
            t for t in self.spec.tools
            if t.kind == "query" and isinstance(t.action, Search) and t.action.entity == entity
        ]  # fmt: skip
        self.rng.shuffle(found)
        return sorted(found, key=lambda t: t.name not in self.prefer)

    def _try_reader(self, tool: Tool, description: Description) -> Source | None:
        arguments = self._reader_arguments(tool, description)
        if arguments is None:
            return None
        values, sources = arguments
        answer = self.instance.call(tool.name, values)
        if not answer["ok"]:
            return None
        entity = self.spec.entity(description.entity)
        rows = answer["data"][entity.plural]
        position = next((i for i, row in enumerate(rows) if row.get(entity.key) == description.key), None)
        if position is None or not self._singled_out(description, rows):
            return None
        index = self.add_call(tool.name, values, sources, answer["data"])
        self.plan.candidates.append(len(rows))
        node = f"call:{index}"
        if len(rows) > 1:
            note = f"the one that fits: {', '.join(d.field.replace('_', ' ') for d in description.descriptors)}"
            node = self.plan.think("FILTER", note, [node, *self._join_nodes(description)])
        path = (entity.plural, position, entity.key)
        source = Source(origin="observation", call=index, path=path)
        self.plan.known[(description.entity, description.key)] = source
        self._see_references(description.entity, rows[position], index, position)
        return source

    def _join_nodes(self, description: Description) -> list[str]:
        """Calls whose results the filter needs beside the list itself."""
        nodes = []
        for descriptor in description.descriptors:
            if descriptor.target is not None:
                source = self.plan.known[(descriptor.target, str(descriptor.value))]
                nodes.append(f"call:{source.call}")
                self.plan.joins += 1
        return list(dict.fromkeys(nodes))

    def _see_references(self, entity_name: str, row: dict[str, Any], call: int, position: int) -> None:
        """A found record also shows the identifiers it refers to."""
        entity = self.spec.entity(entity_name)
        for attribute in entity.attributes:
            value = row.get(attribute.name)
            if attribute.target is not None and isinstance(value, str):
                path = (entity.plural, position, attribute.name)
                self.plan.known.setdefault(
                    (attribute.target, value), Source(origin="observation", call=call, path=path)
                )

    def _singled_out(self, description: Description, rows: list[dict[str, Any]]) -> bool:
        """The description must pick the record among the rows shown, by fields that the rows show."""
        fields = [d.field for d in description.descriptors]
        if any(f not in row for row in rows for f in fields):
            return False
        fitting = [r for r in rows if all(r[d.field] == d.value for d in description.descriptors)]
        return len(fitting) == 1

    def _reader_arguments(
        self, tool: Tool, description: Description
    ) -> tuple[dict[str, Any], dict[str, Source]] | None:
        """Arguments that an agent could give from the description, or `None` where a required one is unknown."""
        assert isinstance(tool.action, Search)
        by_field = {d.field: d for d in description.descriptors}
        filters = {f.parameter: f for f in tool.action.filters}
        values: dict[str, Any] = {}
        sources: dict[str, Source] = {}
        for parameter in tool.parameters:
            item = filters.get(parameter.name)
            descriptor = by_field.get(item.field) if item is not None else None
            if descriptor is None:
                if parameter.required:
                    return None
                continue
            if not parameter.required and item is not None and not self._worth_giving(item.op):
                continue
            source = self._descriptor_source(descriptor)
            if source is None:
                return None
            values[parameter.name], sources[parameter.name] = descriptor.value, source
        return values, sources

    def _worth_giving(self, op: str) -> bool:
        """Labels are always searched by; other filters mostly, as a person would."""
        return op == "contains" or self.rng.random() < (0.8 if op == "equals" else 0.4)

    def _descriptor_source(self, descriptor: Descriptor) -> Source | None:
        if descriptor.target is not None:
            return self.plan.known.get((descriptor.target, str(descriptor.value)))
        return Source(origin="query", text=descriptor.text)

    def add_call(self, tool: str, values: dict[str, Any], sources: dict[str, Source], data: dict[str, Any]) -> int:
        """Append a call that was made, with the edges its sources imply.

        Returns:
            The call's index.
        """
        index = len(self.plan.calls)
        after = sorted({s.call for s in sources.values() if s.call is not None})
        self.plan.calls.append(ReferenceCall(tool=tool, arguments=values, sources=sources, after=tuple(after)))
        self.plan.answers.append(data)
        for name, source in sources.items():
            if source.origin == "query" and values[name] != source.text:
                self.plan.edges.append(
                    (
                        self.plan.think("TRANSFORM", f"words of the request to {name.replace('_', ' ')}", []),
                        f"call:{index}",
                    )
                )
            elif source.call is not None:
                self.plan.edges.append((self._seen_at(source), f"call:{index}"))
        return index

    def _seen_at(self, source: Source) -> str:
        """The node that an observed value comes out of: the filter behind a list, or an extraction."""
        node = f"call:{source.call}"
        behind = [v.id for v in self.plan.virtual if v.type == "FILTER" and (node, v.id) in self.plan.edges]
        if behind:
            return behind[-1]
        field_name = str(source.path[-1]).replace("_", " ")
        return self.plan.think("EXTRACT", f"{field_name} out of the answer", [node])


def resolve(source: Source, answers: Sequence[Any]) -> Any:
    """The value at an observation source.

    Raises:
        KeyError, IndexError, TypeError: the answers have nothing there.
    """
    value = answers[source.call or 0]
    for step in source.path:
        value = value[step]
    return value

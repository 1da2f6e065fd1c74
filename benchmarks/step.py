"""What a step costs: one tool call in process, and what surrounds it.

    python benchmarks/step.py [--domain 10006] [--json]

The environment is woven from a domain card. A *keyed* call names one record; it must cost the same in a state of
100 records and of 100,000. Beside each checked step stand the raw method, which checks nothing, and the plain way
to get the same promises: a prepared `jsonschema` validator, `copy.deepcopy` of the state to undo a refused call,
and of the answer. Every call is timed alone; medians are shown, since other processes disturb the mean.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from jsonschema import Draft202012Validator

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.spec import Entity, EnvironmentSpec, Lookup, Search, Tool
from agentomnia.environment.state import State
from agentomnia.synthesis.environments.author import BuiltinAuthor, VerifiedEnvironment
from agentomnia.synthesis.environments.compiler import build_program, compile_environment
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.package import load_package, write_package
from agentomnia.synthesis.environments.states import StateMaker

SIZES = (100, 100_000)
RESET_SIZES = (100, 1_000)
TARGETS_US = {
    "keyed read": 10.0, "keyed write": 10.0, "refused call": 10.0,
    "reset of 100 records": 100.0, "reset of 1,000 records": 1_000.0, "load from cache": 1_000.0,
}  # fmt: skip
_PAIRS = 4_000
_PEER_SECONDS = 3.0


@dataclass(frozen=True)
class Row:
    """One measurement, in microseconds."""

    what: str
    records: int
    median_us: float
    p95_us: float
    raw_us: float | None = None
    """The method alone."""
    peer_us: float | None = None
    """The plain technique."""
    target_us: float | None = None

    @property
    def met(self) -> bool:
        """Whether the median is within its target, where there is one."""
        return self.target_us is None or self.median_us <= self.target_us


@dataclass(frozen=True)
class Case:
    """A kind of call with arguments to take in turn."""

    what: str
    tool: str
    arguments: tuple[dict[str, Any], ...]
    keyed: bool = True


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", type=int, default=10006, help="level-2 domain of the card")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    spec = BuiltinAuthor().draft(options.domain, 0, "bench").spec
    rows = list(measure(spec))
    if options.json:
        told = {"environment": spec.name, "tools": len(spec.tools), "rows": [{**asdict(r), "met": r.met} for r in rows]}
        print(json.dumps(told))
    else:
        print(table(spec, rows))


def measure(spec: EnvironmentSpec) -> Iterator[Row]:
    """Every row of the benchmark."""
    program = build_program(spec)
    base = StateMaker(spec).make("bench")
    entity, lookup, write, search = subjects(spec)
    for size in SIZES:
        state = grown(base, entity, size)
        for case in cases(program, state, entity, lookup, write, search):
            yield step_row(program, state, case, size)
    for size in RESET_SIZES:
        yield from restore_rows(program, spread(base, spec, size), size)
    yield from load_rows(spec)


def subjects(spec: EnvironmentSpec) -> tuple[Entity, Tool, Tool, Tool]:
    """An entity with its lookup, its plain update and its search."""
    for entity in spec.entities:
        key = f"{entity.name}.{entity.key}"
        lookup = next((t for t in spec.tools if isinstance(t.action, Lookup) and t.action.entity == entity.name), None)
        search = next((t for t in spec.tools if isinstance(t.action, Search) and t.action.entity == entity.name), None)
        updates = (t for t in spec.tools if t.kind == "modify" and t.origin == "reader")
        write = next((t for t in updates if t.parameters[0].carries == key), None)
        if lookup is not None and search is not None and write is not None:
            return entity, lookup, write, search
    raise SystemExit(f"{spec.name} has no entity with lookup, update and search; choose another --domain")


def grown(base: State, entity: Entity, size: int) -> State:
    """The state with `size` records of one entity, copies of its own under new keys."""
    originals = list(base[entity.plural].values())
    keys = (f"{entity.prefix}-{number:06d}" for number in range(size))
    records = {key: {**record, entity.key: key} for key, record in zip(keys, cycle(originals))}
    return {**base, entity.plural: records}


def spread(base: State, spec: EnvironmentSpec, size: int) -> State:
    """The state with `size` records in all, of every entity in turn."""
    state: State = {**base, **{e.plural: {} for e in spec.entities}}
    entities = cycle([e for e in spec.entities if base[e.plural]])
    for number, entity in enumerate(islice(entities, size)):
        originals = list(base[entity.plural].values())
        key = f"{entity.prefix}-{number:06d}"
        state[entity.plural][key] = {**copy.deepcopy(originals[number % len(originals)]), entity.key: key}
    return state


def cases(program: Program, state: State, entity: Entity, lookup: Tool, write: Tool, search: Tool) -> Iterator[Case]:
    """The calls to time; writes alternate between different values, so that each one changes something."""
    keys = [Random("keys").choice(list(state[entity.plural])) for _ in range(50)]
    name = lookup.parameters[0].name
    yield Case("keyed read", lookup.name, tuple({name: k} for k in keys))
    yield Case("keyed write", write.name, accepted_writes(program, state, write))
    yield Case("refused call", lookup.name, ({name: "NONE-0000"},))
    yield Case("search", search.name, ({},), keyed=False)


def accepted_writes(program: Program, state: State, write: Tool) -> tuple[dict[str, Any], ...]:
    """Fifty drawn calls of a writer that are accepted."""
    sampler, instance = ArgumentSampler(program, Random("writes")), Instance(program, state)
    found: list[dict[str, Any]] = []
    for _ in range(5_000):
        arguments = sampler.sample(write.name, instance.live_state)
        if instance.call(write.name, arguments)["ok"]:
            found.append(arguments)
        if len(found) == 50:
            return tuple(found)
    raise SystemExit(f"no calls of {write.name} are accepted; choose another --domain")


def step_row(program: Program, state: State, case: Case, size: int) -> Row:
    """One kind of call: checked, raw, and by the plain technique."""
    repeats = _PAIRS if case.keyed or size <= 1_000 else 40
    instance = Instance(program, state)
    checked = timed(lambda a: instance.call(case.tool, a), case.arguments, repeats)
    method, raw_object = vars(program.cls)[case.tool], program.build(copy.deepcopy(state))
    raw = timed(lambda a: method(raw_object, **a), case.arguments, repeats)
    peer = timed(plain_step(program, state, case.tool), case.arguments, repeats, _PEER_SECONDS)
    target = TARGETS_US.get(case.what)
    return Row(case.what, size, *middle(checked), middle(raw)[0], middle(peer)[0], target)


def plain_step(program: Program, state: State, tool: str) -> Callable[[Mapping[str, Any]], Any]:
    """The same promises by the means at everybody's hand."""
    validator = Draft202012Validator(program.tools[tool].parameters)
    method = vars(program.cls)[tool]
    held = {"state": copy.deepcopy(state)}

    def step(arguments: Mapping[str, Any]) -> Any:
        error = next(iter(validator.iter_errors(arguments)), None)
        if error is not None:
            return {"ok": False, "error": error.message}
        before = copy.deepcopy(held["state"])
        answer = copy.deepcopy(method(program.cls(held["state"]), **arguments))
        if not answer["ok"]:
            held["state"] = before
        return answer

    return step


def restore_rows(program: Program, state: State, size: int) -> Iterator[Row]:
    """Snapshot, restore, reset and fork of one state."""
    instance = Instance(program, state)
    snapshot = instance.snapshot()
    plain = copy.deepcopy(state)
    copied = middle(timed(lambda _: copy.deepcopy(plain), ({},), 200, _PEER_SECONDS))[0]
    actions: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "snapshot": lambda _: instance.snapshot(),
        "restore": lambda _: instance.restore(snapshot),
        "reset": lambda _: instance.reset(),
        "open": lambda _: Instance(program, state),
        "digest": lambda _: instance.digest(),
    }
    for name, action in actions.items():
        what = f"{name} of {size:,} records"
        times = timed(action, ({},), 1_000)
        plain_us = None if name == "digest" else copied
        yield Row(name, size, *middle(times), peer_us=plain_us, target_us=TARGETS_US.get(what))


def load_rows(spec: EnvironmentSpec) -> Iterator[Row]:
    """Loading: compiled from its specification, from a package on disk, and from the cache of loaded code."""
    compiled = compile_environment(spec)
    number = iter(range(10**9))

    def cold(_: Mapping[str, Any]) -> Program:
        # a comment of its own makes every source new to the cache
        return build_program(spec, type(compiled)(f"{compiled.source}\n# {next(number)}\n", compiled.facts))

    count = len(spec.tools)
    yield Row(f"load {count} tools, cold", 0, *middle(timed(cold, ({},), 20)))
    with tempfile.TemporaryDirectory() as folder:
        record = Verification(
            spec=spec.identity, tools=count, declared_errors=0, bad_inputs=0, walked_calls=0, accepted_calls=0
        )
        path = write_package(VerifiedEnvironment(spec, record, ()), Path(folder))
        yield Row(f"load {count} tools, package", 0, *middle(timed(lambda _: load_package(path), ({},), 20)))
    cached = timed(lambda _: build_program(spec, compiled), ({},), 200)
    yield Row(f"load {count} tools, from cache", 0, *middle(cached), target_us=TARGETS_US["load from cache"])


def timed(
    action: Callable[[Mapping[str, Any]], Any],
    arguments: tuple[Mapping[str, Any], ...],
    repeats: int,
    seconds: float = 10.0,
) -> list[int]:
    """Nanoseconds of every repeat; fewer repeats where they would take longer than `seconds`, never less than two."""
    clock, taken = time.perf_counter_ns, []
    end = clock() + int(seconds * 1e9)
    for number, chosen in enumerate(islice(cycle(arguments), repeats)):
        started = clock()
        action(chosen)
        finished = clock()
        taken.append(finished - started)
        if finished > end and number:
            break
    return taken


def middle(nanoseconds: list[int]) -> tuple[float, float]:
    """Median and 95th percentile in microseconds."""
    ordered = sorted(nanoseconds)
    return round(statistics.median(ordered) / 1e3, 2), round(ordered[int(0.95 * (len(ordered) - 1))] / 1e3, 2)


def table(spec: EnvironmentSpec, rows: list[Row]) -> str:
    """The rows as text."""
    lines = [
        f"{spec.name}, {len(spec.tools)} tools; microseconds",
        f"{'what':<26} {'records':>8} {'median':>10} {'p95':>10} {'raw':>10} {'plain':>12} {'target':>8}",
    ]
    for row in rows:
        verdict = "" if row.target_us is None else ("met" if row.met else "MISSED")
        lines.append(
            f"{row.what:<26} {row.records or '':>8} {row.median_us:>10.2f} {row.p95_us:>10.2f} {_cell(row.raw_us):>10} "
            f"{_cell(row.peer_us):>12} {_cell(row.target_us):>8} {verdict}".rstrip()
        )
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()

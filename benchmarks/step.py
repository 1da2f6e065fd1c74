"""What a step costs: one tool call in process, and what surrounds it.

    python benchmarks/step.py [--json]

The environment is a specification of this file's own, so that numbers of different days are about the same thing: five
entities with ten tools each, compiled and loaded like every other. A *keyed* call names one record; it must cost the
same in a state of 100 records and of 100,000. Beside each checked step stand the raw method, which checks nothing, and
the plain way to get the same promises: a prepared `jsonschema` validator, `copy.deepcopy` of the state to undo a
refused call, and of the answer. Every call is timed alone; medians are shown, since other processes disturb the mean.
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
from agentomnia.environment.spec import (
    Attribute,
    Entity,
    EnvironmentSpec,
    Filter,
    Guard,
    Lineage,
    Lookup,
    Parameter,
    Procedure,
    Search,
    Summary,
    Tool,
)
from agentomnia.environment.state import State
from agentomnia.synthesis.environments.author import VerifiedEnvironment
from agentomnia.synthesis.environments.compiler import build_program, compile_environment
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.package import load_package, write_package
from agentomnia.synthesis.environments.states import StateMaker

SIZES = (100, 100_000)
RESET_SIZES = (100, 1_000)
TARGETS_US = {
    "keyed read": 10.0, "keyed write": 10.0, "refused call": 10.0, "refused arguments": 10.0,
    "reset of 100 records": 100.0, "reset of 1,000 records": 1_000.0, "load from cache": 1_000.0,
}  # fmt: skip
_PAIRS = 4_000
_PEER_SECONDS = 2.0


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
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    spec = benchmark_spec()
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
    entity = spec.entity(KINDS[0])
    for size in SIZES:
        state = grown(base, entity, size)
        for case in cases(state, entity):
            yield step_row(program, state, case, size)
    for size in RESET_SIZES:
        yield from restore_rows(program, spread(base, spec, size), size)
    yield from load_rows(spec)


KINDS = ("Parcel", "Machine", "Contract", "Policy", "Batch")
_STATES = ("open", "held", "closed")


def benchmark_spec() -> EnvironmentSpec:
    """The environment that is measured: fifty tools over six entities."""
    site = Entity(
        name="Site", plural="sites", key="site_id", prefix="SIT", noun="site", label="name", count=10,
        attributes=(Attribute(name="name", type="string", maker="company"), Attribute(name="city", type="string")),
    )  # fmt: skip
    return EnvironmentSpec(
        name="RegisterDesk",
        title="Register desk",
        introduction="Keeps registers of things at sites.",
        domains=(10006,),
        clock="2026-03-09T09:00",
        entities=(site, *(_entity(kind) for kind in KINDS)),
        tools=tuple(tool for kind in KINDS for tool in _tools(kind)),
        lineage=Lineage(kind="card", source="benchmarks/step.py"),
    )


def _entity(kind: str) -> Entity:
    lower = kind.lower()
    attributes = (
        Attribute(name="site_id", type="reference", target="Site"),
        Attribute(name="name", type="string"),
        Attribute(name="status", type="enum", choices=_STATES),
        Attribute(name="price", type="number", minimum=0),
        Attribute(name="pieces", type="integer", minimum=0, maximum=1_000),
        Attribute(name="due_on", type="date"),
        Attribute(name="note", type="text", nullable=True),
    )
    return Entity(
        name=kind, plural=f"{lower}_list", key=f"{lower}_id", prefix=kind[:3].upper(), noun=lower,
        label="name", attributes=attributes, count=20,
    )  # fmt: skip


def _tools(kind: str) -> Iterator[Tool]:
    lower = kind.lower()
    key = Parameter(
        name=f"{lower}_id", json_schema=_TEXT, description=f"The {lower}.", carries=f"{kind}.{lower}_id", binds=lower
    )
    price = Parameter(name="price", json_schema=_AMOUNT, carries=f"{kind}.price")
    name = Parameter(name="name", json_schema=_TEXT, carries=f"{kind}.name")
    site = Parameter(name="site_id", json_schema=_TEXT, carries="Site.site_id", binds="site")
    pieces = Parameter(name="pieces", json_schema={"type": "integer", "minimum": 0, "maximum": 1_000})
    due = Parameter(name="due_on", json_schema={"type": "string", "format": "date"}, carries=f"{kind}.due_on")
    yield Tool(
        name=f"get_{lower}", kind="query", description="Read one.", parameters=(key,),
        action=Lookup(entity=kind, include=("site_id",)),
    )  # fmt: skip
    yield _search(kind)
    yield Tool(
        name=f"summarize_{lower}", kind="query", description="Count by group.",
        parameters=(
            Parameter(name="group_by", json_schema={"type": "string", "enum": ["status", "site_id"]}),
            Parameter(
                name="metric",
                json_schema={"type": "string", "enum": ["count", "price"]},
                required=False,
                default="count",
            ),
        ),
        action=Summary(entity=kind, group_fields=("status", "site_id"), metrics=("price",)),
    )  # fmt: skip
    closed = Guard(that=f'{lower}.status != "closed"', message=f"{{{lower}.name}} is closed.", hint="Reopen it.")
    for verb, others, steps, body in (
        ("reprice", (price,), (closed,), f"{lower}.price = price"),
        ("rename", (name,), (), f"{lower}.name = name"),
        ("move", (site,), (closed,), f"{lower}.site_id = site.site_id"),
        ("count", (pieces,), (), f"{lower}.pieces = pieces"),
        ("postpone", (due,), (closed,), f"{lower}.due_on = due_on"),
        ("hold", (), (), f'{lower}.status = "held"'),
        ("close", (), (closed,), f'{lower}.status = "closed"'),
    ):
        yield Tool(
            name=f"{verb}_{lower}", kind="modify", description=f"{verb.title()} it.", parameters=(key, *others),
            action=Procedure(steps=steps, body=body),
        )  # fmt: skip


_TEXT = {"type": "string", "minLength": 1, "maxLength": 64}
_AMOUNT = {"type": "number", "minimum": 0}


def _search(kind: str) -> Tool:
    optional: dict[str, tuple[dict[str, Any], Any]] = {
        "status": ({"type": "string", "enum": list(_STATES)}, None),
        "site_id": (_TEXT, None),
        "min_price": (_AMOUNT, None),
        "max_price": (_AMOUNT, None),
        "limit": ({"type": "integer", "minimum": 1, "maximum": 200}, 50),
    }
    filters = (
        Filter(parameter="status", field="status", op="equals"),
        Filter(parameter="site_id", field="site_id", op="equals"),
        Filter(parameter="min_price", field="price", op="at_least"),
        Filter(parameter="max_price", field="price", op="at_most"),
    )
    parameters = (
        Parameter(name=name, json_schema=schema, required=False, default=default)
        for name, (schema, default) in optional.items()
    )
    return Tool(
        name=f"search_{kind.lower()}", kind="query", description="Search.", parameters=tuple(parameters),
        action=Search(entity=kind, filters=filters),
    )  # fmt: skip


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


def cases(state: State, entity: Entity) -> Iterator[Case]:
    """The calls to time; every write sets another price than the one before."""
    noun, rng = entity.noun, Random("calls")
    keys = [rng.choice(list(state[entity.plural])) for _ in range(50)]
    yield Case("keyed read", f"get_{noun}", tuple({entity.key: k} for k in keys))
    held = [k for k in state[entity.plural] if state[entity.plural][k]["status"] != "closed"][:50]
    prices = tuple({entity.key: k, "price": 1.5 + n} for n in range(2) for k in held)
    yield Case("keyed write", f"reprice_{noun}", prices)
    yield Case("refused call", f"get_{noun}", ({entity.key: "NONE-0000"},))
    yield Case("refused arguments", f"reprice_{noun}", ({entity.key: keys[0], "price": "much"},))
    yield Case("search", f"search_{noun}", ({"status": "held", "min_price": 50},), keyed=False)


def step_row(program: Program, state: State, case: Case, size: int) -> Row:
    """One kind of call: checked, raw, and by the plain technique."""
    repeats = _PAIRS if case.keyed or size <= 1_000 else 40
    instance = Instance(program, state)
    checked = timed(lambda a: instance.call(case.tool, a), case.arguments, repeats)
    raw = None
    if case.what != "refused arguments":  # the bare method would take them
        method, bare = vars(program.cls)[case.tool], program.build(copy.deepcopy(state))
        raw = middle(timed(lambda a: method(bare, **a), case.arguments, repeats))[0]
    peer = timed(plain_step(program, state, case.tool), case.arguments, repeats, _PEER_SECONDS)
    target = TARGETS_US.get(case.what)
    return Row(case.what, size, *middle(checked), raw, middle(peer)[0], target)


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
    """Loading a program three ways.

    `cold` compiles and runs the source for the first time; `package` reads a package from disk and proves that its
    source is what its specification says; `from cache` is what every later load in the same process costs.
    """
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

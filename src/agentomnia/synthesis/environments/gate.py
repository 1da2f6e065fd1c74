"""The environment gate: what must be proved before an environment is kept (paper, section 4.2.4).

    load         the program compiles and loads
    state        a valid initial state exists
    accepted     every tool has a call that is accepted; a modifying tool has one that changes the state
    errors       every declared error can be reached
    bad_input    missing, null, wrong type, unhashable, unknown id, unknown and dunder names: an error, no change
    query        a query never changes the state
    rules        types, references and rules hold after every accepted call of random walks
    replay       two processes agree on every answer and every state, to the byte
    isolation    two instances never see each other

What fails is named by tool, so that `correct` can repair or drop it. Imported classes, which have no
specification, are held to `FOREIGN_CHECKS` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentomnia.environment.imported import ImportedTask, Unsupported, load_imported, traces_elsewhere
from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program, ToolSchema
from agentomnia.environment.replay import Call, ReplayProcess, trace
from agentomnia.environment.result import Result
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.spec import Attribute, EnvironmentSpec, Tool
from agentomnia.environment.state import State, pack, state_problems, unpack, value_problem
from agentomnia.errors import EnvironmentFault, InfrastructureError, OmniaError
from agentomnia.row import Row
from agentomnia.synthesis.environments.compiler import Compiled, build_program, compile_environment
from agentomnia.synthesis.environments.makers import make_value
from agentomnia.synthesis.environments.probe import Probe
from agentomnia.synthesis.environments.states import StateMaker

ENVIRONMENT_CHECKS = (
    "load", "state", "accepted", "errors", "bad_input", "query", "rules", "replay", "isolation",
)  # fmt: skip
_WALK = 120


class Finding(Row):
    """One failed check."""

    check: str
    evidence: str
    tool: str | None = None
    error: int | None = None
    """Which declared error of the tool could not be reached."""


class Verification(Row):
    """The record of an environment's checks, stored beside it."""

    schema_version: int = 1
    spec: str
    """Identity of the specification."""
    tools: int
    declared_errors: int
    bad_inputs: int
    walked_calls: int
    accepted_calls: int
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def failed_checks(self) -> tuple[str, ...]:
        """Names of the checks that found something, in the order of the gate."""
        found = {f.check for f in self.findings}
        return tuple(c for c in ENVIRONMENT_CHECKS if c in found)


@dataclass
class _Count:
    findings: list[Finding] = field(default_factory=list)
    bad_inputs: int = 0
    walked: int = 0
    accepted: int = 0


def verify_environment(
    spec: EnvironmentSpec, *, seed: str = "gate", replayer: ReplayProcess | None = None
) -> Verification:
    """Run every check of the environment gate.

    Args:
        spec: the environment.
        seed: names the random draws.
        replayer: a second process to replay in; one is started and stopped where none is given.

    Returns:
        The record; `passed` says whether the environment may be kept.
    """
    count = _Count()
    errors = 0
    try:
        compiled = compile_environment(spec)
        program = build_program(spec, compiled)
        errors = sum(len(f.errors) for f in compiled.facts.values())
        states = probe_states(spec, seed)
    except OmniaError as error:
        check = "state" if "initial state" in str(error) else "load"
        count.findings.append(Finding(check=check, evidence=str(error)))
        return _record(spec, errors, count)
    _check_tools(spec, program, compiled, states, seed, count)
    calls = _check_walks(spec, program, states, seed, count)
    _check_replay(program, states[0], calls, replayer, count)
    return _record(spec, errors, count)


def _record(spec: EnvironmentSpec, errors: int, count: _Count) -> Verification:
    return Verification(
        spec=spec.identity,
        tools=len(spec.tools),
        declared_errors=errors,
        bad_inputs=count.bad_inputs,
        walked_calls=count.walked,
        accepted_calls=count.accepted,
        findings=tuple(count.findings),
    )


def probe_states(spec: EnvironmentSpec, seed: str, perturbed: int = 4) -> list[State]:
    """Valid states to probe tools in: ordinary ones, a small one, and ordinary ones with single fields redrawn.

    Raises:
        SpecError: no valid initial state was found.
    """
    maker = StateMaker(spec)
    states = [maker.make(f"{seed}/0"), maker.make(f"{seed}/1"), maker.make(f"{seed}/small", scale=0.3)]
    ordinary = [pack(state) for state in states[:2]]
    rng = Random(f"{seed}/perturb")
    for number in range(perturbed):
        state = unpack(ordinary[number % 2])
        for _ in range(40):
            _perturb(spec, maker, state, rng)
        states.append(state)
    return states


def _perturb(spec: EnvironmentSpec, maker: StateMaker, state: State, rng: Random) -> None:
    """Redraw one field of one record, and take it back where the state would not be valid."""
    entity = rng.choice(spec.entities)
    records = list(state[entity.plural].values())
    if not records or not entity.attributes:
        return
    record, attribute = rng.choice(records), rng.choice(entity.attributes)
    if entity.lifecycle is not None and rng.random() < 0.5:
        attribute = entity.attribute(entity.lifecycle.field)
    before = record[attribute.name]
    if attribute.target is not None:
        record[attribute.name] = rng.choice(list(state[spec.entity(attribute.target).plural]) or [before])
    else:
        extremes = [m for m in (attribute.minimum, attribute.maximum) if m is not None]
        if extremes and rng.random() < 0.4:
            extreme = rng.choice(extremes)
            record[attribute.name] = int(extreme) if attribute.type == "integer" else extreme
        else:
            record[attribute.name] = make_value(attribute, spec.clock, rng)
    if maker.broken_by(state, entity, record, attribute.name) or _spoiled(attribute, record, records):
        record[attribute.name] = before


def _spoiled(attribute: Attribute, record: dict[str, Any], records: list[dict[str, Any]]) -> bool:
    """Whether a redrawn field makes a valid state invalid; references are drawn from what exists."""
    value = record[attribute.name]
    twice = attribute.unique and value is not None and sum(r[attribute.name] == value for r in records) > 1
    return value_problem(attribute, value) is not None or twice


def _check_tools(
    spec: EnvironmentSpec,
    program: Program,
    compiled: Compiled,
    states: Sequence[State],
    seed: str,
    count: _Count,
) -> None:
    probe = Probe(spec, program, compiled.facts, states)
    for tool in spec.tools:
        try:
            count.findings += _unreached(tool, probe, compiled, Random(f"{seed}/{tool.name}"))
            count.findings += _bad_inputs(tool, probe.instances[0], probe.snapshots[0], count)
        except EnvironmentFault as error:
            count.findings.append(Finding(check="accepted", tool=tool.name, evidence=f"exception escaped: {error}"))
            for instance in probe.instances:
                instance.reset()


def _unreached(tool: Tool, probe: Probe, compiled: Compiled, rng: Random) -> Iterator[Finding]:
    reached = probe.search(tool, rng)
    if not reached.accepted:
        yield Finding(check="accepted", tool=tool.name, evidence="no call was accepted")
    elif tool.kind == "modify" and not reached.changed:
        yield Finding(check="accepted", tool=tool.name, evidence="it modifies nothing")
    for index in sorted(reached.missing):
        error = compiled.facts[tool.name].errors[index]
        yield Finding(check="errors", tool=tool.name, error=index, evidence=f"{error.code}: {error.template}")


def bad_arguments(schema: dict[str, Any], good: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The battery of bad input for a tool: a name for the fault, and the arguments that have it."""
    yield "not an object", ["a", "list"]
    yield "unknown argument", {**good, "surprise": 1}
    yield "dunder argument", {**good, "__class__": "x"}
    yield "self argument", {**good, "self": "x"}
    for name in schema.get("required", ()):
        yield f"missing {name}", {k: v for k, v in good.items() if k != name}
    for name, part in schema.get("properties", {}).items():
        kinds = part.get("type", "string")
        listed = [kinds] if isinstance(kinds, str) else kinds
        if "null" not in listed:
            yield f"null {name}", {**good, name: None}
        if "object" not in listed:
            yield f"object as {name}", {**good, name: {"nested": []}}
        if "array" not in listed:
            yield f"list as {name}", {**good, name: [[]]}
        if "boolean" not in listed:
            yield f"boolean as {name}", {**good, name: True}
        if "string" in listed and "enum" in part:
            yield f"unknown choice {name}", {**good, name: "no such choice"}
        if part.get("format") in ("date", "date-time"):
            yield f"impossible date {name}", {**good, name: "2026-02-30"}
        if {"integer", "number"} & set(listed):
            yield f"text as {name}", {**good, name: "many"}
            yield f"not a number {name}", {**good, name: float("nan")}


def _bad_inputs(tool: Tool, instance: Instance, before: bytes, count: _Count) -> Iterator[Finding]:
    sampler = ArgumentSampler(instance.program, Random(tool.name))
    good = sampler.sample(tool.name, instance.live_state)
    battery = [*bad_arguments(tool.input_schema, good), *_unknown_ids(tool, good)]
    for fault, arguments in battery:
        count.bad_inputs += 1
        answer = instance.call(tool.name, arguments)
        if answer["ok"]:
            yield Finding(check="bad_input", tool=tool.name, evidence=f"{fault} was accepted")
    if instance.snapshot() != before:
        yield Finding(check="bad_input", tool=tool.name, evidence="refused calls changed the state")
        instance.reset()


def _unknown_ids(tool: Tool, good: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for parameter in tool.parameters:
        if parameter.binds is not None or tool.action.type == "lookup":
            yield f"unknown id {parameter.name}", {**good, parameter.name: "NONE-0000"}


def _check_walks(
    spec: EnvironmentSpec, program: Program, states: Sequence[State], seed: str, count: _Count
) -> list[Call]:
    """Random walks over all tools; returns the calls of the first one for the replay."""
    first: list[Call] = []
    for number, state in enumerate(states[:2]):
        calls = _walk(spec, program, state, Random(f"{seed}/walk/{number}"), count)
        first = first or calls
    return first


def _walk(spec: EnvironmentSpec, program: Program, state: State, rng: Random, count: _Count) -> list[Call]:
    instance, bystander = Instance(program, state), Instance(program, state)
    untouched = bystander.digest()
    sampler = ArgumentSampler(program, rng)
    calls: list[Call] = []
    # changes are drawn more often: they are what can go wrong
    tools = [t for t in spec.tools for _ in range(3 if t.kind == "modify" else 1)]
    after = instance.snapshot()
    for _ in range(_WALK if tools else 0):
        tool = rng.choice(tools)
        arguments = sampler.sample(tool.name, instance.live_state)
        before = after
        count.walked += 1
        try:
            answer = instance.call(tool.name, arguments)
            after = instance.snapshot()
            findings = list(_after_call(spec, tool, instance, (before, after), bool(answer["ok"])))
        except EnvironmentFault as error:
            count.findings.append(Finding(check="accepted", tool=tool.name, evidence=f"exception escaped: {error}"))
            instance.restore(before)
            after = before
            continue
        count.accepted += bool(answer["ok"])
        count.findings += findings
        if any(f.check == "rules" for f in findings):
            after = before
            instance.restore(before)  # and the replay leaves the call out: others may fail in a broken state
        else:
            calls.append((tool.name, arguments))
    if bystander.digest() != untouched:
        count.findings.append(Finding(check="isolation", evidence="a second instance changed with the first"))
    return calls


def _after_call(
    spec: EnvironmentSpec, tool: Tool, instance: Instance, snapshots: tuple[bytes, bytes], accepted: bool
) -> Iterator[Finding]:
    before, after = snapshots
    changed = after != before
    if changed and not accepted:
        yield Finding(check="bad_input", tool=tool.name, evidence="a refused call changed the state")
    if changed and tool.kind == "query":
        yield Finding(check="query", tool=tool.name, evidence="a query changed the state")
    if not (changed and accepted):
        return
    problem = next(state_problems(spec, instance.live_state), None) or next(iter(instance.broken_rules()), None)
    if problem is not None:
        yield Finding(check="rules", tool=tool.name, evidence=f"after an accepted call: {problem}")
        return
    yield from _illegal_moves(spec, tool, unpack(before), instance.live_state)


def _illegal_moves(spec: EnvironmentSpec, tool: Tool, before: State, after: State) -> Iterator[Finding]:
    """Lifecycle moves that the specification does not have."""
    for entity in spec.entities:
        if entity.lifecycle is None or before[entity.plural] == after[entity.plural]:
            continue
        status, legal = entity.lifecycle.field, set(entity.lifecycle.moves)
        for key, record in after[entity.plural].items():
            old = before[entity.plural].get(key)
            if old is not None and old[status] != record[status] and (old[status], record[status]) not in legal:
                move = f"{old[status]} → {record[status]}"
                yield Finding(
                    check="rules",
                    tool=tool.name,
                    evidence=f"{entity.name} moved {move}, which is no legal move",
                )


def _check_replay(
    program: Program, state: State, calls: list[Call], replayer: ReplayProcess | None, count: _Count
) -> None:
    try:
        here, again = trace(program, state, calls), trace(program, state, calls)
        if replayer is None:
            with ReplayProcess() as started:
                there = started.trace(program, state, calls)
        else:
            there = replayer.trace(program, state, calls)
    except InfrastructureError:
        raise
    except OmniaError as error:
        count.findings.append(Finding(check="replay", evidence=str(error)))
        return
    for other, where in ((again, "in this process"), (there, "in another process")):
        difference = next((i for i, (a, b) in enumerate(zip(here, other)) if a != b), None)
        if difference is not None or len(here) != len(other):
            name = calls[difference][0] if difference is not None else "the end"
            count.findings.append(Finding(check="replay", tool=name, evidence=f"a replay {where} differs at {name}"))


FOREIGN_CHECKS = ("load", "escape", "atomic", "query", "isolation", "restore", "replay")
"""What an imported class is held to: it loads, no input makes an exception escape, a failed call leaves the state as
it was, a query changes nothing, instances never see each other, a restored state goes on like the one it was taken
from, and two processes agree."""
_FOREIGN_WALK = 60


class ForeignVerification(Row):
    """The record of an imported environment's checks."""

    schema_version: int = 1
    environment: str
    task: str
    """The task whose first state it was checked in."""
    bad_inputs: int
    walked_calls: int
    accepted_calls: int
    undone: tuple[str, ...]
    """Tools that change something before they fail; the instance takes it back."""
    notes: tuple[Unsupported, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass
class _ForeignWalk:
    task: ImportedTask
    count: _Count = field(default_factory=_Count)
    calls: list[Call] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)
    notes: tuple[Unsupported, ...] = ()

    def find(self, check: str, tool: str | None, evidence: str) -> None:
        """Note the first failure of each check of each tool."""
        if all((f.check, f.tool) != (check, tool) for f in self.count.findings):
            self.count.findings.append(Finding(check=check, tool=tool, evidence=evidence[:500]))


def verify_imported(tasks: Sequence[ImportedTask], *, seed: str = "gate") -> list[ForeignVerification]:
    """Run the checks of imported classes, each in the first state of one task. Runs the classes: only for trusted ones.

    Args:
        tasks: one task of each environment.
        seed: names the random draws.
    """
    walks = [_walk_foreign(task, seed) for task in tasks]
    for walk, there in zip(walks, traces_elsewhere([(w.task, w.calls) for w in walks])):
        if walk.calls and there != walk.marks:
            place = next((i for i, (a, b) in enumerate(zip(walk.marks, there)) if a != b), len(walk.calls) - 1)
            reason = there if isinstance(there, str) else f"a replay in another process differs at call {place}"
            walk.find("replay", walk.calls[place][0], reason)
    return [_foreign_record(walk) for walk in walks]


def _foreign_record(walk: _ForeignWalk) -> ForeignVerification:
    return ForeignVerification(
        environment=walk.task.environment.id,
        task=walk.task.id,
        bad_inputs=walk.count.bad_inputs,
        walked_calls=walk.count.walked,
        accepted_calls=walk.count.accepted,
        undone=tuple(sorted(walk.undone)),
        notes=walk.notes,
        findings=tuple(walk.count.findings),
    )


def _walk_foreign(task: ImportedTask, seed: str) -> _ForeignWalk:
    """Everything but the replay in another process."""
    walk = _ForeignWalk(task)
    try:
        loaded = load_imported(task, trust=True)
        instance, bystander = (Instance(loaded.program, loaded.state) for _ in range(2))
        walk.notes = loaded.notes
        untouched = bystander.digest()
        rng = Random(f"{seed}/{task.id}")
        for tool in loaded.program.tools.values():
            _foreign_bad_inputs(walk, tool, instance, rng)
        walk.undone |= instance.undone
        instance = Instance(loaded.program, loaded.state)
        _foreign_calls(walk, instance, rng)
        walk.undone |= instance.undone
        _check_restored(walk, instance, rng)
        walk.marks = trace(loaded.program, loaded.state, walk.calls)
        if walk.marks != trace(loaded.program, loaded.state, walk.calls):
            walk.find("replay", None, "a replay in this process differs")
        if bystander.digest() != untouched:
            walk.find("isolation", None, "a second instance changed with the first")
    except (OmniaError, TypeError, ValueError) as error:
        walk.find("load", None, str(error))
    return walk


def _foreign_arguments(instance: Instance, tool: str, rng: Random) -> dict[str, Any]:
    return ArgumentSampler(instance.program, rng).sample(tool, _records_of(instance.live_state))


def _records_of(state: State) -> State:
    """The tables of a state whose shape nobody promised, each record with its key in front."""
    tables = {}
    for name, value in state.items():
        if name != "clock" and isinstance(value, dict) and all(isinstance(r, dict) for r in value.values()):
            tables[name] = {key: {f"{name.removesuffix('s')}_id": key, **record} for key, record in value.items()}
    return tables


def _foreign_bad_inputs(walk: _ForeignWalk, tool: ToolSchema, instance: Instance, rng: Random) -> None:
    good = _foreign_arguments(instance, tool.name, rng)
    kinds = {n: p.get("type") for n, p in tool.parameters["properties"].items() if "enum" not in p}
    battery = [*bad_arguments(tool.parameters, good)]
    battery += [(f"unknown {n}", {**good, n: "NONE-0000"}) for n, kind in kinds.items() if kind == "string"]
    battery += [(f"unknown {n}", {**good, n: -999_999}) for n, kind in kinds.items() if kind in ("integer", "number")]
    for fault, arguments in battery:
        walk.count.bad_inputs += 1
        _foreign_call(walk, instance, tool.name, arguments, fault)
        instance.reset()


def _foreign_call(walk: _ForeignWalk, instance: Instance, tool: str, arguments: Any, what: str) -> Result | None:
    """One call under every check of a single call; `None` where an exception escaped."""
    before = instance.snapshot()
    try:
        answer = instance.call(tool, arguments)
    except EnvironmentFault as error:
        walk.find("escape", tool, f"{what}: {error}")
        answer = None
    changed = instance.snapshot() != before
    if changed and (answer is None or not answer["ok"]):
        walk.find("atomic", tool, f"{what}: a failed call changed the state")
    if changed and instance.program.tools[tool].kind == "query":
        walk.find("query", tool, f"{what}: a query changed the state")
    return answer


def _foreign_calls(walk: _ForeignWalk, instance: Instance, rng: Random) -> None:
    names = sorted(instance.program.tools)
    for _ in range(_FOREIGN_WALK):
        name = rng.choice(names)
        arguments = _foreign_arguments(instance, name, rng)
        answer = _foreign_call(walk, instance, name, arguments, "arguments that fit the schema")
        walk.count.walked += 1
        if answer is not None:
            walk.count.accepted += bool(answer["ok"])
            walk.calls.append((name, arguments))


def _check_restored(walk: _ForeignWalk, instance: Instance, rng: Random) -> None:
    """A state restored elsewhere must go on like the one it was taken from."""
    twin = instance.fork()
    for name in sorted(instance.program.tools):
        arguments = _foreign_arguments(instance, name, rng)
        try:
            same = instance.call(name, arguments) == twin.call(name, arguments)
        except EnvironmentFault:
            continue  # found as `escape` already
        if not same or instance.digest() != twin.digest():
            walk.find("restore", name, "after a restore it answers otherwise than before")
            return

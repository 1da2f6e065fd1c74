"""Execution-grounded DAG-Standard tasks (paper, section 4.4.1 "Task construction").

From a sampled tool group: goals by trial on a scratch instance, then the calls by which an agent finds
what the goals name, then the goals themselves and perhaps questions, all executed; then the query, the
augmented DAG, and the criterion from what really changed. A candidate that cannot be finished says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.spec import EnvironmentSpec, Lookup, Procedure, Tool
from agentomnia.environment.state import State
from agentomnia.row import digest
from agentomnia.synthesis.environments.compiler import ToolFacts
from agentomnia.synthesis.tasks.dag.answers import Question, ask_count, ask_field, ask_summary
from agentomnia.synthesis.tasks.dag.describe import Describer
from agentomnia.synthesis.tasks.dag.goals import Goal, GoalSearch, owned_by
from agentomnia.synthesis.tasks.dag.ground import Grounder
from agentomnia.synthesis.tasks.dag.groups import ToolGroup
from agentomnia.synthesis.tasks.evidence import coordinate, difficulty_evidence, measure
from agentomnia.synthesis.tasks.query import QueryWriter, argument_words
from agentomnia.task.criterion import AnswerField, Change, Criterion, Expected
from agentomnia.task.diff import state_diff
from agentomnia.task.task import PrivateTask, Source, Task, TaskDag


@dataclass(frozen=True)
class DagProfile:
    """The refinement profile of a task variant."""

    most_goals: int = 3
    least_goals: int = 1
    """Candidates with fewer goals are dropped, but for those that only ask."""
    most_questions: int = 1
    question_share: float = 0.35
    """How many of the tasks with goals also ask something."""
    only_questions: float = 0.12
    """How many tasks change nothing and only ask."""
    repertoire: frozenset[str] = frozenset()
    """Tools that goals and questions may be about; any when empty. Readers that find records are always allowed."""

    def allows(self, tool: str) -> bool:
        """Whether a goal or a question may be about a tool."""
        return not self.repertoire or tool in self.repertoire


STANDARD_PROFILE = DagProfile()


@dataclass(frozen=True)
class Candidate:
    """A finished task before the gate."""

    public: Task
    private: PrivateTask


@dataclass(frozen=True)
class Dropped:
    """Why a tool group gave no task."""

    reason: str


@dataclass(frozen=True)
class TaskSite:
    """Where tasks take place: an environment and one of its initial states."""

    environment: str
    spec: EnvironmentSpec
    program: Program
    facts: dict[str, ToolFacts]
    state_name: str
    state: State


def generate(
    site: TaskSite, group: ToolGroup, seed: str, profile: DagProfile = STANDARD_PROFILE
) -> Candidate | Dropped:
    """Make one task from a tool group, or say why there is none."""
    rng = Random(seed)
    return _Generation(site, group, seed, profile, rng).run()


class _Generation:
    def __init__(self, site: TaskSite, group: ToolGroup, seed: str, profile: DagProfile, rng: Random) -> None:
        self.site = site
        self.spec = site.spec
        self.group = group
        self.seed = seed
        self.profile = profile
        self.rng = rng
        self.speaker = self._draw_speaker()
        self.validated: dict[tuple[str, str], str] = {}
        """VALIDATE nodes by the record they looked at."""

    def _draw_speaker(self) -> str | None:
        if self.spec.speaker is None:
            return None
        keys = list(self.site.state[self.spec.entity(self.spec.speaker).plural])
        return self.rng.choice(keys) if keys else None

    def run(self) -> Candidate | Dropped:
        search = self._search_goals()
        only_ask = self.rng.random() < self.profile.only_questions
        goals = [] if only_ask else search.goals
        if not goals and not only_ask:
            return Dropped("no goal was accepted")
        if goals and len(goals) < self.profile.least_goals:
            return Dropped("too few goals were accepted")
        grounder = self._grounder(search if goals else None)
        created = search.created if goals else {}
        problem = self._ground_goals(grounder, goals, created)
        if problem is not None:
            return Dropped(problem)
        questions = self._ask(grounder, goals)
        if not goals and not questions:
            return Dropped("no question could be asked")
        return self._finish(grounder, goals, questions, created)

    def _search_goals(self) -> GoalSearch:
        describer = Describer(self.spec, self.site.state, self.speaker)
        scratch = Instance(self.site.program, self.site.state)
        search = GoalSearch(self.spec, self.site.facts, scratch, describer, self.rng)
        wanted = self.rng.randint(self.profile.least_goals, self.profile.most_goals)
        for chain in self.group.chains:
            for name in chain:
                tool = self.spec.tool(name)
                wants = tool.kind == "modify" and self.profile.allows(name) and len(search.goals) < wanted
                if wants and askable(self.spec, tool):
                    search.add(tool)
        return search

    def _grounder(self, search: GoalSearch | None) -> Grounder:
        """A grounder on a fresh instance; descriptions avoid the fields that the goals change."""
        touched: set[tuple[str, str]] = set()
        if search is not None:
            by_container = {e.plural: e.name for e in self.spec.entities}
            diff = state_diff(self.site.state, search.scratch.live_state)
            touched = {(by_container[c], f) for (c, _), fields in diff.updated.items() for f in fields}
        describer = Describer(self.spec, self.site.state, self.speaker, frozenset(touched))
        return Grounder(self.spec, Instance(self.site.program, self.site.state), describer, self.group.tools, self.rng)

    def _ground_goals(self, grounder: Grounder, goals: list[Goal], created: dict[tuple[str, str], int]) -> str | None:
        for goal in goals:
            for entity, key in self._named(goal):
                if (entity, key) in created:
                    continue
                if grounder.describe(entity, key) is None:
                    return "a record cannot be told apart in words"
                if grounder.locate(entity, key) is None:
                    return "no reader shows a record"
        self._look_before(grounder, goals)
        for number, goal in enumerate(goals):
            problem = self._perform(grounder, goal, goals[:number])
            if problem is not None:
                return problem
        return None

    def _named(self, goal: Goal) -> list[tuple[str, str]]:
        found = []
        for parameter in goal.tool.parameters:
            target = self.spec.target(parameter.carries)
            if target is not None and parameter.name in goal.arguments:
                found.append((target, str(goal.arguments[parameter.name])))
        return found

    def _look_before(self, grounder: Grounder, goals: list[Goal]) -> None:
        """Scattered lookups check a record before it is changed: VALIDATE nodes of the augmented DAG."""
        named = {place for goal in goals for place in self._named(goal)}
        for name in self.group.scattered:
            tool = self.spec.tool(name)
            if not isinstance(tool.action, Lookup):
                continue
            keys = sorted(k for e, k in named if e == tool.action.entity and (e, k) in grounder.plan.known)
            if not keys:
                continue
            key = self.rng.choice(keys)
            parameter = tool.parameters[0].name
            source = grounder.plan.known[(tool.action.entity, key)]
            answer = grounder.instance.call(name, {parameter: key})
            index = grounder.add_call(name, {parameter: key}, {parameter: source}, answer["data"])
            checked = grounder.plan.think("VALIDATE", "the record allows what is asked", [f"call:{index}"])
            self.validated.setdefault((tool.action.entity, key), checked)

    def _perform(
        self,
        grounder: Grounder,
        goal: Goal,
        earlier: list[Goal],
    ) -> str | None:
        sources: dict[str, Source] = {}
        for parameter in goal.tool.parameters:
            if parameter.name not in goal.arguments:
                continue
            value = goal.arguments[parameter.name]
            target = self.spec.target(parameter.carries)
            if target is None:
                sources[parameter.name] = Source(
                    origin="query", text=argument_words(self.spec, goal.tool, parameter, value)
                )
                continue
            known = grounder.plan.known.get((target, str(value)))
            if known is None:
                return "no observation shows an identifier"
            sources[parameter.name] = known
        answer = grounder.instance.call(goal.tool.name, goal.arguments)
        if not answer["ok"]:
            return "a goal fails after the readers ran"
        index = grounder.add_call(goal.tool.name, goal.arguments, sources, answer["data"])
        checks = [self.validated[place] for place in self._named(goal) if place in self.validated]
        grounder.plan.edges += [(check, f"call:{index}") for check in checks]
        self._order_after_conflicts(grounder, goal, index, earlier)
        self._show_created(grounder, goal, index, answer["data"])
        return None

    def _order_after_conflicts(self, grounder: Grounder, goal: Goal, index: int, earlier: list[Goal]) -> None:
        """A goal stays behind earlier goals whose records it reads or writes."""
        facts = self.site.facts
        mine = facts[goal.tool.name]
        conflicting = [
            g for g in earlier
            if facts[g.tool.name].written_entities & (mine.reads | mine.written_entities)
            or mine.written_entities & facts[g.tool.name].reads
        ]  # fmt: skip
        names = [(g.tool.name, g.arguments) for g in conflicting]
        calls = grounder.plan.calls
        behind = {i for i in range(index) if (calls[i].tool, calls[i].arguments) in names}
        # readers came first in the reference: a goal that changes what they read must not overtake them
        behind |= {i for i in range(index) if facts[calls[i].tool].reads & mine.written_entities}
        call = calls[index]
        calls[index] = call.model_copy(update={"after": tuple(sorted({*call.after, *behind}))})

    def _show_created(self, grounder: Grounder, goal: Goal, index: int, data: dict[str, Any]) -> None:
        for entity, key in goal.created:
            place = next((p for p, e in self.site.facts[goal.tool.name].returned if e == entity and p in data), None)
            key_field = self.spec.entity(entity).key
            if place is not None and data[place].get(key_field) == key:
                grounder.plan.known[(entity, key)] = Source(origin="observation", call=index, path=(place, key_field))

    def _ask(self, grounder: Grounder, goals: list[Goal]) -> list[Question]:
        if goals and self.rng.random() >= self.profile.question_share:
            return []
        queries = [t for t in self.spec.tools if t.kind == "query" and self.profile.allows(t.name)]
        self.rng.shuffle(queries)
        queries.sort(key=lambda t: t.name not in self.group.tools)
        questions: list[Question] = []
        prefer = {place for goal in goals for place in self._named(goal)}
        for tool in queries:
            if len(questions) >= self.profile.most_questions + (0 if goals else 1):
                break
            form = self.rng.choice((ask_count, ask_summary)) if tool.action.type != "lookup" else None
            before = len(grounder.plan.calls)
            question = form(grounder, tool) if form is not None else ask_field(grounder, tool, prefer)
            if question is not None and question.words not in {q.words for q in questions}:
                questions.append(question)
                self._order_after_changes(grounder, before)
        return questions

    def _order_after_changes(self, grounder: Grounder, start: int) -> None:
        """What is asked "in the end" is read after everything that changes."""
        changing = [i for i, c in enumerate(grounder.plan.calls) if self.spec.tool(c.tool).kind == "modify"]
        for index in range(start, len(grounder.plan.calls)):
            call = grounder.plan.calls[index]
            after = tuple(sorted({*call.after, *(i for i in changing if i < index)}))
            grounder.plan.calls[index] = call.model_copy(update={"after": after})

    def _finish(
        self,
        grounder: Grounder,
        goals: list[Goal],
        questions: list[Question],
        created: dict[tuple[str, str], int],
    ) -> Candidate | Dropped:
        writer = QueryWriter(self.spec, grounder, self.rng)
        query = writer.write(goals, questions, created)
        if query is None:
            return Dropped("a goal cannot be said")
        names = ["answer"] if len(questions) == 1 else [f"answer_{i + 1}" for i in range(len(questions))]
        answer = {n: q.expected.value for n, q in zip(names, questions)}
        fields = tuple(
            AnswerField(name=n, description=q.answer.description, type=q.answer.type) for n, q in zip(names, questions)
        )
        changes = criterion_changes(self.spec, self.site.state, grounder.instance.live_state)
        if not changes and not questions:
            return Dropped("nothing changed in the end")
        structure = measure(self.spec, grounder, len(goals), len(questions), sum(_irreversible(g) for g in goals))
        evidence = difficulty_evidence(structure)
        identity = digest([self.site.environment, self.site.state_name, query, [f.name for f in fields]])
        task = Task(
            id=f"dag-{identity[:12]}",
            environment=self.site.environment,
            state=self.site.state_name,
            kind="dag",
            query=query,
            answer=fields,
            coordinate=coordinate(self.spec, structure, evidence),
            lineage=self.seed,
        )
        private = PrivateTask(
            id=task.id,
            criterion=Criterion(changes=changes, answers={n: q.expected for n, q in zip(names, questions)}),
            calls=tuple(grounder.plan.calls),
            answer=answer,
            dag=TaskDag(virtual=tuple(grounder.plan.virtual), edges=tuple(dict.fromkeys(grounder.plan.edges))),
            evidence=evidence,
            mentions=tuple(dict.fromkeys(m for m in writer.mentions if m)),
        )
        return Candidate(task, private)


def askable(spec: EnvironmentSpec, tool: Tool) -> bool:
    """Whether a person of this environment would ask for the tool: it can be said, and it is theirs to ask.

    Where a customer speaks, staff operations (on a catalogue, on other people's records) are left out.
    """
    if not (tool.ask or tool.origin == "reader"):
        return False
    if spec.speaker is None:
        return True
    if tool.staff:
        return False
    targets = [spec.target(p.carries) for p in tool.parameters if p.binds]
    return any(t is not None and owned_by(spec, t, spec.speaker) for t in targets)


def _irreversible(goal: Goal) -> bool:
    """An undo, a deletion, or a move into a state that nothing leaves."""
    if not isinstance(goal.tool.action, Procedure):
        return False
    return goal.tool.action.undo or "delete(" in goal.tool.action.body


def criterion_changes(spec: EnvironmentSpec, before: State, after: State) -> tuple[Change, ...]:
    """The required changes that a reference execution made, created records under symbols."""
    diff = state_diff(before, after)
    symbols = {place: f"${i + 1}" for i, place in enumerate(diff.created)}
    by_container = {e.plural: e for e in spec.entities}
    changes = []
    for place, record in diff.created.items():
        entity = by_container[place[0]]
        values = {f: _expected(spec, entity.name, f, v, symbols) for f, v in record.items() if f != entity.key}
        changes.append(Change(kind="created", container=place[0], key=symbols[place], values=values))
    for place, fields in diff.updated.items():
        values = {f: _expected(spec, by_container[place[0]].name, f, v, symbols) for f, v in fields.items()}
        changes.append(Change(kind="updated", container=place[0], key=place[1], values=values))
    changes += [Change(kind="deleted", container=c, key=k) for c, k in diff.deleted]
    return tuple(changes)


def _expected(
    spec: EnvironmentSpec, entity: str, field: str, value: Any, symbols: dict[tuple[str, str], str]
) -> Expected:
    attribute = spec.field(f"{entity}.{field}")
    if value is None:
        return Expected(value=None)
    if attribute.target is not None:
        symbol = symbols.get((spec.entity(attribute.target).plural, value))
        return Expected(value=symbol, comparison="created") if symbol else Expected(value=value)
    if attribute.type in ("number", "integer"):
        return Expected(value=value, comparison="number")
    if attribute.type == "text":
        return Expected(value=value, comparison="free")
    return Expected(value=value, comparison="text" if attribute.type == "string" else "exact")

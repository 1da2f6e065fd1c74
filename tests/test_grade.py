"""Grading: pure, complete, blind to the order and the names of what is created."""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.environment.instance import Instance
from agentomnia.environment.state import State
from agentomnia.errors import InputError
from agentomnia.row import digest
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import criterion_changes
from agentomnia.task.criterion import Change, Criterion, Expected
from agentomnia.task.diff import state_diff
from agentomnia.task.grade import find_answer, grade, meets
from conftest import library_spec

LISTINGS: State = {
    "clock": {"now": "2026-03-09T09:00"},
    "counters": {"listings": 1, "offers": 0},
    "listings": {"1": {"id": "1", "item": "a", "price": 9, "reason": None}},
    "offers": {},
}


def after(**changes: dict[str, Any]) -> State:
    """The listings after something happened: `container={key: record or None}`."""
    state = copy.deepcopy(LISTINGS)
    for container, records in changes.items():
        for key, record in records.items():
            if record is None:
                del state[container][key]
            else:
                state[container][key] = {**state[container].get(key, {}), **record}
    return state


def created(container: str, key: str, **values: Any) -> Change:
    return Change(kind="created", container=container, key=key, values=expected(values))


def updated(container: str, key: str, **values: Any) -> Change:
    return Change(kind="updated", container=container, key=key, values=expected(values))


def expected(values: dict[str, Any]) -> dict[str, Expected]:
    return {f: v if isinstance(v, Expected) else Expected(value=v) for f, v in values.items()}


def symbol(name: str) -> Expected:
    return Expected(value=name, comparison="created")


def reward(criterion: Criterion, final: State, text: str = "", before: State = LISTINGS) -> float:
    result = grade(criterion, before, final, text)
    assert result.reward in (0.0, 1.0) and (result.reward == 1.0) == (not result.failures)
    assert all(isinstance(f, str) and f for f in result.failures)
    return result.reward


LIST_A = Criterion(changes=(created("listings", "$1", item="a", price=9, reason=None),))


# What other benchmarks got wrong


def test_what_is_true_before_anything_happened_earns_nothing() -> None:
    """A listing of item a at 9 exists; asking for one is not done by doing nothing."""
    assert reward(LIST_A, LISTINGS) == 0.0
    assert reward(LIST_A, after(listings={"2": {"id": "2", "item": "a", "price": 9, "reason": None}})) == 1.0
    already = Criterion(changes=(updated("listings", "1", price=9),))
    assert reward(already, LISTINGS) == 0.0
    assert reward(Criterion(changes=(Change(kind="deleted", container="listings", key="7"),)), LISTINGS) == 0.0


def test_free_text_may_differ_where_an_enum_may_not() -> None:
    free = Criterion(changes=(updated("listings", "1", reason=Expected(value="lost", comparison="free")),))
    exact = Criterion(changes=(updated("listings", "1", reason="lost"),))
    for said, freely, exactly in (
        ("lost", 1.0, 1.0),
        ("card was lost", 1.0, 0.0),
        ("Lost", 1.0, 0.0),
        ("", 0.0, 0.0),
        (" \n", 0.0, 0.0),
        (7, 0.0, 0.0),
        (["lost"], 0.0, 0.0),
    ):
        final = after(listings={"1": {"reason": said}})
        assert (reward(free, final), reward(exact, final)) == (freely, exactly), said


def test_text_differs_by_case_and_spaces_only() -> None:
    wanted = Criterion(changes=(updated("listings", "1", item=Expected(value="Oak  Table", comparison="text")),))
    for said in ("oak table", " OAK table\n", "Oak\tTable"):
        assert reward(wanted, after(listings={"1": {"item": said}})) == 1.0
    for said in ("oaktable", "oak table!", "", None, 1):
        assert reward(wanted, after(listings={"1": {"item": said}})) == 0.0


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"changes": ()},
        {"answers": {}},
        {"changes": (), "answers": {}, "verifier": None},
        {"changes": [{"kind": "updated", "container": "listings", "key": "1", "values": {}}]},
        {"changes": [{"kind": "updated", "container": "listings", "key": "1"}], "answers": {}},
    ],
)
def test_a_criterion_that_asks_nothing_is_a_load_error(parts: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"asks nothing|no field"):
        Criterion.model_validate(parts)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ((updated("a", "1", x=1), updated("a", "1", y=2)), "a/1"),
        ((updated("a", "1", x=1), Change(kind="deleted", container="a", key="1")), "a/1"),
        ((created("a", "$1", x=1), created("b", "$1", x=1)), r"\$1"),
        ((created("a", "$1", x=symbol("$2")),), r"\$2"),
        ((updated("a", "1", x=symbol("$1")),), r"\$1"),
        ((updated("a", "1", x=Expected(value="many", comparison="number")),), "many"),
        ((updated("a", "1", x=Expected(value=math.nan, comparison="number")),), "number"),
    ],
)
def test_a_criterion_that_contradicts_itself_is_a_load_error(changes: tuple[Change, ...], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Criterion(changes=changes)


def test_no_verifier_no_reward() -> None:
    """A criterion with a verifier alone is not met by doing nothing, whether or not anybody runs the verifier."""
    criterion = Criterion(verifier="def verify(candidate, truth):\n    return 0.0\n")
    assert reward(criterion, LISTINGS) == 0.0
    assert reward(criterion, after(listings={"1": {"price": 3}}), "Done.") == 0.0
    assert reward(LIST_A.model_copy(update={"verifier": criterion.verifier}), LISTINGS) == 0.0


def test_nobody_who_does_nothing_passes() -> None:
    criteria = [
        LIST_A,
        Criterion(changes=(updated("listings", "1", price=3),)),
        Criterion(changes=(Change(kind="deleted", container="listings", key="1"),)),
        Criterion(answers={"answer": Expected(value=3, comparison="number")}),
        Criterion(answers={"answer": Expected(value="", comparison="text")}),
        Criterion(answers={"answer": Expected(value=None)}),
    ]
    for criterion in criteria:
        for text in ("", "Done.", "I am sorry, but I cannot help with that.", "{}", "[]", "null", "{", "}{"):
            assert reward(criterion, LISTINGS, text) == 0.0, (criterion, text)


def test_a_hand_off_is_a_record_and_leaving_it_out_shows() -> None:
    hand_off = Criterion(changes=(created("offers", "$1", to="human"),))
    assert reward(hand_off, LISTINGS, "I have transferred you to a human.") == 0.0
    assert reward(hand_off, after(offers={"OFF-1": {"id": "OFF-1", "to": "human"}})) == 1.0


def test_grading_is_pure() -> None:
    """Twice the same reward, and neither state, criterion nor environment is touched."""
    spec = library_spec()
    program = build_program(spec)
    state = StateMaker(spec).make("tests")
    instance = Instance(program, state)
    shelf, book = next(iter(state["shelves"])), next(iter(state["books"]))
    instance.call("add_book", {"shelf_id": shelf, "title": "T", "tags": ["a"]})
    instance.call("move_book", {"book_id": book, "shelf_id": list(state["shelves"])[-1]})
    criterion = Criterion(changes=criterion_changes(spec, state, instance.live_state))
    marks = digest(state), instance.digest(), instance.snapshot(), criterion.identity
    first = grade(criterion, state, instance.live_state, "Done.")
    assert first == grade(criterion, state, instance.live_state, "Done.") and first.reward == 1.0
    assert marks == (digest(state), instance.digest(), instance.snapshot(), criterion.identity)
    assert instance.call("get_book", {"book_id": book})["ok"]


# The frame


def test_everything_else_must_stay_as_it_was() -> None:
    wanted = Criterion(changes=(updated("listings", "1", price=8),))
    good = after(listings={"1": {"price": 8}})
    assert reward(wanted, good) == 1.0
    for more in (
        {"listings": {"1": {"item": "b"}}},
        {"listings": {"1": {"reason": "x"}}},
        {"listings": {"1": {"new field": 1}}},
        {"listings": {"2": {"id": "2"}}},
        {"offers": {"1": {"id": "1"}}},
    ):
        final = copy.deepcopy(good)
        for container, records in more.items():
            for key, record in records.items():
                final[container].setdefault(key, {}).update(record)
        assert reward(wanted, final) == 0.0, more
    gone = copy.deepcopy(good)
    del gone["listings"]["1"]["reason"]
    assert reward(wanted, gone) == 0.0
    for container in ("listings", "offers"):
        gone = copy.deepcopy(good)
        del gone[container]
        assert reward(wanted, gone) == (1.0 if container == "offers" else 0.0)
    assert reward(wanted, {**good, "extra": {"1": {"id": "1"}}}) == 0.0
    assert reward(wanted, {**good, "extra": [1]}) == 0.0


def test_clock_and_counters_follow_from_the_records() -> None:
    wanted = Criterion(changes=(updated("listings", "1", price=8),))
    final = after(listings={"1": {"price": 8}})
    final["counters"]["listings"] += 3
    assert reward(wanted, final) == 1.0


def test_deletions() -> None:
    wanted = Criterion(changes=(Change(kind="deleted", container="listings", key="1"),))
    assert reward(wanted, after(listings={"1": None})) == 1.0
    assert reward(wanted, LISTINGS) == 0.0
    assert reward(Criterion(changes=(updated("listings", "1", price=8),)), after(listings={"1": None})) == 0.0


def test_deleting_and_making_anew_is_no_update() -> None:
    wanted = Criterion(changes=(updated("listings", "1", price=8),))
    final = after(listings={"1": None, "2": {"id": "2", "item": "a", "price": 8, "reason": None}})
    assert reward(wanted, final) == 0.0


# Values


@pytest.mark.parametrize(
    ("wanted", "value", "met"),
    [
        (25, 25, True), (25, 25.0, True), (25.0, 25, True), (25, "25", True), (25, "25.00", True), (25, " 25 ", True),
        (0.1, 0.1 + 1e-9, True), (9.99, 9.994, True), (9.99, 10.0, False), (25, 26, False), (25, "26", False),
        (1, True, False), (0, False, False), (25, None, False), (25, "", False), (25, "25 EUR", False),
        (25, [25], False),
        (25, {}, False), (25, math.nan, False), (25, math.inf, False), (25, "nan", False), (25, "inf", False),
        (25, "1e400", False), (25, 10**400, False), (25, -(10**400), False), (2**53 + 2, 2**53 + 2, True),
    ],
    ids=lambda v: repr(v)[:14],
)  # fmt: skip
def test_numbers(wanted: Any, value: Any, met: bool) -> None:
    assert meets(Expected(value=wanted, comparison="number"), value) is met


@pytest.mark.parametrize(
    ("wanted", "value", "met"),
    [
        (True, True, True), (True, 1, False), (1, True, False), (0, False, False), (False, 0, False),
        (None, None, True),
        (None, "", False), (None, 0, False), ("a", "a", True), ("a", "A", False), ("1", 1, False), (1, 1, True),
        (["a"], ["a"], True), (["a", "b"], ["b", "a"], False), ([], [], True), ([], {}, False), ([1], [True], False),
        ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"a": True}, False), ([["x"]], [["x"]], True),
    ],
)  # fmt: skip
def test_exact_values(wanted: Any, value: Any, met: bool) -> None:
    assert meets(Expected(value=wanted), value) is met


# Created records


def orders(*records: tuple[str, str, dict[str, Any]]) -> State:
    state: State = {"clock": {}, "counters": {}, "orders": {}, "lines": {}}
    for container, key, record in records:
        state[container][key] = {"id": key, **record}
    return state


EMPTY = orders()
ORDER = Criterion(
    changes=(
        created("orders", "$1", client="C1"),
        created("lines", "$2", order=symbol("$1"), what="pen"),
        created("lines", "$3", order=symbol("$1"), what="ink"),
    )
)


@pytest.mark.parametrize("keys", list(itertools.permutations(["L-1", "L-2"])))
def test_keys_and_order_of_created_records_do_not_matter(keys: tuple[str, str]) -> None:
    final = orders(
        ("lines", keys[0], {"order": "O-7", "what": "ink"}),
        ("orders", "O-7", {"client": "C1"}),
        ("lines", keys[1], {"order": "O-7", "what": "pen"}),
    )
    assert reward(ORDER, final, before=EMPTY) == 1.0


def told(text: str) -> State:
    """Orders and lines in short: `order O C1`, `line L O pen`; `-` is null, `.` a field that is not there."""
    records = []
    for part in text.split(", "):
        container, key, *values = part.split()
        fields = ("client",) if container == "order" and len(values) == 1 else ("order", "what")
        said = {f: None if v == "-" else v for f, v in zip(fields, values) if v != "."}
        records.append((f"{container}s", key, said))
    return orders(*records)


@pytest.mark.parametrize(
    "records",
    {
        "missing": "order O C1, line L O pen",
        "doubled": "order O C1, line L O pen, line M O pen",
        "other value": "order O C2, line L O pen, line M O ink",
        "other order": "order O C1, line L X pen, line M O ink",
        "no order": "order O C1, line L - pen, line M O ink",
        "lost field": "order O C1, line L . pen, line M O ink",
        "two orders": "order O C1, order P C1, line L O pen, line M P ink",
        "wrong container": "order O C1, order L O pen, line M O ink",
        "extra": "order O C1, line L O pen, line M O ink, line N O ink",
    }.values(),
)
def test_created_records_must_fit(records: str) -> None:
    assert reward(ORDER, told("order O C1, line L O pen, line M O ink"), before=EMPTY) == 1.0
    assert reward(ORDER, told(records), before=EMPTY) == 0.0


def test_twins_are_told_apart_by_who_points_at_them() -> None:
    """Two equal new orders; which is which follows from the records that were changed to point at them."""
    before = orders(("lines", "A", {"order": None}), ("lines", "B", {"order": None}))
    wanted = Criterion(
        changes=(
            created("orders", "$1", client="C1"),
            created("orders", "$2", client="C1"),
            updated("lines", "A", order=symbol("$1")),
            updated("lines", "B", order=symbol("$2")),
        )
    )
    for first, second, full in (("O", "P", 1.0), ("P", "O", 1.0), ("O", "O", 0.0), ("O", "A", 0.0)):
        final = orders(
            ("orders", "O", {"client": "C1"}),
            ("orders", "P", {"client": "C1"}),
            ("lines", "A", {"order": first}),
            ("lines", "B", {"order": second}),
        )
        assert reward(wanted, final, before=before) == full, (first, second)


def test_records_that_point_at_each_other() -> None:
    wanted = Criterion(
        changes=(created("orders", "$1", twin=symbol("$2"), x=1), created("orders", "$2", twin=symbol("$1"), x=1))
    )
    good = orders(("orders", "B", {"twin": "A", "x": 1}), ("orders", "A", {"twin": "B", "x": 1}))
    selfish = orders(("orders", "B", {"twin": "B", "x": 1}), ("orders", "A", {"twin": "A", "x": 1}))
    assert reward(wanted, good, before=EMPTY) == 1.0
    assert reward(wanted, selfish, before=EMPTY) == 0.0


@pytest.mark.parametrize("wrong", ["value", "reference", "one too few of a kind"])
def test_many_alike_are_graded_at_once(wrong: str) -> None:
    """The number of pairings grows with the factorial; the time must not."""
    count = 14
    lines = [created("lines", f"${i + 2}", order=symbol("$1"), what="pen") for i in range(count)]
    criterion = Criterion(changes=(created("orders", "$1", client="C1"), *lines))
    records: list[Any] = [("lines", f"L-{i:02}", {"order": "O", "what": "pen"}) for i in range(count)]
    good = orders(("orders", "O", {"client": "C1"}), *records)
    started = time.perf_counter()
    assert reward(criterion, good, before=EMPTY) == 1.0
    if wrong == "value":
        good["lines"]["L-13"]["what"] = "ink"
    elif wrong == "reference":
        good["lines"]["L-13"]["order"] = "other"
    else:
        loose = created("lines", "$99", order=symbol("$1"), what=Expected(value="x", comparison="free"))
        criterion = Criterion(changes=(*criterion.changes, loose))
        good["lines"]["L-13"]["what"] = "ink"
        good["lines"]["L-14"] = {"id": "L-14", "order": "O", "what": "ink"}
    assert reward(criterion, good, before=EMPTY) == 0.0
    assert time.perf_counter() - started < 5.0


# Against a brute-force reading of the same promise

VALUES = st.sampled_from([None, 0, 1, True, "a", "A ", "b", 1.0])
KEYS = ("k1", "k2", "k3")


@st.composite
def episodes(draw: st.DrawFn) -> tuple[State, State, Criterion]:
    """Two states over two containers, and a criterion that often fits what happened, up to a few faults."""
    before: State = {"clock": {}, "counters": {}, "a": {}, "b": {}}
    for container, key in itertools.product("ab", ("old1", "old2")):
        before[container][key] = {"id": key, "x": draw(VALUES), "ref": None}
    final = copy.deepcopy(before)
    new = [(c, k) for c in "ab" for k in KEYS if draw(st.integers(0, 2)) == 0][:4]
    symbols = {place: f"${i}" for i, place in enumerate(draw(st.permutations(new)))}
    references = st.sampled_from([None, "old1", *(k for _, k in new)])
    for container, key in new:
        final[container][key] = {"id": key, "x": draw(VALUES), "ref": draw(references)}
    for container, key in itertools.product("ab", ("old1", "old2")):
        match draw(st.integers(0, 5)):
            case 0:
                final[container][key]["x"] = draw(VALUES)
            case 1:
                final[container][key]["ref"] = draw(references)
            case 2:
                del final[container][key]
    changes = list(honest_changes(before, final, symbols, draw))
    if draw(st.integers(0, 2)) == 0 and changes:
        changes = draw(st.permutations(changes))[: draw(st.integers(1, len(changes)))]
    if draw(st.integers(0, 2)) == 0 and new:
        container, key = draw(st.sampled_from(new))
        final[container][key][draw(st.sampled_from(["x", "ref"]))] = draw(VALUES)
    known = {c.key for c in changes if c.kind == "created"}
    usable = all(e.comparison != "created" or e.value in known for c in changes for e in c.values.values())
    if not changes or not usable:
        changes = [created("a", "$0", x=1)]
    return before, final, Criterion(changes=tuple(draw(st.permutations(changes))))


def honest_changes(before: State, final: State, symbols: dict[tuple[str, str], str], draw: st.DrawFn) -> Any:
    by_key = {key: s for (_, key), s in symbols.items()}

    def wanted(field: str, value: Any) -> Expected:
        if field == "ref" and value in by_key and [k for _, k in symbols].count(value) == 1:
            return symbol(by_key[value])
        comparisons = ["exact"]
        comparisons += ["text", "free"] if isinstance(value, str) else []
        comparisons += ["number"] if type(value) in (int, float) else []
        return Expected(value=value, comparison=draw(st.sampled_from(comparisons)))  # type: ignore[arg-type]

    for place, name in symbols.items():
        record = final[place[0]][place[1]]
        values = {f: wanted(f, v) for f, v in record.items() if f != "id"}
        yield Change(kind="created", container=place[0], key=name, values=values)
    for container in "ab":
        for key, record in before[container].items():
            now = final[container].get(key)
            if now is None:
                yield Change(kind="deleted", container=container, key=key)
            elif values := {f: wanted(f, v) for f, v in now.items() if v != record[f]}:
                yield Change(kind="updated", container=container, key=key, values=values)


def brute_force(criterion: Criterion, before: State, final: State) -> float:
    """1.0 where some naming of the created records makes every wanted change and nothing else happen."""
    new = [(c, k) for c in "ab" for k in final[c] if k not in before[c]]
    wanted = [c for c in criterion.changes if c.kind == "created"]
    if len(new) != len(wanted):
        return 0.0
    return max((fits(criterion, before, final, wanted, order) for order in itertools.permutations(new)), default=0.0)


def fits(criterion: Criterion, before: State, final: State, wanted: list[Change], order: Any) -> float:
    names = {change.key: place for change, place in zip(wanted, order)}
    if any(change.container != place[0] for change, place in zip(wanted, order)):
        return 0.0

    def good(e: Expected, value: Any) -> bool:
        if e.comparison == "created":
            return bool(names[e.value][1] == value)
        if e.comparison == "free":
            return isinstance(value, str) and value.strip() != ""
        if e.comparison == "text":
            return isinstance(value, str) and value.strip().lower() == e.value.strip().lower()
        if e.comparison == "number":
            return type(value) in (int, float) and abs(value - e.value) < 0.005
        return type(value) is type(e.value) and bool(value == e.value)

    for change, (container, key) in zip(wanted, order):
        if not all(f in final[container][key] and good(e, final[container][key][f]) for f, e in change.values.items()):
            return 0.0
    told = {(c.container, c.key): c for c in criterion.changes if c.kind != "created"}
    for container in "ab":
        for key, record in before[container].items():
            change, now = told.get((container, key)), final[container].get(key)
            if now is None or (change is not None and change.kind == "deleted"):
                if not (now is None and change is not None and change.kind == "deleted"):
                    return 0.0
                continue
            values = change.values if change is not None else {}
            for field in record:
                changed = now[field] != record[field]
                if changed != (field in values) or (changed and not good(values[field], now[field])):
                    return 0.0
    return 1.0


@settings(max_examples=600, deadline=None)
@given(episodes())
def test_agrees_with_brute_force(episode: tuple[State, State, Criterion]) -> None:
    before, final, criterion = episode
    assert reward(criterion, final, before=before) == brute_force(criterion, before, final)


@settings(max_examples=150, deadline=None)
@given(episodes())
def test_the_difference_of_two_states_rebuilds_the_later_one(episode: tuple[State, State, Criterion]) -> None:
    before, final, _ = episode
    diff = state_diff(before, final)
    rebuilt = copy.deepcopy(before)
    for container, key in diff.deleted:
        del rebuilt[container][key]
    for (container, key), fields in diff.updated.items():
        rebuilt[container][key].update(fields)
    for (container, key), record in diff.created.items():
        rebuilt[container][key] = record
    assert rebuilt == final and diff.empty == (before == final)
    assert state_diff(final, final).empty


# Answers

THREE = Criterion(answers={"answer": Expected(value=3, comparison="number")})
WORD = Criterion(answers={"answer": Expected(value="Oak Table", comparison="text")})


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ('{"answer": 3}', True),
        ('Done. {"answer": 3}', True),
        ('```json\n{"answer": 3.0}\n```', True),
        ('{"answer": "3"}', True),
        ('{"answer": 3, "more": [1, {"answer": 4}]}', True),
        ('First I thought {"answer": 4}, but it is {"answer": 3}.', True),
        ('It is {"answer": 3}, not {"answer": 4}.', False),
        ('{"answer": 3} {"other": 4}', True),
        ('{"answer": 3} {"answer": 4', True),
        ('{"note": "a } b { c", "answer": 3}', True),
        ('{"note": "he said \\"}\\" {", "answer": 3} and }', True),
        ('set {1, 2} then {"answer": 3}', True),
        ('{{{{ {"answer": 3} }}}}', True),
        ('{"answer": 4, "answer": 3}', True),
        ('{"answer": NaN}', False),
        ('{"answer": Infinity}', False),
        ('{"answer": 1e999}', False),
        ('{"answer": true}', False),
        ('{"answer": null}', False),
        ('{"answer": [3]}', False),
        ('{"answer": {"answer": 3}}', False),
        ("{'answer': 3}", False),
        ('{"Answer": 3}', False),
        ('{"answer": 30}', False),
        ("The answer is 3.", False),
        ("3", False),
        ('["answer", 3]', False),
        ('"{\\"answer\\": 3}"', False),
        ("", False),
        ('{"answer": ' + "9" * 400 + "}", False),
        ('{"answer": ' + "9" * 5000 + "}", False),
    ],
    ids=lambda v: str(v)[:40],
)
def test_answers(text: str, full: bool) -> None:
    assert reward(THREE, LISTINGS, text) == (1.0 if full else 0.0)


def test_text_answers() -> None:
    for said, full in (
        ("oak table", 1.0),
        ("OAK  TABLE ", 1.0),
        ("Oak", 0.0),
        ("Oak Table.", 0.0),
        (3, 0.0),
        (None, 0.0),
    ):
        assert reward(WORD, LISTINGS, json.dumps({"answer": said})) == full, said
    assert reward(Criterion(answers={"answer": Expected(value="3")}), LISTINGS, '{"answer": 3}') == 0.0


def test_all_fields_in_one_object() -> None:
    two = Criterion(answers={"answer_1": Expected(value=1), "answer_2": Expected(value="b", comparison="text")})
    assert reward(two, LISTINGS, '{"answer_2": "B", "answer_1": 1}') == 1.0
    assert reward(two, LISTINGS, '{"answer_1": 1} {"answer_2": "b"}') == 0.0
    assert reward(two, LISTINGS, '{"answer_1": 1, "answer_2": "c"}') == 0.0


def test_right_answer_with_a_write_earns_nothing() -> None:
    assert reward(THREE, after(listings={"1": {"price": 1}}), '{"answer": 3}') == 0.0
    both = Criterion(changes=(updated("listings", "1", price=1),), answers=THREE.answers)
    assert reward(both, after(listings={"1": {"price": 1}}), '{"answer": 3}') == 1.0
    assert reward(both, after(listings={"1": {"price": 1}}), "Done.") == 0.0
    assert reward(both, LISTINGS, '{"answer": 3}') == 0.0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(alphabet='{}[]":, ansrwe0123\\\n', max_size=12),
            st.builds(lambda n: json.dumps({"answer": n}), st.integers(0, 9)),
            st.builds(lambda t: json.dumps({"answer": 3, "t": t}), st.text(alphabet='{}"\\', max_size=5)),
        ),
        max_size=6,
    )
)
def test_the_last_object_with_the_fields_wins(parts: list[str]) -> None:
    text = "".join(parts) + ' so {"answer": 7, "why": "}{"} it is'
    assert find_answer(text, {"answer"}) == {"answer": 7, "why": "}{"} or '"' in "".join(parts)
    found = find_answer("".join(parts), {"answer"})
    assert found is None or "answer" in found


@pytest.mark.parametrize(
    "text", ["{" * 50_000, '{"a":' * 20_000, '{"answer": [' * 5_000, '{"' * 50_000, "[" * 100_000 + "{"]
)
def test_hostile_messages_take_no_time(text: str) -> None:
    started = time.perf_counter()
    assert find_answer(text, {"answer"}) is None
    assert find_answer(text + '{"answer": 3}', {"answer"}) in ({"answer": 3}, None)
    assert time.perf_counter() - started < 5.0

"""Imported classes: read without running, loaded when trusted, held to the foreign gate. All sources are our own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentomnia.cli.importing import app
from agentomnia.environment.imported import ImportedTask, load_imported, read_omniabench
from agentomnia.environment.instance import Instance
from agentomnia.errors import EnvironmentFault, InputError
from agentomnia.synthesis.environments.gate import ForeignVerification, verify_imported

LIBRARY = """
    class Library:
        def __init__(self, init_config):
            self.books = init_config["books"]
            self.loans = init_config.get("loans", {})

        def get_book(self, book_id):
            if book_id not in self.books:
                return {"success": False, "error": f"no book {book_id}"}
            return {"success": True, "data": self.books[book_id]}

        def list_books(self, shelf=None):
            return {"books": [b for b in self.books.values() if shelf in (None, b["shelf"])]}

        def borrow(self, book_id, reader):
            if book_id not in self.books:
                return {"success": False, "error": f"no book {book_id}"}
            if book_id in self.loans:
                return {"success": False, "error": "it is lent already"}
            self.loans[book_id] = {"book_id": book_id, "reader": reader}
            return {"success": True, "data": {"loan": self.loans[book_id]}}
"""
BOOKS = {
    "B1": {"book_id": "B1", "title": "Tides", "shelf": "north"},
    "B2": {"book_id": "B2", "title": "Moss", "shelf": "south"},
}


def tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    """A tool in OpenAI form."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


TEXT = {"type": "string"}
LIBRARY_TOOLS = [
    tool("get_book", "book_id", book_id=TEXT),
    tool("list_books", shelf=TEXT),
    tool("borrow", "book_id", "reader", book_id=TEXT, reader=TEXT),
]
LIBRARY_OPERATIONS = [
    {"operation_name": "get_book", "operation_type": "query"},
    {"operation_name": "list_books", "operation_type": "query"},
    {"operation_name": "borrow", "operation_type": "state_change"},
]


def nested(source: str = LIBRARY, tools: Any = None, **fields: Any) -> dict[str, Any]:
    """A task of the shape of routes 1 and 2."""
    item = {
        "env_id": "batch__en__env_1",
        "env_class_name": textwrap.dedent(source).split("class ")[1].split("(")[0].split(":")[0],
        "environment_introduction": "A small library.",
        "constraints_rules": ["A lent book cannot be borrowed."],
        "env_class_code": textwrap.dedent(source),
        "tools": LIBRARY_TOOLS if tools is None else tools,
        "operation_list": LIBRARY_OPERATIONS,
    }
    return {
        "global_id": 7,
        "task_id": "env_1_task_001",
        "env_id": "batch__en__env_1",
        "lang": "en",
        "task": "Ask for Tides and borrow it for Ada.",
        "init_config": {"books": BOOKS},
        "env_item": item,
        "persona": "in a hurry",
        "rubrics": [
            {"tag": "G1", "category": "general", "points": 1, "text": "nothing else changed"},
            {"id": "T1", "section": "task-specific", "points": 3, "criteria": "Tides is lent to Ada"},
            {"tag": "T2", "category": "task_specific", "points": 0, "text": "worth nothing"},
        ],
    } | fields


def flat(**fields: Any) -> dict[str, Any]:
    """A task of the shape of routes 3 and 4."""
    return {
        "global_id": 2_000_003,
        "task_id": "env_2_task_009",
        "env_id": "batch__en__env_2",
        "task": "How many books stand in the north?",
        "init_config": {"books": BOOKS},
        "env_class_code": textwrap.dedent(LIBRARY),
        "candidate_tools": LIBRARY_TOOLS,
        "ground_truth_answer": {"count": 1},
        "verifier_code": "def verify(candidate_answer, ground_truth_answer): return 1.0",
    } | fields


def written(folder: Path, *items: Any, name: str = "tasks.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(list(items)), encoding="utf-8")
    return path


def read_one(folder: Path, item: Any) -> ImportedTask:
    return read_omniabench(written(folder, item)).tasks[0]


def started(folder: Path, item: Any) -> Instance:
    loaded = load_imported(read_one(folder, item), trust=True)
    return Instance(loaded.program, loaded.state)


def checked(folder: Path, item: Any) -> ForeignVerification:
    return verify_imported([read_one(folder, item)])[0]


def failed(record: ForeignVerification) -> set[tuple[str, str | None]]:
    return {(f.check, f.tool) for f in record.findings}


# reading


def test_nested_task_is_a_conversation_with_a_hidden_script(tmp_path: Path) -> None:
    imported = read_omniabench(written(tmp_path, nested()))
    task, private = imported.tasks[0], imported.private[0]
    assert (task.id, task.route, task.mode, task.lang) == ("7", "route1", "multi_turn", "en")
    assert task.query == "" and private.script.startswith("Ask for Tides")
    assert task.environment.policies == ("A lent book cannot be borrowed.",)
    assert [(r.tag, r.category, r.points) for r in private.rubrics] == [
        ("G1", "general", 1),
        ("T1", "task_specific", 3),
    ]
    assert [u.what for u in task.unsupported] == ["rubric item 2"]
    assert task.state == {"books": BOOKS}


def test_flat_task_uses_the_last_class_and_keeps_its_answer_apart(tmp_path: Path) -> None:
    source = "class Shelf:\n    pass\n" + textwrap.dedent(LIBRARY)
    imported = read_omniabench(written(tmp_path, flat(env_class_code=source)))
    task, private = imported.tasks[0], imported.private[0]
    assert task.environment.class_name == "Library" and task.route == "route3" and task.mode == "single_turn"
    assert task.query.startswith("How many") and task.lang == "cn"
    assert private.ground_truth == {"count": 1} and "verify" in private.verifier
    assert "verify" not in json.dumps(task.public_json()) and "count" not in json.dumps(task.public_json())


def test_kind_comes_from_operations_and_is_never_guessed(tmp_path: Path) -> None:
    task = read_one(tmp_path, nested())
    assert {t.name: t.kind for t in task.environment.tools} == {
        "get_book": "query",
        "list_books": "query",
        "borrow": "modify",
    }
    assert {t.kind for t in read_one(tmp_path, flat()).environment.tools} == {"modify"}


def test_rubrics_as_text(tmp_path: Path) -> None:
    text = (
        "【General】\nG1 | 2分 | nothing else changed\n【Task-Specific】\nT1 | 3分 | lent to Ada | by name\nnot an item"
    )
    item = nested(rubrics_text=text)
    del item["rubrics"]
    rubrics = read_omniabench(written(tmp_path, item)).private[0].rubrics
    assert [(r.category, r.points, r.text) for r in rubrics] == [
        ("general", 2, "nothing else changed"),
        ("task_specific", 3, "lent to Ada | by name"),
    ]


def test_unknown_fields_are_kept_in_the_private_part(tmp_path: Path) -> None:
    imported = read_omniabench(written(tmp_path, nested(execution_chain=["get_book"], mystery={"a": 1})))
    assert imported.private[0].extra == {"execution_chain": ["get_book"], "mystery": {"a": 1}}
    assert "execution_chain" not in json.dumps(imported.tasks[0].public_json())


def test_harness_tools_and_missing_methods_are_listed(tmp_path: Path) -> None:
    injected = [
        tool("fs_read_file"),
        tool("python_executor"),
        tool("chat_with_user"),
        tool("renew"),
        tool("_hidden"),
        tool("scan"),
    ]
    scan = [{"operation_name": "scan", "system_tool_kind": "filesystem"}]
    item = nested(tools=[*LIBRARY_TOOLS, *injected])
    item["env_item"]["strategy_injected_operations"] = scan
    environment = read_one(tmp_path, item).environment
    assert [t.name for t in environment.tools] == ["get_book", "list_books", "borrow"]
    assert {u.what for u in environment.unsupported} == {t["function"]["name"] for t in injected}


def test_bare_tools_and_poor_schemas_are_patched(tmp_path: Path) -> None:
    source = """
        class Notes:
            def __init__(self, config):
                self.notes = {}

            def add(self, text, tags=None, count=1, when=None):
                self.notes[text] = {"text": text, "tags": tags}
                return {"success": True, "data": {"count": count}}

            def clear(self):
                self.notes = {}
                return {"success": True, "data": {}}
    """
    add = tool(
        "add",
        tags={"type": "list"},
        count={"type": "nonsense"},
        when={"type": "string", "format": "date-time"},
        colour=TEXT,
    )
    environment = read_one(tmp_path, nested(source, [add, {"name": "clear"}])).environment
    properties = environment.tools[0].parameters["properties"]
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}
    assert properties["count"] == {} and "colour" not in properties
    assert properties["when"] == {"type": "string", "description": "(date-time)"}
    assert environment.tools[0].parameters["required"] == ["text"]
    assert environment.tools[1].parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert len(environment.patches) == 5
    instance = started(tmp_path, nested(source, [add, {"name": "clear"}]))
    assert instance.call("add", {"text": "x", "when": "2026-01-02T03:04:05Z"})["ok"]
    assert instance.call("clear", {"now": 1})["error"]["code"] == "invalid_argument"


def test_equal_environments_are_one_and_ids_are_unique(tmp_path: Path) -> None:
    other = nested(global_id=8, task="Borrow Moss for Ben.")
    imported = read_omniabench(written(tmp_path, nested(), other, nested(), "no object", {"task": "no class"}))
    assert len(imported.environments) == 1 and [t.id for t in imported.tasks] == ["7", "8"]
    assert [u.what for u in imported.left_out] == ["task 2", "task 3", "task 4"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"env_class_code": "class Broken(:\n"}, "does not parse"),
        ({"env_class_code": "value = 1"}, "defines no class"),
        ({"env_class_name": "../../etc/passwd"}, "defines no class"),
        ({"candidate_tools": []}, "none of its tools"),
        ({"init_config": ["books"]}, "init_config"),
        ({"init_config": {"big": 2**70}}, "64 bits"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_omniabench(written(tmp_path, flat(**fields)))


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "route1.json"
    path.write_text(json.dumps([nested()])[:-40], encoding="utf-8")
    with pytest.raises(InputError, match="cut off, fetch it again"):
        read_omniabench(path)
    with pytest.raises(InputError, match="is the path right"):
        read_omniabench(tmp_path / "nowhere.json")


def test_route_without_an_id_comes_from_the_file_name(tmp_path: Path) -> None:
    item = nested()
    del item["global_id"]
    first = read_omniabench(written(tmp_path, item, name="route2.json")).tasks[0]
    assert first.route == "route2" and first.query and first.id.startswith("task-")
    assert read_omniabench(written(tmp_path, item, name="route1.json")).tasks[0].query == ""


# running


def test_reading_runs_nothing_and_loading_needs_trust(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n" + textwrap.dedent(LIBRARY)
    item = nested()
    item["env_item"]["env_class_code"] = source
    task = read_one(tmp_path, item)
    with pytest.raises(InputError, match="--trust"):
        load_imported(task)
    assert not mark.exists()
    load_imported(task, trust=True)
    assert mark.exists()


def test_ordinary_class_under_the_result_protocol(tmp_path: Path) -> None:
    instance = started(tmp_path, nested())
    assert instance.call("get_book", {"book_id": "B1"}) == {"ok": True, "data": BOOKS["B1"]}
    refused = instance.call("get_book", {"book_id": "B9"})
    assert refused["error"]["message"] == "no book B9"
    assert instance.call("borrow", {"book_id": "B1", "reader": "Ada"})["ok"]
    snapshot, mark = instance.snapshot(), instance.digest()
    assert not instance.call("borrow", {"book_id": "B1", "reader": "Ben"})["ok"]
    instance.reset()
    assert instance.digest() != mark
    instance.restore(snapshot)
    assert instance.digest() == mark and instance.fork().digest() == mark


def test_ordinary_class_passes_the_foreign_gate(tmp_path: Path) -> None:
    record = checked(tmp_path, nested())
    assert record.findings == () and record.undone == () and record.notes == ()
    assert record.accepted_calls > 10 and record.bad_inputs > 20


def test_class_that_raises_is_undone_and_found(tmp_path: Path) -> None:
    source = """
        class Desk:
            def __init__(self, config):
                self.tickets = config["tickets"]

            def close(self, ticket_id):
                self.tickets["last"] = {"ticket_id": ticket_id}
                ticket = self.tickets[ticket_id + ""]
                if ticket_id != "last" and "state" not in ticket:
                    raise ValueError("no such ticket " + ticket_id)
                return {"success": True, "data": dict(ticket)}

            def leave(self):
                raise SystemExit(3)
    """
    item = nested(source, [tool("close", "ticket_id", ticket_id=TEXT), tool("leave")])
    item["init_config"] = {"tickets": {"T1": {"ticket_id": "T1", "state": "open"}}}
    instance = started(tmp_path, item)
    before = instance.digest()
    with pytest.raises(EnvironmentFault, match="KeyError"):
        instance.call("close", {"ticket_id": "T9"})
    with pytest.raises(EnvironmentFault, match="SystemExit"):
        instance.call("leave", {})
    assert instance.digest() == before and instance.undone == {"close"}
    assert instance.call("close", {"ticket_id": "T1"})["ok"]
    record = checked(tmp_path, item)
    assert failed(record) == {("escape", "close"), ("escape", "leave")} and record.undone == ("close",)


COUNTER = """
    class Counter:
        def __init__(self):
            self.total = 0
            self.seen = set()
            self.log = []

        def add(self, amount, label):
            self.total += amount
            self.seen.add(label)
            self.log.append(label)
            if amount > 100:
                return {"success": False, "error": "too much"}
            return {"success": True, "data": {"total": self.total, "labels": len(self.seen)}}
"""
COUNTER_TOOLS = [tool("add", "amount", "label", amount={"type": "integer"}, label=TEXT)]


def test_mutation_before_a_failure_is_taken_back(tmp_path: Path) -> None:
    instance = started(tmp_path, nested(COUNTER, COUNTER_TOOLS, init_config={"total": 5}))
    assert instance.call("add", {"amount": 1, "label": "a"})["data"] == {"total": 6, "labels": 1}
    assert not instance.call("add", {"amount": 101, "label": "b"})["ok"]
    assert instance.live_state == {"total": 6, "log": ["a"]}
    # the set went back too, though it is no part of the state
    assert instance.call("add", {"amount": 1, "label": "c"})["data"] == {"total": 7, "labels": 2}
    assert instance.undone == {"add"}


def test_attributes_that_are_sets_are_reported(tmp_path: Path) -> None:
    task = read_one(tmp_path, nested(COUNTER, COUNTER_TOOLS, init_config={"total": 5}))
    loaded = load_imported(task, trust=True)
    assert loaded.state == {"total": 5, "log": []} and loaded.program.opaque == {"seen"}
    assert [n.what for n in loaded.notes] == ["attribute seen"]
    record = verify_imported([task])[0]
    assert record.notes == loaded.notes and ("restore", "add") in failed(record)


@pytest.mark.parametrize("signature", ["self, config", "self, config=None", "self"])
def test_constructors(tmp_path: Path, signature: str) -> None:
    source = COUNTER.replace("__init__(self)", f"__init__({signature})")
    assert started(tmp_path, nested(source, COUNTER_TOOLS, init_config={"total": 5})).live_state["total"] == 5


def test_constructor_that_takes_only_an_empty_object(tmp_path: Path) -> None:
    source = COUNTER.replace(
        "__init__(self):", "__init__(self, config):\n            if config:\n                raise TypeError('empty')"
    )
    assert started(tmp_path, nested(source, COUNTER_TOOLS, init_config={"total": 5})).live_state["total"] == 5


def test_constructor_that_fails_is_an_environment_fault(tmp_path: Path) -> None:
    source = COUNTER.replace("self.total = 0", "self.total = {}['none']")
    task = read_one(tmp_path, nested(source, COUNTER_TOOLS))
    with pytest.raises(EnvironmentFault, match="cannot start"):
        load_imported(task, trust=True)
    assert failed(verify_imported([task])[0]) == {("load", None)}


def test_dataclasses_modules_and_inherited_tools(tmp_path: Path) -> None:
    source = """
        from __future__ import annotations

        import math
        from dataclasses import dataclass


        @dataclass
        class Point:
            x: float


        class Shapes:
            def area(self, side: float) -> dict:
                return {"success": True, "data": {"area": math.pow(side, 2), "x": self.origin.x}}


        class Board(Shapes):
            def __init__(self, config):
                self.math = math
                self.origin = Point(1.0)

            @staticmethod
            def half(side):
                return side / 2
    """
    side = {"side": {"type": "number"}}
    item = nested(source, [tool("area", "side", **side), tool("half", "side", **side)])
    item["env_item"]["env_class_name"] = "Board"
    item["init_config"] = {}
    instance = started(tmp_path, item)
    assert instance.call("area", {"side": 3})["data"] == {"area": 9.0, "x": 1.0}
    assert instance.call("half", {"side": 3}) == {"ok": True, "data": 1.5}
    assert instance.live_state == {} and instance.program.opaque == {"math", "origin"}


def test_shared_attributes_and_shared_instances_are_found(tmp_path: Path) -> None:
    source = """
        class Rooms:
            visits = []

            def __init__(self, config):
                self.config = config
                self.rooms = config["rooms"]

            def enter(self, room_id):
                self.visits.append(room_id)
                self.rooms.setdefault(room_id, {"visits": 0})["visits"] += 1
                return {"success": True, "data": {"all": len(self.visits)}}
    """
    item = nested(source, [tool("enter", "room_id", room_id=TEXT)], init_config={"rooms": {"R1": {"visits": 0}}})
    record = checked(tmp_path, item)
    assert "attributes config and rooms" in [n.what for n in record.notes]
    assert ("replay", None) in failed(record)


def test_dependence_on_the_hash_seed_is_found(tmp_path: Path) -> None:
    source = """
        class Bag:
            def __init__(self, config):
                self.words = ["ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew"]

            def order(self):
                print("looking")
                return {"success": True, "data": list(set(self.words))}
    """
    record = checked(tmp_path, nested(source, [tool("order")], init_config={}))
    assert failed(record) == {("replay", "order")}


def test_query_that_changes_the_state_is_found(tmp_path: Path) -> None:
    source = LIBRARY.replace('return {"books"', "self.loans.setdefault('peek', {})\n            return {\"books\"")
    assert failed(checked(tmp_path, nested(source))) == {("query", "list_books")}


def test_answers_that_are_not_json_are_found(tmp_path: Path) -> None:
    source = LIBRARY.replace('return {"books": [b for', "return {\"books\": {b['title'] for").replace(
        'b["shelf"])]}', 'b["shelf"])}}'
    )
    assert ("escape", "list_books") in failed(checked(tmp_path, nested(source)))


# the command


def test_command_writes_without_running(tmp_path: Path) -> None:
    path = written(tmp_path, nested(), flat(), {"task": "no class"})
    result = CliRunner().invoke(app, ["omniabench", str(path), "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["environments"], told["tasks"], len(told["left_out"]), told["checked"]) == (2, 2, 1, 0)
    folder = tmp_path / "out" / told["folders"][0]
    assert {p.name for p in folder.iterdir()} == {
        "environment.py", "tools.json", "tasks.jsonl", "tasks.private.jsonl", "states", "import.json",
    }  # fmt: skip
    row = json.loads((folder / "tasks.jsonl").read_text(encoding="utf-8"))
    assert json.loads((folder / "states" / f"{row['state']}.json").read_text(encoding="utf-8")) == {"books": BOOKS}
    assert "Tides" not in json.dumps(row)
    assert json.loads((folder / "tasks.private.jsonl").read_text(encoding="utf-8"))["script"].startswith("Ask")


def test_command_with_trust_runs_the_gate(tmp_path: Path) -> None:
    source = LIBRARY.replace(
        "if book_id not in self.books:\n                return", "if False:\n                return", 1
    )
    noisy = source.replace("self.books = init", "print('started')\n            self.books = init")
    for text, code in ((LIBRARY, 0), (noisy, 1)):
        path = written(tmp_path, nested(text))
        arguments = ["omniabench", str(path), "--out", str(tmp_path / f"out{code}"), "--trust"]
        result = CliRunner().invoke(app, [*arguments, "--json"])
        told = json.loads(result.stdout)
        assert result.exit_code == code and told["passed"] == 1 - code
        assert {f["check"] for f in told["failures"]} == ({"escape"} if code else set())
        assert CliRunner().invoke(app, arguments).exit_code == code

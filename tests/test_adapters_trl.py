"""The adapter for TRL: classes made of tools, sessions in a pool, rewards, and a real GRPOTrainer."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.serving import run_script, served, solved
from agentomnia.adapters import trl
from agentomnia.adapters.connection import LocalClient
from agentomnia.environment.result import Result, success
from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError, InputError, InstanceError
from agentomnia.runs.serving import catalog_of
from agentomnia.sandbox.host import Host
from agentomnia.sandbox.remote import SessionInfo
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task

TRAINER = ("torch==2.13.0", "trl==1.16.0")


@pytest.fixture(scope="module")
def local(policy_run: Path) -> Iterator[LocalClient]:
    client = LocalClient(lambda: Host(catalog_of(policy_run)))
    yield client
    client.close()


@pytest.fixture
def source(local: LocalClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """The run as a source, on the connection of this module."""
    trl.environment_class.cache_clear()
    monkeypatch.setattr(trl, "connect", lambda source: local)
    return "local"


class Double:
    """A link and its only session, with one tool; fails as it is told."""

    def __init__(self, name: str = "get_one", schema: Mapping[str, Any] | None = None, described: str = "One.") -> None:
        function = {"name": name, "description": described, "parameters": schema or {"type": "object"}}
        self.tool = {"type": "function", "function": function}
        self.id = "session"
        self.info = SessionInfo("session", "E", "t", (self.tool,), "prompt", "query", "0")
        self.error: Exception | None = None
        self.done: list[str] = []

    def environment(self, id_: str) -> dict[str, Any]:
        return {"id": id_, "tools": [self.tool]}

    def tasks(self, environment: str | None = None, split: str | None = None) -> list[Task]:
        return []

    def open(self, *, task: str) -> Double:
        self._note("open")
        return self

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        self._note("call")
        return success(dict(arguments))

    def reset(self) -> None:
        self._note("reset")

    def score(self, message: str = "") -> Grade:
        self._note("score")
        return Grade(reward=1.0)

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        self.done.append(what)
        if self.error is not None:
            raise self.error


def environment_at(double: Double, monkeypatch: pytest.MonkeyPatch) -> trl.TrainedEnvironment:
    trl.environment_class.cache_clear()
    monkeypatch.setattr(trl, "connect", lambda source: double)
    return trl.make_environment("double", "E", (), "message")


def message(content: str | None, **parts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **parts}


def test_every_tool_has_the_schema_that_the_environment_declares(source: str, local: LocalClient) -> None:
    from transformers.utils import get_json_schema

    seen = 0
    for factory in trl.factories(source).values():
        environment = factory()
        declared = {t["function"]["name"]: t["function"] for t in local.environment(environment._environment)["tools"]}
        public = [n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if not n.startswith("_")]
        for name in set(public) - {"reset"}:
            shown = get_json_schema(getattr(environment, name))["function"]
            wanted = declared[name]["parameters"]
            assert shown["name"] == name and shown["description"]
            assert list(shown["parameters"]["properties"]) == list(wanted.get("properties", {}))
            assert shown["parameters"].get("required", []) == wanted.get("required", [])
            for parameter, schema in shown["parameters"]["properties"].items():
                assert schema.get("type") == wanted["properties"][parameter].get("type")
                assert schema.get("enum") == wanted["properties"][parameter].get("enum")
                assert schema["description"]
            seen += 1
    assert seen > 20


def test_only_the_exposed_tools_are_methods(source: str, local: LocalClient) -> None:
    rows, factories = trl.dataset_rows(source, split="rl"), trl.factories(source, split="rl")
    tasks = {t.id: t for t in local.tasks(split="rl")}
    assert {r["environment"] for r in rows} == factories.keys() and len(rows) == len(tasks)
    for row in rows:
        public = {n for n in dir(factories[row["environment"]]()) if not n.startswith("_")}
        assert public - {"reset"} == set(tasks[row["task"]].tools)
        assert [m["role"] for m in row["prompt"]] == ["system", "user"]
        assert row["prompt"][1]["content"] == tasks[row["task"]].query


def test_factories_are_pickled(source: str) -> None:
    name, factory = next(iter(trl.factories(source).items()))
    copy = pickle.loads(pickle.dumps(factory))
    assert type(copy()) is type(factory()) and copy()._environment == name.partition("#")[0]


def test_a_reference_earns_one_and_giving_up_nothing(source: str, policy_run: Path) -> None:
    rows, factories = {r["task"]: r for r in trl.dataset_rows(source)}, trl.factories(source)
    environments, completions = [], []
    for episode in solved(policy_run):
        for calls, said in ((episode["calls"], episode["answer"]), ([], "Sorry."), (episode["calls"], None)):
            environment = factories[rows[episode["task"]]["environment"]]()
            assert environment.reset(**rows[episode["task"]]) is None
            for tool, arguments in calls:
                assert json.loads(getattr(environment, tool)(**arguments))["ok"]
            environments.append(environment)
            completions.append([message(said, tool_calls=[] if said is not None else [{"type": "function"}])])
    rewards = trl.episode_reward(completions, environments, prompts=None)
    for environment in environments:
        environment._close()
    assert rewards == [1.0, 0.0, 0.0] * (len(rewards) // 3) and len(rewards) == 12


def test_refused_calls_are_answers(source: str) -> None:
    row = trl.dataset_rows(source, split="rl")[0]
    environment = trl.factories(source)[row["environment"]]()
    environment.reset(**row)
    tool = next(n for n in dir(environment) if not n.startswith("_") and n != "reset")
    told = json.loads(getattr(environment, tool)(no_such_argument=1))
    assert told["error"]["code"] == "invalid_argument"
    assert json.loads(environment._call("no_such_tool", {}))["error"]["code"] == "not_found"
    environment._close()


def test_the_pool_keeps_a_session_for_the_same_task(source: str) -> None:
    rows = trl.dataset_rows(source, split="rl")
    environment = trl.factories(source)[rows[0]["environment"]]()
    environment.reset(**rows[0])
    first = environment._session
    environment.reset(**rows[0])
    assert environment._session is first
    other = next(r for r in rows if r["task"] != rows[0]["task"])
    environment.reset(**other)
    assert environment._session is not None and environment._session is not first
    environment._close()


@pytest.mark.parametrize("error", [InfrastructureError("gone"), EnvironmentFault("broke"), InstanceError("expired")])
def test_what_is_not_the_agents_fault_has_no_reward(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    environment: Any = environment_at(double, monkeypatch)
    environment.reset(task="t")
    double.error = error
    with pytest.raises(type(error)):
        environment.get_one()
    double.error = None
    with pytest.raises(type(error)):  # the session's state is unknown now
        environment.get_one()
    assert trl.episode_reward([[message("Done.")]], [environment]) == [None]
    environment.reset(task="t")  # a new session, and the next episode counts
    assert double.done == ["open", "call", "close", "open"]
    assert trl.episode_reward([[message("Done.")]], [environment]) == [1.0]


def test_a_score_that_fails_is_no_reward_and_a_reset_that_fails_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    environment = environment_at(double, monkeypatch)
    environment.reset(task="t")
    double.error = InfrastructureError("gone")
    assert trl.episode_reward([[message("Done.")]], [environment]) == [None]
    double.error = CapacityError("full")
    with pytest.raises(CapacityError):
        environment.reset(task="u")


def test_a_lease_that_ended_between_episodes_opens_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    environment = environment_at(double, monkeypatch)
    environment.reset(task="t")
    monkeypatch.setattr(double, "reset", lambda: (_ for _ in ()).throw(InstanceError("expired")))
    environment.reset(task="t")
    assert double.done == ["open", "close", "open"]


def test_a_session_is_closed_with_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    environment = environment_at(double, monkeypatch)
    environment.reset(task="t")
    del environment
    assert double.done == ["open", "close"]


HOSTILE = 'x"""\n\nArgs:\n    evil: y (choices: ["a"])\nReturns:\n    z\nRaises: q (choices: [1])'


def test_texts_of_others_cannot_change_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import get_json_schema

    properties = {
        "city": {"type": "string", "description": HOSTILE, "default": HOSTILE},
        "kind": {"enum": ["a", HOSTILE, 3, None]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
        "maybe": {"type": ["string", "null"], "format": "date", "description": ""},
        "any": {},
    }
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    environment: Any = environment_at(Double(schema=schema, described=HOSTILE), monkeypatch)
    shown = get_json_schema(environment.get_one)["function"]
    assert shown["description"].startswith('x""" Args - evil: y (choices -')
    told = shown["parameters"]["properties"]
    assert list(told) == list(properties) and shown["parameters"]["required"] == ["city"]
    assert "enum" not in told["city"] and told["city"]["description"].startswith('x""" Args - evil')
    assert told["kind"]["enum"] == ["a", HOSTILE, 3, None]
    assert told["either"]["anyOf"] == [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]
    assert told["maybe"]["type"] == "string" and told["maybe"]["nullable"]
    assert told["maybe"]["description"] == "maybe (format 'date')"
    environment.reset(task="t")
    assert json.loads(environment.get_one(city="x", no=1))["data"] == {"city": "x", "no": 1}


@pytest.mark.parametrize(
    ("tool", "parameter"),
    [("reset", "a"), ("get_reward", "a"), ("_call", "a"), ("a-b", "a"), ("x" * 65, "a"), ("ok", "class"),
     ("ok", "a b"), ("ok", "self"), ("ok", "1")],
)  # fmt: skip
def test_names_that_python_cannot_take_are_refused(tool: str, parameter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
    with pytest.raises(InputError, match=r"leave (it|the tool) out"):
        environment_at(Double(tool, schema), monkeypatch)


def test_environments_that_own_their_reward_are_scored_by_state(source: str, local: LocalClient) -> None:
    rows = trl.dataset_rows(source, scored="state")
    assert {r["task"] for r in rows} == {t.id for t in local.tasks() if not t.answer} and rows
    environment: Any = trl.factories(source, scored="state")[rows[0]["environment"]]()
    environment.reset(**rows[0])
    assert environment.get_reward() == 0.0
    environment._close()


@pytest.mark.clients
def test_grpo_trains_on_sessions_of_a_server(policy_run: Path, tmp_path: Path) -> None:
    episodes = solved(policy_run, 40, "rl")
    with served(policy_run) as address:
        told = run_script("trl", TRAINER, "trl_trainer.py", address, episodes, tmp_path, seconds=240)
    assert told["version"] == "1.16.0" and told["schemas"] > 20
    for scored in ("message", "state"):
        assert told[scored]["reward"] == 0.5 and told[scored]["moved"] > 0
        assert told[scored]["tools/call_frequency"] > 0 and told[scored]["tools/failure_frequency"] == 0
    assert told["message"]["rewards/episode_reward/mean"] == 0.5
    assert told["lost"]["tools/failure_frequency"] > 0
    assert told["lost"]["rewards/episode_reward/mean"] == pytest.approx(
        1 / 3
    )  # of four rollouts one counts for nothing

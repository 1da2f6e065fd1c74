"""`omnia serve` and `omnia mcp` as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentomnia.errors import InputError
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.serving import catalog_of, read_tokens
from agentomnia.sandbox.client import SandboxClient
from agentomnia.synthesis.environments import cache
from agentomnia.task.task import answer_message
from conftest import Done
from test_imported import nested, written


@contextmanager
def omnia(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from agentomnia.cli.main import main; main()", *arguments]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def served(path: Path, *more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with omnia("serve", str(path), "--port", "0", "--json", *more) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["environments"] == 2 and told["tasks"] > 0
        yield told["address"], process


@pytest.mark.parametrize("isolate", [(), ("--isolate",)])
def test_a_run_is_served_played_and_stopped(finished_run: Path, isolate: tuple[str, ...]) -> None:
    task, private = next(iter(read_tasks(finished_run)))
    with served(finished_run, *isolate) as (address, process):
        with SandboxClient(address) as client, client.open(task.environment, task=task.id) as session:
            assert session.info.query == task.query
            for call in private.calls:
                assert session.call(call.tool, call.arguments)["ok"]
            assert session.score(answer_message(private.answer)).reward == 1.0
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as page:
            text = page.read().decode()
        assert "omnia_sessions 0" in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_instances_live_on_a_node_agent(finished_run: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses\n")
    command = [sys.executable, "-m", "agentomnia.sandbox.node", "--token-file", str(token)]
    with subprocess.Popen(command, stdout=-1, text=True) as node:
        try:
            assert node.stdout is not None
            where = json.loads(node.stdout.readline())["listening"]
            task, private = next(iter(read_tasks(finished_run)))
            with served(finished_run, "--node", where, "--node-token", str(token)) as (address, _):
                with SandboxClient(address) as client, client.open(task.environment, task=task.id) as session:
                    session.batch([(call.tool, call.arguments) for call in private.calls])
                    assert session.score(answer_message(private.answer)).reward == 1.0
                with urllib.request.urlopen(f"{address}/metrics", timeout=10) as page:
                    assert "omnia_nodes 1" in page.read().decode()
        finally:
            node.kill()


@pytest.mark.parametrize("isolate", [(), ("--isolate",)])
def test_sessions_outlive_a_restart(finished_run: Path, tmp_path: Path, isolate: tuple[str, ...]) -> None:
    kept = tmp_path / "sessions"
    task, private = max(read_tasks(finished_run), key=lambda pair: len(pair[1].calls))
    half = len(private.calls) // 2
    with served(finished_run, "--keep", str(kept), *isolate) as (address, process):
        with SandboxClient(address) as client:
            session = client.open(task.environment, task=task.id)
            for call in private.calls[:half]:
                assert session.call(call.tool, call.arguments)["ok"]
            before = session.digest()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and kept.exists()
    with served(finished_run, "--keep", str(kept), *isolate) as (address, _), SandboxClient(address) as client:
        assert not kept.exists()
        session = client.session(session.id)
        assert session.digest() == before
        for call in private.calls[half:]:
            assert session.call(call.tool, call.arguments)["ok"]
        assert session.score(answer_message(private.answer)).reward == 1.0
    kept.write_bytes(b"junk")
    broken = run("serve", str(finished_run), "--port", "0", "--keep", str(kept))
    assert broken.returncode == 2 and "move the file away" in broken.stderr and kept.exists()


def test_tokens_separate_tenants(finished_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who may ask\nalpha-token alpha\n\nbeta-token beta\n")
    assert read_tokens(file) == {"alpha-token": "alpha", "beta-token": "beta"}
    environment = next(iter(catalog_of(finished_run).sources))
    with served(finished_run, "--tokens", str(file)) as (address, _):
        with (
            SandboxClient(address, token="alpha-token") as alpha,
            SandboxClient(address, token="beta-token") as beta,
            alpha.open(environment) as session,
        ):
            assert session.digest()
            with pytest.raises(InputError):
                beta.session(session.id)
        with SandboxClient(address) as nobody, pytest.raises(InputError):
            nobody.open(environment)


@pytest.mark.parametrize("text", ["", "# none\n", "one\n", "one two three\n"])
def test_a_tokens_file_without_tokens_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(InputError, match="TOKEN TENANT"):
        read_tokens(file)


def run(*arguments: str) -> Done:
    command = [sys.executable, "-c", "from agentomnia.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_errors_say_what_to_do(tmp_path: Path, finished_run: Path) -> None:
    empty = run("serve", str(tmp_path), "--port", "0")
    assert empty.returncode == 2 and "no environment" in empty.stderr
    alone = run("serve", str(finished_run), "--node", "127.0.0.1:1", "--port", "0")
    assert alone.returncode == 2 and "--node-token" in alone.stderr
    beyond = run("serve", str(finished_run), "--host", "0.0.0.0", "--port", "0")
    assert beyond.returncode == 2 and "--tokens" in beyond.stderr and "--everybody" in beyond.stderr


def test_mcp_over_standard_input_and_output(finished_run: Path) -> None:
    task, private = next(iter(read_tasks(finished_run)))
    package = finished_run / "environments" / task.environment
    call = private.calls[0]
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": call.tool, "arguments": call.arguments}},
    ]
    with omnia("mcp", str(package), "--task", task.id) as process:
        out, _ = process.communicate("".join(json.dumps(line) + "\n" for line in lines), timeout=60)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["id"] for a in answers] == [1, 2, 3]
    assert {t["name"] for t in answers[1]["result"]["tools"]} >= {call.tool}
    assert answers[2]["result"]["structuredContent"]["ok"] is True


# The compiled cache


def test_a_package_is_proved_once_and_again_when_it_changes(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    package = next((finished_run / "environments").iterdir())
    mine, folder = tmp_path / package.name, tmp_path / "cache"
    shutil.copytree(package, mine)
    first = cache.compiled_environment(mine, folder)
    monkeypatch.setattr(cache, "load_package", None)
    second = cache.compiled_environment(mine, folder)
    assert second == first and second.program().tools == first.tools
    (mine / "environment.py").write_text((mine / "environment.py").read_text() + "\nimport os\n")
    with pytest.raises(TypeError):  # the changed source must be proved, which needs what was taken away
        cache.compiled_environment(mine, folder)


@pytest.mark.parametrize("content", [b"", b"\xff" * 40])
def test_a_spoiled_cache_costs_only_time(finished_run: Path, tmp_path: Path, content: bytes) -> None:
    package = next((finished_run / "environments").iterdir())
    first = cache.compiled_environment(package, tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(content)
    assert cache.compiled_environment(package, tmp_path) == first


def test_a_cache_that_cannot_be_written_costs_only_time(finished_run: Path, tmp_path: Path) -> None:
    package = next((finished_run / "environments").iterdir())
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    assert cache.compiled_environment(package, nowhere).name == cache.compiled_environment(package, tmp_path).name


def test_initial_states_of_a_run_open_as_they_are(finished_run: Path) -> None:
    catalog = catalog_of(finished_run)
    for source in catalog.sources.values():
        assert source.info.states and os.path.sep not in "".join(source.info.states)
        for name in source.info.states:
            stored = json.loads((finished_run / "environments" / source.id / "states" / f"{name}.json").read_text())
            assert source.state(name) == stored


def test_an_imported_class_is_served_from_a_worker(tmp_path: Path) -> None:
    out = tmp_path / "imported"
    done = run("import", "omniabench", str(written(tmp_path, nested())), "--out", str(out))
    assert done.returncode == 0, done.stderr
    with omnia("serve", str(out), "--port", "0") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert "1 of them in workers" in lines[1] and "rlimits" in lines[1]
        address = lines[0].split()[-1]
        with SandboxClient(address) as client:
            name = client.environments()[0]["id"]
            with client.open(name) as one, client.open(name) as other:
                assert one.call("borrow", {"book_id": "B1", "reader": "Ada"})["ok"]
                refused = one.call("borrow", {"book_id": "B1", "reader": "Bo"})
                assert refused["error"]["message"] == "it is lent already"
                assert one.call("borrow", {"book_id": 7})["error"]["code"] == "invalid_argument"
                assert other.call("borrow", {"book_id": "B1", "reader": "Bo"})["ok"]
                before = one.digest()
                one.reset()
                assert one.digest() != before and one.call("borrow", {"book_id": "B1", "reader": "Cy"})["ok"]

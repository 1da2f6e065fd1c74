import json
import subprocess
import sys
from collections import Counter

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from agentomnia.cli.taxonomy import app
from agentomnia.errors import InputError, TaxonomyError
from agentomnia.taxonomy.axes import (
    CAPABILITIES,
    DIFFICULTIES,
    capability,
    difficulty,
    domain,
    domains,
    domains_in,
    level1,
)
from agentomnia.taxonomy.coordinate import Coordinate
from agentomnia.taxonomy.coverage import Coverage, Span, coverage, read_coordinates

TASK = {
    "domain": 10053,
    "capabilities": ["tool_use", "data_analysis"],
    "difficulty": ["dynamic_planning", "ambiguous_goal"],
    "primary": "dynamic_planning",
}


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def omnia(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


# --- axes


def test_tree_has_the_published_counts():
    assert len(level1()) == 90
    assert len(domains()) == 354
    assert Counter(split for split, _ in level1()) == {"toc": 22, "tob": 38, "toe": 30}
    assert Counter(item.split for item in domains()) == {"toc": 101, "tob": 186, "toe": 67}


def test_domains_are_in_id_order_with_unique_ids():
    ids = [item.id for item in domains()]
    assert ids == sorted(set(ids))
    assert all(domain(id).id == id for id in ids)


def test_every_domain_is_executable_and_stateful():
    for item in domains():
        assert item.description and item.constraints and item.operations
        assert any(entity["mutable"] for entity in item.objects), item.path
        assert all(set(entity["mutable"]) <= set(entity["attributes"]) for entity in item.objects), item.path


def test_repeated_level2_name_is_told_apart_by_id():
    managers = [item for item in domains() if item.l2 == "Project Manager"]
    assert len({item.id for item in managers}) == 3
    assert len({item.path for item in managers}) == 3


def test_repeated_level1_name_is_told_apart_by_split():
    assert ("toc", "Finance") in level1() and ("tob", "Finance") in level1()
    assert {item.split for item in domains_in(l1="finance")} == {"toc", "tob"}
    assert {item.split for item in domains_in("tob", "Finance")} == {"tob"}


def test_axes_have_the_published_sizes_and_unique_ids():
    assert len({item.id for item in CAPABILITIES}) == len(CAPABILITIES) == 10
    assert len({item.id for item in DIFFICULTIES}) == len(DIFFICULTIES) == 8
    assert all(item.name and item.description for item in (*CAPABILITIES, *DIFFICULTIES))


@pytest.mark.parametrize(
    ("look_up", "says"),
    [
        (lambda: domain(10101), "10100.*omnia taxonomy list"),
        (lambda: domains_in("b2b"), "choose one of toc, tob, toe"),
        (lambda: domains_in("tob", "Finances"), "in tob: choose one of Finance"),
        (lambda: capability("tool-use"), "choose one of tool_use"),
        (lambda: difficulty("zzz"), "choose one of ambiguous_goal.*risk_reliability"),
    ],
)
def test_unknown_name_is_refused_with_what_to_use_instead(look_up, says):
    with pytest.raises(TaxonomyError, match=says):
        look_up()


# --- coordinate


def test_coordinate_knows_its_place_and_profile():
    place = Coordinate.model_validate(TASK)
    assert (place.split, place.l1, place.l2) == ("toc", "Finance", domain(10053).l2)
    assert place.profile == (1, 0, 0, 0, 1, 0, 0, 0)


def test_coordinates_that_mean_the_same_have_one_identity():
    profiles = {
        "capabilities": ["data_analysis", "tool_use", "tool_use"],
        "difficulty": TASK["difficulty"][::-1],
    }
    shuffled = {**TASK, **profiles}
    first, second = Coordinate.model_validate(TASK), Coordinate.model_validate(shuffled)
    assert first == second
    assert first.identity == second.identity
    assert first.capabilities == ("tool_use", "data_analysis")
    assert first.difficulty == ("ambiguous_goal", "dynamic_planning")


def test_coordinate_survives_its_json():
    place = Coordinate.model_validate(TASK)
    assert Coordinate.model_validate_json(json.dumps(place.to_json())) == place
    easy = Coordinate(domain=30000, capabilities=("tool_use",))
    assert Coordinate.model_validate(easy.to_json()) == easy
    assert easy.profile == (0,) * 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"domain": 1}, "nearest are"),
        ({"domain": "Project Manager"}, "domain"),
        ({"capabilities": []}, "at least one capability"),
        ({"capabilities": ["Tool Use"]}, "choose one of tool_use"),
        ({"difficulty": ["dynamic_planing"]}, "choose one of dynamic_planning"),
        ({"primary": None}, "primary is missing"),
        ({"primary": "structured_information"}, "not an active atom"),
        ({"difficulty": []}, "not an active atom"),
        ({"split": "toc"}, "split"),
    ],
)
def test_coordinate_outside_the_taxonomy_is_refused(change, says):
    with pytest.raises(ValidationError, match=says):
        Coordinate.model_validate({**TASK, **change})


def test_coordinate_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Coordinate.model_validate(TASK).domain = 10054


# --- coverage


def test_coverage_of_nothing_lists_every_place_with_zero():
    empty = coverage([])
    assert empty.rows == 0
    assert len(empty.l2) == 354 and set(empty.l2.values()) == {0}
    assert {split: len(names) for split, names in empty.l1.items()} == {"toc": 22, "tob": 38, "toe": 30}
    assert list(empty.capabilities) == [item.id for item in CAPABILITIES]
    assert list(empty.difficulty) == list(empty.primary) == [item.id for item in DIFFICULTIES]


def test_coverage_counts_tasks_on_every_axis(tmp_path):
    easy = {"domain": 20000, "capabilities": ["tool_use"]}
    hard = {"coordinate": TASK, "query": "…"}
    file = write_lines(tmp_path / "tasks.jsonl", hard, hard, {"coordinate": easy})
    measured = coverage(read_coordinates(file))
    assert measured.rows == 3
    assert {split: of.rows for split, of in measured.splits.items()} == {"toc": 2, "tob": 1, "toe": 0}
    assert (measured.l1["toc"]["Finance"], measured.l1["tob"]["Finance"]) == (2, 1)
    assert (measured.splits["toc"].l1, measured.splits["toc"].l1_total) == (1, 22)
    assert (measured.splits["tob"].l2, measured.splits["tob"].l2_total) == (1, 186)
    assert (measured.l2[10053], measured.l2[20000], sum(measured.l2.values())) == (2, 1, 3)
    assert (measured.capabilities["tool_use"], measured.capabilities["data_analysis"]) == (3, 2)
    assert (measured.difficulty["ambiguous_goal"], measured.difficulty["dynamic_planning"]) == (2, 2)
    assert (measured.primary["ambiguous_goal"], measured.primary["dynamic_planning"]) == (0, 2)


def test_environment_counts_once_for_each_place_it_supports(tmp_path):
    file = write_lines(
        tmp_path / "environments.jsonl",
        {"coordinates": [TASK, {**TASK, "domain": 10054}, TASK]},
        {"domains": [10053, 10053, 30000]},
        {"coordinates": [20000]},
    )
    measured = coverage(read_coordinates(file))
    assert measured.rows == 3
    assert {id: rows for id, rows in measured.l2.items() if rows} == {10053: 2, 10054: 1, 20000: 1, 30000: 1}
    assert measured.l1["toc"]["Finance"] == 2
    assert measured.capabilities["tool_use"] == 1
    assert measured.primary["dynamic_planning"] == 1


def test_coverage_takes_coordinates_in_memory_and_survives_its_json():
    measured = coverage([Coordinate.model_validate(TASK), Span.of(30000)])
    assert measured.rows == 2
    assert Coverage.model_validate_json(measured.model_dump_json()) == measured


def test_run_directory_stands_for_its_tasks(tmp_path):
    write_lines(tmp_path / "tasks.jsonl", {"coordinate": TASK})
    assert coverage(read_coordinates(tmp_path)) == coverage(read_coordinates(tmp_path / "tasks.jsonl"))


def test_half_written_last_line_is_named(tmp_path):
    file = write_lines(tmp_path / "tasks.jsonl", {"coordinate": TASK}, {"coordinate": TASK})
    whole = json.dumps({"coordinate": TASK, "query": "naïve"}, ensure_ascii=False).encode()
    for cut in (20, whole.index(b"\xc3") + 1):
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]) + whole[:cut])
        with pytest.raises(InputError, match=r"line 3 is half-written.*resume the run"):
            coverage(read_coordinates(file))


def test_last_line_without_newline_is_read(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"coordinate": TASK}))
    assert coverage(read_coordinates(file)).rows == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"coordinate": ', "line 2 is not JSON"),
        ("[1, 2]", "line 2 is not a JSON object"),
        ('{"query": "no place"}', "line 2 has no coordinate"),
        ('{"coordinate": null}', "line 2 has no coordinate"),
        ('{"domains": []}', "line 2 has no coordinate"),
        ('{"domains": 10053}', "line 2 has a `domains` that is not a list"),
        ('{"domains": [10053, 5]}', "line 2: no domain has id 5"),
        ('{"domains": ["Finance"]}', "line 2 has a bad coordinate"),
        ('{"coordinate": {"domain": 10053, "capabilities": []}}', "line 2 has a bad coordinate .*capabilit"),
    ],
)
def test_bad_line_is_named(tmp_path, line, says):
    file = tmp_path / "tasks.jsonl"
    good = json.dumps({"coordinate": TASK})
    file.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(InputError, match=says):
        coverage(read_coordinates(file))


def test_rows_are_read_one_at_a_time(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"coordinate": TASK}) + "\nbroken\n")
    spans = read_coordinates(file)
    assert next(spans).domains == (10053,)
    with pytest.raises(InputError, match="line 2"):
        next(spans)


@pytest.mark.parametrize(
    ("name", "says"), [("none.jsonl", "no file"), ("tasks.parquet", "not a .jsonl"), ("", "tasks.jsonl")]
)
def test_unusable_path_is_refused_at_once(tmp_path, name, says):
    with pytest.raises(InputError, match=says):
        read_coordinates(tmp_path / name)


# --- command line


def test_list_prints_all_domains():
    result = omnia("list")
    assert result.exit_code == 0
    assert "90 level-1, 354 level-2 domains" in result.stdout


def test_list_json_is_one_object_and_filters():
    rows = json.loads(omnia("list", "--json").stdout)["domains"]
    assert len(rows) == 354
    assert set(rows[0]) == {"id", "split", "l1", "l2", "description"}
    finance = json.loads(omnia("list", "--split", "tob", "--l1", "Finance", "--json").stdout)["domains"]
    assert {(row["split"], row["l1"]) for row in finance} == {("tob", "Finance")}
    assert [row["id"] for row in finance] == [item.id for item in domains_in("tob", "Finance")]


def test_show_prints_a_domain_for_people_and_for_programs():
    shown = omnia("show", 10000)
    assert shown.exit_code == 0
    assert "toc / Social / Instant Messaging" in shown.stdout
    assert "recall only within 2 minutes of sending" in shown.stdout
    row = json.loads(omnia("show", 10000, "--json").stdout)
    assert row["id"] == 10000
    assert row["objects"][0]["name"] == "Contact"


def test_show_refuses_an_unknown_id():
    assert isinstance(omnia("show", 1).exception, TaxonomyError)
    assert omnia("show", "Finance").exit_code == 2


def test_coverage_command(tmp_path):
    file = write_lines(tmp_path / "tasks.jsonl", {"coordinate": TASK})
    shown = omnia("coverage", file)
    assert shown.exit_code == 0
    assert "353 of 354 level-2 domains have none" in shown.stdout
    row = json.loads(omnia("coverage", tmp_path, "--json").stdout)
    assert row["l2"]["10053"] == 1
    assert row["splits"]["toc"] == {"rows": 1, "l1": 1, "l1_total": 22, "l2": 1, "l2_total": 101}


def test_coverage_command_refuses_a_half_written_file(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"coordinate": {"dom')
    result = omnia("coverage", file, "--json")
    assert isinstance(result.exception, InputError)
    assert "line 1 is half-written" in str(result.exception)
    assert result.stdout == ""


def test_importing_the_command_loads_no_taxonomy():
    code = "import sys, agentomnia.cli.taxonomy; print({'agentomnia.taxonomy', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

"""PRDs: Markdown and back without loss, hand-written ones, problems with lines, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentomnia.cli.main import app
from agentomnia.errors import InputError
from agentomnia.evolution.guidance import OPERATOR_TITLES, operators_of
from agentomnia.evolution.markdown import SECTIONS, escape, from_markdown, read_markdown, to_markdown, unescape
from agentomnia.evolution.prd import (
    CODES,
    CaseStudy,
    DeepAnalysis,
    Note,
    Prd,
    Requirement,
    Scenario,
    SynthesisGuidance,
    Targets,
    example_prd,
    priority,
)
from agentomnia.evolution.profiles import KINDS, profiles
from agentomnia.synthesis.tasks.operators import OPERATORS
from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES, domains

MINIMAL = """---
id: PRD-TU-007
priority: High
status: Active
domains: [10006]
capabilities: [tool_use]
---

## Scenario

### Multi-tool composition

Output of preceding tools serves
as input for later ones.

It never goes through the person.

## Requirements

### Cross-tool integrity

- Map outputs to
  parameters.
* Keep *state* consistent.

## Case study

### Trip planning

**Query:** Book a flight to NYC
and a hotel near the arrival airport.

**Logic:** SearchFlight → arrival_airport → SearchHotel
"""


def test_a_minimal_file_by_hand_is_read() -> None:
    prd = from_markdown(MINIMAL)
    assert prd == Prd(
        id="PRD-TU-007",
        priority="High",
        status="Active",
        scenario=Scenario(
            name="Multi-tool composition",
            description="Output of preceding tools serves as input for later ones.\n\n"
            "It never goes through the person.",
        ),
        requirements=(
            Requirement(
                title="Cross-tool integrity", points=("Map outputs to parameters.", "Keep *state* consistent.")
            ),
        ),
        case_study=CaseStudy(
            title="Trip planning",
            query="Book a flight to NYC and a hotel near the arrival airport.",
            logic="SearchFlight → arrival_airport → SearchHotel",
        ),
        targets=Targets(domains=(10006,), capabilities=("tool_use",)),
    )
    assert from_markdown(to_markdown(prd)) == prd
    assert from_markdown(MINIMAL.replace("\n", "\r\n")) == prd


def test_the_example_of_the_documentation_is_valid_and_its_operators_are_ours() -> None:
    text = (Path(__file__).parent.parent / "docs" / "prd.md").read_text(encoding="utf-8")
    assert from_markdown(text.partition("```markdown\n")[2].partition("```")[0]).id == "PRD-TU-042"
    rows = [
        line.strip("| ").split(" | ")
        for line in text.partition("| title | operators |")[2].split("\n\n")[0].split("\n")
    ]
    told = {row[0].casefold(): tuple(o.strip("` ") for o in row[1].split(",")) for row in rows[2:]}
    assert told == {title: found for title, found in OPERATOR_TITLES.items() if title not in OPERATORS}


MARKS = '#*_`\\-+>=|~&<;:.) \n\t1aé[](\r\x0b\x85\xa0\u2028\ufeff😀"'
WORDS = st.one_of(
    st.text(min_size=1, max_size=24),
    st.text(alphabet=MARKS, min_size=1, max_size=24),
    st.sampled_from(
        ["# Part", "## Scenario", "### x", "---", "- a\n- b", "**Query:** no", "<!-- x -->", "&#10;", "a\\"]
    ),
)
NOTES = st.lists(st.builds(Note, title=WORDS, text=WORDS), max_size=2).map(tuple)
PRDS = st.builds(
    Prd,
    id=st.from_regex(r"PRD-[A-Z]{2}-[0-9]{3,4}", fullmatch=True),
    priority=st.sampled_from(["High", "Medium", "Low"]),
    status=st.sampled_from(["Draft", "Active", "Closed"]),
    scenario=st.builds(Scenario, name=WORDS, description=WORDS),
    requirements=st.lists(
        st.builds(Requirement, title=WORDS, points=st.lists(WORDS, min_size=1, max_size=3).map(tuple)),
        min_size=1,
        max_size=2,
    ).map(tuple),
    case_study=st.builds(CaseStudy, title=WORDS, query=WORDS, logic=WORDS),
    targets=st.builds(
        Targets,
        domains=st.lists(st.sampled_from([d.id for d in domains()]), min_size=1, max_size=3).map(tuple),
        capabilities=st.lists(st.sampled_from([c.id for c in CAPABILITIES]), min_size=1, max_size=3).map(tuple),
    ),
    guidance=st.builds(
        SynthesisGuidance,
        analysis=st.builds(
            DeepAnalysis,
            failure_analysis=st.none() | st.builds(Note, title=WORDS, text=WORDS),
            failure_trajectory=st.none() | st.builds(Note, title=WORDS, text=WORDS),
            correct_trajectory=st.none() | st.builds(Note, title=WORDS, text=WORDS),
        ),
        environment=NOTES,
        tasks=NOTES,
        extra=NOTES,
        tools=st.lists(st.from_regex(r"[A-Za-z0-9_.-]{1,9}", fullmatch=True), max_size=2).map(tuple),
        depth=st.none() | st.integers(1, 9),
        failures=st.dictionaries(st.sampled_from([d.id for d in domains()[:5]]), st.integers(1, 99), max_size=2),
    ),
)


@settings(max_examples=100, deadline=None)
@given(PRDS)
def test_markdown_loses_nothing(prd: Prd) -> None:
    text = to_markdown(prd)
    assert from_markdown(text) == prd
    assert to_markdown(from_markdown(text)) == text
    assert Prd.model_validate(json.loads(json.dumps(prd.to_json()))) == prd


@settings(max_examples=300, deadline=None)
@given(WORDS, st.booleans())
@example("\n", False)
@example("a\n\n\nb\n", True)
@example("  # a  \\", True)
def test_an_escaped_text_has_no_structure(text: str, heading: bool) -> None:
    lines = escape(text, heading=heading).split("\n")
    assert not any(line != line.strip() or line.startswith(("#", "- ", "* ", "<!--", "**")) for line in lines)
    assert len(lines) == 1 or not heading
    assert unescape("\n".join(line.removesuffix("\\") if i + 1 < len(lines) else line for i, line in enumerate(lines))
                    ) == text  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "line", "word"),
    [
        ("id: PRD-TU-007", "id: TU-7", 2, "PRD-XX-NNN"),
        ("priority: High", "priority: Urgent", 3, "'High', 'Medium' or 'Low'"),
        ("status: Active\n", "", 2, "`status` is missing"),
        ("domains: [10006]", "domains: [10006, 1]", 5, "no domain has id 1"),
        ("domains: [10006]", "domains: [", 6, "no YAML"),
        ("capabilities: [tool_use]", "capabilities: []", 6, "capabilities"),
        ("capabilities: [tool_use]", "capabilities: [tool_use]\ntool: x", 7, "unknown key 'tool'"),
        ("---\nid", "id", 1, "no front matter"),
        ("## Scenario", "## Szenario", 9, "no section 'Szenario'"),
        ("## Case study", "## Requirements", 26, "appears twice"),
        ("### Trip planning\n", "", 29, "stands under no title"),
        ("- Map outputs to\n  parameters.\n* Keep *state* consistent.\n", "Map outputs.\n", 22, "begin the line with"),
        ("- Map outputs to\n  parameters.\n* Keep *state* consistent.\n", "", 20, "lacks points"),
        ("**Logic:**", "Logic:", 28, "no `**Logic:**`"),
        ("### Multi-tool composition", "### ", 11, "name"),
        ("### Multi-tool composition", "### A\n\nx\n\n### B", 15, "one title only"),
    ],
)
def test_problems_name_the_line_and_what_to_do(before: str, after: str, line: int, word: str) -> None:
    assert before in MINIMAL
    prd, problems = read_markdown(MINIMAL.replace(before, after, 1))
    assert prd is None
    assert any(p.line == line and word in p.message for p in problems), problems
    with pytest.raises(InputError, match=r"here line \d+: "):
        from_markdown(MINIMAL.replace(before, after, 1), "here")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_a_problem_or_another_prd(data: st.DataObject) -> None:
    lines = to_markdown(example_prd(10006)).split("\n")
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place : place + data.draw(st.integers(0, 2))] = data.draw(st.lists(WORDS, max_size=2))
    prd, problems = read_markdown("\n".join(lines))
    assert (prd is None) == bool(problems)
    assert all(1 <= p.line <= len("\n".join(lines).split("\n")) and p.message for p in problems)
    if prd is not None:
        assert from_markdown(to_markdown(prd)) == prd


def test_the_tables_fit_each_other() -> None:
    assert list(CODES) == [c.id for c in CAPABILITIES] and len(set(CODES.values())) == len(CODES)
    capabilities, atoms = {c.id for c in CAPABILITIES}, {d.id for d in DIFFICULTIES}
    for kind in KINDS:
        profile = profiles()[kind]
        assert {profile.capability, profile.reading or profile.capability} <= capabilities
        assert set(profile.atoms) <= atoms
        assert all(title.casefold() in OPERATOR_TITLES for title, _ in profile.environment)
    assert {o for found in OPERATOR_TITLES.values() for o in found} == set(OPERATORS)
    assert len(SECTIONS) == 3 + len(DeepAnalysis.model_fields) + 3


@pytest.mark.parametrize(("share", "cost", "wanted"), [(0.04, 1, "High"), (0.08, 0.49, "Medium"), (0.0099, 1, "Low")])
def test_priority_is_frequency_times_severity(share: float, cost: float, wanted: str) -> None:
    assert priority(share, cost) == wanted


def test_operators_follow_the_titles() -> None:
    prd = example_prd(10006)
    assert operators_of(prd) == ("distractor",)
    free = prd.model_copy(update={"guidance": SynthesisGuidance(environment=(Note(title="Snow", text="Much."),))})
    assert operators_of(free) == ()


def test_the_template_passes_the_check_and_damage_does_not(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "mine.md"
    made = runner.invoke(app, ["prd", "new", "--domain", "20014", "--out", str(file)])
    assert made.exit_code == 0, made.output
    assert from_markdown(file.read_text(encoding="utf-8")).targets.domains == (20014,)
    assert runner.invoke(app, ["prd", "new", "--domain", "20014", "--out", str(file)]).exit_code != 0  # never over it
    bad = tmp_path / "bad.md"
    bad.write_text(file.read_text(encoding="utf-8").replace("priority: Medium", "priority: Much"), encoding="utf-8")
    good = runner.invoke(app, ["prd", "check", str(file), "--json"])
    assert good.exit_code == 0 and json.loads(good.stdout)["prds"][0]["passed"] is True
    both = runner.invoke(app, ["prd", "check", str(file), str(bad), "--json"])
    rows = json.loads(both.stdout)["prds"]
    assert both.exit_code == 1 and [r["passed"] for r in rows] == [True, False] and rows[1]["problems"][0]["line"] == 3
    assert f"{bad} line 3:" in runner.invoke(app, ["prd", "check", str(bad)]).stdout
    missing = runner.invoke(app, ["prd", "check", str(tmp_path / "none.md")])
    assert isinstance(missing.exception, InputError)


def test_without_a_file_the_template_is_printed() -> None:
    shown = CliRunner().invoke(app, ["prd", "new"])
    assert shown.exit_code == 0 and from_markdown(shown.stdout).status == "Draft"
    as_json = CliRunner().invoke(app, ["prd", "new", "--json"])
    assert from_markdown(json.loads(as_json.stdout)["markdown"]) == from_markdown(shown.stdout)

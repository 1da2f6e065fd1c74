"""Parts of the loop's section: figures, paired rollouts, distributions over domains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentomnia.report.loop_domains import alignment_view
from agentomnia.report.loop_figures import Chart, Dot, Series, lines, running_mean, scatter, shares, steps_line, ticks
from agentomnia.report.loop_rollouts import Side, pair_rows, parting
from agentomnia.report.loop_rows import LoopRow, RlRow
from agentomnia.report.loop_training import silent_share, training_view
from agentomnia.taxonomy.coordinate import Coordinate


def side(number: int, key: str) -> Side:
    return Side(number, number - 1, "", key, "{}", True, "", "", "")


def calls(text: str) -> list[Side]:
    return [side(i, letter) for i, letter in enumerate(text, 1)]


letters = st.text("abcde", max_size=9)


@given(letters, letters)
def test_pairing_keeps_every_call_in_its_order(left: str, right: str) -> None:
    one, other = calls(left), calls(right)
    at = parting(one, other)
    found = list(pair_rows(one, other, at))
    assert [r.left for r in found if r.left] == one
    assert [r.right for r in found if r.right] == other
    assert sum(r.parts for r in found) == (at is not None)


@given(letters, letters)
def test_calls_in_another_order_do_not_part(left: str, right: str) -> None:
    at = parting(calls(left), calls(right))
    assert (at is None) == (set(left) == set(right))
    if at is not None and at.tool not in right:
        assert left[: at.number - 1].strip(right) == "" and left[at.number - 1] == at.tool


def test_equal_calls_stand_beside_each_other() -> None:
    one, other = calls("abxd"), calls("abcd")
    shown = [(r.left.tool if r.left else "", r.right.tool if r.right else "", r.parts)
             for r in pair_rows(one, other, parting(one, other))]  # fmt: skip
    assert shown == [("a", "a", False), ("b", "b", False), ("x", "c", True), ("d", "d", False)]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_the_range(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert found[0] <= low + slack and found[-1] >= high - slack
    assert list(found) == sorted(set(found))


@given(st.lists(st.floats(-100, 100), max_size=30), st.integers(1, 8))
def test_the_running_mean_looks_back_only(values: list[float], width: int) -> None:
    found = running_mean([(float(i), v) for i, v in enumerate(values)], width)
    for i, (x, y) in enumerate(found):
        window = values[max(0, i - width + 1) : i + 1]
        assert x == i and y == pytest.approx(sum(window) / len(window))


def coordinates_of(drawn: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", drawn)]


def test_lines_stay_inside_their_figure_and_are_thinned() -> None:
    points = tuple((float(i), (-1) ** i * i / 7) for i in range(5_000))
    drawn = lines(Chart("Loss", (Series("a", points),)))
    found = coordinates_of(drawn)
    assert 250 <= len(found) <= 300
    assert all(0 <= x <= 340 and 0 <= y <= 148 for x, y in found)
    assert lines(Chart("None", ())) == "" and lines(Chart("None", (Series("a", ()),))) == ""
    assert "<circle" in lines(Chart("One", (Series("a", ((3.0, 1.0),)),)))


def test_a_share_is_drawn_from_nought_to_a_hundred() -> None:
    drawn = lines(Chart("Share", (Series("a", ((0.0, 0.4), (1.0, 0.5))),), share=True))
    assert ">0 %<" in drawn and ">100 %<" in drawn


def test_text_of_figures_is_escaped() -> None:
    chart = Chart("<t>", (Series("<s>", ((0.0, 1.0), (1.0, 2.0))),), marks=((1.0, "<m>"),))
    drawn = lines(chart) + scatter([Dot("<d>", 0, 1, 3)], "<l>", 3, ("<x>", "<y>"))
    drawn += shares([("<n>", 0.5)], 1.0, "<l>") + steps_line([(0.0, 0.5)], 3.0, "<l>")
    assert not re.search(r"<[tsmdlxyn]>", drawn)


def test_a_dot_above_the_diagonal_rose_and_its_area_is_its_tasks() -> None:
    drawn = scatter(
        [Dot("up", 0.2, 0.8, 4), Dot("down", 0.8, 0.2, 1), Dot("new", 0.5, 0.5, 1, True)], "l", 4, ("a", "b")
    )
    dots = {n: (float(x), float(y), float(r)) for x, y, r, n in
            re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"><title>(\w+):', drawn)}  # fmt: skip
    assert dots["up"][1] < dots["new"][1] < dots["down"][1] and dots["up"][0] < dots["down"][0]
    assert dots["up"][2] ** 2 == pytest.approx(4 * dots["down"][2] ** 2, rel=0.02)
    assert drawn.count("unseen") == 1


SALON, HELPDESK = 10006, 20014


def z(domain: int) -> Coordinate:
    return Coordinate(domain=domain, capabilities=("tool_use",))


def test_shares_of_domains_sum_to_one_and_failures_lead() -> None:
    tasks = {"a": z(SALON), "b": z(SALON), "c": z(HELPDESK), "d": z(HELPDESK)}
    splits = {"a": "sft", "b": "rl", "c": "rl", "d": "prd", "e": "sft"}
    failed = [z(HELPDESK), z(HELPDESK), z(SALON)]
    view = alignment_view(tasks, splits, failed, LoopRow(kl={"prd": 0.2, "original": 0.6, "other": 1.0}))
    assert view is not None
    assert view.sets == (("PRD-guided data", 1), ("original data", 3), ("failed tasks", 3))
    assert view.rows[0].name == "ToB / IT & Internet"
    for index in range(3):
        assert sum(r.shares[index][1] for r in view.rows) == pytest.approx(1.0)
    assert view.kl == (("PRD-guided data", 0.2), ("original data", 0.6))


def test_counts_of_the_loop_file_go_first_and_failures_are_needed() -> None:
    given_ = LoopRow(domains={"prd": {"toc/Lifestyle": 3}, "failures": {"toc/Lifestyle": 1}, "other": {"x": 1}})
    view = alignment_view({}, {}, [z(HELPDESK)], given_)
    assert view is not None and [r.name for r in view.rows] == ["ToC / Lifestyle"]
    assert alignment_view({"a": z(SALON)}, {"a": "sft"}, [], LoopRow()) is None
    assert alignment_view({}, {}, [z(HELPDESK)], LoopRow()) is None


def rl(groups: dict[str, int]) -> RlRow:
    return RlRow(step=1, reward=0.0, groups=groups)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [({}, None), ({"mixed": 3, "all_fail": 1}, 0.25), ({"all_pass": 2, "flat": 2}, 1.0), ({"mixed": 5}, 0.0)],
)
def test_groups_that_are_not_mixed_carry_no_signal(groups: dict[str, int], expected: float | None) -> None:
    assert silent_share(rl(groups)) == expected


def write(path: Path, found: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in found), encoding="utf-8")


def test_a_run_keeps_its_line_in_every_chart(tmp_path: Path) -> None:
    row = '{"step": %d, "reward": 0.5, "dropped": {"truncated": 1}, "rollouts": 4, "prefix_mean": %s}'
    write(tmp_path / "rl/a/metrics.jsonl", [row % (i, 0) for i in range(3)])
    write(tmp_path / "rl/b/metrics.jsonl", [row % (i, 1.5) for i in range(3)])
    view = training_view(tmp_path, LoopRow())
    assert view is not None
    styles = {s.name: {s.style for c in view.charts for s in c.series if s.name == n} for n in "ab" for s in
              view.charts[0].series if s.name == n}  # fmt: skip
    assert styles == {"a": {0}, "b": {1}}
    prefix = next(c for c in view.charts if c.title.startswith("Golden"))
    assert [(s.name, s.style) for s in prefix.series] == [("b", 1)]
    dropped = next(c for c in view.charts if c.title == "Rollouts dropped")
    assert dropped.share and dropped.series[0].points[0] == (0.0, 0.25)


def test_prefixes_are_shares_of_the_golden_turns(tmp_path: Path) -> None:
    write(tmp_path / "rl/a/metrics.jsonl", ['{"step": 0, "reward": 0}'])
    row = '{"step": %d, "task": "t%d", "prefix": %d, "golden_turns": 4, "reward": 0.5, "retries": 1}'
    write(
        tmp_path / "rl/a/prefixes.jsonl",
        [row % (step, task, max(0, 2 - step) if task else 0) for step in range(3) for task in range(12)],
    )
    view = training_view(tmp_path, LoopRow())
    assert view is not None
    ((name, shown, helped),) = view.prefixes
    assert (name, len(shown), helped) == ("a", 8, 11)
    assert shown[0].points == ((0.0, 0.5), (1.0, 0.25), (2.0, 0.0))
    assert (shown[0].most, shown[0].last, shown[0].retries) == (2, 0, 3)


def test_a_report_needs_files_only() -> None:
    """What training and evolution write is read as rows of the report's own."""
    folder = Path(__file__).parent.parent / "src/agentomnia/report"
    for path in sorted(folder.glob("*.py")):
        assert not re.search(r"agentomnia\.(training|evolution)", path.read_text(encoding="utf-8")), path

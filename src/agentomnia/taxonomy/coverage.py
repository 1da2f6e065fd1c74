"""How much of the taxonomy a set of rows covers (paper, section 3.4: consistent coverage measurement).

A row stands somewhere on the axes through one of three keys: `coordinate` (tasks, trajectories, results),
`coordinates` (environments: a list of coordinates or of domain ids) or `domains` (environments: a list of
domain ids). A row with several coordinates counts once for each distinct place it covers, so a count is
always a number of rows. Every count lists the whole axis, zeros included: what is missing is what a reader
looks for.

`read_coordinates` streams: memory does not grow with the file. It reads any line or says which one it
cannot read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from agentomnia.errors import InputError, TaxonomyError
from agentomnia.row import Row
from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES, SPLITS, Split, domain, domains, level1
from agentomnia.taxonomy.coordinate import Coordinate


class Span(Row):
    """What one row covers: one coordinate for a task, any number of them for an environment.

    Build it with `Span.of`, which checks what it is given.
    """

    domains: tuple[int, ...]
    capabilities: tuple[str, ...] = ()
    difficulty: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()

    @classmethod
    def of(cls, *places: Coordinate | int) -> Self:
        """The union of coordinates and of bare domain ids.

        Raises:
            TaxonomyError: no domain has one of the ids.
        """
        whole = [place for place in places if isinstance(place, Coordinate)]
        bare = {domain(place).id for place in places if not isinstance(place, Coordinate)}
        return cls(
            domains=tuple(sorted(bare.union(place.domain for place in whole))),
            capabilities=tuple(sorted({id for place in whole for id in place.capabilities})),
            difficulty=tuple(sorted({id for place in whole for id in place.difficulty})),
            primary=tuple(sorted({place.primary for place in whole if place.primary is not None})),
        )


class SplitCoverage(Row):
    """How much of one split is covered (Table 1)."""

    rows: int
    l1: int
    """Level-1 domains with at least one row, of `l1_total`."""
    l1_total: int
    l2: int
    """Level-2 domains with at least one row, of `l2_total`."""
    l2_total: int


class Coverage(Row):
    """Rows per place on each axis, in axis order, zeros included."""

    rows: int
    splits: dict[Split, SplitCoverage]
    l1: dict[Split, dict[str, int]]
    """Keyed by split and then by name, because level-1 names repeat across splits."""
    l2: dict[int, int]
    """Keyed by domain id."""
    capabilities: dict[str, int]
    difficulty: dict[str, int]
    primary: dict[str, int]
    """Mutually exclusive over tasks: sums to the rows with any difficulty (section 3.4)."""


def coverage(rows: Iterable[Span | Coordinate]) -> Coverage:
    """Count rows per split, level 1, level 2, capability, difficulty atom and primary atom.

    Args:
        rows: one item a row, such as `read_coordinates(path)` or the coordinates of tasks in memory.

    Raises:
        TaxonomyError: a span names a domain id that the taxonomy does not have.
    """
    total = 0
    splits, l1, l2 = Counter[Split](), Counter[tuple[Split, str]](), Counter[int]()
    capabilities, difficulty, primary = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        span = row if isinstance(row, Span) else Span.of(row)
        places = [domain(id) for id in span.domains]
        total += 1
        splits.update({place.split for place in places})
        l1.update({(place.split, place.l1) for place in places})
        l2.update(span.domains)
        capabilities.update(span.capabilities)
        difficulty.update(span.difficulty)
        primary.update(span.primary)
    return Coverage(
        rows=total,
        splits={split: _split_coverage(split, splits[split], l1, l2) for split in SPLITS},
        l1={split: {name: l1[split, name] for at, name in level1() if at == split} for split in SPLITS},
        l2={item.id: l2[item.id] for item in domains()},
        capabilities={item.id: capabilities[item.id] for item in CAPABILITIES},
        difficulty={item.id: difficulty[item.id] for item in DIFFICULTIES},
        primary={item.id: primary[item.id] for item in DIFFICULTIES},
    )


def _split_coverage(
    split: Split, rows: int, l1: Mapping[tuple[Split, str], int], l2: Mapping[int, int]
) -> SplitCoverage:
    keys = [key for key in level1() if key[0] == split]
    ids = [item.id for item in domains() if item.split == split]
    return SplitCoverage(
        rows=rows,
        l1=sum(l1[key] > 0 for key in keys),
        l1_total=len(keys),
        l2=sum(l2[id] > 0 for id in ids),
        l2_total=len(ids),
    )


def read_coordinates(path: str | Path) -> Iterator[Span]:
    """The spans of the rows of a file, one a row, read line by line.

    Args:
        path: a `.jsonl` file, or a run directory, whose `tasks.jsonl` is then read.

    Raises:
        InputError: there is no such file, it is not JSONL, or a line is not a whole JSON object.
        TaxonomyError: a row has no coordinate, or one that the taxonomy does not have.
    """
    return _spans(_rows_file(Path(path)))


def _spans(file: Path) -> Iterator[Span]:
    # Bytes, not text: a write that was cut inside a character must be reported with its line number too.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{file} line {number}"
                yield _span(_parse(line, where), where)


def _rows_file(path: Path) -> Path:
    file = path / "tasks.jsonl" if path.is_dir() else path
    if file.suffix != ".jsonl":
        raise InputError(f"{file} is not a .jsonl file: give a .jsonl file or a run directory")
    if not file.is_file():
        raise InputError(f"there is no file {file}: give a .jsonl file or a run directory that has tasks")
    return file


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        if line.endswith(b"\n"):
            raise InputError(f"{where} is not JSON ({error}): mend or delete that line") from error
        raise InputError(f"{where} is half-written ({error}): resume the run, or delete that line") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object: mend or delete that line")
    return row


def _span(row: Mapping[str, Any], where: str) -> Span:
    try:
        places = list(_places(row, where))
        if not places:
            raise TaxonomyError(f"{where} has no coordinate: add `coordinate`, `coordinates` or `domains`")
        return Span.of(*places)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise TaxonomyError(f"{where} has a bad coordinate ({at or 'row'}: {reason}): correct it") from error


def _places(row: Mapping[str, Any], where: str) -> Iterator[Coordinate | int]:
    single = row.get("coordinate")
    if single is not None:
        yield Coordinate.model_validate(single)
    for key in ("coordinates", "domains"):
        items = row.get(key) or []
        if not isinstance(items, list):
            raise TaxonomyError(f"{where} has a `{key}` that is not a list: write a list of domain ids")
        for item in items:
            yield _place(item, where)


def _place(item: Any, where: str) -> Coordinate | int:
    if not isinstance(item, int):
        return Coordinate.model_validate(item)
    try:
        return domain(item).id
    except TaxonomyError as error:
        raise TaxonomyError(f"{where}: {error}") from error

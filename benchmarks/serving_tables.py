"""Tables of the serving benchmark: for a terminal, and for the documentation between its marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BEGIN, END = "<!-- serving: begin -->", "<!-- serving: end -->"
TARGETS = {"mcp": 60.0, "websocket": 30.0, "unix": 10.0}
"""Microseconds of server CPU for a call at 64 callers."""
_TITLES = {
    "mcp": "MCP, 2026-07-28", "mcp_legacy": "MCP, 2025-11-25", "rest": "REST", "websocket": "WebSocket, JSON",
    "websocket_msgpack": "WebSocket, msgpack", "websocket_shared": "WebSocket, all callers on one",
    "unix": "Unix socket, all callers on one", "unix_own_connections": "Unix socket, one for each caller",
    "openenv": "OpenEnv `/ws`", "ors": "ORS", "mcp_sdk": "MCP SDK `MCPServer`", "fastmcp": "FastMCP",
    "fastapi": "FastAPI + pydantic", "openenv_plain": "OpenEnv `Environment`",
    "openenv_mcp": "OpenEnv `MCPEnvironment`",
    "openreward": "openreward (ORS)",
}  # fmt: skip
_PEER_OF = {
    "mcp_sdk": "mcp", "fastmcp": "mcp", "fastapi": "rest", "openenv_plain": "openenv", "openenv_mcp": "openenv",
    "openreward": "ors",
}  # fmt: skip
"""The face of ours that speaks what a peer speaks."""


@dataclass(frozen=True)
class Table:
    """A table with a caption."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """For the documentation."""
        lines = [self.head, ("---", *("---:" for _ in self.head[1:])), *self.rows]
        return f"{self.caption}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self) -> RichTable:
        """For a terminal."""
        from rich.table import Table as RichTable

        made = RichTable(title=self.caption)
        for number, name in enumerate(self.head):
            made.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            made.add_row(*row)
        return made


def tables(told: Mapping[str, Any]) -> Iterator[Table]:
    """All tables of a report."""
    yield _faces(told)
    if told["peers"]:
        yield _peers(told)
    if "load_ms" in told:
        yield _operations(told)
        yield _memory(told)


def _number(value: Any, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _faces(told: Mapping[str, Any]) -> Table:
    head = (
        "face", "CPU µs, 64 callers", "target", "CPU µs, 1 caller", "isolated: CPU µs", "calls/s", "p50 ms", "p99 ms",
        "open ms",
    )  # fmt: skip
    rows = []
    for name, row in told["faces"].items():
        rows.append(
            (
                _TITLES[name], _number(row["cpu_us"]), _number(TARGETS.get(name), 0), _number(row.get("cpu_us_1")),
                _number(told["isolated_cpu_us"].get(name)), _number(row["calls_per_s"], 0), _number(row["p50_ms"], 2),
                _number(row["p99_ms"], 2), _number(row["session_open_ms"], 2),
            )
        )  # fmt: skip
    return Table("Our faces; one call, CPU of the server (isolated: gateway and worker together).", head, tuple(rows))


def _peers(told: Mapping[str, Any]) -> Table:
    head = ("peer", "CPU µs, 64 callers", "ours", "times", "CPU µs, 1 caller", "calls/s", "p99 ms", "open ms", "ours")
    rows = []
    for name, row in told["peers"].items():
        ours = told["faces"].get(_PEER_OF[name], {})
        if "skipped" in row:
            rows.append((_TITLES[name], f"not measured: {_cell(row['skipped'])}", *("",) * (len(head) - 2)))
            continue
        times = row["cpu_us"] / ours["cpu_us"] if ours else None
        title = f"{_TITLES[name]} {next(iter(row['versions'].values()))}"
        rows.append(
            (
                title, _number(row["cpu_us"], 0), _number(ours.get("cpu_us")), _number(times),
                _number(row.get("cpu_us_1"), 0), _number(row["calls_per_s"], 0), _number(row["p99_ms"]),
                _number(row["session_open_ms"], 2), _number(ours.get("session_open_ms"), 2),
            )
        )  # fmt: skip
    return Table("Peers' servers beside the face of ours that speaks the same protocol.", head, tuple(rows))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:120]


def _operations(told: Mapping[str, Any]) -> Table:
    names = ("reset", "snapshot", "restore", "fork", "digest")
    sizes = list(told["reset_ms"])
    rows = [(name, *(_number(told[f"{name}_ms"][size], 3) for size in sizes)) for name in names]
    rows.append(("snapshot, KiB", *(_number(told["snapshot_kib"][size]) for size in sizes)))
    caption = "Operations of a session in process, CPU milliseconds by records of the state."
    return Table(caption, ("operation", *(f"{int(size):,}" for size in sizes)), tuple(rows))


def _memory(told: Mapping[str, Any]) -> Table:
    memory, load, step, workers = told["memory"], told["load_ms"], told["step_us"], told["workers"]
    facts: tuple[tuple[str, Callable[[], str]], ...] = (
        ("a call in process: instance / session, µs", lambda: f"{step['instance']} / {step['session']}"),
        ("load the environment: cold / from the cache, ms", lambda: f"{load['cold']} / {load['cached']}"),
        ("live instance of 100 records, KiB; in 4 GiB", lambda: _held(memory["live"])),
        ("hibernated, KiB; in 4 GiB", lambda: _held(memory["asleep"])),
        ("live in an isolated worker, KiB with the gateway's part; in 4 GiB", lambda: _held(memory["isolated"])),
        ("first session of an isolated environment, with its worker, ms", lambda: _number(workers["open_ms"], 2)),
        ("private memory of a worker, MiB", lambda: _number(workers["private_mib"], 2)),
        ("isolation", lambda: str(workers["isolation"])),
    )
    return Table("Loading and memory.", ("what", "figure"), tuple((what, figure()) for what, figure in facts))


def _held(row: Mapping[str, Any]) -> str:
    return f"{_number(row['kib'])}; {row['in_4gib']:,}"


def rewritten(text: str, told: Mapping[str, Any]) -> str:
    """A document with the tables between its marks.

    Raises:
        ValueError: the marks are missing.
    """
    if BEGIN not in text or END not in text:
        raise ValueError(f"the document lacks {BEGIN} and {END}; put them where the tables shall stand")
    setting = told["setting"]
    line = (
        f"{setting['cores']} cores, Python {setting['python']}; {setting['callers']} callers, "
        f"{setting['calls']:,} calls a round, median of {setting['rounds']} rounds; load "
        f"average at the end {setting['load_1min']}. Answers have {setting['answer_bytes']} bytes on average."
    )
    body = "\n\n".join((line, *(table.markdown() for table in tables(told))))
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n\n{body}\n\n{text[text.index(END) :]}"

"""A run directory: append-only JSONL, a journal of commits, a manifest written last.

A stage works through items in a fixed order. What one item gives is appended to the stage's files and then
committed by one line in `journal.jsonl` that holds the size of every file. Opening a run cuts every file back to
the last committed size, so that killing a run at any moment and starting it again gives the bytes of a
run that was never disturbed. No file holds a time of day.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agentomnia.errors import InputError, RunError
from agentomnia.synthesis.environments.package import write_text

Rows = Mapping[str, Iterable[Mapping[str, Any]]]
"""Rows to append, by file name relative to the run."""

VERSION = 1


@dataclass
class StageReport:
    """What a stage made, kept and dropped."""

    kept: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def add(self, kept: int, rejected: Iterable[str]) -> None:
        """Count one item's results; `rejected` holds a reason for each dropped thing."""
        self.kept += kept
        for reason in rejected:
            self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def sorted_reasons(self) -> dict[str, int]:
        """Reasons, most frequent first."""
        return dict(sorted(self.rejected.items(), key=lambda pair: (-pair[1], pair[0])))


class Run:
    """One run directory, open for writing by one process."""

    def __init__(self, path: Path) -> None:
        """Open or create the directory, and cut back what was never committed.

        Raises:
            RunError: another process has it open, it belongs to another version, or it cannot be written.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RunError(f"{path} is in use by another process; wait for it, or choose another --out") from None
        except OSError as error:
            raise RunError(
                f"{path} cannot be used as a run directory: {error.strerror}; choose another --out"
            ) from None
        try:
            self._journal = read_journal(path)
            self._restore()
        except BaseException:
            self.close()  # so that the run can be mended and opened again
            raise

    def close(self) -> None:
        """Let other processes open the run."""
        self._lock.close()

    def __enter__(self) -> Run:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _restore(self) -> None:
        """Cut the journal and every file back to the last commit, or say what cannot be restored and cut nothing."""
        sizes = committed_sizes(self._journal)
        for name, size in sizes.items():
            file = self.path / name
            if size and not file.exists():
                raise RunError(f"{file} is missing, though the journal has it; restore it or start a new run")
            if file.exists() and file.stat().st_size < size:
                raise RunError(f"{file} is shorter than the journal says; it was changed by hand, start a new run")
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in self._journal)
        journal = self.path / "journal.jsonl"
        if journal.exists() and journal.read_text(encoding="utf-8", errors="replace") != lines:
            write_text(journal, lines)
        for name, size in sizes.items():
            file = self.path / name
            if file.exists() and file.stat().st_size > size:
                os.truncate(file, size)

    def configure(self, section: str, settings: Mapping[str, Any]) -> None:
        """Write the resolved settings of a stage before its first step, or check that they are the same.

        Raises:
            RunError: the run was made with other settings.
        """
        config = self.config()
        if section in config and config[section] != dict(settings):
            differ = sorted(k for k in {*config[section], *settings} if config[section].get(k) != settings.get(k))
            raise RunError(
                f"{self.path} has [{section}] with other {', '.join(differ)}; use the same settings or another --out"
            )
        if section not in config:
            write_text(self.path / "config.toml", _toml({**config, section: dict(settings)}))

    def config(self) -> dict[str, dict[str, Any]]:
        """The resolved settings so far, by stage."""
        path = self.path / "config.toml"
        if not path.exists():
            return {}
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read ({error}); restore it or start a new run") from None

    def stage(self, name: str, files: Iterable[str]) -> Stage:
        """Begin or continue a stage that appends to the given files."""
        return Stage(self, name, tuple(files))

    def finished(self, stage: str) -> StageReport | None:
        """What a finished stage counted, or `None` where it has not finished."""
        for entry in self._journal:
            if entry["stage"] == stage and entry["event"] == "end":
                return StageReport(entry["kept"], dict(entry["rejected"]))
        return None

    def require(self, stage: str, command: str) -> None:
        """Refuse to go on before an earlier stage has finished.

        Raises:
            RunError: it has not; names the command that does it.
        """
        if self.finished(stage) is None:
            raise RunError(f"{self.path} has no finished {stage} yet; first run: {command} --out {self.path}")

    def commit(self, entry: dict[str, Any]) -> None:
        """Append one line to the journal: from here on it happened."""
        journal = self.path / "journal.jsonl"
        before = journal.stat().st_size if journal.exists() else 0
        try:
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError:
            with suppress(OSError):
                os.truncate(journal, before)
            raise
        self._journal.append(entry)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """Committed entries."""
        return self._journal

    def write_manifest(self) -> None:
        """Write the manifest: stages, counts and the hash of every file. Last of all."""
        stages = {
            e["stage"]: {"kept": e["kept"], "rejected": e["rejected"]} for e in self._journal if e["event"] == "end"
        }
        files = {}
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path).as_posix()
            if file.is_file() and name not in ("manifest.json", "ledger.sqlite") and not file.name.startswith("."):
                files[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest = {"version": VERSION, "stages": stages, "files": files}
        write_text(self.path / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


class Stage:
    """One stage of a run, item by item."""

    def __init__(self, run: Run, name: str, files: tuple[str, ...]) -> None:
        """Begin, or find what was committed before."""
        self.run = run
        self.name = name
        self.files = files
        self.report = StageReport()
        self.done: set[str] = set()
        self._handles: dict[str, IO[bytes]] = {}
        entries = [e for e in run.journal if e["stage"] == name]
        if not entries:
            run.commit({"stage": name, "event": "begin", "sizes": self._sizes()})
        for entry in entries:
            if entry["event"] == "item":
                self.done.add(entry["item"])
                self.report.add(entry["kept"], (r for r, n in entry["rejected"].items() for _ in range(n)))

    def _sizes(self) -> dict[str, int]:
        return {f: (self.run.path / f).stat().st_size if (self.run.path / f).exists() else 0 for f in self.files}

    def commit(self, item: str, rows: Rows, kept: int, rejected: Iterable[str]) -> None:
        """Append what an item gave and commit it.

        Raises:
            RunError: the disk refuses; nothing of the item counts then.
        """
        reasons = StageReport()
        reasons.add(0, rejected)
        sizes = {}
        try:
            for name in self.files:
                sizes[name] = self._append(name, rows.get(name, ()))
            entry = {"stage": self.name, "event": "item", "item": item, "kept": kept}
            self.run.commit({**entry, "rejected": reasons.sorted_reasons(), "sizes": sizes})
        except OSError as error:
            self._drop_handles()
            raise RunError(f"{self.run.path}: {error.strerror}; make room and start the same command again") from error
        self.done.add(item)
        self.report.add(kept, (r for r, n in reasons.rejected.items() for _ in range(n)))

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        handle = self._handles.get(name)
        if handle is None:
            path = self.run.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = self._handles[name] = path.open("ab")
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        handle.flush()
        return handle.tell()

    def _drop_handles(self) -> None:
        """Close the files and cut back what was not committed, also what a buffer still held."""
        for handle in self._handles.values():
            with suppress(OSError):
                handle.close()
        self._handles.clear()
        sizes = committed_sizes(self.run.journal)
        for name in self.files:
            file = self.run.path / name
            with suppress(OSError):
                if file.exists() and file.stat().st_size > sizes.get(name, 0):
                    os.truncate(file, sizes.get(name, 0))

    def end(self) -> StageReport:
        """Finish the stage: its counts go to the journal and to `metrics.jsonl`."""
        for handle in self._handles.values():
            handle.close()
        if self.run.finished(self.name) is None:
            counts = {"kept": self.report.kept, "rejected": self.report.sorted_reasons()}
            metrics = self.run.path / "metrics.jsonl"
            with metrics.open("ab") as file:
                file.write(json.dumps({"stage": self.name, **counts}, ensure_ascii=False).encode() + b"\n")
                size = file.tell()
            self.run.commit({"stage": self.name, "event": "end", **counts, "sizes": {"metrics.jsonl": size}})
        return self.report


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The committed entries of a run; a half-written last line never happened."""
    file = path / "journal.jsonl"
    if not file.exists():
        return []
    *lines, tail = file.read_bytes().split(b"\n")
    entries = []
    for number, line in enumerate(lines, 1):
        entry = _journal_entry(line)
        if entry is None:
            raise RunError(f"{file} line {number} is no entry; it was changed by hand, restore it or start a new run")
        entries.append(entry)
    last = _journal_entry(tail)
    return entries if last is None else [*entries, last]


def _journal_entry(line: bytes) -> dict[str, Any] | None:
    """The entry that a line holds, or `None` where it holds none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"stage": str(), "event": "begin", "sizes": dict(sizes)}:
            pass
        case {"stage": str(), "event": "item", "item": str(), "kept": int(), "rejected": dict(), "sizes": dict(sizes)}:
            pass
        case {"stage": str(), "event": "end", "kept": int(), "rejected": dict(), "sizes": dict(sizes)}:
            pass
        case _:
            return None
    return entry if all(type(size) is int and size >= 0 for size in sizes.values()) else None


def committed_sizes(journal: list[dict[str, Any]]) -> dict[str, int]:
    """The last committed size of every file; files that a later stage will write start at 0."""
    sizes: dict[str, int] = {"metrics.jsonl": 0}
    for entry in journal:
        sizes |= entry["sizes"]
    return sizes


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file.

    Raises:
        InputError: the file is missing, or a line is not one JSON object; names the line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _parse_line(path, number, line)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is it a run directory, and has its stage run?") from None


def _parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else " (half-written: start its command again to mend the run)"
        raise InputError(f"{path} line {number}: not JSON: {error}{torn}; correct or delete the line") from None
    if not isinstance(row, dict):
        raise InputError(f"{path} line {number}: not a JSON object; correct or delete the line")
    return row


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def _toml(config: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain settings as TOML; JSON's scalars and lists are TOML's."""
    parts = []
    for section, settings in config.items():
        lines = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items() if value is not None
        ]
        name = section if _BARE_KEY.fullmatch(section) else json.dumps(section, ensure_ascii=False)
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(parts)

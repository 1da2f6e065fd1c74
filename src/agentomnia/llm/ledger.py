"""The ledger of model calls: cache, audit log, table of cost and replay fixture in one SQLite file.

- A call is named by the SHA-256 of the canonical JSON of (model, messages, tools, params, seed, attempt).
  The address of the server and the key are no part of it: a run can move to another endpoint.
- The first answer of a call stays. `put` returns the stored one, so that processes that race agree.
- Killing the process loses nothing that `put` returned for; a power cut may lose the last calls, never the
  file. Several processes may use one file at once, each with its own `Ledger`. The file must lie on a local
  disk: WAL needs shared memory.
- Messages are stored once each, since every turn of an episode sends the whole conversation again.
- `replay_only` opens the file for reading and turns a missing entry into an error: no call is ever paid.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentomnia.errors import InfrastructureError
from agentomnia.row import Row, canonical_json, digest

BUSY_TIMEOUT_S = 30.0
_APPLICATION_ID = 0x6F6D6E61  # "omna": tells a ledger from somebody's other database
_SCHEMA_VERSION = 1
_SCHEMA = (
    "CREATE TABLE parts (hash TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE calls (
        position INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        model TEXT NOT NULL,
        request TEXT NOT NULL,
        answer TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    )""",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)


class CallRequest(Row):
    """All that decides an answer; its `identity` is the key of the call."""

    model: str
    messages: tuple[dict[str, Any], ...]
    """In wire form, so that keys stay the same when `Message` grows."""
    tools: tuple[dict[str, Any], ...] = ()
    params: dict[str, Any]
    seed: int | None = None
    attempt: int = 0
    """Counts fresh samples of the same request: a retry after a bad answer is another call."""


class ModelTotals(Row):
    """What was paid for one model; hits of the cache cost nothing and are not counted."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


class LedgerEntry(Row):
    """One recorded call, for reading."""

    key: str
    request: CallRequest
    answer: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int
    created_at: str


class Ledger:
    """One open ledger file; safe to share between threads, not across a fork."""

    def __init__(self, path: Path, *, replay_only: bool = False) -> None:
        """Open the file, making it unless it is to be replayed.

        Args:
            path: The SQLite file.
            replay_only: Read only, and let `get` raise for a call that is not recorded.

        Raises:
            InfrastructureError: the file is damaged, is no ledger, or cannot be opened.
        """
        self.path = path
        self.replay_only = replay_only
        self._lock = threading.Lock()
        with _disk_errors(path):
            self._connection = _connect(path, "ro" if replay_only else "rwc")
        with ExitStack() as on_failure:
            on_failure.callback(self._connection.close)
            self._prepare()
            on_failure.pop_all()

    def get(self, request: CallRequest) -> dict[str, Any] | None:
        """The recorded answer of a call, or None.

        Raises:
            InfrastructureError: the file cannot be read, or a ledger that only replays lacks the call.
        """
        key = request.identity
        with self._reading() as connection:
            found = connection.execute("SELECT answer FROM calls WHERE key = ?", (key,)).fetchone()
        if found is not None:
            return _stored_object(self.path, found[0])
        if self.replay_only:
            raise InfrastructureError(
                f"{self.path} has no call {key[:12]} of model {request.model!r} and may only be replayed: "
                "prompts, tools or parameters differ from the recorded ones; record again without replay_only"
            )
        return None

    def put(
        self, request: CallRequest, answer: dict[str, Any], *, prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """Record the answer of a call; an earlier answer wins.

        Args:
            request: The call.
            answer: JSON values, given back by `get`.
            prompt_tokens: Tokens that were sent.
            completion_tokens: Tokens that the model wrote.

        Returns:
            The answer that the ledger holds now.

        Raises:
            InfrastructureError: the file cannot be written.
        """
        key = request.identity
        skeleton, parts = _split(request)
        row = (key, request.model, skeleton, canonical_json(answer), prompt_tokens, completion_tokens)
        with self._writing() as connection:
            connection.executemany("INSERT OR IGNORE INTO parts (hash, json) VALUES (?, ?)", parts.items())
            connection.execute(
                "INSERT OR IGNORE INTO calls (key, model, request, answer, prompt_tokens, completion_tokens)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            stored = connection.execute("SELECT answer FROM calls WHERE key = ?", (key,)).fetchone()
        return _stored_object(self.path, stored[0])

    def totals(self) -> dict[str, ModelTotals]:
        """Calls and tokens of each model, by name."""
        query = (
            "SELECT model, count(*), sum(prompt_tokens), sum(completion_tokens)"
            " FROM calls GROUP BY model ORDER BY model"
        )
        with self._reading() as connection:
            rows = connection.execute(query).fetchall()
        return {
            model: ModelTotals(calls=calls, prompt_tokens=prompt, completion_tokens=completion)
            for model, calls, prompt, completion in rows
        }

    def entries(self) -> Iterator[LedgerEntry]:
        """Every recorded call with its request, in the order of recording."""
        position = 0
        while (entry := self._entry_after(position)) is not None:
            position, row = entry
            yield row

    def close(self) -> None:
        """Close the file; the ledger cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entry_after(self, position: int) -> tuple[int, LedgerEntry] | None:
        query = (
            "SELECT position, key, request, answer, prompt_tokens, completion_tokens, created_at"
            " FROM calls WHERE position > ? ORDER BY position LIMIT 1"
        )
        with self._reading() as connection:
            found = connection.execute(query, (position,)).fetchone()
            if found is None:
                return None
            request = self._joined(connection, found[2])
        entry = LedgerEntry(
            key=found[1],
            request=request,
            answer=_stored_object(self.path, found[3]),
            prompt_tokens=found[4],
            completion_tokens=found[5],
            created_at=found[6],
        )
        return found[0], entry

    def _joined(self, connection: sqlite3.Connection, skeleton: str) -> CallRequest:
        request = _stored_object(self.path, skeleton)
        for field in ("messages", "tools"):
            request[field] = [self._part(connection, name) for name in request[field]]
        return CallRequest.model_validate(request)

    def _part(self, connection: sqlite3.Connection, name: str) -> dict[str, Any]:
        found = connection.execute("SELECT json FROM parts WHERE hash = ?", (name,)).fetchone()
        if found is None:
            raise _damaged(self.path, f"part {name[:12]} is missing")
        return _stored_object(self.path, found[0])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _disk_errors(self.path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _disk_errors(self.path), self._connection:
            # The write lock is taken at once: a read lock that grows into one can fail without waiting.
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    def _prepare(self) -> None:
        with self._reading() as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            new = _is_empty(connection) and not self.replay_only
            if new:
                _use_wal(connection)
        if new:
            self._make_tables()
        self._check_version()

    def _make_tables(self) -> None:
        with self._writing() as connection:
            # Looked at again under the lock: another process may have been first.
            if _is_empty(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)

    def _check_version(self) -> None:
        with self._reading() as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise InfrastructureError(f"{self.path} is a database but no ledger of model calls: choose another file")
        if version != _SCHEMA_VERSION:
            raise InfrastructureError(
                f"{self.path} is a ledger of version {version}, this package reads {_SCHEMA_VERSION}: "
                "install the version of agentomnia that wrote it, or choose another file"
            )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for the lock here, whatever the timeout: two processes starting at once would fail.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _split(request: CallRequest) -> tuple[str, dict[str, str]]:
    skeleton = request.model_dump(mode="json")
    parts: dict[str, str] = {}
    for field in ("messages", "tools"):
        names = [digest(part) for part in skeleton[field]]
        parts.update(zip(names, map(canonical_json, skeleton[field]), strict=True))
        skeleton[field] = names
    return canonical_json(skeleton), parts


def _stored_object(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _damaged(path, "an entry is not JSON") from error
    if not isinstance(value, dict):
        raise _damaged(path, "an entry is not an object")
    return value


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.OperationalError as error:
        raise InfrastructureError(
            f"the ledger {path} cannot be used ({error}): check that its folder exists and is writable, that "
            "the disk is local and has space, and that no other program holds the file"
        ) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, fault: str) -> InfrastructureError:
    return InfrastructureError(
        f"the ledger {path} is damaged or is not one ({fault}): restore a copy, or move the file away and "
        "run again (its calls are then asked and paid again)"
    )

"""Rows of a run's JSONL files as typed rows; what cannot be read is named by file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentomnia.errors import InputError
from agentomnia.runs.run import read_jsonl

R = TypeVar("R", bound=BaseModel)


def read_rows(path: Path, kind: type[R]) -> Iterator[R]:
    """The rows of a file, in order.

    Raises:
        InputError: the file is missing, a line is half-written, or a row is not of the kind; names the line.
    """
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            yield kind.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"{path} line {number}: {place}: {first['msg']}; was it written by another version?"
            ) from None
        except InputError as error:
            raise InputError(f"{path} line {number}: {error}") from None

"""Layout of generated programs: ruff formats them, so that they read as if written by hand."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator

from agentomnia.errors import SpecError

Place = tuple[int, int]
"""Line from 1, column in bytes from 0."""


def lay_out(source: str) -> str:
    """The same program, formatted; the user's own ruff settings play no part.

    Raises:
        SpecError: the source does not parse.
    """
    from ruff.__main__ import find_ruff_bin

    command = [str(find_ruff_bin()), "format", "--isolated", "--line-length", "110", "--stdin-filename", "e.py", "-"]
    text = without_needless_parentheses(source)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SpecError(f"the generated source cannot be laid out: {done.stderr.strip()[:300]}")
    return str(done.stdout)


def without_needless_parentheses(source: str) -> str:
    """Drop the parentheses that `ast.unparse` writes and nobody would: `any((… for …))`, `a and (b == c)`."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    found = [p for node in _nodes(ast.parse(source)) for p in _needless(node, lines)]
    for line, column in sorted(set(found), reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + text[column + 1 :]
    return b"".join(lines).decode()


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node outside f-strings, whose inner places Python 3.11 does not tell."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _nodes(child)


def _needless(node: ast.AST, lines: list[bytes]) -> Iterator[Place]:
    match node:
        case ast.Call(args=[ast.GeneratorExp() as generator], keywords=[]):
            start, end = _span(generator)
            if _at(lines, (start[0], start[1] - 1)) == b"(" and _at(lines, end) == b")":
                yield start
                yield end[0], end[1] - 1
        case ast.BoolOp(values=values):
            for value in values:
                if isinstance(value, ast.Compare):
                    start, end = _span(value)
                    if _at(lines, (start[0], start[1] - 1)) == b"(" and _at(lines, end) == b")":
                        yield start[0], start[1] - 1
                        yield end


def _span(node: ast.expr) -> tuple[Place, Place]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _at(lines: list[bytes], place: Place) -> bytes:
    line, column = place
    return lines[line - 1][column : column + 1] if column >= 0 else b""

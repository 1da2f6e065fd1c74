"""A JSON or YAML file as plain values, and `$ref` resolution inside it.

YAML is read by the rules of JSON-like documents: `no` stays text, a date stays text, every key is text.
Nothing here changes the values it is given. A reference that leads nowhere is a warning, not an error: the
rest of the file is still worth reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from agentomnia.errors import SeedError

_MAX_BYTES = 64_000_000


class _Loader(yaml.SafeLoader):
    """YAML 1.2 booleans and no timestamps, so that `no`, `on` and `2026-03-09` stay what was written."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def read_values(path: Path) -> Any:
    """The plain values of a JSON or YAML file.

    Raises:
        SeedError: the file cannot be read, or is neither JSON nor YAML; says where it breaks.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SeedError(f"{path}: cannot be read: {error.strerror}; check the path") from None
    if len(raw) > _MAX_BYTES:
        raise SeedError(
            f"{path}: {len(raw) // 1_000_000} MB is more than is read ({_MAX_BYTES // 1_000_000}); split the file"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SeedError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from None
    return parse_values(text, str(path))


def parse_values(text: str, where: str) -> Any:
    """The plain values of a JSON or YAML text.

    Raises:
        SeedError: the text is neither; says where it breaks.
    """
    if not text.strip():
        raise SeedError(f"{where}: the file is empty; give an OpenAPI file or an MCP tools/list dump")
    try:
        if text.lstrip()[0] in "{[":
            return _parse_json(text, where)
        return _text_keys(yaml.load(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        raise SeedError(f"{where}: not YAML at {place}; correct the file or export it again") from None
    except RecursionError:
        raise SeedError(f"{where}: values are nested too deeply to be read; flatten the file") from None


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        try:
            # YAML flow style also starts with a bracket
            return _text_keys(yaml.load(text, Loader=_Loader))
        except yaml.YAMLError:
            cut = " (the file ends there: it is cut short)" if error.pos >= len(text.rstrip()) - 1 else ""
            raise SeedError(
                f"{where}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}{cut}; export the file "
                f"again"
            ) from None


def _text_keys(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """The value with text for keys; an alias that holds itself is cut."""
    if id(value) in seen:
        return None
    if isinstance(value, dict):
        return {str(k): _text_keys(v, seen | {id(value)}) for k, v in value.items()}
    if isinstance(value, list):
        return [_text_keys(v, seen | {id(value)}) for v in value]
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is an object, else an empty one: files hold anything anywhere."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """The value when it is text, else an empty text."""
    return value if isinstance(value, str) else ""


class Document:
    """The values of one file with its internal references."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take the values; they are read and never changed."""
        self.values = values
        self.warnings: dict[str, None] = {}

    def resolve(self, value: Any) -> tuple[Mapping[str, Any], str | None]:
        """Follow `$ref` until something else stands there.

        Returns:
            The object found (empty where the reference leads nowhere), and the last reference followed.
        """
        followed: list[str] = []
        while isinstance(value, dict) and isinstance(value.get("$ref"), str):
            reference = value["$ref"]
            if reference in followed:
                self.warnings[f"reference {reference} only points to itself"] = None
                return {}, reference
            followed.append(reference)
            found = self._at(reference)
            if found is None:
                self.warnings[f"reference {reference} leads nowhere"] = None
                return {}, reference
            value = found
        return mapping(value), followed[-1] if followed else None

    def _at(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        value: Any = self.values
        for part in reference[1:].split("/")[1:]:
            token = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
                value = value[int(token)]
            else:
                return None
        return value


def reference_name(reference: str | None) -> str:
    """The last part of a reference: the name of a schema."""
    return unquote(reference.rpartition("/")[2]).replace("~1", "/").replace("~0", "~") if reference else ""

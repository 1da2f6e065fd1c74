"""Compiled environments of a machine: what loading a package found out, kept by the content of its files.

`load_package` proves that the source is what the specification compiles to, which costs tens of milliseconds. The proof
does not change while the two files do not, so its result is kept in the user's cache folder, like Python keeps `.pyc`
files: name, tools and byte code, by the SHA-256 of both files, interpreter and version. A folder that
cannot be written to only costs time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from agentomnia import __version__
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.errors import InputError
from agentomnia.synthesis.environments.package import load_package


@dataclass(frozen=True)
class CompiledEnvironment:
    """A proved package, ready to be loaded."""

    name: str
    introduction: str
    policies: tuple[str, ...]
    tools: dict[str, ToolSchema]
    source: str
    code: CodeType = field(compare=False)
    """Two of the same source may differ once one has run."""

    def program(self) -> Program:
        """Load the class."""
        return Program(self.name, self.source, load_class(self.source, self.name, self.code), self.tools)


def compiled_environment(package: Path, folder: Path | None = None) -> CompiledEnvironment:
    """A package from the cache, or proved and put there.

    Args:
        package: folder of the environment package.
        folder: the cache; by default the user's.

    Raises:
        InputError: a file is missing or cannot be read.
        SpecError: the source differs from what the specification compiles to.
    """
    folder = folder or cache_folder()
    try:
        files = [(package / name).read_bytes() for name in ("spec.json", "environment.py")]
    except OSError as error:
        raise InputError(f"{package}: {error.strerror}: {error.filename}; is this an environment package?") from None
    path = folder / f"{_key(files)}.bin"
    kept = _read(path)
    if kept is None:
        kept = _prove(package)
        _keep(path, kept)
    tools = {name: ToolSchema(name, *rest) for name, *rest in kept["tools"]}
    return CompiledEnvironment(
        kept["name"], kept["introduction"], tuple(kept["policies"]), tools, kept["source"], kept["code"]
    )


def cache_folder() -> Path:
    """Where compiled environments are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentomnia" / "environments"


def _key(files: list[bytes]) -> str:
    parts = [hashlib.sha256(content).digest() for content in files]
    return hashlib.sha256(b"".join((*parts, importlib.util.MAGIC_NUMBER, __version__.encode()))).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = marshal.loads(path.read_bytes())
    except (OSError, ValueError, EOFError, TypeError):  # not there, or cut off by a full disk
        return None
    return kept


def _prove(package: Path) -> dict[str, Any]:
    loaded = load_package(package)
    spec, program = loaded.spec, loaded.program
    return {
        "name": program.name,
        "introduction": spec.introduction,
        "policies": list(spec.policies),
        "tools": [[t.name, t.kind, t.description, t.parameters] for t in program.tools.values()],
        "source": program.source,
        "code": compile(program.source, f"<environment {program.name}>", "exec"),
    }


def _keep(path: Path, kept: dict[str, Any]) -> None:
    """Write whole or not at all; another process may do the same at once."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(marshal.dumps(kept))
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()

"""An environment on disk: `environments/ID/{environment.py, spec.json, verification.json, tools.jsonl, states/*.json}`.

`spec.json` is the contract; `environment.py` is what it compiles to, kept so that people can read it and other
tools can run it. A package whose source says something else than its specification is not loaded: what runs in this
process is only ever what the compiler wrote.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from agentomnia.environment.program import Program
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State, state_problems
from agentomnia.errors import InputError, SpecError
from agentomnia.synthesis.environments.author import VerifiedEnvironment
from agentomnia.synthesis.environments.compiler import ToolFacts, build_program, compile_environment
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.layout import lay_out


@dataclass(frozen=True)
class Package:
    """A loaded environment package."""

    id: str
    path: Path
    spec: EnvironmentSpec
    program: Program
    facts: dict[str, ToolFacts]

    def state(self, name: str) -> State:
        """An initial state of the package, checked against the specification.

        Raises:
            InputError: the file is missing, is not JSON, or holds an invalid state.
        """
        path = self.path / "states" / f"{name}.json"
        state: State = _read_json(path)
        problem = next(state_problems(self.spec, state), None)
        if problem is not None:
            raise InputError(f"{path}: {problem}; make the state again")
        return state


def write_package(environment: VerifiedEnvironment, folder: Path) -> Path:
    """Write an environment under `folder/ID`, whole files only.

    Returns:
        The package's folder.
    """
    path = folder / environment.id
    (path / "states").mkdir(parents=True, exist_ok=True)
    source = lay_out(compile_environment(environment.spec).source)
    write_text(path / "environment.py", source)
    write_text(path / "spec.json", _pretty(environment.spec.to_json()))
    write_text(path / "verification.json", _pretty(environment.verification.to_json()))
    log = [json.dumps(d.to_json(), ensure_ascii=False) for d in environment.log]
    write_text(path / "tools.jsonl", "".join(f"{line}\n" for line in log))
    return path


def write_state(package: Path, name: str, state: State) -> None:
    """Write an initial state into a package."""
    write_text(package / "states" / f"{name}.json", _pretty(state))


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def read_spec(path: Path) -> EnvironmentSpec:
    """Read a `spec.json`.

    Raises:
        InputError: the file is missing, is not JSON, or is no specification.
    """
    try:
        return EnvironmentSpec.model_validate(_read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise InputError(f"{path}: {place}: {first['msg']}; is it a spec.json of this version?") from None
    except InputError as error:
        raise SpecError(f"{path}: {error}") from None


def read_verification(path: Path) -> Verification:
    """Read a `verification.json`."""
    return Verification.model_validate(_read_json(path))


def load_package(path: Path) -> Package:
    """Load an environment package.

    Raises:
        InputError: a file is missing or cannot be read.
        SpecError: the source differs from what the specification compiles to.
    """
    spec = read_spec(path / "spec.json")
    try:
        compiled = compile_environment(spec)
    except InputError as error:
        raise SpecError(f"{path / 'spec.json'}: {error}") from None
    try:
        source = (path / "environment.py").read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: environment.py; is this an environment package?") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: environment.py is no text; synthesize the environment again") from None
    if not _same_program(source, compiled.source):
        raise SpecError(
            f"{path / 'environment.py'} is not what spec.json compiles to, so it could be anything; "
            "restore the file, or synthesize the environment again"
        )
    return Package(path.name, path, spec, build_program(spec, compiled), dict(compiled.facts))


def _same_program(left: str, right: str) -> bool:
    """Whether two sources are the same program, whatever their layout; docstrings count."""
    try:
        return ast.dump(ast.parse(left)) == ast.dump(ast.parse(right))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is the path right?") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); the file may be half-written, make it again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no JSON object; make the file again")
    return value


@lru_cache(maxsize=64)
def package_of(environments: Path, name: str) -> Package:
    """An environment package of a folder of packages, loaded once in each process."""
    return load_package(environments / name)

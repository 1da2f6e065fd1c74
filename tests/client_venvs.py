"""Third-party clients for tests, each in a virtual environment of its own: their pins contradict each other."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path.home() / ".cache" / "agentomnia-venvs"
_INSTALL_SECONDS = 1800


def client_python(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of a virtual environment that holds these requirements; made at the first use, then kept.

    The calling test is skipped where pip cannot install them.
    """
    home = _ROOT / name
    python, mark = home / "bin" / "python", home / "requirements.sha256"
    wanted = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()
    _ROOT.mkdir(parents=True, exist_ok=True)
    with (_ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (mark.exists() and mark.read_text() == wanted and python.exists()):
            _install(home, python, requirements)
            mark.write_text(wanted)
    return python


def _install(home: Path, python: Path, requirements: Sequence[str]) -> None:
    # the tests' own pip, and nothing compiled ahead: what makes a new environment slow is left out
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)]
    for command in (make, [*pip, "--disable-pip-version-check", *requirements]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' '.join(command[:4])} took over {_INSTALL_SECONDS} s")
        if done.returncode != 0:
            pytest.skip(f"cannot install {', '.join(requirements)}: {done.stderr.strip()[-300:]}")


def run_client(python: Path, script: Path, *arguments: str, seconds: float = 180) -> str:
    """Run a script of tests/clients/ under a client's interpreter; its standard output.

    Raises:
        AssertionError: it failed; with all that it said.
    """
    done = subprocess.run(
        [str(python), "-I", str(script), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{script.name}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout

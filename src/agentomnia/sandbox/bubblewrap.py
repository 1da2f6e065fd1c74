"""Bubblewrap: namespaces around the forkserver, so that its workers see no process, network or file of the host's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

_TRIAL_SECONDS = 5.0
"""It takes 0.05 s; a busy machine must not decide how strong the isolation is."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin")
_LINKER = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
_NEEDED = ("agentomnia", "msgpack", "pydantic", "pydantic_core", "typing_extensions", "jsonschema")


def import_roots(extra: Iterable[Path] = ()) -> tuple[Path, ...]:
    """The directories from which a worker's modules are imported, in the order of the search."""
    specs = [spec for name in _NEEDED if (spec := find_spec(name)) is not None and spec.origin is not None]
    found = [Path(str(s.origin)).parents[1 if s.submodule_search_locations else 0] for s in specs]
    installed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    return tuple(dict.fromkeys(path.resolve() for path in (*extra, *found, *installed)))


def python() -> str:
    """The interpreter's path without `..`, which a namespace of its own may not have; links stay, a venv is one."""
    return os.path.abspath(sys.executable)  # noqa: PTH100 - `Path.resolve` would follow them


def found() -> str | None:
    """Where `bwrap` is, or `None`."""
    return shutil.which("bwrap")


def wrap(bubblewrap: str, command: list[str], environment: dict[str, str], roots: Iterable[Path]) -> list[str]:
    """The command that runs a Python command in namespaces of its own.

    Read-only: the system's libraries, the interpreter and `roots`; no /proc, /dev, /home or /tmp. File descriptors
    that are passed on stay open.
    """
    options = [
        "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--hostname", "sandbox",
        "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--clearenv",
    ]  # fmt: skip
    for name, value in environment.items():
        options += ["--setenv", name, value]
    for path in _bound(roots):
        options += ["--ro-bind", path, path]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            options += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            options += ["--ro-bind", path, path]
    for path in _LINKER:
        options += ["--ro-bind-try", path, path]
    return [bubblewrap, *options, "--remount-ro", "/", "--chdir", "/", *command]


def _bound(roots: Iterable[Path]) -> list[str]:
    """What Python needs besides the system's directories, without paths that lie in others."""
    prefixes = [Path(os.path.abspath(path)) for path in (sys.prefix, sys.base_prefix)]  # noqa: PTH100 - keeps links
    interpreter = [*prefixes, Path(os.path.realpath(sys.executable)).parent.parent]
    paths = sorted({*roots, *interpreter})
    covered = [Path(p) for p in _SYSTEM]
    kept: list[Path] = []
    for path in paths:
        if not any(path.is_relative_to(other) for other in (*covered, *kept)):
            kept.append(path)
    return [str(path) for path in kept]


def works(bubblewrap: str) -> bool:
    """Whether Python starts in such namespaces here; tries it once."""
    command = wrap(bubblewrap, [python(), "-I", "-S", "-c", ""], {}, import_roots())
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, env={}, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return False
    return done.returncode == 0

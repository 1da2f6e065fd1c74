"""Layout of generated programs: ruff formats them, so that they read as if written by hand."""

from __future__ import annotations

import subprocess

from agentomnia.errors import SpecError


def lay_out(source: str) -> str:
    """The same program, formatted; the user's own ruff settings play no part.

    Raises:
        SpecError: the source does not parse.
    """
    from ruff.__main__ import find_ruff_bin

    command = [
        str(find_ruff_bin()),
        "format",
        "--isolated",
        "--line-length",
        "110",
        "--stdin-filename",
        "e.py",
        "-",
    ]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SpecError(f"the generated source cannot be laid out: {done.stderr.strip()[:300]}")
    return str(done.stdout)

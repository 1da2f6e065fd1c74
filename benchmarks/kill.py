"""Kill the demo at random moments and compare its bytes with an undisturbed run.

    python benchmarks/kill.py [--kills 10] [--seed 0] [--whole]

The quick demo, which has every stage of the whole one; `--whole` takes that.

Every kill is SIGKILL to the whole process group, workers included. The last start runs to its end. All files of both
runs are compared by their bytes, but for the lock.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random


def start(out: Path, whole: bool) -> subprocess.Popen[bytes]:
    """Start a demo in a process group of its own."""
    command = [
        sys.executable,
        "-c",
        "from agentomnia.cli.main import main; main()",
        "demo",
        "--out",
        str(out),
        "--json",
        *([] if whole else ["--quick"]),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of every file of a run."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != ".lock")
    return {p.relative_to(run).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def main() -> int:
    """Run both demos and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="the whole demo, not the quick one")
    options = parser.parse_args()
    rng = Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        begun = time.perf_counter()
        if start(whole, options.whole).wait() != 0:
            print("the undisturbed demo failed")
            return 1
        seconds = time.perf_counter() - begun
        print(f"undisturbed: {seconds:.0f} s")
        for number in range(options.kills):
            process = start(killed, options.whole)
            delay = rng.uniform(1.0, seconds / 4)
            try:
                process.wait(delay)
                print(f"kill {number + 1}: the demo had ended before {delay:.1f} s")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                done = sum(1 for _ in (killed / "journal.jsonl").open()) if (killed / "journal.jsonl").exists() else 0
                print(f"kill {number + 1}: after {delay:.1f} s, {done} commits", flush=True)
        if start(killed, options.whole).wait() != 0:
            print("the restarted demo failed")
            return 1
        left, right = digests(whole), digests(killed)
        differ = sorted(k for k in left.keys() | right.keys() if left.get(k) != right.get(k))
        print(f"{len(left)} files, {len(differ)} differ: {', '.join(differ[:5]) or 'none'}")
        return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())

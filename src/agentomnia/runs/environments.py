"""The environment stage: drafts from cards or seeds, corrected, verified, written as packages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentomnia.environment.replay import ReplayProcess
from agentomnia.errors import OmniaError, SeedError
from agentomnia.runs.parallel import in_order, progress
from agentomnia.runs.run import Run, StageReport
from agentomnia.synthesis.environments.author import BuiltinAuthor, Draft, VerifiedEnvironment, verify_draft
from agentomnia.synthesis.environments.package import write_package

FILES = ("environments.jsonl", "rejected.jsonl")


@dataclass(frozen=True)
class EnvironmentItem:
    """One environment to make: a variant of a domain, or a seed file."""

    name: str
    seed: str
    domain: int | None = None
    variant: int = 0
    file: Path | None = None


@dataclass(frozen=True)
class EnvironmentResult:
    """What became of an item."""

    item: EnvironmentItem
    environment: VerifiedEnvironment | None
    problem: str | None = None
    unmodelled: tuple[tuple[str, str], ...] = ()
    """Operations of a seed file that could not be modelled, with the reason."""


def card_items(domains: Sequence[int], per_domain: int, seed: int) -> list[EnvironmentItem]:
    """Items for variants of domains, in a fixed order."""
    return [
        EnvironmentItem(name=f"{domain}/{variant}", seed=f"{seed}/{domain}/{variant}", domain=domain, variant=variant)
        for domain in domains
        for variant in range(per_domain)
    ]


def file_items(files: Sequence[Path], seed: int) -> list[EnvironmentItem]:
    """Items for seed files, in the order given."""
    return [EnvironmentItem(name=f"file/{f.name}", seed=f"{seed}/{f.name}", file=f) for f in files]


def environment_settings(domains: Sequence[int], files: Sequence[Path], per_domain: int, seed: int) -> dict[str, Any]:
    """The resolved settings of the stage; a file counts by its contents.

    Raises:
        SeedError: a file cannot be read.
    """
    named = []
    for file in files:
        try:
            named.append(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}")
        except OSError as error:
            raise SeedError(f"{file}: {error.strerror}; is the path right?") from None
    return {"domains": list(domains), "files": named, "per_domain": per_domain, "seed": seed}


def make_environments(run: Run, items: Sequence[EnvironmentItem], jobs: int, name: str = "environments") -> StageReport:
    """Make, verify and write every item; what fails is counted by reason and kept in `rejected.jsonl`.

    Args:
        run: where the packages go.
        items: what to make.
        jobs: processes.
        name: of the stage; a later round has its own and adds to the same files.
    """
    finished = run.finished(name)
    if finished is not None:
        return finished
    stage = run.stage(name, FILES)
    left = [i for i in items if i.name not in stage.done]
    with progress(name, len(items), len(items) - len(left)) as advance:
        for result in in_order(_make, left, jobs):
            environment = result.environment
            if environment is not None and environment.verification.passed:
                write_package(environment, run.path / "environments")
                rows = {
                    "environments.jsonl": [_index_row(environment)],
                    "rejected.jsonl": _unmodelled_rows(result),
                }
                stage.commit(result.item.name, rows, 1, ())
            else:
                reason, evidence = _reason(result)
                row = {
                    "stage": name,
                    "item": result.item.name,
                    "reason": reason,
                    "evidence": evidence,
                }
                stage.commit(result.item.name, {"rejected.jsonl": [row]}, 0, (reason,))
            advance(f"{stage.report.kept} kept")
    return stage.end()


def _reason(result: EnvironmentResult) -> tuple[str, str]:
    if result.environment is None:
        return "cannot be drafted", result.problem or ""
    findings = result.environment.verification.findings
    return f"gate: {findings[0].check}", findings[0].evidence


def _index_row(environment: VerifiedEnvironment) -> dict[str, object]:
    spec = environment.spec
    return {
        "id": environment.id,
        "title": spec.title,
        "domains": list(spec.domains),
        "lineage": spec.lineage.to_json(),
        "entities": len(spec.entities),
        "attributes": sum(len(e.fields) for e in spec.entities),
        "tools": len(spec.tools),
        "modifying": sum(1 for t in spec.tools if t.kind == "modify"),
        "rules": len(spec.rules),
        "spec": spec.identity,
    }


def _unmodelled_rows(result: EnvironmentResult) -> list[dict[str, object]]:
    return [
        {
            "stage": "environments",
            "item": result.item.name,
            "reason": "not modelled",
            "evidence": f"{what}: {why}",
        }
        for what, why in result.unmodelled
    ]


def _make(item: EnvironmentItem) -> EnvironmentResult:
    """One item, in a worker process."""
    try:
        draft, unmodelled = _draft(item)
    except OmniaError as error:
        return EnvironmentResult(item, None, str(error))
    return EnvironmentResult(item, verify_draft(draft, replayer=worker_replayer()), None, unmodelled)


def _draft(item: EnvironmentItem) -> tuple[Draft, tuple[tuple[str, str], ...]]:
    if item.file is None:
        assert item.domain is not None
        return _author().draft(item.domain, item.variant, item.seed), ()
    from agentomnia.seeds.reader import read_seed

    seed = read_seed(item.file)
    return Draft(seed.spec, ()), tuple((u.operation, u.reason) for u in seed.unmodelled)


@cache
def _author() -> BuiltinAuthor:
    return BuiltinAuthor()


@cache
def worker_replayer() -> ReplayProcess:
    """One second process for each worker, for as long as the worker lives."""
    return ReplayProcess()

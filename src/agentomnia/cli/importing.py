"""`omnia import`: environments and tasks of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentomnia.cli.options import Json, print_json

if TYPE_CHECKING:
    from agentomnia.environment.imported import Imported, ImportedEnvironment
    from agentomnia.synthesis.environments.gate import ForeignVerification

app = typer.Typer(help="Import environments and tasks of others.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Import environments and tasks of others."""


@app.command()
def omniabench(
    file: Annotated[Path, typer.Argument(help="A routeN.json: an array of task objects.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, one folder an environment in it.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the classes here and check them: they can do what this process can.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Write environments and tasks packed for OmniaBench; executes nothing of the file unless --trust is given."""
    from agentomnia.environment.imported import read_omniabench

    imported = read_omniabench(file)
    checked = _checked(imported) if trust else {}
    folders = [
        _write_environment(out, environment, imported, checked.get(environment.id))
        for environment in imported.environments.values()
    ]
    failed = {name: record for name, record in checked.items() if record.findings}
    told = {
        "file": file.name,
        "environments": len(folders),
        "tasks": len(imported.tasks),
        "left_out": [u.to_json() for u in imported.left_out],
        "checked": len(checked),
        "passed": len(checked) - len(failed),
    }
    _write_json(out / "import.json", told)
    if json_output:
        failures = [
            {"environment": name, "check": f.check, "tool": f.tool, "evidence": f.evidence}
            for name, record in failed.items()
            for f in record.findings
        ]
        print_json({**told, "failures": failures, "folders": folders, "out": str(out)})
    else:
        _print(imported, checked, out)
    if failed:
        raise typer.Exit(1)


def _checked(imported: Imported) -> dict[str, ForeignVerification]:
    """The foreign gate over every environment, in the first state of its first task."""
    import sys
    from contextlib import redirect_stdout

    from agentomnia.synthesis.environments.gate import verify_imported

    first = {t.environment.id: t for t in reversed(imported.tasks)}
    with redirect_stdout(sys.stderr):  # classes may print; standard output is ours
        records = verify_imported([first[name] for name in imported.environments])
    return {record.environment: record for record in records}


def _write_environment(
    out: Path, environment: ImportedEnvironment, imported: Imported, record: ForeignVerification | None
) -> str:
    """One environment with its tasks; the privileged parts in a file of their own."""
    from agentomnia.synthesis.environments.package import write_state, write_text

    folder = out / environment.id
    (folder / "states").mkdir(parents=True, exist_ok=True)
    pairs = [(t, p) for t, p in zip(imported.tasks, imported.private) if t.environment.id == environment.id]
    write_text(folder / "environment.py", environment.source)
    _write_json(folder / "tools.json", [t.model_dump(mode="json") for t in environment.tools])
    _write_lines(folder / "tasks.jsonl", [t.public_json() for t, _ in pairs])
    _write_lines(folder / "tasks.private.jsonl", [p.model_dump(mode="json") for _, p in pairs])
    for state_name, state in {t.state_name: t.state for t, _ in pairs}.items():
        write_state(folder, state_name, state)
    told: dict[str, Any] = {
        "class": environment.class_name,
        "introduction": environment.introduction,
        "policies": list(environment.policies),
        "tasks": len(pairs),
        "unsupported": [u.to_json() for u in environment.unsupported],
        "unsupported_in_tasks": {t.id: [u.to_json() for u in t.unsupported] for t, _ in pairs if t.unsupported},
        "patches": list(environment.patches),
        "verification": record.model_dump(mode="json") if record is not None else None,
    }
    _write_json(folder / "import.json", told)
    return environment.id


def _write_json(path: Path, value: Any) -> None:
    import json

    from agentomnia.synthesis.environments.package import write_text

    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    import json

    from agentomnia.synthesis.environments.package import write_text

    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _print(imported: Imported, checked: dict[str, ForeignVerification], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{len(imported.environments)} environments, {len(imported.tasks)} tasks → {out}"
    table = Table(title=title, title_justify="left")
    for column in ("environment", "tools", "tasks", "unsupported", "patches", "failed checks"):
        table.add_column(column, justify="left" if column in ("environment", "failed checks") else "right")
    for name, environment in imported.environments.items():
        tasks = [t for t in imported.tasks if t.environment.id == name]
        unsupported = len(environment.unsupported) + sum(len(t.unsupported) for t in tasks)
        record = checked.get(name)
        verdict = "not run" if record is None else ", ".join(sorted({f.check for f in record.findings})) or "none"
        cells = (len(environment.tools), len(tasks), unsupported, len(environment.patches))
        table.add_row(name, *map(str, cells), verdict)
    console = Console()
    console.print(table)
    lines = [f"left out: {u.what}: {u.reason}" for u in imported.left_out]
    for name, record in checked.items():
        lines += [f"{name}  {f.check}  {f.tool or ''}: {f.evidence}" for f in record.findings]
        lines += [f"{name}  {tool} changes something before it fails; taken back" for tool in record.undone]
        lines += [f"{name}  {note.what}: {note.reason}" for note in record.notes]
    for line in lines[:40]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(lines) > 40:
        console.print(f"… and {len(lines) - 40} more; see import.json in each folder, or --json")

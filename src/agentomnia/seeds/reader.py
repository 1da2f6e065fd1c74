"""Reading a seed file of any kind: what it is shows in what it says, never in its name."""

from __future__ import annotations

from pathlib import Path

from agentomnia.errors import SeedError
from agentomnia.seeds.document import read_values
from agentomnia.seeds.mcp import listed_tools, read_mcp
from agentomnia.seeds.openapi import is_openapi, read_openapi
from agentomnia.seeds.seed import ReadSeed


def read_seed(path: Path) -> ReadSeed:
    """Read an OpenAPI document or an MCP tool list, as JSON or YAML.

    Args:
        path: the file.

    Raises:
        SeedError: the file cannot be read, is neither kind, or says too little for a stateful environment.
    """
    values = read_values(path)
    if is_openapi(values):
        return read_openapi(values, path.name)
    if listed_tools(values) is not None:
        return read_mcp(values, path.name)
    found = (
        f"an object with {', '.join(list(values)[:5])}" if isinstance(values, dict) else f"a {type(values).__name__}"
    )
    raise SeedError(
        f"{path}: neither an OpenAPI document nor an MCP tool list, but {found}; give a file with `openapi` and "
        f"`paths`, "
        "or with `tools`"
    )

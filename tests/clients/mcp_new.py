"""The official MCP client, major version 2: what it sees, as JSON. Usage: mcp_new.py MODE (URL URL | -- COMMAND…)"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client


async def failure(client: Client, tool: str) -> dict[str, Any]:
    try:
        answer = await client.call_tool(tool, {})
    except MCPError as error:
        return {"code": error.error.code, "data": error.error.data}
    return {"result": answer.model_dump(mode="json")}


async def look(client: Client) -> dict[str, Any]:
    tools = (await client.list_tools()).tools
    added = await client.call_tool("add", {"n": 3})
    return {
        "version": client.protocol_version,
        "server": client.server_info and client.server_info.name,  # unknown where the version is pinned
        "instructions": client.instructions,
        "tools": [t.name for t in tools],
        "hints": [t.annotations.read_only_hint for t in tools if t.annotations],
        "added": added.structured_content,
        "text": added.content[0].text,
        "errors": [
            (await client.call_tool(tool, arguments)).is_error
            for tool, arguments in (("refuse", {}), ("add", {"n": "three"}), ("read", {}))
        ],
        "failures": {tool: await failure(client, tool) for tool in ("nothing", "fault", "gone", "full")},
    }


async def over_http(mode: str, url: str, other: str) -> dict[str, Any]:
    async with Client(url, mode=mode) as client, Client(other, mode=mode) as second:
        report = await look(client)
        report["other"] = (await second.call_tool("read", {})).structured_content
    return report


async def over_stdio(mode: str, command: list[str]) -> dict[str, Any]:
    server = stdio_client(StdioServerParameters(command=command[0], args=command[1:]))
    async with Client(server, mode=mode) as client:
        return await look(client)


mode, *words = sys.argv[1:]
report = asyncio.run(over_stdio(mode, words[1:]) if words[0] == "--" else over_http(mode, words[0], words[1]))
print(json.dumps(report))

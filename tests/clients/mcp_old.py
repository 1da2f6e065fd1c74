"""The official MCP client, major version 1: what it sees, as JSON. Usage: mcp_old.py (URL URL | -- COMMAND…)"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


async def failure(session: ClientSession, tool: str) -> dict[str, Any]:
    try:
        answer = await session.call_tool(tool, {})
    except McpError as error:
        return {"code": error.error.code, "data": error.error.data}
    return {"result": answer.model_dump(mode="json")}


async def look(session: ClientSession) -> dict[str, Any]:
    began = await session.initialize()
    await session.send_ping()
    tools = (await session.list_tools()).tools
    added = await session.call_tool("add", {"n": 3})
    return {
        "version": began.protocolVersion,
        "instructions": began.instructions,
        "tools": [t.name for t in tools],
        "hints": [t.annotations.readOnlyHint for t in tools if t.annotations],
        "added": added.structuredContent,
        "text": added.content[0].text,
        "errors": [
            (await session.call_tool(tool, arguments)).isError
            for tool, arguments in (("refuse", {}), ("add", {"n": "three"}), ("read", {}))
        ],
        "failures": {tool: await failure(session, tool) for tool in ("nothing", "fault", "gone", "full")},
    }


async def over_http(url: str, other: str) -> dict[str, Any]:
    async with streamable_http_client(url) as (read, write, session_id), ClientSession(read, write) as session:
        report = await look(session)
        assert session_id() is None
        async with streamable_http_client(other) as (r, w, _), ClientSession(r, w) as second:
            await second.initialize()
            report["other"] = (await second.call_tool("read", {})).structuredContent
    return report


async def over_stdio(command: list[str]) -> dict[str, Any]:
    server = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        return await look(session)


words = sys.argv[1:]
report = asyncio.run(over_stdio(words[1:]) if words[0] == "--" else over_http(words[0], words[1]))
print(json.dumps(report))

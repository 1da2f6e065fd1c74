"""The fastmcp client: what it sees of two sessions, as JSON. Usage: fastmcp_client.py URL URL"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client


async def failure(client: Client, tool: str) -> dict[str, Any]:
    try:
        answer = await client.call_tool(tool, {}, raise_on_error=False)
    except Exception as error:  # noqa: BLE001 - which class it is, is what the report is about
        told = getattr(error, "error", None)
        return {"class": type(error).__name__, "code": getattr(told, "code", None), "data": getattr(told, "data", None)}
    return {"is_error": answer.is_error}


async def main(url: str, other: str) -> dict[str, Any]:
    async with Client(url) as client, Client(other) as second:
        added = await client.call_tool("add", {"n": 3})
        return {
            "tools": [t.name for t in await client.list_tools()],
            "added": added.structured_content,
            "text": added.content[0].text,
            "errors": [
                (await client.call_tool(tool, arguments, raise_on_error=False)).is_error
                for tool, arguments in (("refuse", {}), ("add", {"n": "three"}), ("read", {}))
            ],
            "failures": {tool: await failure(client, tool) for tool in ("nothing", "fault", "gone", "full")},
            "other": (await second.call_tool("read", {})).structured_content,
        }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))

"""The official MCP SDK: `MCPServer` over Streamable HTTP, without sessions and with plain JSON answers."""

from __future__ import annotations

import shop
from mcp.server.mcpserver import MCPServer

sessions = shop.Sessions()
server = MCPServer(shop.TITLE, log_level="ERROR")


@server.tool()
async def open_session() -> str:
    """Open an instance."""
    return sessions.open()


for function in shop.functions("session: str", sessions.__getitem__):
    server.add_tool(function)

if __name__ == "__main__":
    shop.run(server.streamable_http_app(json_response=True, stateless_http=True))

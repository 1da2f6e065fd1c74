"""FastMCP over Streamable HTTP, without sessions and with plain JSON answers."""

from __future__ import annotations

import shop
from fastmcp import FastMCP

sessions = shop.Sessions()
server: FastMCP = FastMCP(shop.TITLE)


@server.tool
async def open_session() -> str:
    """Open an instance."""
    return sessions.open()


for function in shop.functions("session: str", sessions.__getitem__):
    server.tool(function)

if __name__ == "__main__":
    shop.run(server.http_app(json_response=True, stateless_http=True))

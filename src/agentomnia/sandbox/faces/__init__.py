"""Protocols over the one instance API: MCP, OpenEnv, ORS, REST. Hand-written ASGI, since every call passes here."""

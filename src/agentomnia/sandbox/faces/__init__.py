"""Protocols over the one instance API: MCP, OpenEnv, ORS, REST. Written by hand, since every call passes here."""

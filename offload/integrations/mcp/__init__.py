"""Model Context Protocol: a server of stored items, and a proxy that offloads large tool results."""

from offload.errors import needs_extra

with needs_extra("mcp"):
    from offload.integrations.mcp._http import serve_proxy
    from offload.integrations.mcp._proxy import Proxy, wrap
    from offload.integrations.mcp._results import ResultOffloader
    from offload.integrations.mcp._server import context_server, http_app, serve_http, serve_stdio
    from offload.integrations.mcp._upstream import command_upstream, url_upstream

__all__ = [
    "Proxy",
    "ResultOffloader",
    "command_upstream",
    "context_server",
    "http_app",
    "serve_http",
    "serve_proxy",
    "serve_stdio",
    "url_upstream",
    "wrap",
]

"""The Model Context Protocol: a server of stored context, and a proxy that keeps large results out of it.

`context_server` offers one session to any client: the four tools, and its records as resources `ctx://ID`.
`Proxy` stands between a client and any other server: what its tools return is offloaded where it is large,
and read back through the same four tools.
"""

from __future__ import annotations

from offload.errors import MissingExtraError

try:
    from offload.integrations.mcp._proxy import Proxy, wrap
    from offload.integrations.mcp._results import ResultOffloader
    from offload.integrations.mcp._server import context_server, http_app, serve_http, serve_stdio
except ModuleNotFoundError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[mcp]'") from error

__all__ = [
    "Proxy",
    "ResultOffloader",
    "context_server",
    "http_app",
    "serve_http",
    "serve_stdio",
    "wrap",
]

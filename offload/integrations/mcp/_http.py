"""The proxy for HTTP clients: each of their sessions has a proxy and a connection to the wrapped server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.transport_security import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from offload.integrations.mcp._proxy import Proxy
from offload.integrations.mcp._results import ResultOffloader
from offload.integrations.mcp._server import Access, serve_app
from offload.integrations.mcp._stateless import SharedServer
from offload.integrations.mcp._upstream import Upstream, supported

_log = logging.getLogger("offload")

# Each may run a program.
_MAX_CLIENTS = 100
_FIRST_FAILURE = 400
# Releases of mcp before 2.3 end no idle session.
_IDLE_SECONDS = 1800


def serve_proxy(
    upstream: Upstream,
    results: ResultOffloader,
    host: str,
    port: int,
    token: str | None = None,
    *,
    names: Collection[str] = (),
) -> None:
    """Run proxies over streamable HTTP at `http://HOST:PORT/mcp` until the process is stopped.

    Args:
        upstream: connects to the wrapped server, once for each session of a client.
        results: what is offloaded, and where to; all clients read the same session.
        host: as for `serve_http`, like the other arguments and the errors.
        port: 0 selects a free one.
        token: clients must send it.
        names: further names by which clients call this server.
    """
    serve_app(partial(proxy_app, upstream, results), Access(host, token, names), port)


def proxy_app(upstream: Upstream, results: ResultOffloader, security: TransportSecuritySettings) -> Any:
    """Return the ASGI app that `serve_proxy` runs, without the check of the token."""
    clients = _Clients(upstream, results, security)
    endpoint = RequestBodyLimitMiddleware(clients.handle, DEFAULT_MAX_REQUEST_BODY_SIZE)
    return Starlette(routes=[Route("/mcp", endpoint=endpoint)], lifespan=clients.run)


class _Clients:
    """The sessions of HTTP clients, and one connection for all requests of revisions without sessions."""

    def __init__(
        self, upstream: Upstream, results: ResultOffloader, security: TransportSecuritySettings
    ) -> None:
        self._upstream = upstream
        self._results = results
        self._security = TransportSecurityMiddleware(security)
        self._transports: dict[str, StreamableHTTPServerTransport] = {}
        self._tasks: Any = None
        self._shared = SharedServer(upstream, results)

    @asynccontextmanager
    async def run(self, _app: Any) -> AsyncIterator[None]:
        """Hold the sessions while the app runs."""
        async with self._shared.run(), anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        refusal = await self._security.validate_request(request, is_post=request.method == "POST")
        name = request.headers.get(MCP_SESSION_ID_HEADER)
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        is_stateless = request.method == "POST" and version not in (None, *HANDSHAKE_PROTOCOL_VERSIONS)
        transport = self._transports.get(name or "")
        if refusal is None and is_stateless:
            await self._shared.handle(scope, receive, send)
            return
        if refusal is None and transport is None:
            refusal = self._refusal(request, name)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif transport is not None:
            await transport.handle_request(scope, receive, send)
        else:
            await self._open(scope, receive, send)

    def _refusal(self, request: Request, name: str | None) -> PlainTextResponse | None:
        """Return the refusal of a request that belongs to no session, None if it may open one."""
        if name is not None:
            return PlainTextResponse("no such session; initialize a new one", 404)
        if request.method != "POST":
            return PlainTextResponse("initialize a session first", 400)
        if len(self._transports) >= _MAX_CLIENTS:
            return PlainTextResponse(f"there are {_MAX_CLIENTS} sessions already", 503)
        return None

    async def _open(self, scope: Any, receive: Any, send: Any) -> None:
        """Open a session for a request, and close it unless the request is a successful `initialize`."""
        name, status = uuid4().hex, _FIRST_FAILURE

        async def watched(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        limit = supported(StreamableHTTPServerTransport, idle_timeout=_IDLE_SECONDS)
        transport = StreamableHTTPServerTransport(name, **limit)
        self._transports[name] = transport
        await self._tasks.start(self._serve, name, transport)
        try:
            await transport.handle_request(scope, receive, watched)
        finally:
            if status >= _FIRST_FAILURE:
                with anyio.CancelScope(shield=True):
                    await transport.terminate()

    async def _serve(self, name: str, transport: Any, *, task_status: Any) -> None:
        """Run the proxy of one session until the client ends it, or sends nothing for half an hour."""
        try:
            async with transport.connect() as outer:
                task_status.started()
                with getattr(transport, "idle_scope", None) or nullcontext():
                    async with self._upstream() as inner:
                        await Proxy(self._results).run(outer, inner)
        except Exception as error:  # noqa: BLE001 # one session's failure is not that of the others
            _log.warning("a client's session ended: %s", error)
        finally:
            self._transports.pop(name, None)
            with anyio.CancelScope(shield=True):
                await transport.terminate()

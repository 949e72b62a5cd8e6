"""Server that offers one session for reading, over stdio or streamable HTTP."""

from __future__ import annotations

import hmac
import sys
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any, NamedTuple

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from offload import ConfigError, NotFoundError, Offloader, OffloadError, __version__
from offload.base.origins import Refusal, listening, refusal_of, url_host
from offload.base.threads.calls import in_thread
from offload.base.threads.locks import Recent
from offload.integrations.mcp._context import TEMPLATE, ContextAnswers, Json
from offload.reading.tools.answers import error_for_model
from offload.records.session.names import session_for

# Returns an ASGI app, given the settings of its own checks of `Host` and `Origin`.
AppWith = Callable[[TransportSecuritySettings], Any]

# The first protocol revision with resource links.
FIRST_WITH_LINKS = "2025-06-18"

_UNAUTHORIZED = "send the token of this server as Authorization: Bearer TOKEN"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 # named to be refused


# Returns the session that a request may read, None if it may read none.
SessionOf = Callable[[Request], str | None]
# Where the session of a request is in its ASGI scope.
_SESSION = "offload.session"
_MOST_SESSIONS = 1000


def context_server(offloader: Offloader) -> Any:
    """Return a server (`mcp.server.lowlevel.Server`) that offers the session of `offloader` for reading.

    It has the retrieval tools, and each record as a resource `ctx://ID`.
    """
    answers, answers_of = ContextAnswers(offloader), _answers_by_session(offloader)

    def call(context: Any, params: Any) -> Json:
        has_links = context.protocol_version >= FIRST_WITH_LINKS
        return answers_of(context).call(params.name, params.arguments, has_links=has_links)

    def page(context: Any, params: Any) -> Json:
        return answers_of(context).list_resources(params and params.cursor)

    def read(context: Any, params: Any) -> Json:
        return answers_of(context).read_resource(str(params.uri))

    templates = {"resourceTemplates": [TEMPLATE]}
    return Server(
        "offload",
        version=__version__,
        instructions=answers.instructions,
        on_list_tools=_handler(types.ListToolsResult, lambda *_: {"tools": answers.tools}),
        on_call_tool=_handler(types.CallToolResult, call),
        on_list_resources=_handler(types.ListResourcesResult, page),
        on_list_resource_templates=_handler(types.ListResourceTemplatesResult, lambda *_: templates),
        on_read_resource=_handler(types.ReadResourceResult, read),
    )


def _answers_by_session(offloader: Offloader) -> Callable[[Any], ContextAnswers]:
    """Return a function that returns the answers of the session of a request: its own, or that of all."""
    known: Recent[str, ContextAnswers] = Recent(_MOST_SESSIONS)

    def answers_of(context: Any) -> ContextAnswers:
        scope = {} if context.request is None else context.request.scope
        name = scope.get(_SESSION, offloader.session)
        answers = known.get(name)
        if answers is None:
            is_own = name == offloader.session
            answers = ContextAnswers(offloader if is_own else offloader.with_options(session=name))
            known.put(name, answers)
        return answers

    return answers_of


def error_code(error: Exception) -> int:
    """Return the JSON-RPC code of a failed request: invalid, or an error that a later try may not have."""
    is_invalid = isinstance(error, ConfigError | NotFoundError)
    return int(types.INVALID_PARAMS if is_invalid else types.INTERNAL_ERROR)


async def serve_stdio(offloader: Offloader) -> None:
    """Serve one session over stdin and stdout until stdin ends."""
    server = context_server(offloader)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_http(
    offloader: Offloader,
    host: str,
    port: int,
    token: str | None = None,
    *,
    names: Collection[str] = (),
    session_of: SessionOf | None = None,
) -> None:
    """Serve sessions over streamable HTTP at `http://HOST:PORT/mcp` until the process is stopped.

    No state of a client is kept, so any of several servers over one store answers each request.

    Args:
        offloader: the store and the session.
        host: the address to listen on; with `names`, it may be that of every network.
        port: 0 selects a free one; the address is printed to stderr.
        token: clients must send it as `Authorization: Bearer TOKEN`.
        names: further names by which clients call this server, as in the header `Host`: those of a domain or
            of a balancer, with the port if it is not the usual one.
        session_of: returns the session that a request may read, instead of that of `offloader`, or None to
            refuse it; a function of the host, which authenticates the request. Its errors refuse it too.

    Raises:
        ConfigError: the server cannot listen on the address, or others can reach it without `token` or
            `session_of`.
    """
    serve_app(_app_of(offloader), Access(host, token, names, session_of), port)


def http_app(
    offloader: Offloader,
    host: str,
    port: int,
    token: str | None = None,
    *,
    names: Collection[str] = (),
    session_of: SessionOf | None = None,
) -> Any:
    """Return the ASGI app that `serve_http` runs.

    A request must name this server in `Host`, and in `Origin` if it has one; those of web pages of other
    sites are refused. A loopback `host` allows all three loopback names. Arguments and errors are those of
    `serve_http`.
    """
    return _guarded_app(_app_of(offloader), Access(host, token, names, session_of), port)


class Access(NamedTuple):
    """The address of a server, and who may use it: arguments of `serve_http`."""

    host: str
    token: str | None
    names: Collection[str] = ()
    session_of: SessionOf | None = None

    def check(self) -> None:
        """Raise `ConfigError` if others can reach the server whom nothing checks."""
        if self.host in _EVERY_ADDRESS and not self.names:
            raise ConfigError(
                f"host must be the one address that clients use, got {self.host!r}; or give the names that "
                "they use"
            )
        if self.host not in _LOOPBACK and not (self.token or self.session_of):
            raise ConfigError(f"{self.host} can be reached from other machines; set a token")
        if self.token == "":
            raise ConfigError("token must not be empty; omit it to disable the check")


def serve_app(app_with: AppWith, access: Access, port: int) -> None:
    """Serve an app as `serve_http` does."""
    access.check()
    opened = listening(access.host, port)
    port = opened.getsockname()[1]
    sys.stderr.write(f"offload: serving http://{url_host(access.host)}:{port}/mcp\n")
    config = uvicorn.Config(_guarded_app(app_with, access, port), log_config=None)
    uvicorn.Server(config).run(sockets=[opened])


def _guarded_app(app_with: AppWith, access: Access, port: int) -> Any:
    """Return an app for the names of an address, which requires the token."""
    access.check()
    hosts = _LOOPBACK if access.host in _LOOPBACK else (access.host,)
    known = frozenset(name.lower() for name in (*(f"{url_host(h)}:{port}" for h in hosts), *access.names))
    # `_guarded` checks the names.
    app = app_with(TransportSecuritySettings(enable_dns_rebinding_protection=False))
    if access.session_of is not None:
        app = _with_session(app, access.session_of)
    return _guarded(app, known, access.token)


def _app_of(offloader: Offloader) -> AppWith:
    server = context_server(offloader)
    return lambda security: server.streamable_http_app(transport_security=security, stateless_http=True)


def _with_session(app: Any, session_of: SessionOf) -> Any:
    """Return an app whose requests have their sessions in their scopes, without those that may read none."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        session = await session_for(session_of, Request(scope))
        if session is None:
            await PlainTextResponse("this request may read no session", 403)(scope, receive, send)
        else:
            await app({**scope, _SESSION: session}, receive, send)

    return checked


def _guarded(app: Any, names: Collection[str], token: str | None) -> Any:
    """Return an app for requests to one of `names`, which have the token if there is one."""
    expected = None if token is None else f"Bearer {token}".encode()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        refusal = None
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            refusal = refusal_of(headers, names.__contains__)
            sent = headers.get("authorization", "").encode("latin-1")
            if expected is not None and not hmac.compare_digest(sent, expected):
                refusal = refusal or Refusal(401, _UNAUTHORIZED)
        if refusal is None:
            await app(scope, receive, send)
            return
        asked = {"www-authenticate": "Bearer"} if refusal.status == HTTPStatus.UNAUTHORIZED else None
        await PlainTextResponse(refusal.reason, refusal.status, asked)(scope, receive, send)

    return guard


def _handler(result: Any, answer: Callable[[Any, Any], Json]) -> Callable[[Any, Any], Any]:
    """Return a handler of a request, which raises the protocol's error on failure."""

    async def handle(context: Any, params: Any) -> Any:
        try:
            return result.model_validate(await in_thread(answer, context, params))
        except OffloadError as error:
            raise MCPError(error_code(error), error_for_model(error)) from error

    return handle

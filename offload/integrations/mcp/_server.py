"""Server that offers one session for reading, over stdio or streamable HTTP."""

from __future__ import annotations

import hmac
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any

import anyio
import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from offload import ConfigError, NotFoundError, Offloader, OffloadError, __version__
from offload.integrations.mcp._context import TEMPLATE, ContextAnswers, Json
from offload.origins import Refusal, refusal_of
from offload.threads.calls import in_thread
from offload.tools.answers import error_for_model

# Returns an ASGI app, given the settings of its own checks of `Host` and `Origin`.
AppWith = Callable[[TransportSecuritySettings], Any]

# The first protocol revision with resource links.
FIRST_WITH_LINKS = "2025-06-18"

_UNAUTHORIZED = "send the token of this server as Authorization: Bearer TOKEN"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 # named to be refused


# A tool that is in no list: a program calls it for its events, a model cannot.
HOOK_TOOL = "hook"

Hook = Callable[[Mapping[str, Any]], str]


def context_server(offloader: Offloader, hook: Hook | None = None, *, seconds: float = 15.0) -> Any:
    """Return a server (`mcp.server.lowlevel.Server`) that offers the session of `offloader` for reading.

    It has the retrieval tools, and each record as a resource `ctx://ID`.

    Args:
        offloader: the session.
        hook: answers the events of a coding agent, which calls the tool `hook` with the fields of an event.
            No list has that tool, and no server without a hook. There are no resources then: the agent lists
            them before its first event, which would wait for a slow store.
        seconds: after so many seconds an event is answered by an empty object.
    """
    answers = ContextAnswers(offloader)

    async def call_tool(context: Any, params: Any) -> Any:
        if hook is None or params.name != HOOK_TOOL:
            return await answered(context, params)
        text = "{}"
        with anyio.move_on_after(seconds):
            text = await in_thread(hook, params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    def call(context: Any, params: Any) -> Json:
        has_links = hook is None and context.protocol_version >= FIRST_WITH_LINKS
        return answers.call(params.name, params.arguments, has_links=has_links)

    def page(_context: Any, params: Any) -> Json:
        return answers.list_resources(params and params.cursor)

    answered = _handler(types.CallToolResult, call)
    templates = {"resourceTemplates": [TEMPLATE]}
    resources = {
        "on_list_resources": _handler(types.ListResourcesResult, page),
        "on_list_resource_templates": _handler(types.ListResourceTemplatesResult, lambda *_: templates),
        "on_read_resource": _handler(
            types.ReadResourceResult, lambda _, params: answers.read_resource(str(params.uri))
        ),
    }
    return Server(
        "offload",
        version=__version__,
        instructions=answers.instructions,
        on_list_tools=_handler(types.ListToolsResult, lambda *_: {"tools": answers.tools}),
        on_call_tool=call_tool,
        **(resources if hook is None else {}),
    )


def error_code(error: Exception) -> int:
    """Return the JSON-RPC code of a failed request: invalid, or an error that a later try may not have."""
    is_invalid = isinstance(error, ConfigError | NotFoundError)
    return int(types.INVALID_PARAMS if is_invalid else types.INTERNAL_ERROR)


async def serve_stdio(offloader: Offloader, hook: Hook | None = None) -> None:
    """Serve one session over stdin and stdout until stdin ends; `hook` as in `context_server`."""
    server = context_server(offloader, hook)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_http(offloader: Offloader, host: str, port: int, token: str | None = None) -> None:
    """Serve one session over streamable HTTP at `http://HOST:PORT/mcp` until the process is stopped.

    Port 0 selects a free one; the address is printed to stderr. Clients must send a `token` as
    `Authorization: Bearer TOKEN`. Raises `ConfigError` if the server cannot listen on the address, or a
    non-local address has no token.
    """
    serve_app(_app_of(offloader), host, port, token)


def http_app(offloader: Offloader, host: str, port: int, token: str | None = None) -> Any:
    """Return the ASGI app that `serve_http` runs.

    A request must name this server in `Host`, and in `Origin` if it has one; those of web pages of other
    sites are refused. A loopback `host` allows all three loopback names. Arguments and errors are those of
    `serve_http`.
    """
    return guarded_app(_app_of(offloader), host, port, token)


def serve_app(app_with: AppWith, host: str, port: int, token: str | None) -> None:
    """Serve an app as `serve_http` does."""
    _check_exposure(host, token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error}") from error
    port = listening.getsockname()[1]
    sys.stderr.write(f"offload: serving http://{_name(host)}:{port}/mcp\n")
    config = uvicorn.Config(guarded_app(app_with, host, port, token), log_config=None)
    uvicorn.Server(config).run(sockets=[listening])


def guarded_app(app_with: AppWith, host: str, port: int, token: str | None) -> Any:
    """Return an app for the names of an address, which requires the token."""
    _check_exposure(host, token)
    names = frozenset(f"{_name(h)}:{port}".lower() for h in (_LOOPBACK if host in _LOOPBACK else (host,)))
    # `_guarded` checks the names.
    return _guarded(app_with(TransportSecuritySettings(enable_dns_rebinding_protection=False)), names, token)


def _app_of(offloader: Offloader) -> AppWith:
    server = context_server(offloader)
    return lambda security: server.streamable_http_app(transport_security=security)


def _check_exposure(host: str, token: str | None) -> None:
    if host in _EVERY_ADDRESS:
        raise ConfigError(f"host must be the one address that clients use, got {host!r}")
    if host not in _LOOPBACK and not token:
        raise ConfigError(f"{host} can be reached from other machines; set a token")
    if token == "":
        raise ConfigError("token must not be empty; omit it to disable the check")


def _name(host: str) -> str:
    return f"[{host}]" if ":" in host else host


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

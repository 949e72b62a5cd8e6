"""Connections of the proxy to the server that it wraps: a program, or a URL."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from inspect import signature
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.types import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp.types.jsonrpc import JSONRPCError, jsonrpc_message_adapter

from offload.errors import ConfigError
from offload.integrations.mcp._context import Json
from offload.storage.store import without_secrets

Streams = tuple[Any, Any]
# Each call opens other streams to the wrapped server.
Upstream = Callable[[], AbstractAsyncContextManager[Streams]]

# The limit of newer releases of the SDK, 1 MiB, would refuse the very results that are to be offloaded.
_MAX_EVENT_BYTES = 256 * 1024 * 1024
# As the SDK's own: a server may be silent for minutes while a tool runs.
_TIMEOUT = httpx2.Timeout(30, read=300)
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0
_URL = re.compile(r"https?://[^/]", re.IGNORECASE)
_FIRST_FAILURE = 400
_INITIALIZED = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'


def command_upstream(command: Sequence[str]) -> Upstream:
    """Return the connection to a program that is a server; it inherits environment and stderr.

    Raises `ConfigError` if there is no such program; opening the connection does if it cannot be started.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(f"cannot start {command[0]!r}: there is no such program")
    return partial(_run, command)


@asynccontextmanager
async def _run(command: Sequence[str]) -> AsyncIterator[Streams]:
    server = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=dict(os.environ), encoding_error_handler="replace"
    )
    try:
        async with stdio_client(server) as streams:
            yield streams
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot start {command[0]!r}: {error}") from error


def url_upstream(url: str, headers: Mapping[str, str] | None = None) -> Upstream:
    """Return the connection to the streamable HTTP endpoint `url`; every request has the `headers`.

    A lost connection is opened again, and a new session replaces one that the server forgot. Raises
    `ConfigError` if `url` is not an HTTP URL.
    """
    if not _URL.match(url):
        raise ConfigError(f"url must start with https:// or http://, got {without_secrets(url)!r:.200}")
    return partial(_connect, url, headers)


@asynccontextmanager
async def _connect(url: str, headers: Mapping[str, str] | None) -> AsyncIterator[Streams]:
    limit = supported(streamable_http_client, max_sse_event_size=_MAX_EVENT_BYTES)
    async with (
        _HttpClient(headers=headers, timeout=_TIMEOUT) as client,
        streamable_http_client(url, http_client=client, **limit) as streams,
    ):
        yield streams


def supported(function: Callable[..., Any], **options: Any) -> Json:
    """Return those of the options that the installed release of the SDK has."""
    known = signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


class _HttpClient(httpx2.AsyncClient):
    """Client that turns every failure into a response: an exception would end the SDK's transport.

    Responses name the failure as an error of the protocol, without the server's text and address.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = ""
        self._greeting: httpx2.Request | None = None
        self._reopening = anyio.Lock()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        delay = _FIRST_DELAY
        while True:
            try:
                response = await self._in_session(request, options)
                if _is_json(response):
                    await response.aread()
            except (httpx2.RequestError, httpx2.StreamError) as error:
                if request.method != "GET":
                    return _failure(request, 503, f"cannot be reached: {type(error).__name__}")
                # The stream of the server's notifications lasts as long as the proxy.
                await anyio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
            else:
                return response if _is_explained(response) else await _explained(response)

    async def _in_session(self, request: httpx2.Request, options: Json) -> httpx2.Response:
        """Send a request in the current session, and in a new one if the server forgot it."""
        if MCP_SESSION_ID not in request.headers:
            return await self._open(request, options)
        sent_in = request.headers[MCP_SESSION_ID] = self._session
        response = await super().send(request, **options)
        if response.status_code != httpx2.codes.NOT_FOUND or request.method == "DELETE":
            return response
        await response.aclose()
        async with self._reopening:
            if self._session == sent_in:
                await self._reopen(request, options)
        request.headers[MCP_SESSION_ID] = self._session
        return await super().send(request, **options)

    async def _open(self, request: httpx2.Request, options: Json) -> httpx2.Response:
        response = await super().send(request, **options)
        if session := response.headers.get(MCP_SESSION_ID):
            self._session, self._greeting = session, request
        return response

    async def _reopen(self, request: httpx2.Request, options: Json) -> None:
        """Repeat the greeting of the client, with the protocol version of `request`."""
        if self._greeting is None:
            return
        response = await self._open(self._greeting, options)
        await response.aread()  # the whole answer, as a client that greets
        await response.aclose()
        headers = {**self._greeting.headers, MCP_SESSION_ID: self._session}
        headers.pop("content-length")
        if version := request.headers.get(MCP_PROTOCOL_VERSION_HEADER):
            headers[MCP_PROTOCOL_VERSION_HEADER] = version
        done = self.build_request("POST", request.url, headers=headers, content=_INITIALIZED)
        await (await super().send(done, **options)).aclose()


def _is_json(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-type", "").startswith("application/json"))


def _is_explained(response: httpx2.Response) -> bool:
    """Return whether a response is a success, or has an error of the protocol."""
    if response.status_code < _FIRST_FAILURE:
        return True
    with suppress(ValueError):
        return _is_json(response) and isinstance(
            jsonrpc_message_adapter.validate_json(response.content, by_name=False), JSONRPCError
        )
    return False


async def _explained(response: httpx2.Response) -> httpx2.Response:
    await response.aclose()
    status = response.status_code
    return _failure(response.request, status, f"answered {status} {httpx2.codes.get_reason_phrase(status)}")


def _failure(request: httpx2.Request, status: int, reason: str) -> httpx2.Response:
    is_unknown = status == httpx2.codes.NOT_FOUND and MCP_SESSION_ID not in request.headers
    code = METHOD_NOT_FOUND if is_unknown else INTERNAL_ERROR
    error = {"code": code, "message": f"the wrapped MCP server {reason}"}
    return httpx2.Response(status, request=request, json={"jsonrpc": "2.0", "id": None, "error": error})


class RequestHeaders:
    """The HTTP headers that repeat parts of a message, as the protocol requires."""

    def __init__(self) -> None:
        self._parameters: dict[str, Any] = {}

    def note(self, tool: Json) -> None:
        """Remember which arguments of a listed tool are repeated."""
        self._parameters[tool["name"]] = x_mcp_header_map(tool.get("inputSchema"))

    def of(self, message: Any, version: str, *, is_modern: bool) -> dict[str, str]:
        """Return the headers of a message in a protocol version; revisions of 2026 and later are modern."""
        method = getattr(message, "method", "")
        if not version or method == "initialize":
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version}
        if not is_modern:
            return headers
        headers[MCP_METHOD_HEADER] = method
        name = message.params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if method == "tools/call":
            repeated = self._parameters.get(name, {})
            headers |= mcp_param_headers(repeated, message.params.get("arguments") or {})
        return headers

"""HTTP requests of protocol revisions without sessions: one connection to the wrapped server answers all.

Each client numbers its requests itself, so a request has an id of its own on the shared connection, which is
its progress token and the id of its subscription there too.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp.shared.message import SessionMessage
from mcp.types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, PROTOCOL_VERSION_META_KEY
from mcp.types.jsonrpc import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from starlette.requests import Request
from starlette.responses import Response

from offload.errors import OffloadError
from offload.integrations.mcp._context import Json
from offload.integrations.mcp._proxy import Proxy
from offload.integrations.mcp._results import ResultOffloader
from offload.integrations.mcp._upstream import Upstream
from offload.reading.tools.answers import error_for_model

_log = logging.getLogger("offload")

_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_ENDED = "the connection ended; try again"
_MOST_REQUESTS = 100
_IDLE_SECONDS = 1800
_STREAM = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


class _NotSentError(Exception):
    """A request that is not sent on, with the error for the client."""

    def __init__(self, code: int, message: str, request_id: Any = None, data: Any = None) -> None:
        super().__init__(message)
        self.answer = _error(code, message, request_id, data)


class _SharedRequest:
    """A request of a client on the shared connection, and the messages for it."""

    def __init__(self, name: str, request: JSONRPCRequest) -> None:
        self.name = name
        self._id = request.id
        meta = request.params["_meta"]
        self.version = meta[PROTOCOL_VERSION_META_KEY]
        self._token = meta.get("progressToken")
        own = meta if self._token is None else {**meta, "progressToken": name}
        self.request = request.model_copy(
            update={"id": name, "params": {**(request.params or {}), "_meta": own}}
        )
        self._put, self.messages = anyio.create_memory_object_stream[Any](math.inf)

    def deliver(self, message: Any) -> None:
        """Pass a message to the client, with the client's own names."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            message = message.model_copy(update={"id": self._id})
        elif (params := message.params) is not None:
            message = message.model_copy(update={"params": self._with_own_names(params)})
        self._put.send_nowait(message)

    def close(self) -> None:
        """Take no more messages."""
        self._put.close()
        self.messages.close()

    def _with_own_names(self, params: Json) -> Json:
        if params.get("progressToken") == self.name:
            params = {**params, "progressToken": self._token}
        meta = params.get("_meta")
        if isinstance(meta, dict) and meta.get(_SUBSCRIPTION) == self.name:
            params = {**params, "_meta": {**meta, _SUBSCRIPTION: self._id}}
        return params


class _SharedConnection:
    """A proxy with its connection, and the exchanges that wait for messages of it, by name."""

    def __init__(self, proxy: Proxy, to_proxy: Any) -> None:
        self.proxy = proxy
        self.to_proxy = to_proxy
        self.exchanges: dict[str, _SharedRequest] = {}
        self.used = anyio.current_time()

    async def deliver_all(self, stream: Any) -> None:
        """Pass what the proxy sends to the exchanges; what belongs to none has no receiver."""
        async for item in stream:
            message = item.message
            is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
            exchange = self.exchanges.get(str(message.id) if is_answer else _name_in(message))
            if exchange is not None:
                exchange.deliver(message)

    def end(self) -> None:
        """Answer who waits, and let the next request open another connection."""
        self.proxy.has_server = False
        for exchange in self.exchanges.values():
            exchange.deliver(_error(INTERNAL_ERROR, _ENDED, None, None))

    async def until_unused(self) -> None:
        """Wait until the server ended, or nobody used the connection for half an hour."""
        is_used = True
        while is_used:
            await anyio.sleep(_IDLE_SECONDS / 10)
            is_recent = self.used + _IDLE_SECONDS > anyio.current_time()
            is_used = bool(self.exchanges) or (self.proxy.has_server and is_recent)


class SharedServer:
    """The wrapped server for requests without sessions; it is started with the first one."""

    def __init__(self, upstream: Upstream, results: ResultOffloader) -> None:
        self._upstream = upstream
        self._results = results
        self._tasks: Any = None
        self._opening = anyio.Lock()
        self._current: _SharedConnection | None = None
        self._names = itertools.count(1)
        self._waiting = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Hold the connection while the app runs."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one POST."""
        request = Request(scope, receive)
        try:
            message = await _read(request)
            if message is None:
                await Response(status_code=202)(scope, receive, send)
                return
            with self._counted(message):
                exchange = await self._begin(message)
                is_stream = "text/event-stream" in _accepted(request)
                await self._answer(exchange, is_stream=is_stream, receive=receive, send=send)
        except _NotSentError as refused:
            await _plain(refused.answer)(scope, receive, send)

    @contextmanager
    def _counted(self, message: JSONRPCRequest) -> Iterator[None]:
        """Count a request that waits, also for the server to start. Raises `_NotSentError` for too many."""
        if self._waiting >= _MOST_REQUESTS:
            raise _NotSentError(INTERNAL_ERROR, f"{_MOST_REQUESTS} requests wait already", message.id)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _begin(self, message: JSONRPCRequest) -> tuple[_SharedConnection, _SharedRequest]:
        try:
            connection = await self._connection()
        except OffloadError as error:
            raise _NotSentError(INTERNAL_ERROR, error_for_model(error), message.id) from error
        exchange = _SharedRequest(f"offload-{next(self._names)}", message)
        connection.exchanges[exchange.name] = exchange
        try:
            await connection.to_proxy.send(SessionMessage(exchange.request))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            del connection.exchanges[exchange.name]
            exchange.close()
            raise _NotSentError(INTERNAL_ERROR, _ENDED, message.id) from None
        return connection, exchange

    async def _answer(
        self, opened: tuple[_SharedConnection, _SharedRequest], *, is_stream: bool, receive: Any, send: Any
    ) -> None:
        """Send an answer back; a client that goes cancels its request."""
        connection, exchange = opened
        is_answered = False
        try:
            async with anyio.create_task_group() as tasks:

                async def until_gone() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                tasks.start_soon(until_gone)
                is_answered = await _respond(exchange, is_stream=is_stream, receive=receive, send=send)
                tasks.cancel_scope.cancel()
        finally:
            connection.used = anyio.current_time()
            del connection.exchanges[exchange.name]
            exchange.close()
            if not is_answered:
                with (
                    anyio.CancelScope(shield=True),
                    suppress(anyio.BrokenResourceError, anyio.ClosedResourceError),
                ):
                    await connection.to_proxy.send(SessionMessage(_cancelled(exchange)))

    async def _connection(self) -> _SharedConnection:
        async with self._opening:
            if self._current is None or not self._current.proxy.has_server:
                self._current = await self._tasks.start(self._serve)
            return self._current

    async def _serve(self, *, task_status: Any) -> None:
        """Run a proxy until its server ends or nobody uses it."""
        to_proxy, from_client = anyio.create_memory_object_stream[Any](0)
        to_client, from_proxy = anyio.create_memory_object_stream[Any](0)
        try:
            # The proxy closes its ends too, unless it is cancelled before it begins.
            async with (
                to_proxy,
                from_client,
                to_client,
                from_proxy,
                self._upstream() as inner,
                anyio.create_task_group() as tasks,
            ):
                connection = _SharedConnection(Proxy(self._results), to_proxy)
                tasks.start_soon(connection.deliver_all, from_proxy)
                tasks.start_soon(connection.proxy.run, (from_client, to_client), inner)
                task_status.started(connection)
                try:
                    await connection.until_unused()
                finally:
                    connection.end()
                tasks.cancel_scope.cancel()
        except OffloadError:
            raise
        except Exception as error:  # noqa: BLE001 # the next request opens another connection
            _log.warning("the connection for requests without sessions ended: %s", error)


async def _read(request: Request) -> JSONRPCRequest | None:
    """Return the request in a body, None for a notification. Raises `_NotSentError`."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise _NotSentError(PARSE_ERROR, "the body is not JSON") from None
    if isinstance(body, dict) and "method" in body and "id" not in body:
        return None
    try:
        message = JSONRPCRequest.model_validate(body)
    except ValueError:
        raise _NotSentError(INVALID_REQUEST, "the body must be one request or notification") from None
    twice = find_duplicated_routing_header(request.headers.items())
    if twice is not None:
        raise _NotSentError(HEADER_MISMATCH, f"{twice} comes more than once", message.id)
    found = classify_inbound_request(body, headers=dict(request.headers))
    if isinstance(found, InboundLadderRejection):
        raise _NotSentError(found.code, found.message, message.id, found.data)
    return message


async def _respond(exchange: _SharedRequest, *, is_stream: bool, receive: Any, send: Any) -> bool:
    """Send the answer as JSON, or as a stream if something comes before it and the client takes one."""
    begun = False
    async for message in exchange.messages:
        is_last = isinstance(message, JSONRPCResponse | JSONRPCError)
        if is_last and not begun:
            await _plain(message)({"type": "http"}, receive, send)
        elif is_stream:
            if not begun:
                headers = [(name.encode(), value.encode()) for name, value in _STREAM.items()]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            begun = True
            event = f"event: message\r\ndata: {_dumped(message)}\r\n\r\n".encode()
            await send({"type": "http.response.body", "body": event, "more_body": not is_last})
        if is_last:
            return True
    return False


def _accepted(request: Request) -> str:
    return request.headers.get("accept", "").lower()


def _plain(message: Any) -> Response:
    """Return a message as JSON, with the status that the protocol gives to its error."""
    status = ERROR_CODE_HTTP_STATUS.get(message.error.code, 200) if isinstance(message, JSONRPCError) else 200
    return Response(_dumped(message), status, media_type="application/json")


def _dumped(message: Any) -> str:
    text: str = message.model_dump_json(by_alias=True, exclude_unset=True)
    return text


def _error(code: int, message: str, request_id: Any, data: Any) -> JSONRPCError:
    given = {} if data is None else {"data": data}
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message, **given))


def _cancelled(exchange: _SharedRequest) -> JSONRPCNotification:
    params = {"requestId": exchange.name, "_meta": {PROTOCOL_VERSION_META_KEY: exchange.version}}
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)


def _name_in(notification: Any) -> str:
    """Return the exchange that a notification belongs to; empty for none."""
    params = getattr(notification, "params", None) or {}
    meta = params.get("_meta")
    name = params.get("progressToken") or (meta.get(_SUBSCRIPTION) if isinstance(meta, dict) else None)
    return name if isinstance(name, str) else ""

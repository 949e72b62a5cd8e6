"""Requests to the provider and its answers, byte for byte but for the messages that are rewritten."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from aiohttp import hdrs
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from yarl import URL

from offload.engine.refusals import BoundRefusal, bound_refusal
from offload.gateway._headers import ExactRequest, as_text
from offload.gateway._requests import COUNT, Api, api_of
from offload.gateway._rewriter import Rewriter, Rewritten
from offload.gateway._status import Status, logger
from offload.gateway._usage import UsageReader, text_of

# Larger bodies pass unread; the providers whose models bind thinking accept none.
MOST_BYTES = 32 * 1024 * 1024
_MOST_ERROR_BYTES = 1024 * 1024
_PART = 64 * 1024
_CONNECT_SECONDS, _SILENCE_SECONDS = 15, 900
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Of one connection, not of the message; and those that are set for the provider.
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_SET_ANEW = frozenset((b"host", b"content-length", b"expect"))
_ADDED_BY_CLIENT = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)

RawHeaders = Iterable[tuple[bytes, bytes]]
_Rewrite = Callable[[bytes, Api, Headers], Awaitable[Rewritten]]


class ClientGoneError(Exception):
    """The client closed its connection."""


class BrokenAnswerError(Exception):
    """The provider's answer ended early; the client must not take it for whole."""


class Forwarder:
    """Sends requests on to one provider, at a URL to which the path of a request is added."""

    def __init__(self, upstream: str, rewriter: Rewriter, status: Status) -> None:
        self._upstream = upstream.rstrip("/")
        self._rewriter = rewriter
        self._status = status
        self._client: aiohttp.ClientSession | None = None

    @property
    def timelines(self) -> frozenset[str]:
        return self._rewriter.timelines

    async def close(self) -> None:
        await self._rewriter.close()
        if self._client is not None:
            await self._client.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive)
        work = asyncio.ensure_future(self._answer(scope, body, send))
        gone = asyncio.ensure_future(body.disconnected())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A client that is gone waits for no answer: closing the request lets the provider stop too.
            for task in (work, gone):
                task.cancel()
            await asyncio.wait((work, gone))
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _answer(self, scope: Scope, body: _Body, send: Send) -> None:
        began = time.perf_counter()
        is_counted = scope["path"].endswith(COUNT)
        api = api_of(scope["path"].removesuffix(COUNT)) if scope["method"] == "POST" else None
        exchange, headers = _Exchange(scope, _name_of(scope["method"], api)), Headers(scope=scope)
        rewrite = self._rewriter.counted if is_counted else self._rewriter.rewrite
        try:
            exchange.request = await self._request(api, headers, body, rewrite)
            exchange.seconds = time.perf_counter() - began
            if exchange.request is not None:
                self._rewriter.check(exchange.request)
            async with self._open(scope, headers, exchange.request, body) as answer:
                refused = await _refused(exchange.request, answer)
                if refused is None:
                    await self._pass_on(exchange, answer, send)
                    return
            if not await self._repair(exchange, headers, body, refused, send):
                await self._pass_refusal(exchange, refused, send)
        except ClientGoneError:
            return
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not body.is_gone:
                await self._fail(exchange, error, send)

    async def _repair(
        self, exchange: _Exchange, headers: Headers, body: _Body, refused: _Refused, send: Send
    ) -> bool:
        """Send a refused request again without its refused thinking; return whether its answer was passed on.

        All thinking is removed if the request is refused again. Any other error of it is better answered by
        the first refusal, unless the client can try again.
        """
        request, again = exchange.request, refused
        refusals = [] if refused.refusal is None else [refused.refusal, BoundRefusal(None)]
        for refusal in refusals:
            if request is None or again.refusal is None:
                return False
            self._status.count("thinking_refused")
            repaired = await self._rewriter.repaired(request, refusal)
            if repaired is None:
                continue
            try:
                async with self._open(exchange.scope, headers, repaired, body) as answer:
                    if answer.status != HTTPStatus.BAD_REQUEST:
                        exchange.request = repaired
                        await self._pass_on(exchange, answer, send)
                        return True
                    again = await _read_refusal(answer)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                if exchange.status:
                    raise
                return False
        return False

    async def _pass_refusal(self, exchange: _Exchange, refused: _Refused, send: Send) -> None:
        """Send an error on that was read."""
        exchange.status = refused.status
        start = {"type": "http.response.start", "status": refused.status, "headers": refused.headers}
        await send(start)
        await send({"type": "http.response.body", "body": refused.body})
        self._note(exchange, None)

    async def _pass_on(self, exchange: _Exchange, answer: aiohttp.ClientResponse, send: Send) -> None:
        """Send an answer on as it comes, and note the usage in what came."""
        exchange.status = answer.status
        reader = UsageReader(
            answer.headers.get("Content-Type", "").encode() if exchange.request else b"",
            answer.headers.get("Content-Encoding", "").encode(),
            keeps_reply=exchange.request is not None and exchange.request.is_threaded,
        )
        headers = _kept(answer.raw_headers)
        if exchange.request is not None and answer.status < HTTPStatus.BAD_REQUEST:
            await self._rewriter.accepted(exchange.request)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        try:
            async for chunk in answer.content.iter_any():
                reader.feed(chunk)
                if answer.content.at_eof():
                    reader.close()
                # The client may continue the thread as soon as it has the end of the reply.
                self._rewriter.replied(exchange.request, reader.reply)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            # Also of a stream that the user interrupts.
            self._note(exchange, reader.close())
        await send({"type": "http.response.body", "body": b""})

    async def _fail(self, exchange: _Exchange, error: Exception, send: Send) -> None:
        # The text of the error may quote the request.
        self._status.failed(f"the provider failed: {type(error).__name__}")
        logger.info("%s failed: %s", exchange.name, type(error).__name__)
        if exchange.status:
            raise BrokenAnswerError(type(error).__name__) from None
        text = f"offload gateway: no answer from {self._upstream}: {_problem(error, exchange.scope)}"
        await send_error(send, 504 if isinstance(error, TimeoutError) else 502, text)

    async def _request(
        self, api: Api | None, headers: Headers, body: _Body, rewrite: _Rewrite
    ) -> Rewritten | None:
        """Return the whole request; None if it is too long or unknown, so that it passes unread."""
        if api is None or not await body.read(MOST_BYTES):
            if api is not None:
                self._status.passed("larger than 32 MB")
            return None
        if headers.get("content-encoding", "identity") != "identity":
            self._status.passed("encoded")
            return Rewritten(body.start, reason="encoded")
        return await rewrite(body.start, api, headers)

    def _open(self, scope: Scope, headers: Headers, request: Rewritten | None, body: _Body) -> Any:
        has_body = "content-length" in headers or "transfer-encoding" in headers
        passed = as_text((n, v) for n, v in _kept(scope["headers"]) if n.lower() not in _SET_ANEW)
        if request is not None:
            passed.append(("Content-Length", str(len(request.body))))
        elif "content-length" in headers:
            passed.append(("Content-Length", headers["content-length"]))
        data = None if not has_body else body.rest() if request is None else _parts(request.body)
        query = scope["query_string"].decode("latin-1")
        target = self._upstream + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return self._connected().request(
            scope["method"], URL(target, encoded=True), headers=passed, data=data, allow_redirects=False
        )

    def _connected(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                request_class=ExactRequest,
                timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
                skip_auto_headers=_ADDED_BY_CLIENT,
                auto_decompress=False,
                trust_env=False,
                max_line_size=_PART,
                max_field_size=_PART,
            )
        return self._client

    def _note(self, exchange: _Exchange, usage: Any) -> None:
        """Note an answer: its usage for the conversation, and a line in the log."""
        request, status = exchange.request, exchange.status
        counted = None
        if request is not None and status < HTTPStatus.BAD_REQUEST:
            counted = self._rewriter.answered(request, usage)
        if counted is not None:
            self._status.note_usage(counted)
        if not logger.isEnabledFor(logging.INFO):
            return
        parts = [f"{exchange.name} {status}"]
        if request is not None:
            removed = f"{request.tokens_removed:,} tokens removed"
            change = f"unchanged, {request.reason}" if request.reason else removed
            parts.append(f"{change} in {exchange.seconds * 1000:.0f} ms")
        if counted is not None:
            parts.append(f"cache read {counted.read or 0:,}, written {counted.written:,}")
        logger.info("%s", "; ".join(parts))


@dataclass(slots=True)
class _Exchange:
    """A request and its answer.

    Attributes:
        scope: the request of the client.
        name: its method and API, for the log: a path may name content.
        request: the request as it is sent; None if it is unread.
        seconds: the time from its arrival until it is sent.
        status: that of the answer, 0 before it begins.
    """

    scope: Scope
    name: str
    request: Rewritten | None = None
    seconds: float = 0.0
    status: int = 0


class _Refused(NamedTuple):
    """An error that was read, and what it says about thinking if it is a refusal of that."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    refusal: BoundRefusal | None


async def _refused(request: Rewritten | None, answer: aiohttp.ClientResponse) -> _Refused | None:
    """Return the error in an answer if the request can be repaired; None lets the answer pass unread."""
    is_known = request is not None and request.conversation is not None
    size = answer.content_length or 0
    if not is_known or answer.status != HTTPStatus.BAD_REQUEST or size > _MOST_ERROR_BYTES:
        return None
    return await _read_refusal(answer)


async def _read_refusal(answer: aiohttp.ClientResponse) -> _Refused:
    body = await answer.read()
    text = text_of(body, answer.headers.get("Content-Encoding", "").encode())
    return _Refused(answer.status, _kept(answer.raw_headers), body, bound_refusal(text))


class _Body:
    """The body of a request as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = asyncio.Event()
        self._more = True
        self.is_gone = False
        self.start = b""

    async def read(self, most: int) -> bool:
        """Read the body up to about `most` bytes into `start`; return whether that is all of it."""
        parts = []
        size = 0
        while self._more and size <= most:
            parts.append(await self._next())
            size += len(parts[-1])
        self.start = b"".join(parts)
        return not self._more and size <= most

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield what was read already, then all other parts as they come."""
        for part in _cut(self.start):
            yield part
        while self._more:
            if part := await self._next():
                yield part

    async def disconnected(self) -> None:
        """Return when the client closed its connection after the whole body."""
        await self._is_whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_gone = True
            raise ClientGoneError
        self._more = message.get("more_body", False)
        if not self._more:
            self._is_whole.set()
        part: bytes = message.get("body", b"")
        return part


async def send_error(send: Send, status: int, text: str, headers: RawHeaders = ()) -> None:
    """Send an error in the form that the clients of all three APIs understand."""
    error = {"type": "api_error", "message": text, "param": None, "code": None}
    await send_json(send, status, {"type": "error", "error": error}, headers)


async def send_json(send: Send, status: int, value: Any, headers: RawHeaders = ()) -> None:
    """Send a JSON value."""
    body = json.dumps(value, indent=2).encode() + b"\n"
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def _kept(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not of one connection only."""
    headers = list(headers)
    named = b",".join(value for name, value in headers if name.lower() == b"connection").lower()
    dropped = _HOP_BY_HOP | {name.strip() for name in named.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _name_of(method: str, api: Api | None) -> str:
    """Return what the log says of a request: no part of it but the name of a known API."""
    return f"POST {api.end}" if api is not None else f"{method if method in _METHODS else 'a'} request"


def _cut(body: bytes) -> list[bytes]:
    return [body[at : at + _PART] for at in range(0, len(body), _PART)]


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for part in _cut(body):
        yield part


def _problem(error: Exception, scope: Scope) -> str:
    """Return the text of an error without the query of the request, which may have a key."""
    query = scope["query_string"].decode("latin-1")
    text = str(error).replace(f"?{query}", "") if query else str(error)
    return text[:300] or type(error).__name__

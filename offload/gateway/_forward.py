"""Requests to the provider and its answers, byte for byte but for the messages that are rewritten."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, TypeGuard

import aiohttp
from aiohttp import hdrs
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from yarl import URL

from offload.engine.refusals import BoundRefusal, bound_refusal
from offload.gateway._apis.base import Call, Reply, data_of
from offload.gateway._headers import ExactRequest, as_text
from offload.gateway._own_tools import MOST_ROUNDS, Opened, OwnTools
from offload.gateway._requests import COUNT, Api, NotRecalledError, Received, api_of
from offload.gateway._rewriter import NOT_RECALLED, Rewriter, Rewritten
from offload.gateway._status import Status, logger
from offload.gateway._usage import UsageReader, decoder, text_of

# Larger bodies pass unread; the providers whose models bind thinking accept none.
MOST_BYTES = 32 * 1024 * 1024
_MOST_ERROR_BYTES = 1024 * 1024
_PART = 64 * 1024
_CONNECT_SECONDS, _SILENCE_SECONDS, _RETRY_SECONDS = 15, 900, 5
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Of one connection, not of the message; and those that are set for the provider.
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_OF_BODY = frozenset((b"content-length", b"content-encoding"))
_EVENTS, _JSON = "text/event-stream", "application/json"
_SET_ANEW = frozenset((b"host", b"content-length", b"expect"))
_ADDED_BY_CLIENT = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)

# The version of an API at the end of its base URL, as clients know it.
_VERSION = re.compile(r"/v[0-9]+[a-z]*(?:/openai)?$")

RawHeaders = Iterable[tuple[bytes, bytes]]


class ClientGoneError(Exception):
    """The client closed its connection."""


class BrokenAnswerError(Exception):
    """The provider's answer ended early; the client must not take it for whole."""


class Forwarder:
    """Sends requests on to one provider, at a URL to which the path of a request is added."""

    def __init__(self, upstream: str, rewriter: Rewriter, own: OwnTools, status: Status) -> None:
        self._upstream = upstream.rstrip("/")
        # It may be at the end of the URL, at the beginning of a request's path, or both.
        self._version = match[0] if (match := _VERSION.search(self._upstream)) else ""
        self._rewriter = rewriter
        self._own = own
        self._status = status
        self._client: aiohttp.ClientSession | None = None

    @property
    def timelines(self) -> frozenset[str]:
        return self._rewriter.timelines

    async def close(self) -> None:
        await self._rewriter.close()
        await self._own.close()
        if self._client is not None:
            await self._client.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Send a request on, with the records of a session, and its answer back."""
        body = _Body(receive)
        work = asyncio.ensure_future(self._answer(scope, body, send, session))
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

    async def _answer(self, scope: Scope, body: _Body, send: Send, session: str) -> None:
        is_counted = scope["path"].endswith(COUNT)
        api = api_of(scope["path"].removesuffix(COUNT)) if scope["method"] == "POST" else None
        name = _name_of(scope["method"], api)
        exchange = _Exchange(scope, Headers(scope=scope), body, send, name, session)
        try:
            opened = await self._request(exchange, api, is_counted=is_counted)
            if opened is None or is_counted:
                async with self._asked(exchange) as answer:
                    await self._pass_on(exchange, answer)
            else:
                await self._whole(exchange, opened)
        except ClientGoneError:
            return
        except NotRecalledError:
            await self._ask_to_retry(exchange)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not body.is_gone:
                await self._fail(exchange, error)

    @asynccontextmanager
    async def _asked(self, exchange: _Exchange) -> AsyncIterator[aiohttp.ClientResponse | _Refused]:
        """Send a request; yield the answer of the provider, or of a repaired request if that helps."""
        if exchange.request is not None:
            self._rewriter.check(exchange.request)
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._open(exchange, exchange.request))
            refused = await _refused(exchange.request, answer)
            if refused is None:
                yield answer
                return
        async with AsyncExitStack() as stack:
            repaired = await self._repaired(exchange, refused, stack)
            yield refused if repaired is None else repaired

    async def _repaired(
        self, exchange: _Exchange, refused: _Refused, stack: AsyncExitStack
    ) -> aiohttp.ClientResponse | None:
        """Send a refused request again without its refused thinking; None if its answer is no better.

        All thinking is removed if the request is refused again. Any other error of it is better answered by
        the first refusal, unless the client can try again.
        """
        request, again = exchange.request, refused
        refusals = [] if refused.refusal is None else [refused.refusal, BoundRefusal(None)]
        for refusal in refusals:
            if request is None or again.refusal is None:
                return None
            self._status.count("thinking_refused")
            repaired = await self._rewriter.repaired(request, refusal)
            if repaired is None:
                continue
            try:
                opening = self._open(exchange, repaired)
                answer: aiohttp.ClientResponse = await stack.enter_async_context(opening)
                if answer.status != HTTPStatus.BAD_REQUEST:
                    exchange.request = repaired
                    return answer
                again = await _read_refusal(answer)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                return None
        return None

    async def _whole(self, exchange: _Exchange, opened: Opened) -> None:
        """Pass a reply on; if it ends early, what it asked the provider is not part of the conversation."""
        is_whole = False
        try:
            is_whole = await self._converse(exchange, opened)
        finally:
            if exchange.is_continued and not is_whole:
                self._rewriter.forget(exchange.request)

    async def _converse(self, exchange: _Exchange, opened: Opened) -> bool:
        """Pass a reply on, with calls of own tools answered; return whether it is whole."""
        reply: Reply | None = None
        while True:
            async with self._asked(exchange) as answer:
                if not _is_readable(answer):
                    await self._break_off(exchange, answer, reply)
                    return False
                if reply is None:
                    exchange.is_streamed = opened.received.api.streams or _kind_of(answer) == _EVENTS
                    reply = opened.calls.reply(self._own.names, is_stream=exchange.is_streamed)
                    reply.is_document = opened.calls.wants_document(opened.visible.request.fields)
                taken = await self._take(exchange, answer, reply)
            if part := reply.released():
                await exchange.pass_part(part)
            calls, has_own = reply.end()
            goes_on = bool(calls) and not has_own and opened.rounds <= MOST_ROUNDS
            if calls and (goes_on or has_own):
                await self._answer_calls(exchange, opened, calls, reply, goes_on=goes_on)
            if not goes_on:
                rest = reply.close(is_stopped=bool(calls) and not has_own)
                break
            opened = await self._own.grown(opened, reply)
            await self._rewrite(exchange, opened)
        if reply.is_whole:
            await self._own.passed(opened, reply)
        await self._finish(exchange, taken, rest)
        return reply.is_whole

    async def _finish(self, exchange: _Exchange, taken: _Taken, rest: bytes) -> None:
        """Send the rest of a reply, which is all of one that is not a stream."""
        if not exchange.is_streamed:
            is_same = rest == taken.plain
            rest = taken.raw if is_same else rest
            await exchange.begin(taken.answer.status, _head_of(taken.answer, None if is_same else len(rest)))
        await exchange.pass_part(rest)
        await exchange.end()

    async def _answer_calls(
        self, exchange: _Exchange, opened: Opened, calls: Sequence[Call], reply: Reply, *, goes_on: bool
    ) -> None:
        conversation = exchange.request.conversation if exchange.request is not None else None
        for call in (*calls, *reply.texts()):
            if (redacted := await self._own.redacted(call)) is not None:
                reply.rewritten(redacted)
        offloader = None if conversation is None else conversation.offloader
        answers = await self._own.answers(opened, calls, offloader)
        reply.answered(answers, goes_on=goes_on)

    async def _take(self, exchange: _Exchange, answer: aiohttp.ClientResponse, reply: Reply) -> _Taken:
        """Read an answer, and send on what the client gets of it now."""
        exchange.status = answer.status
        encoding = answer.headers.get("Content-Encoding", "").encode()
        reader = UsageReader(answer.headers.get("Content-Type", "").encode(), encoding)
        decode = decoder(encoding) or bytes
        if exchange.request is not None:
            await self._rewriter.accepted(exchange.request)
        if exchange.is_streamed and not exchange.is_begun:
            await exchange.begin(answer.status, _head_of(answer, -1))
        raw, plain = list[bytes](), list[bytes]()
        try:
            async for chunk in answer.content.iter_any():
                reader.feed(chunk)
                data = decode(chunk)
                if part := reply.feed(data):
                    await exchange.pass_part(part)
                elif not exchange.is_streamed:
                    raw.append(chunk)
                    plain.append(data)
        finally:
            self._note(exchange, reader.close())
        return _Taken(answer, b"".join(raw), b"".join(plain))

    async def _break_off(
        self, exchange: _Exchange, answer: aiohttp.ClientResponse | _Refused, reply: Reply | None
    ) -> None:
        """Send an answer on that is not a reply; if the client has part of a stream, its error ends that."""
        if reply is None or not exchange.is_streamed:
            await self._pass_on(exchange, answer)
            return
        refused = answer if isinstance(answer, _Refused) else await _read_refusal(answer)
        exchange.status = refused.status
        self._note(exchange, None)
        error = data_of(b"data:" + refused.text.encode(errors="replace").replace(b"\n", b" "))
        # In a stream that is an array, an error is one too.
        error = error[0] if isinstance(error, list) and error else error
        if not isinstance(error, dict):
            raise BrokenAnswerError(f"status {refused.status}")
        await exchange.pass_part(reply.failed(error))
        await exchange.end()

    async def _pass_refusal(self, exchange: _Exchange, refused: _Refused) -> None:
        """Send an error on that was read."""
        await exchange.begin(refused.status, refused.headers)
        await exchange.end(refused.body)
        self._note(exchange, None)

    async def _pass_on(self, exchange: _Exchange, answer: aiohttp.ClientResponse | _Refused) -> None:
        """Send an answer on as it comes, and note the usage in what came."""
        if isinstance(answer, _Refused):
            await self._pass_refusal(exchange, answer)
            return
        reader = UsageReader(
            answer.headers.get("Content-Type", "").encode() if exchange.request else b"",
            answer.headers.get("Content-Encoding", "").encode(),
            keeps_reply=exchange.request is not None and exchange.request.is_threaded,
        )
        if exchange.request is not None and answer.status < HTTPStatus.BAD_REQUEST:
            await self._rewriter.accepted(exchange.request)
        await exchange.begin(answer.status, _kept(answer.raw_headers))
        try:
            async for chunk in answer.content.iter_any():
                reader.feed(chunk)
                if answer.content.at_eof():
                    reader.close()
                # The client may continue the thread as soon as it has the end of the reply.
                self._rewriter.replied(exchange.request, reader.reply)
                await exchange.pass_part(chunk)
        finally:
            # Also of a stream that the user interrupts.
            self._note(exchange, reader.close())
        await exchange.end()

    async def _ask_to_retry(self, exchange: _Exchange) -> None:
        """Answer a request that cannot be sent as its conversation was sent before."""
        if exchange.is_begun:
            raise BrokenAnswerError(NOT_RECALLED)
        exchange.status = HTTPStatus.SERVICE_UNAVAILABLE
        self._note(exchange, None)
        text = f"offload gateway: {NOT_RECALLED}; send the request again"
        await send_error(exchange.send, exchange.status, text, [(b"retry-after", b"%d" % _RETRY_SECONDS)])

    async def _fail(self, exchange: _Exchange, error: Exception) -> None:
        # The text of the error may quote the request.
        self._status.failed(f"the provider failed: {type(error).__name__}")
        logger.info("%s failed: %s", exchange.name, type(error).__name__)
        if exchange.is_begun:
            raise BrokenAnswerError(type(error).__name__) from None
        text = f"offload gateway: no answer from {self._upstream}: {_problem(error, exchange.scope)}"
        await send_error(exchange.send, 504 if isinstance(error, TimeoutError) else 502, text)

    async def _request(self, exchange: _Exchange, api: Api | None, *, is_counted: bool) -> Opened | None:
        """Make the request to be sent that of `exchange`; one that is too long or unknown passes unread.

        Returns it if the gateway answers the calls in its reply.
        """
        began, body = time.perf_counter(), exchange.body
        if api is None or not await body.read(MOST_BYTES):
            if api is not None:
                self._status.passed("larger than 32 MB")
            return None
        if exchange.headers.get("content-encoding", "identity") != "identity":
            self._status.passed("encoded")
            exchange.request = Rewritten(body.whole, reason="encoded")
            return None
        received = Received(exchange.session, api, exchange.headers, body.whole)
        opened = await self._own.opened(received, is_counted=is_counted)
        rewrite = self._rewriter.counted if is_counted else self._rewriter.rewrite
        exchange.request = await rewrite(received if opened is None else opened.completed)
        exchange.seconds = time.perf_counter() - began
        return opened

    async def _rewrite(self, exchange: _Exchange, opened: Opened) -> None:
        """Make the request that continues a reply that of `exchange`."""
        exchange.is_continued = True
        began = time.perf_counter()
        exchange.request = await self._rewriter.rewrite(opened.completed)
        exchange.seconds = time.perf_counter() - began

    def _open(self, exchange: _Exchange, request: Rewritten | None) -> Any:
        scope, headers = exchange.scope, exchange.headers
        has_body = "content-length" in headers or "transfer-encoding" in headers
        passed = as_text((n, v) for n, v in _kept(scope["headers"]) if n.lower() not in _SET_ANEW)
        if request is not None:
            passed.append(("Content-Length", str(len(request.body))))
        elif "content-length" in headers:
            passed.append(("Content-Length", headers["content-length"]))
        data = None if not has_body else exchange.body.rest() if request is None else _parts(request.body)
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        path = path.removeprefix(self._version) if path.startswith(f"{self._version}/") else path
        target = self._upstream + path + (f"?{query}" if query else "")
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
        scope: the request of the client, its `headers` and its `body`.
        send: sends the answer to the client.
        name: its method and API, for the log: a path may name content.
        session: the one with the records of its conversation.
        request: the request as it is sent; None if it is unread.
        seconds: the time from its arrival until it is sent.
        status: that of the provider's answer, 0 before it comes.
        is_begun: whether the client has the head of an answer.
        is_streamed: whether the answer is a stream of events.
        is_continued: whether the provider was asked again for this reply.
    """

    scope: Scope
    headers: Headers
    body: _Body
    send: Send
    name: str
    session: str
    request: Rewritten | None = None
    seconds: float = 0.0
    status: int = 0
    is_begun: bool = False
    is_streamed: bool = False
    is_continued: bool = False

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """Send the head of an answer."""
        self.status, self.is_begun = status, True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_part(self, part: bytes) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"") -> None:
        """Send the last part of the body."""
        await self.send({"type": "http.response.body", "body": part})


class _Taken(NamedTuple):
    """An answer that was read; one that is not a stream has its bytes as they came, and decoded."""

    answer: aiohttp.ClientResponse
    raw: bytes
    plain: bytes


class _Refused(NamedTuple):
    """An error that was read, and what it says about thinking if it is a refusal of that."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    text: str
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
    return _Refused(answer.status, _kept(answer.raw_headers), body, text, bound_refusal(text))


class _Body:
    """The body of a request as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = asyncio.Event()
        self._more = True
        self.is_gone = False
        self.whole = b""
        # The parts of a body that is too long to be read.
        self._parts: list[bytes] = []

    async def read(self, most: int) -> bool:
        """Read a body of up to about `most` bytes into `whole`; return whether it is no longer."""
        size = 0
        while self._more and size <= most:
            self._parts.append(await self._next())
            size += len(self._parts[-1])
        if self._more or size > most:
            return False
        self.whole, self._parts = b"".join(self._parts), []
        return True

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield the parts that were read already, then all others as they come."""
        for part in self._parts:
            yield part
        self._parts = []
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
    """Send an error in the form that the clients of all APIs understand."""
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


def _kind_of(answer: aiohttp.ClientResponse) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _is_readable(answer: aiohttp.ClientResponse | _Refused) -> TypeGuard[aiohttp.ClientResponse]:
    """Return whether an answer is a reply that can be read."""
    if isinstance(answer, _Refused) or answer.status != HTTPStatus.OK:
        return False
    encoding = answer.headers.get("Content-Encoding", "").encode()
    return _kind_of(answer) in (_EVENTS, _JSON) and decoder(encoding) is not None


def _head_of(answer: aiohttp.ClientResponse, size: int | None) -> RawHeaders:
    """Return the headers of a reply: unchanged, or for a body of another size; that of a stream is -1."""
    headers = _kept(answer.raw_headers)
    if size is not None:
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_BODY]
    if size is not None and size >= 0:
        headers.append((b"content-length", b"%d" % size))
    return headers


def _name_of(method: str, api: Api | None) -> str:
    """Return what the log says of a request: no part of it but the name of a known API."""
    return f"POST {api.end}" if api is not None else f"{method if method in _METHODS else 'a'} request"


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _PART):
        yield body[at : at + _PART]


def _problem(error: Exception, scope: Scope) -> str:
    """Return the text of an error without the query of the request, which may have a key."""
    query = scope["query_string"].decode("latin-1")
    text = str(error).replace(f"?{query}", "") if query else str(error)
    return text[:300] or type(error).__name__

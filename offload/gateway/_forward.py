"""Requests to the provider and its answers, byte for byte but for the messages that are rewritten."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, TypeGuard

import aiohttp
from aiohttp import hdrs
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from yarl import URL

from offload.engine.refusals import BoundRefusal, bound_refusal
from offload.gateway._apis import CALLS_OF
from offload.gateway._apis.base import Events, Json, OwnCall, Reply, data_of
from offload.gateway._codings import KNOWN, Decoder, decoder
from offload.gateway._headers import (
    ExactRequest,
    RawHeaders,
    as_text,
    check,
    end_to_end,
    for_other_body,
    for_reading,
    for_repeated,
    for_rewritten,
)
from offload.gateway._incoming import COUNT, Api, Incoming, api_of
from offload.gateway._notes import Notes
from offload.gateway._outgoing import Outgoing
from offload.gateway._own_tools import MOST_ROUNDS, Opened, OwnTools
from offload.gateway._rewriter import Rewriter
from offload.gateway._sent import NotRecalledError
from offload.gateway._status import Status, Unchanged, logger
from offload.gateway._usage import UsageReader
from offload.threads.calls import in_thread

# The signature of a whole request, which only the client can make.
_SIGNED = "AWS4-"
# Larger bodies pass unread; the providers whose models bind thinking accept none.
MOST_BYTES = 32 * 1024 * 1024
_MOST_ERROR_BYTES = 1024 * 1024
_PART = 64 * 1024
_CONNECT_SECONDS, _SILENCE_SECONDS, _RETRY_SECONDS = 15, 900, 5
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_EVENTS, _JSON = "text/event-stream", "application/json"
_ADDED_BY_CLIENT = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)

# The version of an API at the end of its base URL, as clients know it.
_VERSION = re.compile(r"/v[0-9]+[a-z]*(?:/openai)?$")

# Of an answer; those before it are not passed on.
_LEAST_STATUS, _MOST_STATUS = 200, 599


class ClientGoneError(Exception):
    """The client closed its connection."""


class BrokenAnswerError(Exception):
    """The provider's answer ended early; the client must not take it for whole."""


class RefusedRequestError(Exception):
    """A request that is not sent on, with the status of the answer, its text and its headers."""

    def __init__(self, status: int, text: str, headers: RawHeaders = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Forwarder:
    """Sends requests on to one provider, at a URL to which the path of a request is added."""

    def __init__(
        self, upstream: str, rewriter: Rewriter, notes: Notes, own: OwnTools, status: Status
    ) -> None:
        self._upstream = upstream.rstrip("/")
        # It may be at the end of the URL, at the beginning of a request's path, or both.
        self._version = match[0] if (match := _VERSION.search(self._upstream)) else ""
        self._rewriter = rewriter
        self._notes = notes
        self._own = own
        self._status = status
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Send a request on, with the records of a session, and its answer back."""
        body = _RequestBody(receive)
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

    async def _answer(self, scope: Scope, body: _RequestBody, send: Send, session: str) -> None:
        is_counted = scope["path"].endswith(COUNT)
        api = api_of(scope["path"].removesuffix(COUNT)) if scope["method"] == "POST" else None
        name = _name_of(scope["method"], api)
        exchange = Exchange(scope, Headers(scope=scope), body, send, name, session, api)
        try:
            opened = await self._request(exchange, is_counted=is_counted)
            if opened is None or is_counted:
                async with self._asked(exchange) as answer:
                    await self._pass_on(exchange, answer)
            else:
                await self._whole(exchange, opened)
        except ClientGoneError:
            return
        except NotRecalledError:
            await self._ask_to_retry(exchange)
        except RefusedRequestError as error:
            await send_error(send, error.status, f"offload gateway: {error}", error.headers)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not body.is_gone:
                await self._fail(exchange, error)

    @asynccontextmanager
    async def _asked(self, exchange: Exchange) -> AsyncIterator[aiohttp.ClientResponse | _Refused]:
        """Send a request; yield the answer of the provider, or of a repaired request if that helps."""
        if exchange.outgoing is not None:
            self._notes.sending(exchange.outgoing)
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._open(exchange, exchange.outgoing))
            refused = await _refused(exchange.outgoing, answer)
            if refused is None:
                yield answer
                return
        async with AsyncExitStack() as stack:
            repaired = await self._repaired(exchange, refused, stack)
            yield refused if repaired is None else repaired

    async def _repaired(
        self, exchange: Exchange, refused: _Refused, stack: AsyncExitStack
    ) -> aiohttp.ClientResponse | None:
        """Send a refused request again without its refused thinking; None if its answer is no better.

        All thinking is removed if the request is refused again. Any other error of it is better answered by
        the first refusal, unless the client can try again.
        """
        request, again = exchange.outgoing, refused
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
                    exchange.outgoing = repaired
                    return answer
                again = await _read_refusal(answer)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                return None
        return None

    async def _whole(self, exchange: Exchange, opened: Opened) -> None:
        """Pass a reply on; if it ends early, what it asked the provider is not part of the conversation."""
        is_whole = False
        try:
            is_whole = await self._converse(exchange, opened)
        finally:
            if exchange.is_continued and not is_whole:
                self._notes.forget(exchange.outgoing)

    async def _converse(self, exchange: Exchange, opened: Opened) -> bool:
        """Pass a reply on, with calls of own tools answered; return whether it is whole."""
        reply: Reply | None = None
        while True:
            async with self._asked(exchange) as answer:
                if not _is_reply(answer):
                    await self._break_off(exchange, answer, reply)
                    return False
                reply = reply or self._reply(exchange, opened, answer)
                taken = await self._take(exchange, answer, reply)
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
        await self._finish(exchange, taken, rest, is_changed=reply.is_changed)
        return reply.is_whole

    def _reply(self, exchange: Exchange, opened: Opened, answer: aiohttp.ClientResponse) -> Reply:
        """Return a reader of the reply that begins with an answer."""
        exchange.is_streamed = opened.incoming.api.streams or _kind_of(answer) == _EVENTS
        reply = opened.calls.reply(self._own.names, is_stream=exchange.is_streamed)
        reply.is_document = opened.calls.wants_document(opened.visible.parsed.fields)
        return reply

    async def _finish(self, exchange: Exchange, taken: _Taken, rest: bytes, *, is_changed: bool) -> None:
        """Send the rest of a reply, which is all of one that is not a stream."""
        if not exchange.is_streamed:
            rest = rest if is_changed else taken.raw
            await exchange.begin(
                taken.answer.status, _head_of(taken.answer, len(rest), is_changed=is_changed)
            )
        await exchange.pass_part(rest)
        await exchange.end()

    async def _answer_calls(
        self, exchange: Exchange, opened: Opened, calls: Sequence[OwnCall], reply: Reply, *, goes_on: bool
    ) -> None:
        thread = exchange.outgoing.thread if exchange.outgoing is not None else None
        for call in (*calls, *reply.texts()):
            if (redacted := await self._own.redacted(call)) is not None:
                reply.rewritten(redacted)
        offloader = None if thread is None else thread.offloader
        answers = await self._own.answers(opened, calls, offloader)
        reply.answered(answers, goes_on=goes_on)

    async def _take(self, exchange: Exchange, answer: aiohttp.ClientResponse, reply: Reply) -> _Taken:
        """Read an answer, and send on what the client gets of it now."""
        exchange.status = answer.status
        reader, decode = UsageReader(_kind_of(answer).encode()), _known_decoder(answer)
        if exchange.outgoing is not None:
            await self._notes.accepted(exchange.outgoing)
        if exchange.is_streamed and not exchange.is_begun:
            exchange.stream = reply
            await exchange.begin(answer.status, _head_of(answer, None, is_changed=True))
        raw = list[bytes]()
        try:
            async for chunk in answer.content.iter_any():
                if not exchange.is_streamed:
                    raw.append(chunk)
                for data in decode.feed(chunk):
                    reader.feed(data)
                    if part := reply.feed(data):
                        await exchange.pass_part(part)
            decode.end()
            if part := reply.released():
                await exchange.pass_part(part)
        finally:
            self._note(exchange, reader.close())
        return _Taken(answer, b"".join(raw))

    async def _break_off(
        self, exchange: Exchange, answer: aiohttp.ClientResponse | _Refused, reply: Reply | None
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
            error = _error(f"offload gateway: the provider answered with status {refused.status}")
        await exchange.pass_part(reply.failed(error))
        await exchange.end()

    async def _pass_refusal(self, exchange: Exchange, refused: _Refused) -> None:
        """Send an error on that was read."""
        await exchange.begin(refused.status, refused.headers)
        await exchange.end(refused.body)
        self._note(exchange, None)

    async def _pass_on(self, exchange: Exchange, answer: aiohttp.ClientResponse | _Refused) -> None:
        """Send an answer on as it comes, and note the usage in what came."""
        if isinstance(answer, _Refused):
            await self._pass_refusal(exchange, answer)
            return
        if exchange.outgoing is not None and answer.status < HTTPStatus.BAD_REQUEST:
            await self._notes.accepted(exchange.outgoing)
        events = _events_of(exchange, answer)
        reader = UsageReader(
            _kind_of(answer).encode() if exchange.outgoing else b"",
            b"" if events else _codings_of(answer).encode(),
            keeps_reply=exchange.outgoing is not None and exchange.outgoing.is_threaded,
        )
        size = None if events else _size_of(answer)
        await exchange.begin(answer.status, _head_of(answer, size, is_changed=events is not None))
        rest = b""
        try:
            async for chunk in answer.content.iter_any():
                for part in [chunk] if events is None else events.feed(chunk):
                    reader.feed(part)
                    if events is None and answer.content.at_eof():
                        reader.close()
                    # The client may continue the thread as soon as it has the end of the reply.
                    self._notes.replied(exchange.outgoing, reader.reply)
                    await exchange.pass_part(part)
            rest = b"" if events is None else events.end()
        finally:
            # Also of a stream that the user interrupts.
            self._note(exchange, reader.close())
        await exchange.end(rest)

    async def _ask_to_retry(self, exchange: Exchange) -> None:
        """Answer a request that cannot be sent as its conversation was sent before."""
        text = f"offload gateway: {Unchanged.NOT_RECALLED}; send the request again"
        if exchange.is_begun:
            await exchange.end_early(text)
        exchange.status = HTTPStatus.SERVICE_UNAVAILABLE
        self._note(exchange, None)
        await send_error(exchange.send, exchange.status, text, [(b"retry-after", b"%d" % _RETRY_SECONDS)])

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        # The text of the error may quote the request.
        self._status.failed(f"the provider failed: {type(error).__name__}")
        logger.info("%s failed: %s", exchange.name, type(error).__name__)
        text = f"offload gateway: no answer from {self._upstream}: {_problem(error, exchange.scope)}"
        if not exchange.is_begun:
            await send_error(exchange.send, 504 if isinstance(error, TimeoutError) else 502, text)
        else:
            await exchange.end_early(text, is_broken=not isinstance(error, ValueError))

    async def _request(self, exchange: Exchange, *, is_counted: bool) -> Opened | None:
        """Make the request to be sent that of `exchange`; one that is too long or unknown passes unread.

        Returns it if the gateway answers the calls in its reply. Raises `RefusedRequestError`.
        """
        began, body, api = time.perf_counter(), exchange.body, exchange.api
        if api is None:
            return None
        if not await body.read(MOST_BYTES):
            self._status.passed(Unchanged.TOO_LONG)
            return None
        plain = await _plain(body.whole, exchange.headers)
        body.plain = body.whole if plain is None else plain
        is_signed = exchange.headers.get("authorization", "").startswith(_SIGNED)
        if plain is None or is_signed:
            why = Unchanged.SIGNED if is_signed else Unchanged.TOO_LONG
            self._status.passed(why)
            exchange.outgoing = Outgoing(body.plain, why=why)
            return None
        incoming = Incoming(exchange.session, api, exchange.headers, plain)
        incoming, opened = await self._own.opened(incoming, is_counted=is_counted)
        rewrite = self._rewriter.counted if is_counted else self._rewriter.rewrite
        exchange.outgoing = await rewrite(incoming)
        exchange.seconds = time.perf_counter() - began
        return opened

    async def _rewrite(self, exchange: Exchange, opened: Opened) -> None:
        """Make the request that continues a reply that of `exchange`."""
        exchange.is_continued = True
        began = time.perf_counter()
        exchange.outgoing = await self._rewriter.rewrite(opened.completed)
        exchange.seconds = time.perf_counter() - began

    @asynccontextmanager
    async def _open(
        self, exchange: Exchange, request: Outgoing | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its answer. Raises `ValueError` for one that cannot be sent on."""
        scope = exchange.scope
        headers, data = exchange.framed(request)
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        path = path.removeprefix(self._version) if path.startswith(f"{self._version}/") else path
        target = self._upstream + path + (f"?{query}" if query else "")
        async with self._connected().request(
            scope["method"],
            URL(target, encoded=True),
            headers=as_text(headers),
            data=data,
            allow_redirects=False,
        ) as answer:
            _check(answer)
            yield answer

    def _connected(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=_Connector(limit=0, keepalive_timeout=30),
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

    def _note(self, exchange: Exchange, usage: Any) -> None:
        """Note an answer: its usage for the conversation, and a line in the log."""
        request, status = exchange.outgoing, exchange.status
        counted = None
        if request is not None and status < HTTPStatus.BAD_REQUEST:
            counted = self._notes.answered(request, usage)
        if counted is not None:
            self._status.note_usage(counted)
        if not logger.isEnabledFor(logging.INFO):
            return
        parts = [f"{exchange.name} {status}"]
        if request is not None:
            removed = f"{request.tokens_removed:,} tokens removed"
            change = f"unchanged, {request.why}" if request.why else removed
            parts.append(f"{change} in {exchange.seconds * 1000:.0f} ms")
        if counted is not None:
            parts.append(f"cache read {counted.read or 0:,}, written {counted.written:,}")
        logger.info("%s", "; ".join(parts))


@dataclass(slots=True)
class Exchange:
    """A request and its answer.

    Attributes:
        scope: the request of the client, its `headers` and its `body`.
        send: sends the answer to the client.
        name: its method and API, for the log: a path may name content.
        session: the one with the records of its conversation.
        api: the API of a model that its path names.
        outgoing: the request as it is sent; None if it is unread.
        seconds: the time from its arrival until it is sent.
        status: that of the provider's answer, 0 before it comes.
        is_sent: whether the provider was asked already.
        is_begun: whether the client has the head of an answer.
        stream: the reply whose whole events the client has, and that an error may end.
        is_streamed: whether the answer is a stream of events.
        is_continued: whether the provider was asked again for this reply.
    """

    scope: Scope
    headers: Headers
    body: _RequestBody
    send: Send
    name: str
    session: str
    api: Api | None
    outgoing: Outgoing | None = None
    seconds: float = 0.0
    status: int = 0
    is_sent: bool = False
    is_begun: bool = False
    stream: Reply | None = None
    is_streamed: bool = False
    is_continued: bool = False

    def framed(self, request: Outgoing | None) -> tuple[list[tuple[bytes, bytes]], Any]:
        """Return the headers and the body of a request, whose framing follows from that body."""
        headers: Iterable[tuple[bytes, bytes]] = end_to_end(self.scope["headers"])
        if self.api is not None:
            headers = for_reading(headers)
        size, is_sent, self.is_sent = self.headers.get("content-length"), self.is_sent, True
        if request is None:
            framing = [] if size is None else [(b"Content-Length", size.encode())]
            has_body = size is not None or "transfer-encoding" in self.headers
            return [*headers, *framing], self.body.rest(size) if has_body else None
        is_same = request.body == self.body.plain
        sent = self.body.whole if is_same else request.body
        if is_sent:
            headers = for_repeated(headers)
        elif not is_same:
            headers = for_rewritten(headers, sent)
        return [*headers, (b"Content-Length", b"%d" % len(sent))], _parts(sent)

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """Send the head of an answer."""
        self.status, self.is_begun = status, True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_part(self, part: bytes) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": part, "more_body": True})

    async def end_early(self, text: str, *, is_broken: bool = True) -> None:
        """End an answer that the client has a part of by an error, if its form allows that.

        Raises `BrokenAnswerError` if it `is_broken` off or cannot have an error: nobody may take it for
        whole.
        """
        if self.stream is not None:
            await self.pass_part(self.stream.failed(_error(text)))
        if self.stream is None or is_broken:
            raise BrokenAnswerError(text) from None
        await self.end()

    async def end(self, part: bytes = b"") -> None:
        """Send the last part of the body."""
        await self.send({"type": "http.response.body", "body": part})


class _Taken(NamedTuple):
    """An answer that was read; one that is not a stream has its bytes as they came."""

    answer: aiohttp.ClientResponse
    raw: bytes


class _Refused(NamedTuple):
    """An error that was read, and what it says about thinking if it is a refusal of that."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    text: str
    refusal: BoundRefusal | None


async def _refused(request: Outgoing | None, answer: aiohttp.ClientResponse) -> _Refused | None:
    """Return the error in an answer if the request can be repaired; None lets the answer pass unread."""
    is_known = request is not None and request.thread is not None
    size = answer.content_length or 0
    if not is_known or answer.status != HTTPStatus.BAD_REQUEST or size > _MOST_ERROR_BYTES:
        return None
    return await _read_refusal(answer)


async def _read_refusal(answer: aiohttp.ClientResponse) -> _Refused:
    body = await answer.read()
    text = _text_of(body, _decoder_of(answer))
    headers = _head_of(answer, len(body), is_changed=False)
    return _Refused(answer.status, headers, body, text, bound_refusal(text))


def _text_of(body: bytes, decode: Decoder | None) -> str:
    """Return the text of an error; an empty one if it cannot be decoded."""
    text = bytearray()
    with suppress(ValueError):
        for piece in () if decode is None else decode.feed(body):
            text += piece
            if len(text) > _MOST_ERROR_BYTES:
                break
    return text.decode(errors="replace")


class _Connector(aiohttp.TCPConnector):
    """Connections to the provider; one that has more than its answer is used no more."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


class _EventStream:
    """A stream that passes in whole events, decoded: if it breaks off, an error can follow."""

    def __init__(self, decode: Decoder) -> None:
        self._decode = decode
        self._events = Events()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the events that are complete. Raises `ValueError` behind them."""
        for data in self._decode.feed(chunk):
            yield b"".join(self._events.feed(data))

    def end(self) -> bytes:
        """Return what follows the last event. Raises `ValueError` if the coding has no end."""
        self._decode.end()
        return self._events.rest()


class _RequestBody:
    """The body of a request as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = asyncio.Event()
        self._more = True
        self.is_gone = False
        # The bytes that arrived, and the decoded ones.
        self.whole = self.plain = b""
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

    async def rest(self, announced: str | None) -> AsyncIterator[bytes]:
        """Yield the parts that were read already, then all others as they come.

        Raises `ValueError` for a body of another size than announced; nothing behind that size is yielded.
        """
        size = 0
        while self._parts or self._more:
            part = self._parts.pop(0) if self._parts else await self._next()
            size += len(part)
            if announced is not None and size > int(announced):
                break
            if part:
                yield part
        if announced is not None and size != int(announced):
            raise ValueError("the body of the request has another size than announced")

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
    await send_json(send, status, _error(text), headers)


def _error(text: str) -> Json:
    error = {"type": "api_error", "message": text, "param": None, "code": None}
    return {"type": "error", "error": error}


async def send_json(send: Send, status: int, value: Any, headers: RawHeaders = ()) -> None:
    """Send a JSON value."""
    body = json.dumps(value, indent=2).encode() + b"\n"
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def _kind_of(answer: aiohttp.ClientResponse) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _check(answer: aiohttp.ClientResponse) -> None:
    """Raise `ValueError` for an answer that cannot be sent on."""
    if not _LEAST_STATUS <= answer.status <= _MOST_STATUS:
        raise ValueError(f"its status is {answer.status}")
    coding = answer.headers.get("Transfer-Encoding", "chunked")
    if coding.strip().lower() != "chunked":
        raise ValueError(f"its Transfer-Encoding is {coding:.80}")
    check(answer.raw_headers)


def _is_reply(answer: aiohttp.ClientResponse | _Refused) -> TypeGuard[aiohttp.ClientResponse]:
    """Return whether an answer is a reply, which has calls."""
    if isinstance(answer, _Refused) or answer.status != HTTPStatus.OK:
        return False
    return _kind_of(answer) in (_EVENTS, _JSON)


def _codings_of(answer: aiohttp.ClientResponse) -> str:
    return ", ".join(answer.headers.getall("Content-Encoding", ()))


def _decoder_of(answer: aiohttp.ClientResponse) -> Decoder | None:
    return decoder([_codings_of(answer)])


def _known_decoder(answer: aiohttp.ClientResponse) -> Decoder:
    """Return the decoder of an answer. Raises `ValueError` if there is none for its encoding."""
    if (decoder := _decoder_of(answer)) is None:
        raise ValueError(f"nobody asked for its Content-Encoding, {_codings_of(answer)}")
    return decoder


def _events_of(exchange: Exchange, answer: aiohttp.ClientResponse) -> _EventStream | None:
    """Return a reader of a stream that the API of the request can end with an error; None for all else."""
    decode = _decoder_of(answer)
    if exchange.api is None or _kind_of(answer) != _EVENTS or decode is None:
        return None
    exchange.stream = CALLS_OF[exchange.api.name].reply((), is_stream=True)
    return _EventStream(decode)


def _size_of(answer: aiohttp.ClientResponse) -> int | None:
    """Return the size that an answer announces; None if its end is marked in another way."""
    is_marked = "Transfer-Encoding" in answer.headers or answer.status == HTTPStatus.NO_CONTENT
    return None if is_marked else answer.content_length


def _head_of(
    answer: aiohttp.ClientResponse, size: int | None, *, is_changed: bool
) -> list[tuple[bytes, bytes]]:
    """Return the headers for an answer with a body of a size, which is None if it is not known."""
    headers = end_to_end(answer.raw_headers)
    headers = [*for_other_body(headers)] if is_changed else headers
    return headers if size is None else [*headers, (b"content-length", b"%d" % size)]


async def _plain(body: bytes, headers: Headers) -> bytes | None:
    """Return a body without its codings; None if it is too long. Raises `RefusedRequestError`."""
    codings = headers.getlist("content-encoding")
    if not codings:
        return body
    decode = decoder(codings)
    if decode is None:
        known = b", ".join(name.encode() for name in KNOWN)
        text = f"a body with the Content-Encoding {', '.join(codings)!r:.80} cannot be read"
        raise RefusedRequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text, [(b"accept-encoding", known)])
    try:
        return await in_thread(_decoded, decode, body)
    except ValueError as error:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, str(error)) from error


def _decoded(decode: Decoder, body: bytes) -> bytes | None:
    plain = bytearray()
    for piece in decode.feed(body):
        plain += piece
        if len(plain) > MOST_BYTES:
            return None
    decode.end()
    return bytes(plain)


def _name_of(method: str, api: Api | None) -> str:
    """Return what the log says of a request: no part of it but the name of a known API."""
    return f"POST {api.end}" if api is not None else f"{method if method in _METHODS else 'a'} request"


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _PART):
        yield body[at : at + _PART]


def _problem(error: Exception, scope: Scope) -> str:
    """Return the text of an error without the query of the request, which may have a key."""
    query = scope["query_string"].decode("latin-1")
    # Behind the first line, it quotes what it could not read.
    text = str(getattr(error, "message", None) or error).partition("\n")[0]
    text = text.replace(f"?{query}", "") if query else text
    return text[:300] or type(error).__name__

"""Requests to the provider and its answers, byte for byte but for the messages that are rewritten."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from offload.engine.binding import ThinkingRefusal
from offload.gateway._apis import CALLS_OF
from offload.gateway._apis.base import OwnCall, Reply
from offload.gateway._codings import Decoder
from offload.gateway._events import Events, data_of
from offload.gateway._exchange import (
    MOST_BYTES,
    ClientGoneError,
    Exchange,
    RefusedRequestError,
    RequestBody,
    error_of,
    plain,
    send_error,
)
from offload.gateway._incoming import COUNT, Api, Incoming, api_of
from offload.gateway._notes import Notes
from offload.gateway._outgoing import Outgoing
from offload.gateway._own_tools import MOST_ROUNDS, Opened, OwnTools
from offload.gateway._provider import (
    EVENTS,
    Provider,
    Refused,
    codings_of,
    decoder_of,
    head_of,
    is_reply,
    kind_of,
    problem_of,
    read_refusal,
    refused_by,
    size_of,
)
from offload.gateway._rewriter import Rewriter
from offload.gateway._sent import NotRecalledError
from offload.gateway._status import Status, Unchanged, logger
from offload.gateway._usage import UsageReader

if TYPE_CHECKING:
    from offload.gateway._shadow import Shadow

# The signature of a whole request, which only the client can make.
_SIGNED = "AWS4-"
_RETRY_SECONDS = 5
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Forwarder:
    """Sends requests on to one provider, and its answers back."""

    def __init__(
        self,
        provider: Provider,
        rewriter: Rewriter,
        notes: Notes,
        own: OwnTools,
        status: Status,
        *,
        shadow: Shadow | None,
    ) -> None:
        self._provider = provider
        self._rewriter = rewriter
        self._notes = notes
        self._own = own
        self._status = status
        self._shadow = shadow

    async def forward(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Send a request on, with the records of a session, and its answer back."""
        body = RequestBody(receive)
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

    async def _answer(self, scope: Scope, body: RequestBody, send: Send, session: str) -> None:
        is_counted = scope["path"].endswith(COUNT)
        api = api_of(scope["path"].removesuffix(COUNT)) if scope["method"] == "POST" else None
        name = _name_of(scope["method"], api)
        exchange = Exchange(scope, Headers(scope=scope), body, send, name, session, api)
        try:
            await self._answer_to(exchange, is_counted=is_counted)
        except asyncio.CancelledError:
            # The user interrupts a request before its reply begins.
            if exchange.is_sent and not exchange.status:
                self._note(exchange, None)
            raise
        finally:
            if self._shadow is not None:
                self._shadow.replied(exchange)

    async def _answer_to(self, exchange: Exchange, *, is_counted: bool) -> None:
        body, send = exchange.body, exchange.send
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
    async def _asked(self, exchange: Exchange) -> AsyncIterator[aiohttp.ClientResponse | Refused]:
        """Send a request; yield the answer of the provider, or of a repaired request if that helps."""
        if exchange.outgoing is not None:
            self._notes.sending(exchange.outgoing)
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self._provider.opened(exchange, exchange.outgoing))
            refused = await refused_by(exchange.outgoing, answer)
            if refused is None:
                yield answer
                return
        async with AsyncExitStack() as stack:
            repaired = await self._repaired(exchange, refused, stack)
            yield refused if repaired is None else repaired

    async def _repaired(
        self, exchange: Exchange, refused: Refused, stack: AsyncExitStack
    ) -> aiohttp.ClientResponse | None:
        """Send a refused request again with other thinking; None if its answer is no better.

        All thinking is removed if the request is refused again for being bound. Any other error of it is
        better answered by the first refusal, unless the client can try again.
        """
        request, again = exchange.outgoing, refused
        refusals = [] if refused.refusal is None else [refused.refusal, ThinkingRefusal("bound")]
        for refusal in refusals:
            if request is None or again.refusal is None or again.refusal.kind != refusal.kind:
                return None
            self._status.count("thinking_refused")
            repaired = await self._rewriter.repaired(request, refusal)
            if repaired is None:
                continue
            try:
                opening = self._provider.opened(exchange, repaired)
                answer: aiohttp.ClientResponse = await stack.enter_async_context(opening)
                if answer.status != HTTPStatus.BAD_REQUEST:
                    exchange.outgoing = repaired
                    return answer
                again = await read_refusal(answer)
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
                if not is_reply(answer):
                    await self._break_off(exchange, answer, reply)
                    return False
                reply = reply or self._reply(exchange, opened, answer)
                raw = await self._take(exchange, answer, reply)
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
        if not exchange.is_streamed:
            # That is all of the reply.
            rest = rest if reply.is_changed else raw
            await exchange.begin(answer.status, head_of(answer, len(rest), is_changed=reply.is_changed))
        await exchange.pass_part(rest)
        await exchange.end()
        return reply.is_whole

    def _reply(self, exchange: Exchange, opened: Opened, answer: aiohttp.ClientResponse) -> Reply:
        """Return a reader of the reply that begins with an answer."""
        exchange.is_streamed = opened.incoming.api.streams or kind_of(answer) == EVENTS
        reply = opened.calls.reply(self._own.names, is_stream=exchange.is_streamed)
        reply.is_document = opened.calls.wants_document(opened.visible.parsed.fields)
        return reply

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

    async def _take(self, exchange: Exchange, answer: aiohttp.ClientResponse, reply: Reply) -> bytes:
        """Read an answer, and send on what the client gets of it now; return one that is not a stream."""
        exchange.status = answer.status
        reader, decode = UsageReader(kind_of(answer).encode()), _known_decoder(answer)
        if exchange.outgoing is not None:
            await self._notes.accepted(exchange.outgoing)
        if exchange.is_streamed and not exchange.is_begun:
            exchange.stream = reply
            await exchange.begin(answer.status, head_of(answer, None, is_changed=True))
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
        return b"".join(raw)

    async def _break_off(
        self, exchange: Exchange, answer: aiohttp.ClientResponse | Refused, reply: Reply | None
    ) -> None:
        """Send an answer on that is not a reply; if the client has part of a stream, its error ends that."""
        if reply is None or not exchange.is_streamed:
            await self._pass_on(exchange, answer)
            return
        refused = answer if isinstance(answer, Refused) else await read_refusal(answer)
        exchange.status = refused.status
        self._note(exchange, None)
        error = data_of(b"data:" + refused.text.encode(errors="replace").replace(b"\n", b" "))
        # In a stream that is an array, an error is one too.
        error = error[0] if isinstance(error, list) and error else error
        if not isinstance(error, dict):
            error = error_of(f"offload gateway: the provider answered with status {refused.status}")
        await exchange.pass_part(reply.failed(error))
        await exchange.end()

    async def _pass_refusal(self, exchange: Exchange, refused: Refused) -> None:
        """Send an error on that was read."""
        await exchange.begin(refused.status, refused.headers)
        await exchange.end(refused.body)
        self._note(exchange, None)

    async def _pass_on(self, exchange: Exchange, answer: aiohttp.ClientResponse | Refused) -> None:
        """Send an answer on as it comes, and note the usage in what came."""
        if isinstance(answer, Refused):
            await self._pass_refusal(exchange, answer)
            return
        if exchange.outgoing is not None and answer.status < HTTPStatus.BAD_REQUEST:
            await self._notes.accepted(exchange.outgoing)
        events = _events_of(exchange, answer)
        reader = UsageReader(
            kind_of(answer).encode() if exchange.outgoing else b"",
            b"" if events else codings_of(answer).encode(),
            keeps_reply=exchange.outgoing is not None and exchange.outgoing.is_threaded,
        )
        size = None if events else size_of(answer)
        await exchange.begin(answer.status, head_of(answer, size, is_changed=events is not None))
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
        text = f"offload gateway: no answer from {self._provider.url}: {problem_of(error, exchange.scope)}"
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
        decoded = await plain(body.whole, exchange.headers)
        body.plain = body.whole if decoded is None else decoded
        is_signed = exchange.headers.get("authorization", "").startswith(_SIGNED)
        if decoded is None or is_signed:
            why = Unchanged.SIGNED if is_signed else Unchanged.TOO_LONG
            self._status.passed(why)
            exchange.outgoing = Outgoing(body.plain, why=why)
            return None
        incoming = Incoming(exchange.session, api, exchange.headers, decoded)
        incoming, opened = await self._own.opened(incoming, is_counted=is_counted)
        rewrite = self._rewriter.counted if is_counted else self._rewriter.rewrite
        exchange.outgoing = await rewrite(incoming)
        exchange.seconds = time.perf_counter() - began
        if self._shadow is not None and not is_counted:
            self._shadow.draw(exchange)
        return opened

    async def _rewrite(self, exchange: Exchange, opened: Opened) -> None:
        """Make the request that continues a reply that of `exchange`."""
        exchange.is_continued = True
        began = time.perf_counter()
        exchange.outgoing = await self._rewriter.rewrite(opened.completed)
        exchange.seconds = time.perf_counter() - began

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


def _known_decoder(answer: aiohttp.ClientResponse) -> Decoder:
    """Return the decoder of an answer. Raises `ValueError` if there is none for its encoding."""
    if (decoder := decoder_of(answer)) is None:
        raise ValueError(f"nobody asked for its Content-Encoding, {codings_of(answer)}")
    return decoder


def _events_of(exchange: Exchange, answer: aiohttp.ClientResponse) -> _EventStream | None:
    """Return a reader of a stream that the API of the request can end with an error; None for all else."""
    decode = decoder_of(answer)
    calls = None if exchange.api is None else CALLS_OF.get(exchange.api.name)
    if calls is None or kind_of(answer) != EVENTS or decode is None:
        return None
    exchange.stream = calls.reply((), is_stream=True)
    return _EventStream(decode)


def _name_of(method: str, api: Api | None) -> str:
    """Return what the log says of a request: no part of it but the name of a known API."""
    return f"POST {api.end}" if api is not None else f"{method if method in _METHODS else 'a'} request"

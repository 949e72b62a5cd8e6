"""The client's side of a request: its body as it comes, and the answer as the client gets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from offload.base.threads.calls import in_thread
from offload.gateway._apis.base import Json, Reply
from offload.gateway._codings import KNOWN, Decoder, decoder
from offload.gateway._headers import RawHeaders, end_to_end, for_reading, for_repeated, for_rewritten
from offload.gateway._incoming import Api
from offload.gateway._outgoing import Outgoing

# Larger bodies pass unread; the providers whose models bind thinking accept none.
MOST_BYTES = 32 * 1024 * 1024
_PART = 64 * 1024
# Copies of longer answers are not kept.
_MOST_COPIED = 8 * 1024 * 1024


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


class RequestBody:
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


@dataclass(slots=True)
class ReplyCopy:
    """A copy of an answer.

    Attributes:
        of: the holder of the copy.
        is_whole: whether all of it came, and is in `body`; `is_long` if it is too long for that.
    """

    of: Any = None
    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    is_long: bool = False

    def begin(self, status: int, headers: RawHeaders) -> None:
        self.status, self.headers = status, [*headers]

    def feed(self, part: bytes) -> None:
        self.is_long = self.is_long or len(self.body) + len(part) > _MOST_COPIED
        if self.is_long:
            self.body.clear()
        else:
            self.body += part

    def end(self) -> None:
        self.is_whole = not self.is_long

    def header(self, name: bytes) -> str:
        return ", ".join(value.decode("latin-1") for key, value in self.headers if key.lower() == name)


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
        copy: gets a copy of the answer, if it is to be compared.
    """

    scope: Scope
    headers: Headers
    body: RequestBody
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
    copy: ReplyCopy | None = None

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
        return framed(headers, sent)

    def repeated_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of a further request that the client did not send."""
        return [*for_repeated(for_reading(end_to_end(self.scope["headers"])))]

    async def begin(self, status: int, headers: RawHeaders) -> None:
        self.status, self.is_begun = status, True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        if self.copy is not None:
            self.copy.begin(status, headers)

    async def pass_part(self, part: bytes) -> None:
        await self.send({"type": "http.response.body", "body": part, "more_body": True})
        if self.copy is not None:
            self.copy.feed(part)

    async def end_early(self, text: str, *, is_broken: bool = True) -> None:
        """End an answer that the client has a part of by an error, if its form allows that.

        Raises `BrokenAnswerError` if it `is_broken` off or cannot have an error: nobody may take it for
        whole.
        """
        if self.stream is not None:
            await self.pass_part(self.stream.failed(error_of(text)))
        if self.stream is None or is_broken:
            raise BrokenAnswerError(text) from None
        await self.end()

    async def end(self, part: bytes = b"") -> None:
        await self.send({"type": "http.response.body", "body": part})
        if self.copy is not None:
            self.copy.feed(part)
            self.copy.end()


def framed(headers: RawHeaders, body: bytes) -> tuple[list[tuple[bytes, bytes]], AsyncIterator[bytes]]:
    """Return the headers of a request with its length, and its body."""
    return [*headers, (b"Content-Length", b"%d" % len(body))], _parts(body)


async def send_error(send: Send, status: int, text: str, headers: RawHeaders = ()) -> None:
    """Send an error in the form that the clients of all APIs understand."""
    await send_json(send, status, error_of(text), headers)


def error_of(text: str) -> Json:
    """Return an error in that form."""
    error = {"type": "api_error", "message": text, "param": None, "code": None}
    return {"type": "error", "error": error}


async def send_json(send: Send, status: int, value: Any, headers: RawHeaders = ()) -> None:
    """Send a JSON value."""
    body = json.dumps(value, indent=2).encode() + b"\n"
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


async def plain(body: bytes, headers: Headers) -> bytes | None:
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


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _PART):
        yield body[at : at + _PART]

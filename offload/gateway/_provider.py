"""The provider's side of a request: how it is sent, and what can be sent on of an answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, NamedTuple, TypeGuard

import aiohttp
from aiohttp import hdrs
from starlette.types import Scope
from yarl import URL

from offload.engine.binding import ThinkingRefusal, refusal_in
from offload.gateway._codings import Decoder, decoder
from offload.gateway._exchange import Exchange
from offload.gateway._headers import ExactRequest, RawHeaders, as_text, check, end_to_end, for_other_body
from offload.gateway._outgoing import Outgoing

EVENTS, _JSON = "text/event-stream", "application/json"
_MOST_ERROR_BYTES = 1024 * 1024
_PART = 64 * 1024
_CONNECT_SECONDS, _SILENCE_SECONDS = 15, 900
_ADDED_BY_CLIENT = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE)

# The version of an API at the end of its base URL, as clients know it.
_VERSION = re.compile(r"/v[0-9]+[a-z]*(?:/openai)?$")

# Of an answer; those before it are not passed on.
_LEAST_STATUS, _MOST_STATUS = 200, 599


class Provider:
    """Sends requests to one provider, at a URL to which the path of a request is added."""

    def __init__(self, upstream: str) -> None:
        self.url = upstream.rstrip("/")
        # It may be at the end of the URL, at the beginning of a request's path, or both.
        self._version = match[0] if (match := _VERSION.search(self.url)) else ""
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def opened(
        self, exchange: Exchange, request: Outgoing | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its answer. Raises `ValueError` for one that cannot be sent on."""
        headers, data = exchange.framed(request)
        async with self.sent(exchange.scope, headers, data) as answer:
            yield answer

    @asynccontextmanager
    async def sent(
        self, scope: Mapping[str, Any], headers: RawHeaders, data: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send headers and a body to the place of a request, and yield the answer; raises as `opened`."""
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        path = path.removeprefix(self._version) if path.startswith(f"{self._version}/") else path
        target = self.url + path + (f"?{query}" if query else "")
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


class _Connector(aiohttp.TCPConnector):
    """Connections to the provider; one that has more than its answer is used no more."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


class Refused(NamedTuple):
    """An error that was read, and what it says about thinking if it is a refusal of that."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    text: str
    refusal: ThinkingRefusal | None


async def refused_by(request: Outgoing | None, answer: aiohttp.ClientResponse) -> Refused | None:
    """Return the error in an answer if the request can be repaired; None lets the answer pass unread."""
    is_known = request is not None and request.thread is not None
    size = answer.content_length or 0
    if not is_known or answer.status != HTTPStatus.BAD_REQUEST or size > _MOST_ERROR_BYTES:
        return None
    return await read_refusal(answer)


async def read_refusal(answer: aiohttp.ClientResponse) -> Refused:
    """Read an error."""
    body = await answer.read()
    text = _text_of(body, decoder_of(answer))
    headers = head_of(answer, len(body), is_changed=False)
    return Refused(answer.status, headers, body, text, refusal_in(text))


def _text_of(body: bytes, decode: Decoder | None) -> str:
    """Return the text of an error; an empty one if it cannot be decoded."""
    text = bytearray()
    with suppress(ValueError):
        for piece in () if decode is None else decode.feed(body):
            text += piece
            if len(text) > _MOST_ERROR_BYTES:
                break
    return text.decode(errors="replace")


def _check(answer: aiohttp.ClientResponse) -> None:
    """Raise `ValueError` for an answer that cannot be sent on."""
    if not _LEAST_STATUS <= answer.status <= _MOST_STATUS:
        raise ValueError(f"its status is {answer.status}")
    coding = answer.headers.get("Transfer-Encoding", "chunked")
    if coding.strip().lower() != "chunked":
        raise ValueError(f"its Transfer-Encoding is {coding:.80}")
    check(answer.raw_headers)


def kind_of(answer: aiohttp.ClientResponse) -> str:
    """Return the media type of an answer."""
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def is_reply(answer: aiohttp.ClientResponse | Refused) -> TypeGuard[aiohttp.ClientResponse]:
    """Return whether an answer is a reply, which has calls."""
    if isinstance(answer, Refused) or answer.status != HTTPStatus.OK:
        return False
    return kind_of(answer) in (EVENTS, _JSON)


def codings_of(answer: aiohttp.ClientResponse) -> str:
    """Return the encodings of an answer."""
    return ", ".join(answer.headers.getall("Content-Encoding", ()))


def decoder_of(answer: aiohttp.ClientResponse) -> Decoder | None:
    """Return the decoder of an answer, None if its encoding is unknown."""
    return decoder([codings_of(answer)])


def size_of(answer: aiohttp.ClientResponse) -> int | None:
    """Return the size that an answer announces; None if its end is marked in another way."""
    is_marked = "Transfer-Encoding" in answer.headers or answer.status == HTTPStatus.NO_CONTENT
    return None if is_marked else answer.content_length


def head_of(
    answer: aiohttp.ClientResponse, size: int | None, *, is_changed: bool
) -> list[tuple[bytes, bytes]]:
    """Return the headers for an answer with a body of a size, which is None if it is not known."""
    headers = end_to_end(answer.raw_headers)
    headers = [*for_other_body(headers)] if is_changed else headers
    return headers if size is None else [*headers, (b"content-length", b"%d" % size)]


def problem_of(error: Exception, scope: Scope) -> str:
    """Return the text of an error without the query of the request, which may have a key."""
    query = scope["query_string"].decode("latin-1")
    # Behind the first line, it quotes what it could not read.
    text = str(getattr(error, "message", None) or error).partition("\n")[0]
    text = text.replace(f"?{query}", "") if query else text
    return text[:300] or type(error).__name__

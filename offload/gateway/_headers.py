"""Headers of requests and answers: which pass, which are made here, and their values as bytes.

The headers of framing belong to one connection: they are made for each message, and those that came are never
copied. Two opinions of where a message ends would let the next one be read as a part of it.
https://www.rfc-editor.org/rfc/rfc9112#section-11.2
"""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp

from offload.gateway._codings import acceptable

RawHeaders = Iterable[tuple[bytes, bytes]]

_FRAMING = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
        *(b"content-length", b"expect", b"host"),
    )
)
_ACCEPTED = b"accept-encoding"
# Names of headers that are about the bytes of a body.
_OF_BODY = re.compile(
    rb"digest|checksum|signature|hash|hmac|md5|sha-?\d|crc\d|etag|^content-(encoding|range)$|^accept-ranges$"
)
_IDEMPOTENCY = re.compile(rb"idempoten")
# Names of headers that identify the client and choose the service: all others are about one request.
_REPEATED = re.compile(
    rb"^(accept|accept-encoding|accept-language|content-type|cookie|user-agent|referer|originator)$"
    rb"|auth|key|token|secret|credential|account|project|organi[sz]ation|tenant|workspace|user|subscription"
    rb"|session|conversation|thread|affinity|version|beta|title|intent|integration|vision|gateway|route|region"
    rb"|anthropic|openai|goog|stainless|claude|codex|copilot|gemini|helicone|litellm|openrouter|portkey"
)
_OF_ONE_REQUEST = re.compile(rb"idempoten|request-?id|retry|attempt|trace|timeout")
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_NO_VALUE = re.compile(rb"[\0\n\v\f\r]")
_END = b"\r\n\r\n"
# The values of the request that this task sends, by the texts that are written in their place.
_exact: ContextVar[Mapping[bytes, bytes]] = ContextVar("_exact")


def end_to_end(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Return the headers of a message that are not of its connection or its framing."""
    headers = list(headers)
    named = b",".join(value for name, value in headers if name.lower() == b"connection").lower()
    dropped = _FRAMING | {name.strip() for name in named.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def framing_fault(headers: RawHeaders, version: str) -> str | None:
    """Return why it is in doubt where a request ends, which is then refused; None if it is not."""
    fields = [(name.lower(), value.strip()) for name, value in headers]
    sizes = {value for name, value in fields if name == b"content-length"}
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if sizes and codings:
        return "a request has Content-Length or Transfer-Encoding, not both"
    if len(sizes) > 1 or not all(size.isdigit() for size in sizes):
        return "the Content-Length is not one number"
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "the only Transfer-Encoding is chunked, in HTTP/1.1"
    return None


def for_other_body(headers: RawHeaders) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a message that are not about the bytes of its body."""
    return ((name, value) for name, value in headers if not _OF_BODY.search(name.lower()))


def for_rewritten(headers: RawHeaders, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request that has another `body`; a key of idempotency is derived from it."""
    for name, value in for_other_body(headers):
        is_key = _IDEMPOTENCY.search(name.lower())
        yield name, _key_for(value, body) if is_key else value


def for_repeated(headers: RawHeaders) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request that a further one, which the client did not send, has too."""
    for name, value in for_other_body(headers):
        if _REPEATED.search(name.lower()) and not _OF_ONE_REQUEST.search(name.lower()):
            yield name, value


def for_reading(headers: RawHeaders) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request that asks for no coding that cannot be decoded."""
    is_given = False
    for name, value in headers:
        is_accepted = name.lower() == _ACCEPTED
        is_given = is_given or is_accepted
        yield name, acceptable(value.decode("latin-1")).encode("latin-1") if is_accepted else value
    if not is_given:
        # Without it, every coding is acceptable.
        yield _ACCEPTED, b"identity"


def check(headers: RawHeaders) -> None:
    """Raise `ValueError` for a header that cannot be sent on."""
    for name, value in headers:
        if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
            raise ValueError(f"the header {name[:80]!r} has no valid name or value")


def _key_for(value: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(body, key=hashlib.blake2b(value).digest(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4)).encode()


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return headers for a request that this task sends with `ExactRequest`, which writes their bytes."""
    kept: dict[bytes, bytes] = {}
    texts = []
    for name, value in headers:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = secrets.token_hex(16)
            kept[text.encode()] = value
        texts.append((name.decode("latin-1"), text))
    _exact.set(kept)
    return texts


class ExactRequest(aiohttp.ClientRequest):
    """A request whose headers were made by `as_text` in this task."""

    async def send(self, conn: Any) -> Any:
        values = _exact.get({})
        if values:
            conn.protocol.transport = _Transport(conn.protocol, values)
        return await super().send(conn)


class _Transport:
    """The transport of a connection until the head of a request is written, which begins the first write."""

    def __init__(self, protocol: Any, values: Mapping[bytes, bytes]) -> None:
        self._protocol = protocol
        self._inner = protocol.transport
        self._values = values

    def write(self, data: bytes) -> None:
        self._protocol.transport = self._inner
        head, end, body = bytes(data).partition(_END)
        for text, value in self._values.items():
            head = head.replace(text, value)
        self._inner.write(head + end + body)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

"""Header values as their bytes: aiohttp writes only UTF-8, and drops all other bytes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp

_END = b"\r\n\r\n"
# The values of the request that this task sends, by the texts that are written in their place.
_exact: ContextVar[Mapping[bytes, bytes]] = ContextVar("_exact")


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
        """Send the request."""
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

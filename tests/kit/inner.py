"""Short forms of calls of the library's inner functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from offload.messages import Call
from offload.messages.adapter import Scan
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for
from offload.reading.tools.search import Pattern, Search, Span
from offload.records.codec import Fetch


def scan(message: Any, calls: dict[str, Call] | None = None) -> Scan:
    return adapter_for(message).scan(message, "messages[3]", Calls((calls or {}).items()))


def find(chunks: Iterable[bytes], pattern: Pattern, offset: int = 0) -> Iterator[Span]:
    return Search(pattern, offset).find(chunks, offset=offset)


def fetch_from(data: bytes) -> Fetch:
    """Return how a codec reads a record that is these bytes."""

    def fetch(*, start: int = 0, end: int | None = None) -> bytes:
        return data[start:end]

    return fetch

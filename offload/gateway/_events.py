"""Server-sent events of a stream: cut where each ends, read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# An event of a stream ends with an empty line; a line ends with CR, LF or both.
_END_OF_EVENT = re.compile(rb"(?:\r\n|\r(?!\n)|\n){2}")
_BYTE_ORDER = b"\xef\xbb\xbf"
_MOST_BYTES = 32 * 1024 * 1024


class Events:
    """A stream of events, cut where each ends."""

    def __init__(self) -> None:
        self._kept = bytearray()
        # No event ends before this place; the mark of an end may itself be cut.
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that are complete, as they came.

        Raises `ValueError` if the rest was too large before.
        """
        self.check_size()
        self._kept += data
        start = 0
        for match in _END_OF_EVENT.finditer(self._kept, self._searched):
            yield bytes(self._kept[start : match.end()])
            start = match.end()
        del self._kept[:start]
        self._searched = max(0, len(self._kept) - 3)

    def check_size(self) -> None:
        """Raise `ValueError` if an event has too many bytes."""
        if len(self._kept) > _MOST_BYTES:
            raise ValueError(f"an event of the provider has more than {_MOST_BYTES} bytes")

    def data(self, event: bytes) -> Any:
        """Return the JSON of an event, None if it has none."""
        return data_of(event)

    def passed(self, event: bytes) -> bytes:
        """Return an event for the client, unchanged."""
        return event

    def written(self, value: dict[str, Any]) -> bytes:
        """Return an event without a name."""
        return event_of(value, is_named=False)

    def end(self) -> bytes:
        """Return what ends a stream besides its last event."""
        return b""

    def rest(self) -> bytes:
        """Return what follows the last event. Raises `ValueError` if that is too large."""
        self.check_size()
        rest, self._kept, self._searched = bytes(self._kept), bytearray(), 0
        return rest


def data_of(event: bytes) -> Any:
    """Return the JSON of an event, None if it has none."""
    lines = event.removeprefix(_BYTE_ORDER).splitlines()
    lines = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    try:
        return json.loads(b"\n".join(lines)) if lines else None
    except (ValueError, RecursionError):
        return None


def event_of(data: dict[str, Any], *, is_named: bool = True) -> bytes:
    """Return an event."""
    name = f"event: {data['type']}\n" if is_named else ""
    return f"{name}data: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}\n\n".encode(
        errors="surrogatepass"
    )

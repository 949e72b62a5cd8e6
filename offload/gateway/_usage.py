"""The usage in an answer, and the reply if it is asked for, read from a copy of its bytes while they pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from offload.gateway._apis.anthropic import OpenBlock
from offload.gateway._codings import decoder
from offload.gateway._events import Events, data_of

# Longer answers are not read.
_MOST_BYTES = 8 * 1024 * 1024
_EVENTS, _JSON = b"text/event-stream", b"application/json"
_FIELDS = ("usage", "usageMetadata")


class UsageReader:
    """Reads the usage in an answer, as JSON or as a stream of events; any other answer has none.

    Attributes:
        usage: an object with a field that has a usage, of the provider's form; None until it is read.
        reply: the reply of the Messages API, if it is kept; None until its end is read.
    """

    def __init__(self, content_type: bytes, encoding: bytes = b"", *, keeps_reply: bool = False) -> None:
        kind = content_type.split(b";")[0].strip().lower()
        self._is_stream = kind == _EVENTS
        self._decode = decoder([encoding.decode("latin-1")]) if kind in (_EVENTS, _JSON) else None
        self._kept, self._events = bytearray(), Events()
        self.usage: Any = None
        self.reply: dict[str, Any] | None = None
        self._streamed: _MessagesReply | None = _MessagesReply() if keeps_reply and self._is_stream else None
        self._keeps_reply = keeps_reply

    def feed(self, chunk: bytes) -> None:
        """Read a part of the answer; one that cannot be read ends the reading."""
        if self._decode is None:
            return
        try:
            for part in self._decode.feed(chunk):
                if self._is_stream:
                    for event in self._events.feed(part):
                        self._read_event(event)
                    continue
                self._kept += part
                if len(self._kept) > _MOST_BYTES:
                    self._stop()
                    return
        except Exception:  # noqa: BLE001 # an answer of any form passes
            self._stop()

    def close(self) -> Any:
        """Return the usage at the end of the answer."""
        with suppress(ValueError, RecursionError, LookupError, TypeError):
            if self._decode is not None and self._is_stream:
                self._read_event(self._events.rest())
            elif self._decode is not None:
                self._note(json.loads(self._kept))
        self._stop()
        return self.usage

    def _stop(self) -> None:
        self._decode = None
        self._kept, self._events = bytearray(), Events()

    def _read_event(self, event: bytes) -> None:
        if b'"usage' in event:
            self._note(data_of(event))
        if self._streamed is not None and self._streamed.add(data_of(event)):
            self.reply = self._streamed.message

    def _note(self, event: Any) -> None:
        # Gemini's stream may be an array; each chunk has the usage up to it.
        event = (
            next((one for one in reversed(event) if _has_usage(one)), None)
            if isinstance(event, list)
            else event
        )
        if self._keeps_reply and not self._is_stream and isinstance(event, dict):
            self.reply = event
        if not isinstance(event, dict) or event.get("type") == "message_delta":
            # Its counts include those of the tools that the provider ran.
            return
        holders = (event, event.get("message"), event.get("response"), event.get("interaction"))
        self.usage = next(filter(_has_usage, holders), self.usage)


def _has_usage(holder: Any) -> bool:
    return isinstance(holder, Mapping) and any(isinstance(holder.get(name), Mapping) for name in _FIELDS)


class _MessagesReply:
    """A reply of the Messages API, put together from its events."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._open: dict[Any, OpenBlock] = {}

    def add(self, event: Any) -> bool:
        """Add an event; return whether it is the last one."""
        kind, index = event["type"], event.get("index")
        if kind == "message_start":
            self.message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            self._open[index] = OpenBlock(event["content_block"])
        elif kind == "content_block_delta":
            self._open[index].grow(event["delta"])
        elif kind == "content_block_stop":
            self.message["content"].append(self._open.pop(index).closed())
        return bool(kind == "message_stop")

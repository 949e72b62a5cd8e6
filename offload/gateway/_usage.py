"""The usage in an answer, and the reply if it is asked for, read from a copy of its bytes while they pass."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import brotli
import zstandard

# Longer answers, and longer lines of a stream, are not read.
_MOST_BYTES = 8 * 1024 * 1024
# Of zstd: the largest window of an HTTP body (RFC 9659), and input that decodes to 8 MiB at most: a block of
# 4 bytes may be 128 KiB.
_WINDOW, _SLICE = 8 * 1024 * 1024, 256
_EVENTS = b"text/event-stream"
_JSON = b"application/json"
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
        self._decode = decoder(encoding.strip().lower()) if kind in (_EVENTS, _JSON) else None
        self._kept = bytearray()
        self.usage: Any = None
        self.reply: dict[str, Any] | None = None
        self._streamed: _StreamedReply | None = _StreamedReply() if keeps_reply and self._is_stream else None
        self._keeps_reply = keeps_reply

    def feed(self, chunk: bytes) -> None:
        """Read a part of the answer; one that cannot be read ends the reading."""
        if self._decode is None:
            return
        try:
            part = self._decode(chunk)
            self._kept += part
            if self._is_stream and b"\n" in part:
                self._read_lines()
            if len(self._kept) > _MOST_BYTES:
                self._stop()
        except Exception:  # noqa: BLE001 # an answer of any form passes
            self._stop()

    def close(self) -> Any:
        """Return the usage at the end of the answer."""
        with suppress(ValueError, RecursionError):
            if self._decode is not None and not self._is_stream:
                self._note(self._kept)
        self._stop()
        return self.usage

    def _stop(self) -> None:
        self._decode = None
        self._kept = bytearray()

    def _read_lines(self) -> None:
        *lines, rest = self._kept.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if b'"usage' in line:
                self._note(line[5:])
            if self._streamed is not None and self._streamed.add(json.loads(line[5:])):
                self.reply = self._streamed.message
        self._kept = bytearray(rest)

    def _note(self, data: bytes | bytearray) -> None:
        event = json.loads(data)
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
        holders = (event, event.get("message"), event.get("response"))
        self.usage = next(filter(_has_usage, holders), self.usage)


def _has_usage(holder: Any) -> bool:
    return isinstance(holder, Mapping) and any(isinstance(holder.get(name), Mapping) for name in _FIELDS)


class _StreamedReply:
    """A reply of the Messages API, put together from its events."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._json: dict[int, str] = {}

    def add(self, event: Any) -> bool:
        """Add an event; return whether it is the last one."""
        kind, index = event["type"], event.get("index")
        if kind == "message_start":
            self.message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            self.message["content"].append(event["content_block"])
        elif kind == "content_block_delta":
            self._extend(index, event["delta"])
        elif kind == "content_block_stop" and index in self._json:
            self.message["content"][index]["input"] = json.loads(self._json.pop(index) or "{}")
        return bool(kind == "message_stop")

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block = self.message["content"][index]
        for name, value in delta.items():
            if name == "partial_json":
                self._json[index] = self._json.get(index, "") + value
            elif name != "type" and isinstance(value, str):
                block[name] = (block.get(name) or "") + value


def text_of(body: bytes, encoding: bytes) -> str:
    """Return the text of an answer that is not streamed; an empty one if it cannot be decoded."""
    decode = decoder(encoding.strip().lower())
    try:
        return "" if decode is None else decode(body).decode(errors="replace")
    except Exception:  # noqa: BLE001 # an answer of any form passes
        return ""


def decoder(encoding: bytes) -> Callable[[bytes], bytes] | None:
    """Return a function that decodes one part of a body after another; None for an unknown encoding.

    It raises `ValueError` for a part that is far larger decoded, or invalid.
    """
    if encoding in (b"", b"identity"):
        return bytes
    if encoding in (b"gzip", b"deflate"):
        return partial(_decoded, _inflated, zlib.decompressobj(wbits=47))
    if encoding == b"zstd":
        frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj(read_across_frames=True)
        return partial(_decoded, _unzstd, frames)
    if encoding == b"br":
        return partial(_decoded, _unbrotli, brotli.Decompressor())
    return None


def _decoded(decode: Callable[[Any, bytes], bytes], decompressor: Any, chunk: bytes) -> bytes:
    try:
        return decode(decompressor, chunk)
    except (zlib.error, zstandard.ZstdError, brotli.error) as error:
        raise ValueError(f"the answer is not encoded as its Content-Encoding says: {error}") from error


def _inflated(decompressor: Any, chunk: bytes) -> bytes:
    data: bytes = decompressor.decompress(chunk, _MOST_BYTES)
    if decompressor.unconsumed_tail:
        raise _too_large()
    return data


def _unbrotli(decompressor: Any, chunk: bytes) -> bytes:
    data: bytes = decompressor.process(chunk, output_buffer_limit=_MOST_BYTES)
    if not decompressor.can_accept_more_data():
        raise _too_large()
    return data


def _unzstd(decompressor: Any, chunk: bytes) -> bytes:
    data = bytearray()
    for start in range(0, len(chunk), _SLICE):
        data += decompressor.decompress(chunk[start : start + _SLICE])
        if len(data) > _MOST_BYTES:
            raise _too_large()
    return bytes(data)


def _too_large() -> ValueError:
    return ValueError(f"a part of an answer has more than {_MOST_BYTES} bytes")

"""The answers that show content: a range or value, its position, and the next call."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby

from offload.base.binary import file_kind, is_binary
from offload.base.text import escape_surrogates
from offload.engine.placeholder.default import safe_for_model
from offload.errors import (
    CorruptError,
    EncryptionError,
    ExpiredError,
    NotFoundError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    unexpected,
)
from offload.messages.media import media_facts
from offload.reading.tools.pointer import JsonValue
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import StoredContent
from offload.storage.store import KEY_VARIABLE

_log = logging.getLogger("offload.tools")
MAX_ERROR_CHARS = 1000
# The room for the first and the last line of an answer.
FRAME_CHARS = 320
REPEATED = "[Shown before in this session: the content never changes]"

REDACTED = "[Redacted: some content was removed before storage. Do not write this text back.]"
_SHOWN_REF_CHARS = 40
_ENDS = {"expired": "expired", "quota": "was deleted to free space"}
# A part of the data URL that is the content of an image or a document.
_BASE64 = re.compile(r"(?:data:[\w/.+;=-]{1,200},)?[A-Za-z0-9+/]{64,}={0,2}", re.ASCII)
_MEDIA_HEAD_CHARS = 64 * 1024


def with_notes(answer: str, notes: Iterable[str]) -> str:
    """Return an answer with lines of their own before its last line."""
    *lines, last = answer.split("\n")
    return "\n".join([*lines, *notes, last])


def read_error(error: CorruptError | EncryptionError | NotFoundError, ref: str, label: str = "") -> str:
    """Return the error of an item that cannot be read, in the model's words; `label` is its title."""
    item = f"item {ref[:_SHOWN_REF_CHARS]!r}{f' ({label})' if label else ''}"
    if isinstance(error, ExpiredError):
        when = datetime.fromtimestamp(error.at, UTC)
        end = _ENDS.get(error.reason, "was deleted")
        return f"{item} {end} on {when:%F %T} UTC. Do not retry; run the original tool again if needed."
    if isinstance(error, NotFoundError):
        return f"unknown id {ref[:_SHOWN_REF_CHARS]!r}."
    if isinstance(error, EncryptionError):
        fault = f"is encrypted, or not, in another way than the store was opened ({KEY_VARIABLE})"
        return f"{item} {fault}. Do not retry; run the original tool again if needed."
    return f"{item} is damaged and cannot be read. Do not retry; run the original tool again if needed."


def store_error(error: StoreError) -> str:
    """Return the error of a store in the model's words, without the path or address of the store."""
    if isinstance(error, StoreUnavailableError):
        return "the store did not respond. The same call may work later."
    reason = "refused access" if isinstance(error, StorePermissionError) else "failed"
    if isinstance(error, EncryptionError):
        reason = f"is encrypted with another key than {KEY_VARIABLE}"
    return f"the store {reason}, so nothing can be read from it now. Run the original tool again if needed."


def error_for_model(error: Exception) -> str:
    """Return the text of an error for the model, without the path or address of a store; that is logged."""
    known = unexpected(error)
    if isinstance(known, StoreError):
        _log.warning("the model was not shown this error of the store: %s", known)
        return store_error(known)
    return escape_surrogates(str(known))[:MAX_ERROR_CHARS]


class Pages:
    """The answers that show the content of one record, each of at most `max_chars` characters.

    Attributes:
        notes: the lines about the record that each answer gets.
    """

    def __init__(self, record: StoredRecord, max_chars: int, notes: Sequence[str] = ()) -> None:
        self.record = record
        self.content = record.content
        self.notes = notes
        self._max_chars = max_chars - sum(len(note) + 1 for note in notes)

    def text(self, start: int, end: int, *, is_tail: bool = False, more: str = "") -> str:
        """Return the answer with the characters from `start` to `end`: the first that fit, or the last.

        Its last line has the call for as much again, with the arguments `more` if all was shown.
        """
        ref, content = self.record.ref, self.content
        room = self._max_chars - FRAME_CHARS
        excerpt, start, stop = _fitting(content, start, end, room, is_tail=is_tail)
        note = _media_note(content, excerpt)
        lines = f"lines {content.line_at(start)}-{content.line_at(max(start, stop - 1))} of {content.lines}"
        first = f"[{ref}: characters {start}-{stop} of {content.chars}, {lines}{decoding(content)}]"
        is_more = stop < content.chars and note is None
        next_part = more if more and stop == end else f"offset={stop}"
        last = f'[more: context_read(id="{ref}", {next_part})]' if is_more else "[end of item]"
        return f"{first}\n{note or excerpt}\n{last}"

    def value(self, value: JsonValue, offset: int, limit: int) -> str:
        """Return the part of a JSON value from `offset`, of up to `limit` characters."""
        ref, name = self.record.ref, _quoted(value.pointer)
        room = self._max_chars - FRAME_CHARS - 2 * len(name)
        end = min(value.end, value.start + offset + limit)
        excerpt, start, stop = _fitting(self.content, value.start + offset, end, room)
        first = (
            f"[{ref} {name}: {value.kind}, characters {start - value.start}-{stop - value.start} of "
            f"{value.end - value.start}, which are {start}-{stop} of the item]"
        )
        more = f'[more: context_read(id="{ref}", part={name}, offset={stop - value.start})]'
        return f"{first}\n{excerpt}\n{more if stop < value.end else '[end of value]'}"

    def outline(self, value: JsonValue, members: Iterable[tuple[str, str]], count: int) -> str:
        """Return the answer with the pointers of the members of a large JSON value, as many as fit."""
        ref, name = self.record.ref, _quoted(value.pointer)
        room = self._max_chars - FRAME_CHARS - 2 * len(name)
        first = f"[{ref} {name}: {value.kind} of {count:,}, {value.end - value.start:,} characters]"
        rows = fitting_rows((f"{_quoted(pointer)}: {facts}" for pointer, facts in members), room)
        rows += [f"… and {count - len(rows):,} more"] * (len(rows) < count)
        whole = f'context_read(id="{ref}", part={name}, offset=0)'
        last = f"[Read a member by its pointer, or the full text: {whole}]"
        return "\n".join([first, *rows, last])


def fitting_rows(rows: Iterable[str], room: int) -> list[str]:
    """Return the first of `rows` that fit in `room` characters."""
    fitting = []
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            break
        fitting.append(row)
    return fitting


def line_excerpt(content: StoredContent, start: int, end: int) -> str:
    """Return a part of one line as a model sees it in a diff; a carriage return is visible."""
    text = content.text(start, end)
    return _media_note(content, text) or readable(text, start).replace("\r", "\\r")


def _fitting(
    content: StoredContent, start: int, end: int, room: int, *, is_tail: bool = False
) -> tuple[str, int, int]:
    """Return the text of a range that fits in `room`, and the range of its characters."""
    start, end = (max(start, end - room), end) if is_tail else (start, min(end, start + room))
    raw = content.text(start, end)
    excerpt = readable(raw, start)
    while len(excerpt) > room:
        fits = len(raw) * room // len(excerpt) - 1
        raw = raw[-fits:] if is_tail else raw[:fits]
        excerpt = readable(raw)
    return (excerpt, end - len(raw), end) if is_tail else (excerpt, start, start + len(raw))


def _media_note(content: StoredContent, excerpt: str) -> str | None:
    """Return the replacement of a media item's base64, None for other content."""
    facts = media_facts(content.text(0, _MEDIA_HEAD_CHARS)) if _BASE64.fullmatch(excerpt) else None
    if facts is None:
        return None
    size = f", {facts.pixels[0]}x{facts.pixels[1]} pixels" if facts.pixels else ""
    return f"({facts.media_type}{size}, base64: not shown)"


def readable(text: str, start: int = 1) -> str:
    """Return a part of a content for a model; binary lines are not shown but for their size."""
    shown, kind = list[str](), file_kind(text) if start == 0 else ""
    for is_hidden, lines in groupby(text.split("\n"), is_binary):
        part = "\n".join(lines)
        hidden = f"(binary content not shown: {kind}{', ' * bool(kind)}{len(part)} characters)"
        shown.append(hidden if is_hidden else safe_for_model(part))
    return "\n".join(shown)


def decoding(content: StoredContent) -> str:
    """Return the words of an answer on a content that was decoded, "" for one that is shown as stored."""
    return f", shown decoded from {content.encoding.upper()}" if content.encoding else ""


def _quoted(pointer: str) -> str:
    return safe_for_model(json.dumps(pointer, ensure_ascii=False))

"""The texts of the records that a session may read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from offload.base.text import decode_text
from offload.engine.placeholder.notice import NOTICE_TOOL
from offload.engine.rows import read_rows
from offload.errors import OffloadError, unexpected
from offload.messages.calls import Calls
from offload.reading.evidence._requests import SILENT, TextRole, texts_of
from offload.reading.evidence._texts import MAX_CHARS, Texts
from offload.reading.search._passages import why_unsearchable
from offload.reading.search._results import PASSING, reason_of
from offload.records.codec.base import StoredRecord
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader

# The most characters of one record.
MAX_RECORD_CHARS = 4_000_000
# The records that are opened at once.
_GROUP = 64
_BINARY = "binary content"


class RecordText(NamedTuple):
    """A text of a record, for its role as a source; `line` is its only one there, from 1, if it has one."""

    info: RecordInfo
    role: TextRole
    line: int | None = None


class Records:
    """The texts of a session's records; each is read once, since records are never rewritten.

    Args:
        reader: the records of the session.
        may_be_redacted: whether a text that is checked may have values that were removed from records.

    Attributes:
        texts: the texts that were read.
        keys: the keys of their records.
        unread: why the text of a record, by its key, was not read completely.
    """

    def __init__(self, reader: SessionReader, *, may_be_redacted: bool) -> None:
        self._reader = reader
        self._may_be_redacted = may_be_redacted
        self.clear()

    def clear(self) -> None:
        self.texts: Texts[RecordText] = Texts()
        self.keys: set[str] = set()
        self.unread: dict[str, str] = {}

    def complete(self, infos: Sequence[RecordInfo], deadline: float) -> None:
        """Read the records that are not read yet, in order, up to a time of the monotonic clock."""
        if self.keys - {info.key for info in infos} or self._reader.lost_links(self.keys):
            self.clear()  # A deleted record has no evidence.
        self.unread = {key: why for key, why in self.unread.items() if why not in PASSING or key in self.keys}
        new = [info for info in infos if info.key not in self.keys and info.key not in self.unread]
        for start in range(0, len(new), _GROUP):
            if time.monotonic() > deadline:
                return
            for info, record in self._reader.open_many(new[start : start + _GROUP]):
                if isinstance(record, OffloadError):
                    self.unread[info.key] = reason_of(record)
                elif time.monotonic() < deadline:
                    self._add(info, record)

    def why_not(self, info: RecordInfo) -> str | None:
        """Return why a record is not searched, or not all of it; None if it is."""
        unread = self.unread.get(info.key)
        if unread == _BINARY:
            return None
        return unread or (None if info.key in self.keys else "not searched yet: repeat the check")

    def _add(self, info: RecordInfo, record: StoredRecord) -> None:
        try:
            text = self._read(info, record)
            if text is not None:
                for stored, part in _parts(info, text):
                    self.texts.add(stored, part)
                self.keys.add(info.key)
        except Exception as error:  # noqa: BLE001 # one record's failure is one record's
            self.unread[info.key] = reason_of(unexpected(error))

    def _read(self, info: RecordInfo, record: StoredRecord) -> str | None:
        """Return the text of a record, its first lines if there is no room for more, None if it is none."""
        room = min(MAX_RECORD_CHARS, MAX_CHARS - self.texts.chars)
        chunks, chars = list[str](), 0
        for chunk in map(decode_text, record.content.chunks_from(0)[1]):
            if not chunks and (why := why_unsearchable(chunk)):
                self.unread[info.key] = why
                return None
            chunks.append(chunk[: room - chars])
            chars += len(chunks[-1])
            if chars == room and chars < info.chars:
                self.unread[info.key] = f"only the first {chars:,} of {info.chars:,} characters were searched"
                return "".join(chunks).rpartition("\n")[0]
        if record.is_redacted and self._may_be_redacted:
            self.unread.setdefault(info.key, "parts were removed before it was stored")
        return "".join(chunks)


def _parts(info: RecordInfo, text: str) -> Iterator[tuple[RecordText, str]]:
    """Yield the sources in the text of a record: of removed messages, those of each."""
    if info.item_type in SILENT:
        return
    if info.tool_name != NOTICE_TOOL or info.item_type != "user_message":
        yield RecordText(info, "call" if info.item_type == "tool_call" else "message"), text
        return
    calls = Calls()
    for line, row in enumerate(read_rows(text), 1):
        for role, part in texts_of(row.message, calls):
            if role != "notice":
                yield RecordText(info, role, line), part

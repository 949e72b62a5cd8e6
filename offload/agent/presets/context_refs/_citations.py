"""Which files are cited: by a list of messages, or inside a file that is cited."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from offload.base.threads.locks import Lock
from offload.errors import CorruptError, MessageError, NotFoundError
from offload.messages.formats import scan_of
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader
from offload.storage.layout import REF_PATTERN
from offload.storage.store import OffloadStore

_ID = re.compile(rf"(?<![0-9A-Za-z]){REF_PATTERN}(?![0-9A-Za-z])", re.ASCII)
# An output may be large, and any word of it may look like an id.
_LINE = re.compile(rf" in context: ({REF_PATTERN})\]", re.ASCII)
_LINE_CHARS = 60
# The outputs that no list of messages has shown yet.
_LATEST_OUTPUTS = 256


def ids_in(messages: Sequence[Any]) -> set[str]:
    """Return every word of messages that may be an id."""
    return {ref for message in messages for text in _texts(message) for ref in _ID.findall(text)}


class InUse:
    """The ids that messages may cite: those in the last list, and of outputs that no list has shown."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listed: set[str] | None = None
        self._outputs: list[str] = []

    def note_output(self, ref: str) -> None:
        """Note an output; without any list only the latest one counts."""
        with self._lock:
            others = [] if self._listed is None else [other for other in self._outputs if other != ref]
            self._outputs = [*others[1 - _LATEST_OUTPUTS :], ref]

    def note_list(self, messages: Sequence[Any]) -> None:
        """Note a list of messages, which replaces the last one."""
        listed = ids_in(messages)
        with self._lock:
            self._listed = listed
            self._outputs = [ref for ref in self._outputs if ref not in listed]

    def ids(self) -> set[str]:
        with self._lock:
            return {*(self._listed or ()), *self._outputs}


class Citations:
    """Finds the files of a session that others cite; each is read once, which should not count as use."""

    def __init__(self, store: OffloadStore, session: str) -> None:
        self._reader = SessionReader(store, session)
        self._inside: dict[str, set[str]] = {}

    def closure(self, cited: Collection[str], infos: Iterable[RecordInfo]) -> set[str]:
        """Return the ids of `cited`, and those that their files cite, of the files `infos`."""
        by_ref = {info.ref: info for info in infos}
        new = by_ref.keys() & set(cited)
        found = set(new)
        while new:
            inside = {ref for one in new for ref in self._ids_in(by_ref[one])}
            new = (inside & by_ref.keys()) - found
            found |= new
        return found

    def _ids_in(self, info: RecordInfo) -> set[str]:
        if info.key not in self._inside:
            pattern = _LINE if info.item_type == "tool_result" else _ID
            # A file that is missing or damaged cites nothing.
            self._inside[info.key] = set()
            with suppress(NotFoundError, CorruptError):
                self._inside[info.key] = {ref for text in self._pieces(info) for ref in pattern.findall(text)}
        return self._inside[info.key]

    def _pieces(self, info: RecordInfo) -> Iterator[str]:
        """Yield the content in pieces that overlap, so that no id is cut."""
        end = ""
        for chunk in self._reader.open(info).stream():
            text = end + chunk.decode("utf-8", "replace")
            yield text
            end = text[-_LINE_CHARS:]


def _texts(message: Any) -> Iterator[str]:
    """Yield a message as Python shows it, and its texts: an escaped newline before an id hides it."""
    yield str(message)
    with suppress(MessageError):
        yield from scan_of(message).all_texts

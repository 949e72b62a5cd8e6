"""The journals of a store in one listing, and the title of each: the first words of the user's task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any, NamedTuple

from offload.errors import EncryptionError, OffloadError, result_or_error
from offload.messages.formats import role_or_none, scan_of
from offload.records.journal.format import JournalEntry, RequestFigures, entry_of
from offload.records.journal.reader import first_messages
from offload.records.record.titles import first_line_of, title_of
from offload.storage.layout import JOURNAL, session_part
from offload.storage.store import OffloadStore, StoredObject, get_many

# Titles that one call reads, and the largest entry that is read for one, uncompressed.
_MOST_TITLES, _MOST_BYTES = 250, 1024 * 1024
_MAX_FORKS = 100


class JournalSummary(NamedTuple):
    """The journal of a session, from its keys alone.

    Attributes:
        part: the key part of the session.
        first: its first entry; that of a fork names the session that it was forked from.
        last: the object of its last entry.
        requests: how many requests it has, also those that were left by a rewind.
        sent: the last one; None if it has none.
        model: the model that it was sent to, if it is known.
    """

    part: str
    first: JournalEntry
    last: StoredObject
    requests: int = 0
    sent: RequestFigures | None = None
    model: str | None = None


def list_journals(store: OffloadStore) -> dict[str, JournalSummary]:
    """Return the journals of a store by the key part of their sessions; one listing. Raises `StoreError`."""
    found: dict[str, JournalSummary] = {}
    for stored in store.keys(JOURNAL.prefix()):
        entry, part = entry_of(stored.key), session_part(stored.key)
        if entry is None:
            continue
        one = found[part]._replace(last=stored) if part in found else JournalSummary(part, entry, stored)
        if entry.sent is not None:
            one = one._replace(requests=one.requests + 1, sent=entry.sent, model=entry.model)
        found[part] = one
    return found


def task_titles(
    store: OffloadStore, journals: Mapping[str, JournalSummary], parts: Iterable[str] | None = None
) -> tuple[dict[str, str], dict[str, EncryptionError]]:
    """Return the titles of sessions by key part, and the errors of those that do not fit the store's key.

    A title is the first line of the user's task in the first request. A session whose first request cannot
    be read or has more than 1 MB has none.

    Args:
        store: the store of the journals.
        journals: all of them.
        parts: the sessions; by default the 250 with the newest requests.

    Raises:
        StoreError: the store failed.
    """
    if parts is None:
        newest = nlargest(_MOST_TITLES, journals.values(), key=lambda one: one.sent.at if one.sent else 0)
        parts = [one.part for one in newest]
    firsts = {part: first for part in parts if (first := _first(journals, part)) is not None}
    keys = [*{entry.at: entry for entry in firsts.values()}]
    data = dict(zip(keys, get_many(store, keys), strict=True))
    found = {part: result_or_error(_title, entry, data[entry.at]) for part, entry in firsts.items()}
    titles = {part: title for part, title in found.items() if title and isinstance(title, str)}
    return titles, {part: error for part, error in found.items() if isinstance(error, EncryptionError)}


def _first(journals: Mapping[str, JournalSummary], part: str) -> JournalEntry | None:
    """Return the entry with the first request of a session, or of the one that it was forked from."""
    for _ in range(_MAX_FORKS):
        first = journals[part].first if part in journals else None
        if first is None or first.parent is None:
            return first if first is not None and first.size <= _MOST_BYTES else None
        part = first.parent
    return None


def _title(entry: JournalEntry, data: bytes | OffloadError) -> str | None:
    if isinstance(data, OffloadError):
        raise data
    texts = [text for message in first_messages(entry, data) for text in _texts_of_user(message)]
    # Programs mark their texts with a tag, and add them before the task, which may begin with a tag too.
    tasks = [title_of(text) for text in texts if not text.lstrip().startswith("<")]
    return next(filter(None, tasks), None) or next(filter(None, map(first_line_of, reversed(texts))), None)


def _texts_of_user(message: Any) -> Iterator[str]:
    if role_or_none(message) == "user":
        yield from scan_of(message).all_texts

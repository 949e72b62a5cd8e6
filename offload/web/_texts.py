"""The search of the texts of all sessions, newest record first, some at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from offload.errors import OffloadError
from offload.reading.tools.budget import Budget, BudgetExceeded
from offload.reading.tools.search import Pattern, Search, compile_pattern
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader
from offload.storage.layout import session_part
from offload.storage.store import OffloadStore
from offload.web._contents import match_of
from offload.web._titles import newest_first

# Of the budget of one call; a page is answered in this time.
_SHARE = 0.15
_FOUND = 30


class FoundTexts(NamedTuple):
    """The result of a search.

    Attributes:
        rows: the records with a match, each with its first one.
        searched: how many of the `total` records were searched, those of earlier parts included.
        total: how many records there are.
        unread: how many records of this part could not be read.
        why: the reason for the first of them.
        after: the key of the last record that was searched; None at the end.
    """

    rows: list[tuple[RecordInfo, dict[str, Any]]]
    searched: int
    total: int
    unread: int
    why: str
    after: str | None


def find_in_texts(
    store: OffloadStore, reader: Callable[[str], SessionReader], text: str, after: str
) -> FoundTexts:
    """Search the records of all sessions for a text, ignoring case, after the record with the key `after`.

    Args:
        store: the store.
        reader: returns the reader of the session with a key part.
        text: the text to find.
        after: the key of the record to continue after; "" begins at the newest.

    Raises:
        ConfigError: the text cannot be searched for, or no record has the key `after`.
        StoreError: the store cannot be listed.
    """
    pattern = compile_pattern(text, "literal", ignore_case=True)
    listed, start = newest_first(store, after)
    budget = Budget(_SHARE)
    rows: list[tuple[RecordInfo, dict[str, Any]]] = []
    unread, why = 0, ""
    for number, info in enumerate(listed[start:], start + 1):
        try:
            found = _first(reader(session_part(info.key)), info, pattern, budget)
        except BudgetExceeded:
            # A record that takes a whole budget is not searched again.
            is_too_long = number == start + 1
            last = number if is_too_long else number - 1
            after_last = listed[last - 1].key if last < len(listed) else None
            why = why or "it takes too long"
            return FoundTexts(rows, last, len(listed), unread + is_too_long, why, after_last)
        except OffloadError as error:
            unread, why = unread + 1, why or str(error)
            continue
        rows += [found] if found is not None else []
        if len(rows) == _FOUND and number < len(listed):
            return FoundTexts(rows, number, len(listed), unread, why, info.key)
    return FoundTexts(rows, len(listed), len(listed), unread, why, None)


def _first(
    reader: SessionReader, info: RecordInfo, pattern: Pattern, budget: Budget
) -> tuple[RecordInfo, dict[str, Any]] | None:
    """Return a record with its title and its first match, None without one."""
    budget.check()
    record = reader.open(info)
    offset, chunks = record.content.chunks_from(0)
    span = next(Search(pattern, 0, budget.check).find(budget.metered(chunks), offset=offset), None)
    if span is None:
        return None
    [titled] = reader.catalog.completed([info])
    return titled, match_of(record.content, span)

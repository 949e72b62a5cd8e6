"""The requests of a session's journal, read once and then as they are added."""

from __future__ import annotations

import time

from offload.errors import StoreError, unexpected
from offload.reading.evidence._requests import Requests
from offload.records.journal.format import JournalEntry
from offload.records.journal.reader import Journal
from offload.records.session.reader import SessionReader

# The entries that are read at once.
_GROUP = 32


class JournalRequests:
    """Reads the requests of one session, and later those that were added."""

    def __init__(self, reader: SessionReader) -> None:
        self._store, self._session = reader.store, reader.name
        self._clear()

    def _clear(self) -> None:
        self._requests = Requests()
        self._read: list[JournalEntry] = []

    def requests(self, at: int | None, deadline: float) -> tuple[Requests | None, str | None]:
        """Return the requests up to number `at`, by default the last one, and why some are missing.

        There are none without a journal, or if it cannot be read up to there until a time of the monotonic
        clock.

        Raises:
            ConfigError: `at` is not a number.
            NotFoundError: there is no such request.
            StoreError: the store failed.
        """
        journal = Journal(self._store, self._session)
        sent = [place for place, entry in enumerate(journal.entries) if entry.sent is not None]
        if at is None and not sent:
            return None, None
        place = sent[-1] if at is None else journal.place(at)
        if journal.entries[: len(self._read)] != self._read or len(self._read) > place + 1:
            self._clear()
        try:
            journal.needed(place)
            if not self._follow(journal, place + 1, deadline):
                return None, "not read yet: repeat the check"
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 # an entry may have anything
            self._clear()
            return None, str(unexpected(error))
        return self._requests, self._requests.left_out

    def _follow(self, journal: Journal, end: int, deadline: float) -> bool:
        """Take over the entries up to an index that are new; return whether there was time for all."""
        for start in range(len(self._read), end, _GROUP):
            if time.monotonic() > deadline:
                return False
            for change in journal.changes(journal.entries[start : min(start + _GROUP, end)]):
                if self._read and not (change.entry.kind == "begun" or change.entry.follows(self._read[-1])):
                    self._requests.left_out = "entries were deleted"
                self._requests.add(change)
                self._read.append(change.entry)
        return True

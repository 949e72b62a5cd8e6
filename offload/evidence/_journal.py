"""The requests of a session's journal, read once and then as they are added."""

from __future__ import annotations

import time
from collections.abc import Sequence

from offload.errors import StoreError, unexpected
from offload.evidence._requests import Requests
from offload.journal.chain import list_entries, needed, place_of_request
from offload.journal.format import JournalEntry
from offload.journal.reader import changes_of
from offload.session.reader import SessionReader

# The entries that are read at once.
_GROUP = 32


class JournalReader:
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
        entries = list_entries(self._store, self._session)
        if at is not None:
            place = place_of_request(entries, self._session, at)
        else:
            place = max((n for n, entry in enumerate(entries) if entry.sent is not None), default=-1)
        if place < 0:
            return None, None
        entries = entries[: place + 1]
        if entries[: len(self._read)] != self._read:
            self._clear()
        try:
            needed(entries, place, self._session)
            if not self._follow(entries, deadline):
                return None, "not read yet: repeat the check"
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 # an entry may have anything
            self._clear()
            return None, str(unexpected(error))
        return self._requests, self._requests.left_out

    def _follow(self, entries: Sequence[JournalEntry], deadline: float) -> bool:
        """Take over the entries that are new; return whether there was time for all."""
        for start in range(len(self._read), len(entries), _GROUP):
            if time.monotonic() > deadline:
                return False
            for change in changes_of(self._store, entries[start : start + _GROUP]):
                if self._read and not _follows(self._read[-1], change.entry):
                    self._requests.left_out = "entries were deleted"
                self._requests.add(change)
                self._read.append(change.entry)
        return True


def _follows(before: JournalEntry, entry: JournalEntry) -> bool:
    return entry.kind == "begun" or before.number in (entry.number - 1, entry.base)

"""The accounts of the sessions of a store, for its pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from offload.errors import OffloadError, StoreError
from offload.reading.timeline import Timeline
from offload.records.session.reader import SessionReader
from offload.replay import Account, replay_journal
from offload.storage.layout import JOURNAL
from offload.web._timeline import check_size

# A longer journal takes a second to read, so it is read only if a visitor asks for its account.
MANY_ENTRIES = 1000


class Accounts:
    """The accounts of the sessions of a store, each kept until its journal grows.

    Args:
        reader_of: returns the reader of the session with a key part.
    """

    def __init__(self, reader_of: Callable[[str], SessionReader]) -> None:
        self._reader_of = reader_of
        self._known: dict[str, tuple[str, Account | str]] = {}

    def of(self, part: str, last: str) -> Account | str:
        """Return the account of a session whose journal ends with the key `last`, or why there is none."""
        known = self._known.get(part)
        if known is None or known[0] != last:
            try:
                known = last, self._account(part)
            except StoreError as error:
                return str(error)  # the store may work again
            except OffloadError as error:
                known = last, str(error)
            self._known[part] = known
        return known[1]

    def _account(self, part: str) -> Account:
        reader = self._reader_of(part)
        check_size(Timeline(reader.store, reader.name))
        return replay_journal(reader)

    def within(self, lasts: Mapping[str, str], seconds: float) -> dict[str, Account | str]:
        """Return the accounts of sessions by key part, those that are known or can be read soon enough."""
        deadline = time.monotonic() + seconds
        return {
            part: self.of(part, last)
            for part, last in lasts.items()
            if self._known.get(part, ("",))[0] == last or (_is_short(last) and time.monotonic() < deadline)
        }


def _is_short(last: str) -> bool:
    """Return whether the journal that ends with the key `last` is read in a moment."""
    entry = JOURNAL.match(last)
    return entry is not None and int(entry["number"]) < MANY_ENTRIES

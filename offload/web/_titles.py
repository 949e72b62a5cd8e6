"""The titles of records of all sessions, each read once, and the search for their words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from offload.errors import ConfigError, EncryptionError
from offload.records.index.objects import list_sessions
from offload.records.record import RecordInfo
from offload.records.record.titles import Label, has_words
from offload.records.session.titles import read_labels
from offload.storage.store import OffloadStore

_GROUP = 125
# Each takes about 200 bytes.
_KEPT = 200_000
# A search reads unknown titles for at least so long.
_SECONDS = 0.03


class TitleSearch(NamedTuple):
    """The result of a search: the records, and how many of the `total` were searched.

    `after` is the key to continue after if there were too many to show.
    """

    infos: list[RecordInfo]
    searched: int
    total: int
    after: str | None

    @property
    def is_cut_off(self) -> bool:
        """Whether there was no time for more."""
        return self.after is None and self.searched < self.total


def newest_first(store: OffloadStore, after: str) -> tuple[list[RecordInfo], int]:
    """Return the records of all sessions, newest first, and the number of those up to the key `after`.

    Raises `ConfigError` if no record has that key; "" is none.
    """
    listed = [info for each in list_sessions(store) for info in each.entries()]
    listed.sort(key=lambda info: (-info.created_at, info.key))
    start = next((n for n, info in enumerate(listed, 1) if info.key == after), 0)
    if after and not start:
        raise ConfigError(f"no record {after[:80]!r} to continue after; search again")
    return listed, start


class Titles:
    """The titles of a store. A record is written once, so each title is read once."""

    def __init__(self, store: OffloadStore) -> None:
        self._store = store
        self._known: dict[str, Label] = {}
        # By key, the errors of records that do not fit the key of the store.
        self.unfit: dict[str, EncryptionError] = {}

    def of(self, infos: Iterable[RecordInfo]) -> list[RecordInfo]:
        """Return entries with their titles; one that does not fit the store's key has none, see `unfit`.

        Raises `StoreError` if the store fails.
        """
        infos, known = list(infos), self._known
        unknown = [info for info in infos if info.key not in known]
        for start in range(0, len(unknown), _GROUP):
            for key, label in read_labels(self._store, unknown[start : start + _GROUP]).items():
                if isinstance(label, EncryptionError):
                    self.unfit[key] = label
                known[key] = label if isinstance(label, Label) else Label()
        if len(known) > _KEPT:
            self._known, self.unfit = {}, {}
        return [
            msgspec.structs.replace(
                info, title=known[info.key].title or None, agent_name=known[info.key].agent or None
            )
            for info in infos
        ]

    def find(self, words: Sequence[str], limit: int, after: str) -> TitleSearch:
        """Search records of all sessions, newest first, for titles that have all `words`.

        Unknown titles are read for a short time. The same search again continues where this one ended.

        Args:
            words: those of `words_of_query`.
            limit: the search ends after so many records.
            after: the key of the record to continue after; "" begins at the newest.

        Raises:
            ConfigError: no record has the key `after`.
            StoreError: the store failed.
        """
        began = time.monotonic()
        listed, start = newest_first(self._store, after)
        # Each part of the search lists the store again, so it reads for at least half as long as that took.
        now = time.monotonic()
        deadline = now + max(_SECONDS, (now - began) / 2)
        found: list[RecordInfo] = []
        for place in range(start, len(listed), _GROUP):
            group = listed[place : place + _GROUP]
            is_known = all(info.key in self._known for info in group)
            for number, info in enumerate(self.of(group), place + 1):
                found += [info] * has_words(info.title, words)
                if len(found) == limit:
                    return TitleSearch(found, number, len(listed), info.key)
            searched = place + len(group)
            if not is_known and searched < len(listed) and time.monotonic() > deadline:
                # Of more titles than are kept, the first ones would be read again and again.
                last = group[-1].key if len(listed) > _KEPT else None
                return TitleSearch(found, searched, len(listed), last)
        return TitleSearch(found, len(listed), len(listed), None)

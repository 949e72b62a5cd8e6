"""The titles of records of all sessions, each read once, and the search for their words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from offload.errors import ConfigError
from offload.index import SessionObjects, list_sessions
from offload.record import RecordInfo
from offload.session import read_titles
from offload.store import OffloadStore
from offload.titles import has_words

_GROUP = 250
# Each takes about 200 bytes.
_KEPT = 200_000
_SECONDS = 10.0


def entries_of(objects: SessionObjects) -> list[RecordInfo]:
    """Return one entry per ref of a session, damaged ones included; of several keys the first counts."""
    infos = sorted((*objects.records, *objects.torn), key=lambda info: info.key, reverse=True)
    return list({info.ref: info for info in infos}.values())


class Titles:
    """The titles of a store. A record is written once, so each title is read once."""

    def __init__(self, store: OffloadStore) -> None:
        self._store = store
        self._known: dict[str, str | None] = {}

    def of(self, infos: Iterable[RecordInfo]) -> list[RecordInfo]:
        """Return entries with their titles. Raises `StoreError` if the store fails."""
        infos, known = list(infos), self._known
        unknown = [info for info in infos if info.key not in known]
        for start in range(0, len(unknown), _GROUP):
            known |= read_titles(self._store, unknown[start : start + _GROUP])
        if len(known) > _KEPT:
            self._known = {}
        return [msgspec.structs.replace(info, title=known[info.key]) for info in infos]

    def find(self, words: Sequence[str], limit: int, after: str) -> tuple[list[RecordInfo], str | None]:
        """Return records of all sessions whose title has all `words`, newest first.

        Args:
            words: those of `words_of_query`.
            limit: the search ends after so many records.
            after: the key of the record to continue behind; "" for none.

        Returns:
            The records, and the key to continue behind if there may be more.

        Raises:
            ConfigError: no record has the key `after`.
            StoreError: the store failed.
        """
        listed = [info for each in list_sessions(self._store) for info in entries_of(each)]
        infos = iter(sorted(listed, key=lambda info: (-info.created_at, info.key)))
        if after and not any(info.key == after for info in infos):
            raise ConfigError(f"no record {after[:80]!r} to continue behind; search again")
        deadline = time.monotonic() + _SECONDS
        found: list[RecordInfo] = []
        while group := list(islice(infos, _GROUP)):
            for info in self.of(group):
                found += [info] * has_words(info.title, words)
                if len(found) == limit:
                    return found, info.key
            if time.monotonic() > deadline:
                return found, group[-1].key
        return found, None

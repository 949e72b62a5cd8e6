"""The search of the texts of all sessions, the last stored one first, some sessions at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from offload.errors import ConfigError, OffloadError
from offload.reading.search import SearchResult
from offload.reading.search.index import SessionIndex
from offload.records.index.objects import list_sessions
from offload.storage.store import OffloadStore

# A page begins no further session after so long, or with so many passages.
_SECONDS, _FOUND = 3.0, 30
_PER_SESSION = 5


class FoundTexts(NamedTuple):
    """The passages of some sessions.

    Attributes:
        results: those of each session that has any, by its key part.
        searched: how many of the `total` sessions were searched, those of earlier parts included.
        total: how many sessions there are.
        unread: why a session, or a record of one, was not searched as a whole.
        after: the key part of the last session that was searched; None at the end.
    """

    results: dict[str, SearchResult]
    searched: int
    total: int
    unread: list[str]
    after: str | None

    @property
    def passages(self) -> int:
        return sum(len(result.passages) for result in self.results.values())


def find_in_texts(
    store: OffloadStore, index: Callable[[str], SessionIndex], query: str, after: str
) -> FoundTexts:
    """Search the sessions behind the one with the key part `after` as their own pages do.

    `index` returns the index of the session with a key part; "" for `after` begins with the last stored one.

    Raises:
        ConfigError: no word to search for, or no session with the key part `after`.
        StoreError: the store cannot be listed.
    """
    newest = {
        each.part: max(i.created_at for i in each.entries())
        for each in list_sessions(store)
        if each.entries()
    }
    parts = sorted(newest, key=lambda part: (-newest[part], part))
    if after and after not in newest:
        raise ConfigError(f"no session {after[:80]!r} to continue after; search again")
    deadline = time.monotonic() + _SECONDS
    found = FoundTexts({}, parts.index(after) + 1 if after else 0, len(parts), [], None)
    for part in parts[found.searched :]:
        if found.after is not None and (time.monotonic() > deadline or found.passages >= _FOUND):
            return found
        found = found._replace(searched=found.searched + 1, after=part)
        try:
            result = index(part).search(query, limit=_PER_SESSION)
        except ConfigError:
            raise
        except OffloadError as error:
            found.unread.append(str(error))
            continue
        found.unread.extend(f"{ref}: {why}" for ref, why in result.unsearched.items())
        found.results.update({part: result} if result.passages else {})
    return found._replace(after=None)

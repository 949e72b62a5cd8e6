"""A listing of a session, from which pages are cut, and which is used again for a while if it is large."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import NamedTuple

from offload.errors import ConfigError, InvalidKeyError
from offload.index._entries import parse_key
from offload.layout import decode_part, item_type_of, name_of, ref_of, tool_part
from offload.record import RecordInfo
from offload.store import StoredObject

# One page of a listing holds as many; a session of no more is listed each time anew.
LARGE = 1000
# A listing serves 100 times as long as it took, so that at most 1 % of the time goes into listing.
_SERVES = 100
MAX_AGE = 600.0


class SessionListing(NamedTuple):
    """The records that a complete listing of a session showed, oldest first; of a ref one, none collected.

    Attributes:
        began: when the listing began, in seconds since the epoch.
        took: how many seconds it took.
        names: the records' keys without the part that all of the session begin with.
        sizes: the stored size of each, in bytes.
        times: when each was stored, in seconds since the epoch by the store's clock.
    """

    began: float
    took: float
    names: Sequence[str]
    sizes: Sequence[int]
    times: Sequence[float]

    @classmethod
    def of(cls, infos: Sequence[RecordInfo], began: float, took: float) -> SessionListing:
        """Return the listing that showed `infos`."""
        names = [name_of(info.key) for info in infos]
        return cls(began, took, names, [i.stored_bytes for i in infos], [i.created_at for i in infos])


class Page(NamedTuple):
    """Entries of a session, newest first.

    Attributes:
        infos: the entries.
        start: how many match the query and come before them.
        total: how many match the query at all.
    """

    infos: Sequence[RecordInfo]
    start: int
    total: int


class CachedListing:
    """A listing in memory; of its names a page parses no more than it shows.

    Args:
        listing: what was listed.
        prefix: what the keys of the session begin with.
    """

    def __init__(self, listing: SessionListing, prefix: str) -> None:
        self.began = listing.began
        self._took = listing.took
        self._prefix = prefix
        # What was removed leaves an empty name, so that a place stays one.
        self._names = list(listing.names)
        self._sizes = list(listing.sizes)
        self._times = list(listing.times)
        # The places of what matches a type and a tool, oldest first, for those that were asked for.
        self._matching: dict[tuple[str | None, str | None], list[int]] = {}

    def is_fresh(self, now: float) -> bool:
        """Tell whether the listing may still be used."""
        return is_fresh(now - self.began, self._took)

    def objects(self) -> Iterator[StoredObject]:
        """Yield what the store listed."""
        return (self._object(place) for place, name in enumerate(self._names) if name)

    def add(self, info: RecordInfo) -> None:
        """Add a record as the newest one, unless it is there; another key of its ref makes room."""
        name = name_of(info.key)
        known = self._place_of.get(info.ref)
        if known is not None and self._names[known] == name:
            return
        if known is not None:
            self._remove(known)
        place = self._place_of[info.ref] = len(self._names)
        self._names.append(name)
        self._sizes.append(info.stored_bytes)
        self._times.append(info.created_at)
        for query, places in self._matching.items():
            if _matches(name, *query):
                places.append(place)

    def drop(self, key: str) -> None:
        """Remove a record that is gone."""
        name = name_of(key)
        place = self._place_of.get(ref_of(name))
        if place is not None and self._names[place] == name:
            self._remove(place)

    def page(self, item_type: str | None, tool: str | None, limit: int, after: str | None) -> Page:
        """Return entries, newest first.

        Args:
            item_type: only this type; None for all.
            tool: only this tool, by its name; None for all.
            limit: how many at most.
            after: the ref that they come after; None for the first.

        Raises:
            ConfigError: the ref to go on after is not among the entries.
        """
        places = self._matching.get((item_type, tool))
        if places is None:
            places = [n for n, name in enumerate(self._names) if _matches(name, item_type, tool)]
            self._matching[item_type, tool] = places
        end = len(places) if after is None else self._end_before(places, after)
        shown = [parse_key(self._object(n)) for n in reversed(places[max(0, end - limit) : end])]
        infos = [info for info in shown if isinstance(info, RecordInfo)]
        return Page(infos, len(places) - end, len(places))

    def _end_before(self, places: Sequence[int], ref: str) -> int:
        place = self._place_of.get(ref, -1)
        end = bisect_left(places, place)
        if places[end : end + 1] != [place]:
            raise ConfigError(f"invalid cursor {ref[:40]!r}; omit it to start over")
        return end

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {ref_of(name): place for place, name in enumerate(self._names) if name}

    def _object(self, place: int) -> StoredObject:
        return StoredObject(self._prefix + self._names[place], self._sizes[place], self._times[place])

    def _remove(self, place: int) -> None:
        del self._place_of[ref_of(self._names[place])]
        self._names[place] = ""
        for places in self._matching.values():
            found = bisect_left(places, place)
            if places[found : found + 1] == [place]:
                del places[found]


def is_fresh(age: float, took: float) -> bool:
    """Tell whether a listing may still be used: `age` and what it took are in seconds."""
    return 0 <= age <= min(_SERVES * took, MAX_AGE)


def _matches(name: str, item_type: str | None, tool: str | None) -> bool:
    """Tell whether the name is a record's, of this type and tool."""
    if name.count("~") < 3:  # noqa: PLR2004 # ref, type, tool and the rest
        return False
    is_of_type = item_type is None or item_type_of(name) == item_type
    return is_of_type and (tool is None or _tool_of(tool_part(name)) == tool)


@lru_cache(maxsize=1024)
def _tool_of(part: str) -> str | None:
    with suppress(InvalidKeyError):
        return decode_part(part) if part else None
    return None

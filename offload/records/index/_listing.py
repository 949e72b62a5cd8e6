"""The listing of a session: pages of it, and how long the listing of a large session is reused."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import msgspec

from offload.base.threads.locks import cached
from offload.errors import ConfigError, InvalidKeyError
from offload.records.index.entries import parse_key
from offload.records.record import RecordInfo
from offload.records.record.retrieval import is_answer
from offload.records.record.titles import Label, has_words
from offload.storage.layout import decode_part, item_type_of, name_of, ref_of, tool_part
from offload.storage.store import StoredObject

# The size of a listing page on S3; a session that fits is listed again each time.
LARGE = 1000
# A listing is reused for 100 times as long as it took, so that listing takes at most 1 % of the time.
_REUSE_FACTOR = 100
MAX_AGE = 600.0


class Page(NamedTuple):
    """Entries of a session, newest first; `start` of the `total` matching entries are before them."""

    infos: Sequence[RecordInfo]
    start: int
    total: int


class Candidates(NamedTuple):
    """Entries that a search by title has to look at, newest first, each with its number from 1.

    `start` of the `total` entries precede the searched part.
    """

    start: int
    total: int
    entries: Iterator[tuple[int, RecordInfo]]


class SessionListing(msgspec.Struct, eq=False, dict=True):
    """One record per ref from a complete listing of a session, oldest first.

    The listing `began` at a time since the epoch and `took` so many seconds. `names` are the keys of the
    records without the `prefix`; the name of a removed one is empty, so that the indexes of the others do not
    change. `sizes` and `times` are those of the stored objects.
    """

    began: float
    took: float
    prefix: str
    names: list[str]
    sizes: list[int]
    times: list[float]
    # Item type and tool of a query → indexes of its matches, oldest first.
    _matching: dict[tuple[str | None, str | None], list[int]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, infos: Sequence[RecordInfo], began: float, took: float, prefix: str) -> SessionListing:
        names = [name_of(info.key) for info in infos]
        return cls(began, took, prefix, names, [i.stored_bytes for i in infos], [i.created_at for i in infos])

    def objects(self) -> Iterator[StoredObject]:
        return (self._object(place) for place, name in enumerate(self.names) if name)

    def add(self, info: RecordInfo) -> None:
        """Add a record as the newest; it replaces another key of its ref."""
        name, known = name_of(info.key), self._place_of.get(info.ref)
        if known is not None:
            if self.names[known] == name:
                return
            self._remove(known)
        place = self._place_of[info.ref] = len(self.names)
        self.names.append(name)
        self.sizes.append(info.stored_bytes)
        self.times.append(info.created_at)
        for query, places in self._matching.items():
            if _matches(name, *query):
                places.append(place)

    def drop(self, key: str) -> None:
        name = name_of(key)
        place = self._place_of.get(ref_of(name))
        if place is not None and self.names[place] == name:
            self._remove(place)

    def page(self, item_type: str | None, tool: str | None, limit: int, after: str | None) -> Page:
        """Return entries, newest first; see `Catalog.page`."""
        places, end = self._places(item_type, tool, after)
        infos = self._infos(reversed(places[max(0, end - limit) : end]))
        return Page(infos, len(places) - end, len(places))

    def candidates(
        self,
        words: Sequence[str],
        labels: Mapping[str, Label],
        item_type: str | None,
        tool: str | None,
        after: str | None,
    ) -> Candidates:
        """Return entries by title; see `Catalog.candidates`. `labels` are the known ones, by name."""
        places, end = self._places(item_type, tool, after)
        start, searched = len(places) - end, places[:end][::-1]

        def entries() -> Iterator[tuple[int, RecordInfo]]:
            for number, place in enumerate(searched, start + 1):
                label = labels.get(self.names[place])
                if label is None or has_words(label.title, words):
                    for info in self._infos([place]):
                        yield number, info

        return Candidates(start, len(places), entries())

    def _places(self, item_type: str | None, tool: str | None, after: str | None) -> tuple[list[int], int]:
        """Return the indexes of the entries of a type and tool, and how many of them are before `after`."""
        places = self._matching.get((item_type, tool))
        if places is None:
            places = [n for n, name in enumerate(self.names) if _matches(name, item_type, tool)]
            self._matching[item_type, tool] = places
        return places, len(places) if after is None else self._end_before(places, after)

    def _infos(self, places: Iterable[int]) -> list[RecordInfo]:
        entries = [parse_key(self._object(place)) for place in places]
        return [info for info in entries if isinstance(info, RecordInfo)]

    def _end_before(self, places: Sequence[int], ref: str) -> int:
        place = self._place_of.get(ref, -1)
        end = bisect_left(places, place)
        if places[end : end + 1] != [place]:
            raise ConfigError(f"invalid cursor {ref[:40]!r}; omit it to start over")
        return end

    @cached
    def _place_of(self) -> dict[str, int]:
        return {ref_of(name): place for place, name in enumerate(self.names) if name}

    def _object(self, place: int) -> StoredObject:
        return StoredObject(self.prefix + self.names[place], self.sizes[place], self.times[place])

    def _remove(self, place: int) -> None:
        del self._place_of[ref_of(self.names[place])]
        self.names[place] = ""
        for places in self._matching.values():
            index = bisect_left(places, place)
            if places[index : index + 1] == [place]:
                del places[index]


def is_fresh(age: float, took: float) -> bool:
    """Return whether a listing may still be used, by its age and duration in seconds."""
    return 0 <= age <= min(_REUSE_FACTOR * took, MAX_AGE)


def _matches(name: str, item_type: str | None, tool: str | None) -> bool:
    if name.count("~") < 3:  # noqa: PLR2004 # ref, type, tool and the rest
        return False
    type_of, tool_of = item_type_of(name), _tool_of(tool_part(name))
    # An answer of a retrieval tool repeats other records, so only a list of its tool has it.
    is_shown = tool_of == tool if tool is not None else not is_answer(type_of, tool_of)
    return is_shown and item_type in (None, type_of)


@lru_cache(maxsize=1024)
def _tool_of(part: str) -> str | None:
    with suppress(InvalidKeyError):
        return decode_part(part) if part else None
    return None

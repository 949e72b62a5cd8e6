"""The index of a session's texts: an FTS5 table in memory that each search completes."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from offload.base.text import decode_text
from offload.base.threads.locks import NO_FORK, Lock, renew_in_child
from offload.errors import ConfigError, OffloadError, StoreError, check_number
from offload.reading.search._passages import Cut, cut_passages, why_unsearchable
from offload.reading.search._results import DAMAGED, FAILED, PASSING, Passage, SearchResult, reason_of
from offload.reading.search._words import indexed_text, match_expression
from offload.records.codec.base import StoredRecord
from offload.records.index.derived import Packs
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader

# The most characters of one record, and of all, that are indexed; and the seconds that one search indexes.
MAX_RECORD_CHARS, MAX_CHARS = 4_000_000, 40_000_000
_SECONDS = 8.0
# The records that are opened at once.
_GROUP = 64
# The most passages of one record in a result.
_PER_RECORD = 2
# Objects by key.
_Bodies = Mapping[str, bytes]
_TABLE = (
    """create virtual table passages using fts5(text, content='', tokenize="unicode61 remove_diacritics 2")"""
)
_FIND = "select rowid, bm25(passages) from passages where passages match ?"


class _IndexedPassage(NamedTuple):
    """A passage in the index."""

    ref: str
    start: int
    chars: int
    line: int
    end_line: int


class SessionIndex:
    """Finds passages in the records that a session may read.

    Records are never rewritten, so each is read once, at the first search after it was stored. The index is
    in memory only. A search that read several records of a store on another machine stores them as a pack,
    for the next process.
    """

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Start an empty index; a forked child does, since a parent's thread may have been using this one."""
        self._lock = Lock()
        self._clear()

    def _clear(self) -> None:
        try:
            with NO_FORK:
                self._database = sqlite3.connect(":memory:", check_same_thread=False)
                self._database.execute(_TABLE)
        except sqlite3.OperationalError as error:
            raise ConfigError(f"this Python's SQLite has no FTS5, which search needs: {error}") from None
        self._indexed: list[_IndexedPassage] = []
        # By key: how many characters of an indexed record are left out; why a record is not indexed.
        self._left_out: dict[str, int] = {}
        self._unreadable: dict[str, str] = {}
        self._chars = 0
        self._packs = Packs(self._reader.store, self._reader.name)

    @property
    def bytes(self) -> int:
        """The memory of the table, in bytes."""
        sizes = (
            self._database.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        with NO_FORK:
            return int(prod(sizes))

    def search(self, query: str, *, limit: int = 10, refs: Sequence[str] | None = None) -> SearchResult:
        """Return the passages that fit a query best, the best first, at most two of one record.

        The order depends on the texts alone: by score, then by id and line. Reads the records that are new
        since the last search, many at once.

        Args:
            query: words, identifiers, paths, in any order; a passage needs only some of them.
            limit: the most passages.
            refs: only the records with these ids; None searches all but the answers of retrieval tools.

        Raises:
            ConfigError: no word in the query, or a `limit` below 1.
            StoreError: the store failed to list the session, or failed several times.
        """
        check_number("limit", limit, 1)
        if not isinstance(query, str):
            raise ConfigError(f"the text to search for must be a str, got {type(query).__name__}")
        expression = match_expression(query)
        if not expression:
            raise ConfigError(f"no letter or digit to search for in {query[:60]!r}")
        with self._lock:
            known = {info.ref: info for info in self._reader.catalog.recent()}
            infos = {
                ref: info
                for ref, info in known.items()
                if (ref in refs if refs is not None else not info.is_answer)
            }
            there = {info.key for info in known.values()}
            if self._left_out.keys() - there or self._reader.lost_links(self._left_out):
                self._clear()  # So that deleted texts do not count, as in a new process.
            self._complete([*infos.values()][::-1])
            self._packs.write(there)
            with NO_FORK:
                found = self._database.execute(_FIND, [expression]).fetchall()
            hits = [(score, self._indexed[number - 1]) for number, score in found]
        unsearched = {ref: why for ref, info in infos.items() if (why := self._why_not(info))}
        ranked = sorted((score, hit) for score, hit in hits if hit.ref in infos)
        passages = [*islice(self._passages(ranked, infos, unsearched), min(limit, len(hits)))]
        searched = [info for info in infos.values() if info.key in self._left_out]
        chars = sum(info.chars - self._left_out[info.key] for info in searched)
        return SearchResult(passages, len(searched), chars, unsearched)

    def _why_not(self, info: RecordInfo) -> str | None:
        """Return why a record, or a part of it, is not in the index; None if all of it is."""
        left_out = self._left_out.get(info.key)
        if left_out:
            return f"only the first {info.chars - left_out:,} of {info.chars:,} characters were searched"
        return (
            self._unreadable.get(info.key, "not searched yet: repeat the search")
            if left_out is None
            else None
        )

    def _passages(
        self,
        ranked: Iterable[tuple[float, _IndexedPassage]],
        infos: Mapping[str, RecordInfo],
        unsearched: dict[str, str],
    ) -> Iterator[Passage]:
        shown = Counter[str]()
        for score, hit in ranked:
            if shown[hit.ref] >= _PER_RECORD:
                continue
            shown[hit.ref] += 1
            try:
                record = self._reader.read(hit.ref)
                text = record.content.text(hit.start, hit.start + hit.chars)
            except OffloadError as error:
                # A store that fails again would take as long for each of the others.
                if isinstance(error, StoreError) and FAILED in unsearched.values():
                    raise
                unsearched[hit.ref] = reason_of(error)
                continue
            info = infos[hit.ref]
            yield Passage(
                session=self._reader.name,
                ref=hit.ref,
                title=record.title or info.tool_name or info.item_type,
                start=hit.start,
                start_line=hit.line,
                end_line=hit.end_line,
                text=text,
                score=-score,
                is_redacted=record.is_redacted,
            )

    def _complete(self, infos: Sequence[RecordInfo]) -> None:
        """Index the records that are not indexed yet, for as long as there is time and room."""
        deadline = time.monotonic() + _SECONDS
        self._unreadable = {key: why for key, why in self._unreadable.items() if why not in PASSING}
        known = self._left_out.keys() | self._unreadable.keys()
        new = [info for info in infos if info.key not in known]
        packed = self._packs.fetch([info.key for info in new])
        self._index(new, packed, deadline)
        # A fault of a pack need not be one of the record.
        doubtful = [info for info in new if info.key in packed and self._unreadable.get(info.key) == DAMAGED]
        for info in doubtful:
            del self._unreadable[info.key]
        self._index(doubtful, {}, deadline)

    def _index(self, infos: Sequence[RecordInfo], packed: _Bodies, deadline: float) -> None:
        """Index records; packs have the objects of some."""
        for start in range(0, len(infos), _GROUP):
            if time.monotonic() > deadline:
                return
            group = infos[start : start + _GROUP]
            bodies = {info.key: packed[info.key] for info in group if info.key in packed}
            for info, record in self._reader.open_many(group, bodies):
                if isinstance(record, OffloadError):
                    self._note(info, record)
                elif time.monotonic() < deadline:
                    self._add(info, record)
            self._packs.note({key: body for key, body in bodies.items() if key in self._left_out})

    def _add(self, info: RecordInfo, record: StoredRecord) -> None:
        room = min(MAX_RECORD_CHARS, MAX_CHARS - self._chars)
        cuts: list[Cut] = []
        try:
            content, chars = record.content, 0
            for cut in cut_passages(map(decode_text, content.chunks_from(0)[1])):
                if not chars and (why := why_unsearchable(cut.text)):
                    self._unreadable[info.key] = why
                    return
                if chars + len(cut.text) > room:
                    break
                cuts.append(cut)
                chars += len(cut.text)
        except OffloadError as error:
            self._note(info, error)
            return
        if info.chars and not chars:
            self._unreadable[info.key] = f"no room: {MAX_CHARS:,} characters of newer records were searched"
            return
        first = len(self._indexed) + 1
        texts = ((first + n, indexed_text(cut.text)) for n, cut in enumerate(cuts))
        with NO_FORK:
            self._database.executemany("insert into passages(rowid, text) values (?, ?)", texts)
        self._indexed += [
            _IndexedPassage(info.ref, cut.start, len(cut.text), cut.line, _end_line(cut)) for cut in cuts
        ]
        self._left_out[info.key] = content.chars - chars
        self._chars += chars

    def _note(self, info: RecordInfo, error: OffloadError) -> None:
        """Note why a record is not indexed. A later search tries again after a failure of the store."""
        self._unreadable[info.key] = reason_of(error)


def _end_line(cut: Cut) -> int:
    return cut.line + cut.text.count("\n", 0, len(cut.text) - 1)

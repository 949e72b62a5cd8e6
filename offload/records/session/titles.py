"""Titles of records: one bulk read of the unknown ones, and a search by words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from offload.errors import EncryptionError, OffloadError, StoreError
from offload.records.codec import find_codec
from offload.records.codec.readable import parse_sidecar
from offload.records.record import RecordInfo
from offload.records.record.titles import Label, has_words
from offload.records.session.reader import SessionReader, is_small
from offload.storage.layout import is_link, session_part, sidecar_key
from offload.storage.store import OffloadStore, get_many

# The most headers that one search reads, and the most records of one bulk read.
MAX_READS = 1_000
_GROUP = 250


class FoundTitles(NamedTuple):
    """The result of a search by title in a part of a session.

    Attributes:
        infos: the entries that match, newest first.
        start: how many of the session's `total` entries are before the part that was searched.
        end: how many entries are before the rest of the session.
        total: how many entries there are.
        last: the ref of the last entry of the part, to continue from; None if there is no rest.
    """

    infos: Sequence[RecordInfo]
    start: int
    end: int
    total: int
    last: str | None


def with_titles(reader: SessionReader, infos: Iterable[RecordInfo]) -> list[RecordInfo]:
    """Return entries with their titles; the unknown ones are read, in one bulk read.

    A damaged or missing record has none, nor has one that does not fit the key of the store: `reader.unfit`
    has its error then. Raises `StoreError` if the store fails.
    """
    infos = list(infos)
    unknown = [info for info in infos if _is_unknown(reader, info)]
    for start in range(0, len(unknown), _GROUP):
        labels = read_labels(reader.store, unknown[start : start + _GROUP], reader)
        reader.unfit |= {k: error for k, error in labels.items() if isinstance(error, EncryptionError)}
        reader.catalog.learn_labels({k: label for k, label in labels.items() if isinstance(label, Label)})
    return reader.catalog.completed(infos)


def why_untitled(unfit: Mapping[str, EncryptionError], infos: Iterable[RecordInfo]) -> str:
    """Return the first error by key of `unfit` that belongs to one of some entries, or ""."""
    return next((str(unfit[info.key]) for info in infos if info.key in unfit), "")


def _is_unknown(reader: SessionReader, info: RecordInfo) -> bool:
    return not (reader.catalog.knows_title(info) or info.key in reader.unfit)


def find_titles(
    reader: SessionReader,
    words: Sequence[str],
    *,
    item_type: str | None = None,
    tool: str | None = None,
    limit: int,
    after: str | None = None,
) -> FoundTitles:
    """Search a session, newest first, for titles with all `words`; read at most 1,000 headers.

    Only entries of `item_type` and `tool` count, after that of the ref `after`; the search ends after `limit`
    matches. Raises `ConfigError` if `after` is not among the entries.
    """
    start, total, candidates = reader.catalog.candidates(words, item_type, tool, after)
    found: list[RecordInfo] = []
    reads = 0
    while group := list(islice(candidates, _GROUP)):
        reads += sum(_is_unknown(reader, info) for _, info in group)
        infos = with_titles(reader, [info for _, info in group])
        for (number, _), info in zip(group, infos, strict=True):
            found += [info] * has_words(info.title, words)
            is_last = len(found) == limit or (reads >= MAX_READS and info is infos[-1])
            if is_last and number < total:
                return FoundTitles(found, start, number, total, info.ref)
    return FoundTitles(found, start, total, total, None)


def read_labels(
    store: OffloadStore, infos: Sequence[RecordInfo], reader: SessionReader | None = None
) -> dict[str, Label | EncryptionError]:
    """Return title and agent of records of any sessions by key, from one bulk read.

    Small records are read many at once, of each large one an end. A damaged or missing record has none; of
    one that does not fit the key of the store, the error is returned. Raises `StoreError` if the store fails.

    Args:
        store: the store.
        infos: the records.
        reader: that of a session that may read all of them; the default is one of each record's own session.
    """
    parts = dict.fromkeys(session_part(info.key) for info in infos)
    readers = {part: reader or SessionReader.of_part(store, part) for part in parts}
    keys = [_header_key(info) for info in infos if is_small(info)]
    bodies = dict(zip(keys, get_many(store, keys), strict=True))
    return {info.key: _label(readers[session_part(info.key)], info, bodies) for info in infos}


def _header_key(info: RecordInfo) -> str:
    has_sidecar = not is_link(info.key) and find_codec(info.key).has_sidecar
    return sidecar_key(info.key) if has_sidecar else info.key


def _label(
    reader: SessionReader, info: RecordInfo, bodies: Mapping[str, bytes | OffloadError]
) -> Label | EncryptionError:
    key = _header_key(info)
    try:
        body = bodies.get(key)
        if isinstance(body, OffloadError):
            raise body
        if body is None or key == info.key:
            record = reader.open(info, body)
            return Label.of(record.title, record.agent)
        header = parse_sidecar(body)
    except EncryptionError as error:
        return error
    except StoreError:
        raise
    except OffloadError:
        return Label()
    is_own = header.ref == info.ref and reader.is_of(header.session)
    return Label.of(header.title, header.agent) if is_own else Label()

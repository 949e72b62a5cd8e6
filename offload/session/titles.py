"""Titles of records: one bulk read of the unknown ones, and a search by words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from offload.codec import find_codec
from offload.codec.readable import parse_sidecar
from offload.errors import EncryptionError, OffloadError, StoreError
from offload.layout import is_link, session_part, sidecar_key
from offload.record import RecordInfo
from offload.record.titles import Label, has_words
from offload.session.reader import SessionReader, is_small
from offload.store import OffloadStore, get_many

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

    A damaged or missing record has none. Raises `StoreError` if the store fails, and `EncryptionError` if a
    record does not fit its key; the catalog of the reader has the other titles then.
    """
    infos = list(infos)
    unknown = [info for info in infos if not reader.catalog.knows_title(info)]
    for start in range(0, len(unknown), _GROUP):
        _learn(reader, unknown[start : start + _GROUP])
    return reader.catalog.completed(infos)


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
        reads += sum(not reader.catalog.knows_title(info) for _, info in group)
        infos = with_titles(reader, [info for _, info in group])
        for (number, _), info in zip(group, infos, strict=True):
            found += [info] * has_words(info.title, words)
            is_last = len(found) == limit or (reads >= MAX_READS and info is infos[-1])
            if is_last and number < total:
                return FoundTitles(found, start, number, total, info.ref)
    return FoundTitles(found, start, total, total, None)


def read_labels(store: OffloadStore, infos: Sequence[RecordInfo]) -> dict[str, Label]:
    """Return title and agent of records of any sessions by key, from one bulk read.

    Small records are read many at once, of each large one an end. A damaged or missing record has none.
    Raises `StoreError` if the store fails, and `EncryptionError` if a record does not fit its key.
    """
    parts = dict.fromkeys(session_part(info.key) for info in infos)
    readers = {part: SessionReader.of_part(store, part) for part in parts}
    return _readable(_labels(store, [(readers[session_part(info.key)], info) for info in infos]))


def _learn(reader: SessionReader, infos: Sequence[RecordInfo]) -> None:
    found = _labels(reader.store, [(reader, info) for info in infos])
    reader.catalog.learn_labels({key: label for key, label in found.items() if isinstance(label, Label)})
    _readable(found)


def _readable(found: Mapping[str, Label | EncryptionError]) -> dict[str, Label]:
    """Return the labels, or raise the first error among them."""
    labels: dict[str, Label] = {}
    for key, label in found.items():
        if isinstance(label, EncryptionError):
            raise label
        labels[key] = label
    return labels


def _labels(
    store: OffloadStore, infos: Sequence[tuple[SessionReader, RecordInfo]]
) -> dict[str, Label | EncryptionError]:
    keys = [_header_key(info) for _, info in infos if is_small(info)]
    bodies = dict(zip(keys, get_many(store, keys), strict=True))
    return {info.key: _label(reader, info, bodies) for reader, info in infos}


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

"""Creating records: a new key is written once, and an existing record of the same item is adopted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from offload.errors import (
    CollisionError,
    CorruptError,
    ExistsError,
    NotFoundError,
    OffloadError,
    result_or_error,
)
from offload.records.codec.base import Encoded
from offload.records.codec.readable import parse_sidecar
from offload.records.record import Header
from offload.storage.layout import sidecar_key
from offload.storage.store import OffloadStore, put_many, put_stream


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record before it is stored."""

    key: str
    header: Header
    encoded: Encoded


def create_records(
    store: OffloadStore, records: Iterable[NewRecord], is_same: Callable[[Header, Header], bool]
) -> list[Header | OffloadError]:
    """Create the objects of each record, each sidecar before its body; return the stored headers.

    A store with bulk verbs stores the first records while `records` yields others. A sidecar whose writer was
    interrupted is adopted if it is the same. An `ExistsError` instead of a header means that the key is
    taken, perhaps by the same record; `CollisionError`, that another item has it.
    """
    outcomes: list[Header | OffloadError] = []
    in_bulk: list[int] = []

    def bodies() -> Iterator[tuple[str, bytes]]:
        for place, record in enumerate(records):
            outcome = result_or_error(_create_first, store, record, is_same)
            outcomes.append(outcome)
            if isinstance(outcome, Header) and not record.encoded.is_large:
                in_bulk.append(place)
                yield record.key, record.encoded.body

    for place, error in zip(in_bulk, put_many(store, bodies()), strict=True):
        outcomes[place] = error or outcomes[place]
    return outcomes


def _create_first(
    store: OffloadStore, record: NewRecord, is_same: Callable[[Header, Header], bool]
) -> Header:
    """Create what is not created in bulk: the sidecar and a large object, which is written in pieces.

    Raises `CorruptError` if the ref is not a draw of the item: no reader would accept such a record.
    """
    if not record.header.is_drawn():
        raise CorruptError(f"{record.key}: the id does not match the item")
    header = _create_sidecar(store, record, is_same)
    if record.encoded.is_large:
        put_stream(store, record.key, record.encoded, record.encoded.size)
    return header


def _create_sidecar(
    store: OffloadStore, record: NewRecord, is_same: Callable[[Header, Header], bool]
) -> Header:
    if record.encoded.sidecar is None:
        return record.header
    key = sidecar_key(record.key)
    try:
        store.put(key, record.encoded.sidecar)
    except ExistsError as exists:
        try:
            header = parse_sidecar(store.get(key))
        except NotFoundError:
            raise exists from None  # gc deleted it meanwhile.
        if header.session != record.header.session or not is_same(header, record.header):
            raise CollisionError(f"{key} contains the header of another item") from None
        return header
    return record.header

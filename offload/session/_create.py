"""Creating records: a new key is written once, and an existing record of the same item is adopted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offload.codec import Encoded, parse_sidecar
from offload.errors import CollisionError, ExistsError, NotFoundError, OffloadError, result_or_error
from offload.layout import sidecar_key
from offload.record import Header
from offload.store import OffloadStore, put_many


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record before it is stored."""

    key: str
    header: Header
    encoded: Encoded


def create_records(
    store: OffloadStore, records: Sequence[NewRecord], is_same: Callable[[Header, Header], bool]
) -> list[Header | OffloadError]:
    """Create the objects of each record, each sidecar before its body; return the stored headers.

    A sidecar whose writer was interrupted is adopted if it is the same. An `ExistsError` in place of a header
    means that the key is taken, perhaps by the same record; its subclass `CollisionError` that it is not.
    """
    headers = [result_or_error(_create_sidecar, store, record, is_same) for record in records]
    ready = [r for r, header in zip(records, headers, strict=True) if isinstance(header, Header)]
    if len(ready) == 1:
        # A single record may be large; it is written in pieces.
        errors = [result_or_error(ready[0].encoded.create, store, ready[0].key)]
    else:
        errors = put_many(store, [(record.key, record.encoded.body) for record in ready])
    outcomes = iter(errors)
    return [header if isinstance(header, OffloadError) else next(outcomes) or header for header in headers]


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
        if not is_same(header, record.header):
            raise CollisionError(f"{key} contains the header of another item") from None
        return header
    return record.header

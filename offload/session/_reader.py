"""Reading the records of one session: found by ref, read back or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from offload.codec import Fetch, StoredRecord, find_codec
from offload.errors import CorruptError, ExpiredError, NotFoundError, OffloadError, StoreError
from offload.index import Catalog, Tombstone, parse_key
from offload.layout import Reason, is_link, sidecar_key
from offload.locks import Recent
from offload.record import Header, RecordInfo
from offload.session._names import is_ref
from offload.store import OffloadStore, StoredObject, get_many

# A bulk read holds at most this much at once.
_BULK_RECORDS, _BULK_RECORD_BYTES = 256, 256 * 1024
# An open record holds 64 KiB, or its whole table if that is larger.
_OPEN_RECORDS = 16
# Any name fits, however it is escaped.
_LINK_BYTES = 16 * 1024
_WHY: dict[Reason, str] = {
    "expired": "its time to live was over",
    "quota": "the store was over its quota",
    "deleted": "it was deleted",
}


class Link(msgspec.Struct, frozen=True):
    """What stands under a key with the suffix `.link`: the session that shares its record of this ref."""

    session: str


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that cannot be read back.

    Attributes:
        info: its entry in the catalog.
        error: why: `CorruptError` for damaged bytes, `NotFoundError` if it vanished while it was read,
            a `StoreError` if the store could not tell.
    """

    info: RecordInfo
    error: OffloadError


class SessionReader:
    """The records of one agent conversation, to be read.

    Args:
        store: where they are kept.
        name: the session's name; any text, it becomes a key part by `offload.layout.encode_part`.
    """

    def __init__(self, store: OffloadStore, name: str) -> None:
        self.store = store
        self.name = name
        self._opened: Recent[str, StoredRecord] = Recent(_OPEN_RECORDS)
        self.catalog = Catalog(store, name)

    def find(self, ref: str) -> RecordInfo:
        """Return the entry of `ref`.

        Raises `NotFoundError`, the same for unknown and foreign ones, or `ExpiredError` if the record was
        collected.
        """
        found = self.catalog.find(ref) if is_ref(ref) else []
        if not found:
            raise self.missing(ref)
        return found[0]

    def read(self, ref: str) -> StoredRecord:
        """Open the record of `ref` for reading by range.

        The last few stay open, since a model reads page after page: what finds a place in them is then
        at hand. Records are never rewritten, so nothing that is held can be out of date.

        Raises `NotFoundError` and `CorruptError` as `find` and `open` do.
        """
        info = self.find(ref)
        record = self._opened.get(info.key)
        if record is None:
            try:
                record = self.open(info)
            except NotFoundError:
                # It was collected since it was listed, and perhaps stored again.
                info = self.find(ref)
                record = self.open(info)
        codec = find_codec(info.key)
        if codec is not None and codec.reads_ranges:
            self._opened.put(info.key, record)
        return record

    def open(self, info: RecordInfo, held: bytes | None = None) -> StoredRecord:
        """Open the record of a catalog entry for reading by range; `held` is its object, if at hand.

        Raises `NotFoundError` if it is gone, `ExpiredError` if it was collected, also while it is read;
        `CorruptError` if its structure is damaged or it is another record that was moved under this key.
        """
        if is_link(info.key):
            return self._follow(info)
        record = self._open(info, held)
        if (record.ref, record.session) != (info.ref, self.name):
            raise CorruptError(f"{info.key} holds record {record.ref} of another place")
        return record

    def load(self, info: RecordInfo) -> tuple[Header, bytes]:
        """Return the header and the whole content of a record, every checksum compared."""
        return self.load_opened(info, self.open(info))

    def load_opened(self, info: RecordInfo, record: StoredRecord) -> tuple[Header, bytes]:
        """Return what `load` does of a record that is open."""
        content = record.load()
        return _checked(record, info).header, content

    def load_many(self, infos: Sequence[RecordInfo]) -> Iterator[tuple[Header, bytes]]:
        """Yield what `load` returns for each entry, in order; small records are fetched concurrently."""
        for info, record in self.open_many(infos):
            if isinstance(record, OffloadError):
                raise record
            yield self.load_opened(info, record)

    def open_many(
        self, infos: Sequence[RecordInfo]
    ) -> Iterator[tuple[RecordInfo, StoredRecord | OffloadError]]:
        """Yield each entry with its open record, or with what `open` raises, in order.

        Small records are fetched whole and many at once; of a large one its two ends are read.
        """
        for start in range(0, len(infos), _BULK_RECORDS):
            group = infos[start : start + _BULK_RECORDS]
            bodies = get_many(self.store, [info.key for info in group if _is_small(info)])
            for info in group:
                yield info, self._opened_or_error(info, next(bodies) if _is_small(info) else None)

    def _opened_or_error(
        self, info: RecordInfo, held: bytes | OffloadError | None
    ) -> StoredRecord | OffloadError:
        if isinstance(held, StoreError):
            return held  # It was waited for once.
        try:
            record = self.open(info, held if isinstance(held, bytes) else None)
            # Both are read when they are first asked for, and may be damaged.
            _ = record.header, record.counts
        except OffloadError as error:
            return error
        return record

    def headers(self, ref: str) -> Iterator[Header]:
        """Yield the header of every record that stands under `ref`; those that cannot be read are none."""
        for info in self.catalog.find(ref, is_fresh=True) if is_ref(ref) else ():
            with suppress(NotFoundError, CorruptError):
                yield self.open(info).header

    def buried_header(self, tombstone: Tombstone) -> Header | OffloadError:
        """Return the header of a collected record that is not emptied yet; else why there is none."""
        info = parse_key(StoredObject(tombstone.key, 1, tombstone.at))
        if isinstance(info, RecordInfo):
            with suppress(NotFoundError, CorruptError):
                return self._open(info).header
        return _expired(tombstone)

    def infos(self) -> list[RecordInfo]:
        """Return the entry of every record of the session, oldest first, from a fresh listing."""
        self.catalog.load()
        return self.catalog.entries()

    def verify(self) -> Iterator[Damage]:
        """Read every object of the session whole and yield each that is damaged; one hides no other."""
        self.catalog.load()
        for info in self.catalog.objects():
            damage = self.check(info)
            if damage is not None:
                yield damage

    def check(self, info: RecordInfo) -> Damage | None:
        """Read one object whole, every checksum compared; return what is wrong with it, None if nothing is.

        Another session's record is not read: it is checked where it lies.
        """
        if is_link(info.key):
            return None
        try:
            record = self.open(info)
            for _ in record.stream():
                pass
            _checked(record, info)
        except OffloadError as error:
            return Damage(info, error)
        return None

    def missing(self, ref: str) -> NotFoundError:
        """Return why there is no record of `ref`, as far as the catalog was told."""
        tombstone = self.catalog.tombstone(ref) if is_ref(ref) else None
        if tombstone is not None:
            return _expired(tombstone)
        return NotFoundError(f"no record {str(ref)[:40]!r} in session {self.name!r}")

    def _gone(self, info: RecordInfo) -> OffloadError:
        """Return what it means that the object of an entry is not there, or that a range of it is empty."""
        self.catalog.refresh([info.ref])
        if any(i.key == info.key for i in self.catalog.known(info.ref)):
            return CorruptError(f"{info.key} is truncated")
        return self.missing(info.ref)

    def _follow(self, info: RecordInfo) -> StoredRecord:
        """Open the record of another session that was shared with this one."""
        try:
            link = msgspec.json.decode(self._fetch(info, info.key)(end=_LINK_BYTES), type=Link)
        except NotFoundError:
            self.catalog.drop(info.key)
            raise self.missing(info.ref) from None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CorruptError(f"{info.key} names no session: {error}") from error
        origin = SessionReader(self.store, link.session)
        try:
            found = origin.find(info.ref)
        except ExpiredError:
            raise
        except NotFoundError:
            raise self.missing(info.ref) from None
        if is_link(found.key):
            raise self.missing(info.ref)
        return origin.open(found)

    def _open(self, info: RecordInfo, held: bytes | None = None) -> StoredRecord:
        codec = find_codec(info.key)
        if codec is None:
            raise CorruptError(f"no codec reads {info.key}")
        sidecar = self._fetch(info, sidecar_key(info.key)) if codec.has_sidecar else None
        try:
            return codec.open(_fetch_from(held) if held else self._fetch(info, info.key), sidecar)
        except CorruptError as error:
            raise CorruptError(f"{info.key}: {error}") from error

    def _fetch(self, info: RecordInfo, key: str) -> Fetch:
        """Return what reads ranges of an object of a record, and tells when that was collected."""

        def fetch(*, start: int = 0, end: int | None = None) -> bytes:
            try:
                data = self.store.get(key, start=start, end=end)
            except NotFoundError:
                raise self._gone(info) from None
            if not data:
                # No part of a record is empty: a collector has emptied it, or it is torn.
                raise self._gone(info)
            return data

        return fetch


def _is_small(info: RecordInfo) -> bool:
    return info.stored_bytes <= _BULK_RECORD_BYTES and not is_link(info.key)


def _fetch_from(data: bytes) -> Fetch:
    def fetch(*, start: int = 0, end: int | None = None) -> bytes:
        return data[start:end]

    return fetch


def _expired(tombstone: Tombstone) -> ExpiredError:
    marked = datetime.fromtimestamp(tombstone.at, UTC)
    said = f"record {tombstone.ref!r} was collected, {_WHY[tombstone.reason]}; marked {marked:%F %T} UTC"
    return ExpiredError(said, tombstone.reason, tombstone.at)


def _checked(record: StoredRecord, info: RecordInfo) -> StoredRecord:
    if not record.header.is_drawn():
        raise CorruptError(f"{info.key}: the ref is not that of its content")
    return record

"""Copying a session: what is new goes over, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from offload.codec import parse_sidecar
from offload.errors import (
    CollisionError,
    ConfigError,
    ExistsError,
    ExpiredError,
    NotFoundError,
    OffloadError,
    StoreError,
    result_or_error,
)
from offload.index import Tombstone, parse_key, record_key
from offload.layout import (
    JOURNAL,
    PIN,
    RECORD,
    Reason,
    encode_part,
    generation_of,
    is_link,
    name_of,
    sidecar_key,
    tombstone_key,
)
from offload.record import Header, RecordInfo
from offload.session import SessionReader, check_known, check_name
from offload.store import OffloadStore, get_many, put_many
from offload.transfer._parcel import WHOLE_BYTES, VerifiedRecord, moved, pack_anew, pack_as_it_is
from offload.transfer._sharing import owner_of

# What is held at once, unless a single record is larger: that one goes over piece by piece.
_GROUP_RECORDS = 256
# A pin holds nothing that anybody reads.
_PIN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """A record that was not copied.

    Attributes:
        ref: its ref.
        key: its key in the source.
        error: why: `CorruptError` for a damaged one, `CollisionError` if its key is taken in the target,
            `NotFoundError` if it is shared by a session that has it no more.
    """

    ref: str
    key: str
    error: OffloadError


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What became of each record of a session that was copied.

    Attributes:
        session: the session's name in the target.
        copied: the refs that are new there.
        already_there: the refs that the target held before.
        failures: the records that were not copied, each with its error.
    """

    session: str
    copied: list[str] = field(default_factory=list)
    already_there: list[str] = field(default_factory=list)
    failures: list[CopyFailure] = field(default_factory=list)


def copy(
    source: OffloadStore,
    target: OffloadStore,
    session: str,
    *,
    name: str | None = None,
    must_exist: bool = True,
) -> CopyReport:
    """Copy a session to another store, or under another name.

    Each record is verified whole before it is stored, and created only: what the target holds stays.
    Copying again costs listings and what is new. Under its own name a record is the same object under
    the same key; under another it is stored again, with the same ref and placeholder, so that messages
    of the old session restore in the new one. Both then live and expire apart. A record that another
    session shares becomes the copy's own. What was collected reads as collected in the copy too, as of
    now, unless the target still has it; what the target itself had collected is there again. Pins come
    along under the same name. So does, under any name, the conversation that an agent wrote down, unless
    the target's went its own way.

    Memory is constant for records of codec `zstd` if the target `SupportsStreams`; others take memory
    for one record.

    Args:
        source: where the session is.
        target: where it goes; may be the same store if `name` is another one.
        session: its name.
        name: its name in the target; the same if None.
        must_exist: whether a session of which nothing is stored is an error.

    Raises:
        NotFoundError: there is no such session.
        ConfigError: both are the same session of one store, or a name that cannot name a session.
        StoreError: a store failed. What was copied is whole; copying again goes on.
    """
    name = session if name is None else name
    if source is target and name == session:
        raise ConfigError("a session is copied to another store or under another name, this is the same")
    if must_exist:
        check_known(source, session)
    return _Copy(SessionReader(source, check_name(session)), SessionReader(target, check_name(name))).run()


def fork(store: OffloadStore, session: str, name: str, *, must_exist: bool = True) -> None:
    """Copy a session to the name `name` on one store, or raise.

    Raises:
        NotFoundError: there is no such session, and it `must_exist`.
        CorruptError: a record is damaged. What could be copied is there.
        CollisionError: session `name` holds other items under the same refs.
        ConfigError: both are the same name, or one that cannot name a session.
        StoreError: the store failed; forking again goes on.
    """
    for failure in copy(store, store, session, name=name, must_exist=must_exist).failures:
        # What the session itself cannot find any more is nothing that a fork could lose.
        if not isinstance(failure.error, NotFoundError):
            raise failure.error


class _Copy:
    """One copy of a session, from beginning to end."""

    def __init__(self, source: SessionReader, target: SessionReader) -> None:
        self._source = source
        self._target = target
        self._target_records = RECORD.prefix(encode_part(target.name))
        self._report = CopyReport(target.name)
        self._collected: dict[str, Reason] = {}

    def run(self) -> CopyReport:
        self._source.catalog.load()
        self._target.catalog.load()
        if self._source.name == self._target.name:
            self._pin()
        wanted = [info for info in self._source.catalog.objects() if self._is_wanted(info)]
        for group in _groups(wanted):
            with ExitStack() as spools:
                self._deliver(self._pack(group, spools))
        self._bury()
        self._copy_journal()
        return self._report

    @contextmanager
    def _refusing(self, info: RecordInfo) -> Iterator[None]:
        """Report what is wrong with one record, so that it hides no other; a store that fails ends all."""
        try:
            yield
        except StoreError:
            raise
        except ExpiredError as error:
            self._collected[info.key] = cast("Reason", error.reason)
        except OffloadError as error:
            self._report.failures.append(CopyFailure(info.ref, info.key, error))

    def _is_wanted(self, info: RecordInfo) -> bool:
        """Tell whether the target lacks a record; only one that a listing does not settle is opened."""
        found = self._target.catalog.known(info.ref)
        key = self._renamed(info.key)
        if any((f.key, f.stored_bytes) == (key, info.stored_bytes) for f in found):
            self._report.already_there.append(info.ref)
            return False
        with self._refusing(info):
            if not found:
                return True
            if self._is_among(found, moved(self._source.open(info).header, self._target.name)):
                self._report.already_there.append(info.ref)
            elif any(f.key == key for f in found):
                raise CollisionError(f"{key} is another item in {self._target.store.url}")
            else:
                return True
        return False

    def _is_among(self, found: Sequence[RecordInfo], header: Header) -> bool:
        return any(_is_same(self._target.open(info).header, header) for info in found)

    def _renamed(self, key: str) -> str:
        return self._target_records + name_of(key)

    def _pack(self, group: Sequence[RecordInfo], spools: ExitStack) -> list[VerifiedRecord]:
        bodies = self._fetch(group)
        records = []
        for info in group:
            with self._refusing(info):
                records.append(self._pack_one(info, bodies.get(info.key), spools))
        return records

    def _pack_one(self, info: RecordInfo, body: bytes | None, spools: ExitStack) -> VerifiedRecord:
        reader, found = owner_of(self._source, info)
        record = reader.open(found, body)
        if reader.name == self._target.name:
            encoded = pack_as_it_is(reader.store, found, record, body)
        else:
            encoded = pack_anew(found, record, self._target.name, spools)
        header = moved(record.header, self._target.name)
        suffix = "." + found.key.rpartition(".")[2]
        generation = max(generation_of(found.key), self._target.catalog.next_generation(info.ref))
        return VerifiedRecord(info, record_key(header, record.counts, suffix, generation), header, encoded)

    def _fetch(self, group: Sequence[RecordInfo]) -> dict[str, bytes]:
        """Return the objects of `group` that are held whole; what is not there will tell why when opened."""
        keys = [i.key for i in group if i.stored_bytes <= WHOLE_BYTES and not is_link(i.key)]
        bodies = list(get_many(self._source.store, keys))
        for body in bodies:
            if isinstance(body, StoreError):
                raise body
        return {k: body for k, body in zip(keys, bodies, strict=True) if isinstance(body, bytes)}

    def _deliver(self, records: Sequence[VerifiedRecord]) -> None:
        """Create the objects of verified records, each sidecar before its body."""
        ready = []
        for record in records:
            with self._refusing(record.info):
                self._put_sidecar(record)
                ready.append(record)
        for record, error in zip(ready, self._put_bodies(ready), strict=True):
            with self._refusing(record.info):
                self._settle(record, error)

    def _put_sidecar(self, record: VerifiedRecord) -> None:
        if record.encoded.sidecar is None:
            return
        key = sidecar_key(record.key)
        try:
            self._target.store.put(key, record.encoded.sidecar)
        except ExistsError:
            # A copy or a writer that got no further left it.
            if not _is_same(parse_sidecar(self._target.store.get(key)), record.header):
                raise CollisionError(f"{key} holds the header of another item") from None

    def _put_bodies(self, records: Sequence[VerifiedRecord]) -> Sequence[OffloadError | None]:
        store = self._target.store
        if len(records) > 1:
            return put_many(store, [(p.key, p.encoded.body) for p in records])
        # A large one comes alone and is written in pieces.
        return [result_or_error(record.encoded.create, store, record.key) for record in records]

    def _settle(self, record: VerifiedRecord, error: OffloadError | None) -> None:
        """Report what became of a create; a key that was taken since the listing may hold the same item."""
        ref = record.info.ref
        if error is None:
            self._report.copied.append(ref)
        elif not isinstance(error, ExistsError):
            raise error
        elif self._is_among(self._target.catalog.find(ref, is_fresh=True), record.header):
            self._report.already_there.append(ref)
        else:
            raise CollisionError(f"{record.key} is taken in {self._target.store.url}")

    def _bury(self) -> None:
        """Mark as collected what is so in the source, but nothing that the target has."""
        listed = map(parse_key, self._source.store.keys(RECORD.prefix(encode_part(self._source.name))))
        self._collected.update({t.key: t.reason for t in listed if isinstance(t, Tombstone)})
        if not self._collected:
            return
        there = {stored.key: stored for stored in self._target.store.keys(self._target_records)}
        buried = {t.key for t in map(parse_key, there.values()) if isinstance(t, Tombstone)}
        for collected, reason in sorted(self._collected.items()):
            key = self._renamed(collected)
            is_held = key in there and there[key].size > 0
            if key not in buried and not is_held and (key in there or self._claim(key)):
                with suppress(ExistsError):
                    self._target.store.put(tombstone_key(key, reason), b"")

    def _copy_journal(self) -> None:
        """Copy the entries of the journal in their order; a part of them tells an earlier turn."""
        source, target = (JOURNAL.prefix(encode_part(reader.name)) for reader in (self._source, self._target))
        there = {stored.key.removeprefix(target) for stored in self._target.store.keys(target)}
        names = [stored.key.removeprefix(source) for stored in self._source.store.keys(source)]
        if there.issubset(names):
            for name in (name for name in names if name not in there):
                with suppress(ExistsError):
                    self._target.store.put(target + name, self._source.store.get(source + name))

    def _claim(self, key: str) -> bool:
        """Take the key of a collected record, empty: nobody may store there what would count as collected."""
        try:
            self._target.store.put(key, b"")
        except ExistsError:
            return False
        return True

    def _pin(self) -> None:
        """Pin first what comes after, so that no collector takes it in between."""
        source = self._source.store
        for stored in source.keys(PIN.prefix(encode_part(self._source.name))):
            if PIN.match(stored.key):
                with suppress(ExistsError):
                    self._target.store.put(stored.key, source.get(stored.key, end=_PIN_BYTES))


def _is_same(there: Header, header: Header) -> bool:
    """Tell whether a record of the target stands for the same item by the same placeholder."""
    return there.is_same_item(header) and there.placeholder == header.placeholder


def _groups(infos: Sequence[RecordInfo]) -> Iterator[list[RecordInfo]]:
    group: list[RecordInfo] = []
    weight = 0
    for info in infos:
        # A stored size says little of the memory for content that is stored anew.
        weighs = max(info.stored_bytes, info.chars)
        if group and (len(group) == _GROUP_RECORDS or weight + weighs > WHOLE_BYTES):
            yield group
            group, weight = [], 0
        group.append(info)
        weight += weighs
    if group:
        yield group

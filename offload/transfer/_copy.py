"""Copying a session: each new record is copied whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

from offload.errors import (
    CollisionError,
    ConfigError,
    ExistsError,
    ExpiredError,
    NotFoundError,
    OffloadError,
    StoreError,
)
from offload.index import list_session, record_key
from offload.layout import (
    JOURNAL,
    PIN,
    RECORD,
    Reason,
    encode_part,
    generation_of,
    is_link,
    name_of,
    tombstone_key,
)
from offload.record import Header, RecordInfo
from offload.session import SessionReader, check_known, check_name, create_records
from offload.store import OffloadStore, get_many
from offload.transfer._sharing import owner_of
from offload.transfer._verify import WHOLE_BYTES, VerifiedRecord, moved, pack_anew, pack_as_it_is

# The maximum in memory at once; a single larger record is copied piece by piece.
_GROUP_RECORDS = 256
# A pin has no content.
_PIN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """A record that was not copied.

    Attributes:
        ref: its ref.
        key: its key in the source.
        error: `CorruptError` for a damaged record, `CollisionError` if its key is taken in the target,
            `NotFoundError` if it was shared by a session that no longer has it.
    """

    ref: str
    key: str
    error: OffloadError


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The outcome of a copy for each record of the session.

    Attributes:
        session: the session's name in the target.
        copied: the refs of the new records.
        already_there: the refs of the records that the target had already.
        failures: the records that were not copied.
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

    Each record is verified whole and then created; existing records of the target are kept. Another copy
    costs listings and the new records. Under its own name a record is copied byte for byte; under another it
    is encoded again with the same ref and placeholder, so messages of the old session restore in the new one.
    Both sessions are then independent. A record that another session shares becomes the copy's own. A deleted
    record is deleted in the copy too, as of now, unless the target still has it; a record that only the
    target deleted is stored again. Pins are copied under the same name, and an agent's journal under any
    name, unless the target's journal has other entries.

    Memory is constant for records of codec `zstd` if the target `SupportsStreams`; otherwise one record is in
    memory.

    Args:
        source: the store of the session.
        target: the store of the copy; may be the same store if `name` is another one.
        session: its name.
        name: its name in the target; the same if None.
        must_exist: whether a session without any object is an error.

    Raises:
        NotFoundError: the session does not exist.
        ConfigError: source and target are the same session of one store, or a name is invalid.
        StoreError: a store failed. The copied records are whole; another copy continues.
    """
    name = session if name is None else name
    if source is target and name == session:
        raise ConfigError("source and target must not be the same session; use another store or name")
    if must_exist:
        check_known(source, session)
    return _Copy(SessionReader(source, check_name(session)), SessionReader(target, check_name(name))).run()


def fork(store: OffloadStore, session: str, name: str, *, must_exist: bool = True) -> None:
    """Copy a session to the name `name` in the same store, or raise.

    Raises:
        NotFoundError: the session does not exist, and it `must_exist`.
        CorruptError: a record is damaged. The other records are copied.
        CollisionError: session `name` has other items under the same refs.
        ConfigError: both names are the same, or one is invalid.
        StoreError: the store failed; another fork continues.
    """
    for failure in copy(store, store, session, name=name, must_exist=must_exist).failures:
        # A record that the session itself no longer finds is no loss for the fork.
        if not isinstance(failure.error, NotFoundError):
            raise failure.error


class _Copy:
    """One copy of a session."""

    def __init__(self, source: SessionReader, target: SessionReader) -> None:
        self._source = source
        self._target = target
        self._source_part, self._target_part = encode_part(source.name), encode_part(target.name)
        self._report = CopyReport(target.name)
        self._deleted: dict[str, Reason] = {}

    def run(self) -> CopyReport:
        self._source.catalog.load()
        self._target.catalog.load()
        if self._source.name == self._target.name:
            self._copy_pins()
        missing = [info for info in self._source.catalog.objects() if self._is_missing(info)]
        for group in _groups(missing):
            with ExitStack() as spools:
                self._create(self._pack(group, spools))
        self._copy_tombstones()
        self._copy_journal()
        return self._report

    @contextmanager
    def _reporting(self, info: RecordInfo) -> Iterator[None]:
        """Report the failure of one record and continue; the failure of a store ends the copy."""
        try:
            yield
        except StoreError:
            raise
        except ExpiredError as error:
            self._deleted[info.key] = cast("Reason", error.reason)
        except OffloadError as error:
            self._report.failures.append(CopyFailure(info.ref, info.key, error))

    def _is_missing(self, info: RecordInfo) -> bool:
        """Return whether the target lacks a record; it is opened only if the listing does not show that."""
        known = self._target.catalog.known(info.ref)
        key = self._renamed(info.key)
        if any((other.key, other.stored_bytes) == (key, info.stored_bytes) for other in known):
            self._report.already_there.append(info.ref)
            return False
        with self._reporting(info):
            if not known:
                return True
            header = moved(self._source.open(info).header, self._target.name)
            if self._target.find_same(known, header, _is_same):
                self._report.already_there.append(info.ref)
            elif any(other.key == key for other in known):
                raise CollisionError(f"{key} is another item in {self._target.store.url}")
            else:
                return True
        return False

    def _renamed(self, key: str) -> str:
        return RECORD.prefix(self._target_part) + name_of(key)

    def _pack(self, group: Sequence[RecordInfo], spools: ExitStack) -> list[VerifiedRecord]:
        bodies = self._fetch(group)
        records = []
        for info in group:
            with self._reporting(info):
                records.append(self._pack_one(info, bodies.get(info.key), spools))
        return records

    def _pack_one(self, info: RecordInfo, body: bytes | None, spools: ExitStack) -> VerifiedRecord:
        reader, original = owner_of(self._source, info)
        record = reader.open(original, body)
        if reader.name == self._target.name:
            encoded = pack_as_it_is(reader.store, original, record, body)
        else:
            encoded = pack_anew(original, record, self._target.name, spools)
        header = moved(record.header, self._target.name)
        suffix = "." + original.key.rpartition(".")[2]
        generation = max(generation_of(original.key), self._target.catalog.next_generation(info.ref))
        key = record_key(header, record.counts, suffix, generation)
        return VerifiedRecord(key=key, header=header, encoded=encoded, info=info)

    def _fetch(self, group: Sequence[RecordInfo]) -> dict[str, bytes]:
        """Return the small objects of `group`; the error of a missing one is raised when it is opened."""
        keys = [i.key for i in group if i.stored_bytes <= WHOLE_BYTES and not is_link(i.key)]
        bodies = list(get_many(self._source.store, keys))
        for body in bodies:
            if isinstance(body, StoreError):
                raise body
        return {k: body for k, body in zip(keys, bodies, strict=True) if isinstance(body, bytes)}

    def _create(self, records: Sequence[VerifiedRecord]) -> None:
        outcomes = create_records(self._target.store, records, _is_same)
        for record, outcome in zip(records, outcomes, strict=True):
            with self._reporting(record.info):
                self._settle(record, outcome)

    def _settle(self, record: VerifiedRecord, outcome: Header | OffloadError) -> None:
        """Report the outcome of a create; a key that was taken since the listing may have the same record."""
        ref = record.info.ref
        if isinstance(outcome, Header):
            self._report.copied.append(ref)
            return
        if isinstance(outcome, CollisionError) or not isinstance(outcome, ExistsError):
            raise outcome
        known = self._target.catalog.find(ref, is_fresh=True)
        if not self._target.find_same(known, record.header, _is_same):
            raise CollisionError(f"{record.key} is another item in {self._target.store.url}")
        self._report.already_there.append(ref)

    def _copy_tombstones(self) -> None:
        """Mark records for deletion that are deleted in the source, but no record that the target has."""
        source = list_session(self._source.store, self._source_part)
        self._deleted.update({r.info.key: r.last_tombstone.reason for r in source.deleted})
        if not self._deleted:
            return
        target = list_session(self._target.store, self._target_part)
        taken = {info.key for info in target.records} | {record.info.key for record in target.deleted}
        torn = {info.key for info in target.torn}
        for deleted, reason in sorted(self._deleted.items()):
            key = self._renamed(deleted)
            # The key is taken first, so that no writer stores a record under it that would count as deleted.
            if key in torn or (key not in taken and self._put_empty(key)):
                self._put_empty(tombstone_key(key, reason))

    def _put_empty(self, key: str) -> bool:
        """Create an empty object; return False if the key is taken."""
        try:
            self._target.store.put(key, b"")
        except ExistsError:
            return False
        return True

    def _copy_journal(self) -> None:
        """Copy the journal entries in order, so that an interrupted copy shows an earlier turn."""
        source, target = JOURNAL.prefix(self._source_part), JOURNAL.prefix(self._target_part)
        existing = {stored.key.removeprefix(target) for stored in self._target.store.keys(target)}
        names = [stored.key.removeprefix(source) for stored in self._source.store.keys(source)]
        if existing.issubset(names):
            for name in (name for name in names if name not in existing):
                with suppress(ExistsError):
                    self._target.store.put(target + name, self._source.store.get(source + name))

    def _copy_pins(self) -> None:
        """Copy the pins before the records, so that gc deletes no copied record in between."""
        source = self._source.store
        for stored in source.keys(PIN.prefix(self._source_part)):
            if PIN.match(stored.key):
                with suppress(ExistsError):
                    self._target.store.put(stored.key, source.get(stored.key, end=_PIN_BYTES))


def _is_same(one: Header, other: Header) -> bool:
    """Return whether two headers have the same item and placeholder."""
    return one.is_same_item(other) and one.placeholder == other.placeholder


def _groups(infos: Sequence[RecordInfo]) -> Iterator[list[RecordInfo]]:
    group: list[RecordInfo] = []
    total = 0
    for info in infos:
        # The stored size is no measure of the memory for content that is encoded again.
        size = max(info.stored_bytes, info.chars)
        if group and (len(group) == _GROUP_RECORDS or total + size > WHOLE_BYTES):
            yield group
            group, total = [], 0
        group.append(info)
        total += size
    if group:
        yield group

"""Copying a session: each new record is copied whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, cast

import msgspec

from offload import errors
from offload.maintenance.jobs.each import run_each
from offload.maintenance.transfer._content import check_content, content_of, measured, stored
from offload.maintenance.transfer._objects import ObjectCopy
from offload.maintenance.transfer._report import CopyProgress, CopyReport, OnProgress, noting
from offload.maintenance.transfer._sharing import owner_of
from offload.records.codec import CODECS, find_codec
from offload.records.index.entries import record_key
from offload.records.index.objects import list_session, session_parts
from offload.records.journal.chain import note_origin
from offload.records.record import Header, RecordInfo
from offload.records.session.create import NewRecord, create_records
from offload.records.session.encryption import check_object
from offload.records.session.names import check_known, check_name
from offload.records.session.reader import SessionReader
from offload.storage import layout
from offload.storage.store import (
    OffloadStore,
    SupportsTimes,
    create,
    delete_many,
    get_many,
    identity_of,
    in_groups,
    update_index,
)
from offload.storage.wrappers import WrapperStore

# The maximum in memory at once; a single larger record is copied piece by piece.
_GROUP_RECORDS = 256
# An object up to this size is fetched once, so the verified bytes are the stored bytes.
_WHOLE_BYTES = 8 * 1024 * 1024
_SOON_SECONDS = 60.0


def copy_session(
    source: OffloadStore,
    target: OffloadStore,
    session: str,
    *,
    name: str | None = None,
    must_exist: bool = True,
    repair: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy a session to another store, or under another name.

    Each record, journal entry and other object is verified whole and then created. What the target has is
    kept, or with `repair` read, and replaced if it is damaged. A listing of the copy has the order and the
    times of creation, and times to live count from these. Another copy costs listings and the new records.
    Under its own name a record is copied byte for byte; under another it is encoded again with the same ref
    and placeholder, so messages of the old session restore in the new one. Both sessions are then
    independent. A record that another session shares becomes the copy's own. A deleted record is deleted in
    the copy too, as of now, unless the target still has it; a record that only the target deleted is stored
    again. Pins are copied under the same name, and an agent's journal under any name, unless the target's
    journal continues with other entries.

    Memory is constant for records of codec `zstd` if the target `SupportsStreams`; otherwise one record is in
    memory.

    Args:
        source: the store of the session.
        target: the store of the copy; may be the same store if `name` is another one.
        session: its name.
        name: its name in the target; the same if None.
        must_exist: whether a session without any object is an error.
        repair: whether to read what the target has too, and to replace what is damaged there. Without it, a
            damaged record whose size differs is replaced; nothing else of the target is looked at, and
            `already_there` says only that its key is taken.
        on_progress: called before the first record, and after each group of records.

    Raises:
        NotFoundError: the session does not exist.
        ConfigError: source and target are the same session of one store, or a name is invalid.
        EncryptionError: no record of the session fits the key of its store, or the target has the session,
            which does not fit the key there. A record among others is a failure in the report.
        StoreError: a store failed. The copied records are whole; another copy continues.
    """
    name = session if name is None else name
    if name == session and _are_one(source, target):
        raise errors.ConfigError("source and target must not be the same session; use another store or name")
    if must_exist:
        check_known(source, session)
    own, other = SessionReader(source, check_name(session)), SessionReader(target, check_name(name))
    return _Copy(own, other, repair=repair).run(on_progress or (lambda _: None))


def copy_sessions(
    source: OffloadStore,
    target: OffloadStore,
    *,
    repair: bool = False,
    executor: Executor | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, CopyReport | errors.OffloadError]]:
    """Copy every session to another store, each as `copy_session` does; yield names with reports or errors.

    Sessions with records, a journal or both are copied, in key order. One that fails costs no other, and
    another copy continues.

    Args:
        source: the store of the sessions.
        target: another store.
        repair: as for `copy_session`.
        executor: any executor of `concurrent.futures`, whose workers take one session each; by default
            threads do if one of the stores is on another machine, else this thread.
        source_options: the storage options of `source` for workers in other processes, which open the stores
            by their URLs and have the credentials of their own environment otherwise.
        target_options: those of `target`.

    Raises:
        ConfigError: both are one store, or workers in other processes cannot open one by its URL.
        StoreError: the sessions of `source` cannot be listed.
    """
    if _are_one(source, target):
        raise errors.ConfigError("source and target must not be the same store")
    parts = session_parts(source, layout.RECORD, layout.JOURNAL)
    options = [source_options, target_options]
    work = partial(copy_part, repair=repair)
    found = run_each(work, parts, [source, target], executor=executor, storage_options=options)
    for part, outcome in found:
        yield layout.decode_part(part), outcome


def _are_one(source: OffloadStore, target: OffloadStore) -> bool:
    """Return whether two stores have the same objects."""
    return source is target or (type(source) is type(target) and identity_of(source) == identity_of(target))


def copy_part(
    source: OffloadStore,
    target: OffloadStore,
    part: str,
    *,
    name: str | None = None,
    repair: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy the session with a key part, as `copy_session` does; its name need not be known."""
    own = SessionReader.of_part(source, part)
    name, part = (own.name, part) if name is None else (name, layout.encode_part(name))
    other = SessionReader(target, check_name(name), part)
    return _Copy(own, other, repair=repair).run(on_progress or (lambda _: None))


class _Copy:
    def __init__(self, source: SessionReader, target: SessionReader, *, repair: bool) -> None:
        self._source = source
        self._target = target
        self._report = CopyReport(target.name)
        self._dated = _dated(target.store)
        self._deleted: dict[str, layout.DeletionReason] = {}
        self._repairs = repair
        # The keys of damaged records of the target by those of the source.
        self._damaged: dict[str, str] = {}
        # The sessions whose refs the copy has, as its marks say.
        self._origins: set[str] = set()

    def run(self, told: OnProgress) -> CopyReport:
        self._source.catalog.load()
        self._target.catalog.load()
        self._origins.update(self._target.facts.origins)
        others = ObjectCopy(self._source, self._target, self._report, repairs=self._repairs)
        if self._source.part == self._target.part:
            others.pins()
        listed = sorted(self._source.catalog.objects(), key=lambda info: (info.created_at, info.key))
        missing = [info for info in listed if self._is_missing(info)]
        # The stored size is no measure of the memory for content that is encoded again.
        self._check_target(missing)
        sizes = {info.key: max(info.stored_bytes, info.chars) for info in missing}
        records = copied = 0
        told(CopyProgress(0, len(missing), 0))
        for group in in_groups(missing, lambda i: sizes[i.key], most=_WHOLE_BYTES, count=_GROUP_RECORDS):
            self._target.catalog.floor.learn()
            with ExitStack() as spools:
                self._create(self._pack(group, spools))
            records, copied = records + len(group), copied + sum(info.stored_bytes for info in group)
            told(CopyProgress(records, len(missing), copied))
        self._check_any()
        self._copy_tombstones()
        others.journal()
        others.calls()
        update_index(self._target.store)
        return self._report

    def _check_any(self) -> None:
        """Raise the first `EncryptionError` if no record fits the key of the source."""
        report = self._report
        unfit = [each.error for each in report.failures if isinstance(each.error, errors.EncryptionError)]
        if unfit and len(unfit) == len(report.failures) and not report.copied and not report.already_there:
            raise unfit[0]

    def _check_target(self, missing: Sequence[RecordInfo]) -> None:
        """Raise `EncryptionError` before a copy makes an existing session of the target partly in clear."""
        there = [info.key for info in self._target.catalog.objects() if info.stored_bytes]
        if missing and there:
            # A damaged one says nothing of the others.
            with suppress(errors.CorruptError):
                check_object(self._target.store, there[0])

    @contextmanager
    def _reporting(self, key: str, ref: str) -> Iterator[None]:
        """Report the failure of one record and continue; note one that is deleted."""
        with noting(self._report, key, ref):
            try:
                yield
            except errors.ExpiredError as error:
                self._deleted[key] = cast("layout.DeletionReason", error.reason)

    def _is_missing(self, info: RecordInfo) -> bool:
        """Return whether the target lacks a record, or has a damaged one.

        It is opened only if the listing does not show that, or to repair it.
        """
        known = self._target.catalog.known(info.ref)
        key = self._renamed(info.key)
        there = next((other for other in known if layout.as_created(other.key) == key), None)
        with self._reporting(info.key, info.ref):
            if not known:
                return True
            if there is not None and self._is_damaged(there, info):
                self._damaged[info.key] = there.key
                return True
            if there is not None and there.stored_bytes == info.stored_bytes:
                self._report.already_there.append(info.ref)
                return False
            header = self._moved(self._source.open(info).header)
            if self._target.find_same(known, header, _is_same):
                self._report.already_there.append(info.ref)
            elif there is not None:
                raise errors.CollisionError(f"{key} is taken by another item in {self._target.store.url}")
            else:
                return True
        return False

    def _is_damaged(self, there: RecordInfo, info: RecordInfo) -> bool:
        """Return whether the target's record is damaged; it is read if it may be.

        Raises `CollisionError` if it is a whole record of another key.
        """
        if there.stored_bytes == info.stored_bytes and not self._repairs:
            return False
        damage = self._target.check(there)
        if damage is None or not isinstance(damage.error, errors.CorruptError):
            return False
        store, key = self._target.store, there.key
        try:
            record = find_codec(key).open(
                partial(store.get, key), partial(store.get, layout.sidecar_key(key))
            )
            measured(record)
        except (errors.CorruptError, errors.NotFoundError):
            return True
        raise errors.CollisionError(f"{key} is taken by another item in {store.url}")

    def _renamed(self, key: str) -> str:
        """Return the key of a record in the target, as it would have been created there."""
        return layout.RECORD.prefix(self._target.part) + layout.name_of(layout.as_created(key))

    def _pack(self, group: Sequence[RecordInfo], spools: ExitStack) -> list[tuple[RecordInfo, NewRecord]]:
        bodies = self._fetch(group)
        records = []
        for info in group:
            with self._reporting(info.key, info.ref):
                record = self._pack_one(info, bodies.get(info.key), spools)
                if record.header.origin is not None:
                    self._note_origins([record.header.origin])
                records.append((info, record))
        return records

    def _pack_one(self, info: RecordInfo, body: bytes | None, spools: ExitStack) -> NewRecord:
        """Verify a record and return its copy; `body` is its object if already fetched.

        Raises `CorruptError` if it is damaged. `spools` closes the temporary files of a copy.
        """
        damaged = self._damaged.get(info.key)
        reader, info = owner_of(self._source, info)
        record, codec = reader.open(info, body), find_codec(info.key)
        header, counts, generation = self._moved(record.header), record.counts, layout.generation_of(info.key)
        if reader.part != self._target.part:
            content = content_of(record, spools)
            if not all(map(self._source.catalog.known, header.quotes)):
                # Of a record that another session shares: what it quotes is not in the copy.
                header, codec = msgspec.structs.replace(header, quotes=()), CODECS["zstd"]
            check_content(info, record, content.counts.chars, content.counts.lines)
            encoded = codec.encode(header, content)
        else:
            check_content(info, record, *measured(record))
            keys = (record_key(header, counts, codec.suffix, generation, is_copy=c) for c in (False, True))
            if info.key not in keys:
                raise errors.CorruptError(f"{info.key} does not match the record that it contains")
            encoded = stored(reader.store, info, body, has_sidecar=codec.has_sidecar)
        generation = max(generation, self._target.catalog.next_generation(info.ref))
        # Soon after, the time of the object will do, and the copy has the key of the original.
        is_copy = self._dated is None and time.time() - header.created_at > _SOON_SECONDS
        key = damaged or record_key(header, counts, codec.suffix, generation, is_copy=is_copy)
        return NewRecord(key=key, header=header, encoded=encoded)

    def _moved(self, header: Header) -> Header:
        """Return the header of a record's copy, with the session in which its ref was drawn."""
        return header if self._target.is_of(header.session) else header.moved(self._target.name)

    def _note_origins(self, names: Iterable[str]) -> None:
        """Mark the sessions that drew refs of the copy, before it has a record of theirs."""
        for name in names:
            if not (self._target.is_of(name) or name in self._origins):
                self._origins.add(name)
                note_origin(self._target.store, self._target.part, name)

    def _fetch(self, group: Sequence[RecordInfo]) -> dict[str, bytes]:
        """Return the small objects of `group`; a missing or unfit one raises its error when it is opened."""
        keys = [i.key for i in group if i.stored_bytes <= _WHOLE_BYTES and not layout.is_link(i.key)]
        bodies = list(get_many(self._source.store, keys))
        for body in bodies:
            if isinstance(body, errors.StoreError) and not isinstance(body, errors.EncryptionError):
                raise body
        return {k: body for k, body in zip(keys, bodies, strict=True) if isinstance(body, bytes)}

    def _create(self, records: Sequence[tuple[RecordInfo, NewRecord]]) -> None:
        damaged = [record for info, record in records if info.key in self._damaged]
        sidecars = [
            layout.sidecar_key(record.key) for record in damaged if record.encoded.sidecar is not None
        ]
        delete_many(self._target.store, [*(record.key for record in damaged), *sidecars])
        self._report.repaired.extend(record.key for record in damaged)
        outcomes = create_records(self._target.store, [record for _, record in records], _is_same)
        for (info, record), outcome in zip(records, outcomes, strict=True):
            with self._reporting(info.key, info.ref):
                self._settle(record, outcome)
        if not self._target.catalog.floor.is_known:
            raise errors.StoreError(
                f"the copy to {self._target.store.url} stalled for a day or longer; copy again"
            )

    def _settle(self, record: NewRecord, outcome: Header | errors.OffloadError) -> None:
        """Report the outcome of a create; a key that was taken since the listing may have the same record."""
        ref = record.header.ref
        if isinstance(outcome, Header):
            if self._dated is not None and 0 < record.header.created_at < time.time():
                self._dated.set_time(record.key, record.header.created_at)
            self._report.copied.append(ref)
            return
        if isinstance(outcome, errors.CollisionError) or not isinstance(outcome, errors.ExistsError):
            raise outcome
        known = self._target.catalog.find(ref, is_fresh=True)
        if not self._target.find_same(known, record.header, _is_same):
            raise errors.CollisionError(f"{record.key} is taken by another item in {self._target.store.url}")
        self._report.already_there.append(ref)

    def _copy_tombstones(self) -> None:
        """Mark records for deletion that are deleted in the source, but no record that the target has."""
        source = list_session(self._source.store, self._source.part)
        self._deleted.update({r.info.key: r.last_tombstone.reason for r in source.deleted})
        if not self._deleted:
            return
        target = list_session(self._target.store, self._target.part)
        there = [*target.records, *(record.info for record in target.deleted)]
        taken = {layout.as_created(info.key) for info in there}
        torn = {layout.as_created(info.key): info.key for info in target.torn}
        for deleted, reason in sorted(self._deleted.items()):
            renamed = self._renamed(deleted)
            key = torn.get(renamed, renamed)
            # The key is taken first, so that no writer stores a record under it that would count as deleted.
            if renamed in torn or key not in taken:
                # Its item may be stored again.
                self._note_origins([self._source.name, *self._source.facts.origins])
            if renamed in torn or (key not in taken and create(self._target.store, key)):
                create(self._target.store, layout.tombstone_key(key, reason))


def _dated(store: OffloadStore) -> SupportsTimes | None:
    """Return what sets the times of a store's objects, None if it cannot."""
    while isinstance(store, WrapperStore):
        store = store.inner
    return store if isinstance(store, SupportsTimes) else None


def _is_same(one: Header, other: Header) -> bool:
    return one.is_same_item(other) and one.placeholder == other.placeholder

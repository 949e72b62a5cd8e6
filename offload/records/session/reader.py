"""Reading the records of one session by ref."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import groupby
from math import inf
from operator import itemgetter

import msgspec

from offload.base.threads.locks import Recent
from offload.errors import (
    CorruptError,
    EncryptionError,
    ExpiredError,
    NotFoundError,
    OffloadError,
    StoreError,
    result_or_error,
    unexpected,
)
from offload.records.codec import Fetch, find_codec
from offload.records.codec.base import StoredRecord
from offload.records.codec.quoting import QuotingRecord
from offload.records.index.catalog import Catalog
from offload.records.index.entries import Tombstone, parse_key
from offload.records.index.objects import latest_deletion, session_name
from offload.records.journal.chain import branch_of, origin_of, records_of_branch
from offload.records.record import Header, RecordInfo
from offload.records.record.header import Head, Heads
from offload.records.record.titles import Label
from offload.records.session.links import LINK_BYTES, owner_in
from offload.storage.layout import (
    LINK,
    RECORD,
    DeletionReason,
    encode_part,
    is_link,
    is_ref,
    name_of,
    ref_of,
    sidecar_key,
)
from offload.storage.store import OffloadStore, StoredObject, get_many

# The limits of one bulk read.
_BULK_RECORDS, _BULK_RECORD_BYTES = 256, 256 * 1024
# An open record takes 64 KiB of memory, or its whole seek table if that is larger.
_OPEN_RECORDS = 16
_WHY: dict[DeletionReason, str] = {
    "expired": "expired",
    "quota": "was evicted by a quota",
    "deleted": "was deleted",
}


class Damage(msgspec.Struct, frozen=True):
    """A record that cannot be read.

    Attributes:
        info: its catalog entry.
        error: `CorruptError` for damaged bytes, `NotFoundError` if it was deleted during the read,
            `StoreError` if the store failed.
    """

    info: RecordInfo
    error: OffloadError


class SessionFacts(msgspec.Struct, eq=False):
    """Knowledge of a session besides its listing; the readers of one process may share it.

    Attributes:
        parent: the session that this one was forked from, and `parent_refs` the refs that it had by then.
        origins: the names of other sessions whose refs this one may have.
        is_listed: whether the records of other processes are known; so they are in a session that is new.
        touched_at: when its use was recorded last, by the monotonic clock.
    """

    parent: SessionReader | None = None
    parent_refs: frozenset[str] = frozenset()
    origins: Sequence[str] = ()
    is_listed: bool = False
    touched_at: float = -inf


class SessionReader:
    """The records of one agent conversation, for reading.

    Args:
        store: the store.
        name: the name of the session; any text is one.
        part: its key part, if the name is not known whole: see `of_part`.
    """

    def __init__(self, store: OffloadStore, name: str, part: str | None = None) -> None:
        self.store = store
        self.name = name
        self.part = encode_part(name) if part is None else part
        self._opened: Recent[str, StoredRecord] = Recent(_OPEN_RECORDS)
        self.catalog: Catalog = Catalog(store, name, self._inherited, part=self.part)
        self.heads: Heads = Heads()
        # By key, the errors of records that titles were asked of and that do not fit the key of the store.
        self.unfit: dict[str, EncryptionError] = {}
        self.facts: SessionFacts = SessionFacts()
        # Open records that others quote, by ref, while these are read together.
        self._held: dict[str, StoredRecord] = {}
        # By the keys of links that were followed, the sessions that share.
        self._owners: dict[str, str] = {}
        # The last deletion by this process when this was opened, and later ones by the refs looked for since.
        self._deletion = latest_deletion(store, name)
        self._looked: Recent[str, object] = Recent(_OPEN_RECORDS)

    @classmethod
    def of_part(cls, store: OffloadStore, part: str) -> SessionReader:
        """Return a reader of the session with a key part; a long name that no object has is cut."""
        return SessionReader(store, session_name(store, part), part)

    def is_of(self, session: str) -> bool:
        """Return whether a session, given by its whole name, is this one."""
        return session == self.name or encode_part(session) == self.part

    def find(self, ref: str) -> RecordInfo:
        """Return the entry of `ref`.

        Raises `NotFoundError` for unknown refs and refs of other sessions, `ExpiredError` for a deleted
        record: one that another process deleted is known from the next listing on.
        """
        latest = latest_deletion(self.store, self.name)
        is_behind = latest is not (self._looked.get(ref) or self._deletion)
        infos = self.catalog.find(ref, is_fresh=is_behind) if is_ref(ref) else []
        if is_behind:
            self._looked.put(ref, latest)
        if not infos:
            raise self.missing(ref)
        return infos[0]

    def read(self, ref: str) -> StoredRecord:
        """Open the record of `ref` for reading by range.

        The last few records remain open, since a model reads page after page. Records are never rewritten, so
        an open record is never out of date. Raises `NotFoundError` and `CorruptError` as `find` and `open`
        do.
        """
        info = self.find(ref)
        record = self._opened.get(info.key)
        if record is None:
            try:
                record = self.open(info)
            except NotFoundError:
                # It was deleted since the listing, and perhaps stored again.
                info = self.find(ref)
                record = self.open(info)
        if not is_link(info.key) and find_codec(info.key).reads_ranges:
            self._opened.put(info.key, record)
        return record

    def open(self, info: RecordInfo, body: bytes | None = None) -> StoredRecord:
        """Open the record of a catalog entry for reading by range; `body` is its object if already fetched.

        Raises `NotFoundError` if it is missing, `ExpiredError` if it is deleted, also during the read,
        `CorruptError` if its structure is damaged or the object belongs under another key, and
        `EncryptionError` if it is encrypted and the store has no key, or another.
        """
        record = self._follow(info, body) if is_link(info.key) else self._open(info, body)
        if not is_link(info.key) and not (record.ref == info.ref and self.is_of(record.session)):
            raise CorruptError(f"{info.key} contains record {record.ref} of another key")
        self.catalog.learn_labels({info.key: Label.of(record.title, record.agent)})
        return record

    def load(self, info: RecordInfo, record: StoredRecord) -> tuple[Header, bytes]:
        """Return the header and the whole content of an open record; all checksums are compared."""
        content = record.load()
        return _checked(record, info).header, content

    def open_many(
        self, infos: Sequence[RecordInfo], bodies: dict[str, bytes] | None = None
    ) -> Iterator[tuple[RecordInfo, StoredRecord | OffloadError]]:
        """Yield each entry with its open record, or with the error of `open`, in order.

        Small records, those of a parent too, are fetched whole and many at once; of large records only the
        two ends are.

        Args:
            infos: the entries.
            bodies: objects that were fetched before, by key; those that are fetched are added.
        """
        known = {} if bodies is None else bodies
        for start in range(0, len(infos), _BULK_RECORDS):
            group = infos[start : start + _BULK_RECORDS]
            stored = {info.key: self._stored(info) for info in group}
            missing = [one.key for one in stored.values() if is_small(one) and one.key not in known]
            fetched = dict(zip(missing, get_many(self.store, missing), strict=True))
            for info in group:
                key = stored[info.key].key
                body = known.get(key) or fetched.get(key)
                if bodies is not None and isinstance(body, bytes) and not is_link(info.key):
                    bodies[key] = body
                yield info, self._opened_or_error(info, body)

    @contextmanager
    def holding_quoted(self, infos: Iterable[RecordInfo]) -> Iterator[None]:
        """Fetch the small records that some records quote many at once, for a block that reads these."""
        refs = {ref for info in infos if not is_link(info.key) for ref in info.quotes}
        sources = [known[0] for ref in sorted(refs) if (known := self.catalog.known(ref))]
        opened = self.open_many([info for info in sources if is_small(info)]) if sources else ()
        self._held.update(
            (info.ref, record) for info, record in opened if not isinstance(record, OffloadError)
        )
        try:
            yield
        finally:
            self._held.clear()

    def heads_of(self, infos: Sequence[RecordInfo]) -> Iterator[tuple[RecordInfo, Head | OffloadError]]:
        """Yield each entry with the head of its record, or with the error of `open`, in order.

        Records whose heads are known are not read.
        """
        known = {info.key: self.heads.get(info) for info in infos}
        opened = self.open_many([info for info in infos if known[info.key] is None])
        for info in infos:
            head: Head | OffloadError | None = known[info.key]
            if head is None:
                _, record = next(opened)
                head = record if isinstance(record, OffloadError) else Head(record.header, record.counts)
            yield info, head

    def _stored(self, info: RecordInfo) -> RecordInfo:
        """Return the entry of an inherited record in the session that stored it, of any other this one."""
        parent = self.facts.parent
        if parent is None or not self.catalog.is_inherited(info.key):
            return info
        originals = parent.catalog.known(info.ref)
        return parent._stored(originals[0]) if originals else info  # noqa: SLF001 # of this class

    def _opened_or_error(
        self, info: RecordInfo, body: bytes | OffloadError | None
    ) -> StoredRecord | OffloadError:
        if isinstance(body, StoreError):
            return body  # Another request would wait for the deadline again.
        try:
            record = self.open(info, body if isinstance(body, bytes) else None)
            # Both are decoded on first use, and may be damaged.
            _ = record.header, record.counts
        except Exception as error:  # noqa: BLE001 # one record's failure is one record's
            return unexpected(error)
        return record

    def lost_links(self, keys: Iterable[str]) -> set[str]:
        """Return which links, of those that were followed, lead to no record now. Raises `StoreError`.

        It takes a listing of each session that shares a record.
        """
        followed = sorted((owner, key) for key in keys if (owner := self._owners.get(key)) is not None)
        lost = set[str]()
        for owner, links in groupby(followed, key=itemgetter(0)):
            refs = {key: ref_of(name_of(key)) for _, key in links}
            catalog = Catalog(self.store, owner)
            catalog.refresh(refs.values())
            lost |= {key for key, ref in refs.items() if all(is_link(one.key) for one in catalog.known(ref))}
        return lost

    def headers(self, ref: str) -> Iterator[Header]:
        """Yield the header of every readable record of `ref`."""
        for info in self.catalog.find(ref, is_fresh=True) if is_ref(ref) else ():
            with suppress(NotFoundError, CorruptError, EncryptionError):
                yield self.open(info).header

    def deleted_header(self, tombstone: Tombstone) -> Header | OffloadError:
        """Return the header of a marked record whose bytes still exist, else the error of reading it."""
        info = parse_key(StoredObject(tombstone.key, 1, tombstone.at))
        if isinstance(info, RecordInfo):
            with suppress(NotFoundError, CorruptError, EncryptionError):
                return self._open(info).header
        return _expired(tombstone)

    def find_same(
        self, infos: Iterable[RecordInfo], header: Header, is_same: Callable[[Header, Header], bool]
    ) -> tuple[RecordInfo, StoredRecord] | None:
        """Return the first of these entries, with its open record, whose header is the same as `header`."""
        for info in infos:
            record = self.open(info)
            if is_same(record.header, header):
                return info, record
        return None

    def infos(self) -> list[RecordInfo]:
        """Return one entry per ref of the session, oldest first, from a fresh listing."""
        self.catalog.load()
        return self.catalog.entries()

    def check(self, info: RecordInfo) -> Damage | None:
        """Read one record and compare all checksums; return the damage, or None.

        A link is followed; the checksums of its record are compared in the session that stored it. One that
        quotes a deleted record counts as deleted.
        """
        try:
            self.open(info) if is_link(info.key) else self.verified(info)
        except OffloadError as error:
            if info.quotes and isinstance(error, ExpiredError):
                return None
            return Damage(info, error)
        return None

    def check_links(self, infos: Sequence[RecordInfo]) -> list[Damage]:
        """Return the links that lead to no record, with the reasons.

        It reads each link and lists each session that shares; it opens no record. Raises `StoreError`.
        """
        damages, doubtful = list[Damage](), set[str]()
        for info, body in zip(infos, get_many(self.store, [info.key for info in infos]), strict=True):
            owner = body if isinstance(body, OffloadError) else result_or_error(self._owner, info, body)
            if isinstance(owner, StoreError):
                damages.append(Damage(info, owner))
            elif isinstance(owner, OffloadError):
                doubtful.add(info.key)
        doubtful |= self.lost_links(info.key for info in infos)
        found = (self.check(info) for info in infos if info.key in doubtful)
        return damages + [damage for damage in found if damage is not None]

    def verified(self, info: RecordInfo) -> StoredRecord:
        """Return an open record after all its checksums were compared; raises `OffloadError`."""
        record = self.open(info)
        for _ in record.stream():
            pass
        return _checked(record, info)

    def missing(self, ref: str) -> NotFoundError:
        """Return the error for a ref without a record, by the known tombstones."""
        tombstone = self.catalog.tombstone(ref) if is_ref(ref) else None
        if tombstone is not None:
            return _expired(tombstone)
        return NotFoundError(f"no record {str(ref)[:40]!r} in session {self.name!r}")

    def _gone(self, info: RecordInfo) -> OffloadError:
        """Return the error for an object that is missing, or of which a range is empty."""
        self.catalog.refresh([info.ref])
        if any(i.key == info.key for i in self.catalog.known(info.ref)):
            return CorruptError(f"{info.key} is truncated")
        return self.missing(info.ref)

    def owner_of(self, info: RecordInfo) -> str:
        """Return the name of the session that stored a record which this one inherited, else this one's."""
        return self._stored(info).session

    def has_had(self, ref: str) -> bool:
        """Return whether the session is known to have, or to have had, a record of a ref.

        Which refs a fork has from its parent does not depend on what the parent deletes or stores later.
        """
        return (
            ref in self.facts.parent_refs
            or bool(self.catalog.known(ref))
            or self.catalog.tombstone(ref) is not None
        )

    def _inherited(self) -> list[RecordInfo]:
        """Return the records that this session reads from its parent, as links to them; none without one.

        It notes the sessions that drew refs of this one, by their marks.
        """
        marks = sorted(self.catalog.floor.origins)
        names = [name for key in marks if (name := origin_of(self.store, key)) is not None]
        branch, inherited = branch_of(marks), list[RecordInfo]()
        if branch is not None:
            origin, refs = records_of_branch(self.store, branch)
            parent = SessionReader(self.store, origin.session)
            parent.catalog.load()
            self.facts.parent, self.facts.parent_refs = parent, frozenset(refs)
            names = [parent.name, *parent.facts.origins, *names]
            inherited = [self._as_link(info) for info in parent.catalog.entries() if info.ref in refs]
        self.facts.origins = [name for name in dict.fromkeys(names) if name != self.name]
        return inherited

    def _as_link(self, info: RecordInfo) -> RecordInfo:
        """Return the entry of a parent's record in this session, where it does not expire."""
        match = RECORD.match(info.key) or LINK.match(info.key)
        parts = {} if match is None else match.groupdict()
        parts |= {"session": self.part, "ttl": None}
        key = LINK.key(**{name: part for name, part in parts.items() if name != "suffix"})
        return msgspec.structs.replace(info, session=self.name, key=key, expires_at=None)

    def _follow(self, info: RecordInfo, body: bytes | None = None) -> StoredRecord:
        if (parent := self.facts.parent) is not None and self.catalog.is_inherited(info.key):
            return self._inherited_record(parent, info, body)
        try:
            data = self._fetch(info, info.key)(end=LINK_BYTES)
        except NotFoundError:
            self.catalog.drop(info.key)
            raise self.missing(info.ref) from None
        origin = SessionReader(self.store, self._owner(info, data))
        originals = origin.catalog.find(info.ref)
        if originals and not is_link(originals[0].key):
            return origin.open(originals[0])
        gone = origin.missing(info.ref)
        raise gone if isinstance(gone, ExpiredError) else self.missing(info.ref)

    def _owner(self, info: RecordInfo, data: bytes) -> str:
        """Return the session that a link with the content `data` leads to, and note it."""
        owner = self._owners[info.key] = owner_in(data, info.key)
        return owner

    def _inherited_record(self, parent: SessionReader, info: RecordInfo, body: bytes | None) -> StoredRecord:
        original = parent.find(info.ref)
        record = parent.open(original, body)
        if (owner := parent._owners.get(original.key)) is not None:
            self._owners[info.key] = owner
        return record

    def _open(self, info: RecordInfo, body: bytes | None = None) -> StoredRecord:
        codec = find_codec(info.key)
        sidecar = self._fetch(info, sidecar_key(info.key)) if codec.has_sidecar else None
        fetch = (lambda *, start=0, end=None: body[start:end]) if body else self._fetch(info, info.key)
        try:
            record = codec.open(fetch, sidecar)
        except (CorruptError, EncryptionError) as error:
            problem = str(error).removeprefix(f"{info.key}: ")
            raise type(error)(f"{info.key}: {problem}") from error
        if isinstance(record, QuotingRecord):
            record.find = lambda ref: self._held.get(ref) or self.read(ref)
        return record

    def _fetch(self, info: RecordInfo, key: str) -> Fetch:
        def fetch(*, start: int = 0, end: int | None = None) -> bytes:
            try:
                data = self.store.get(key, start=start, end=end)
            except NotFoundError:
                raise self._gone(info) from None
            if not data:
                # No range of a record is empty: gc emptied it, or it is torn.
                raise self._gone(info)
            return data

        return fetch


def is_small(info: RecordInfo) -> bool:
    """Return whether a record is fetched whole, with others."""
    return info.stored_bytes <= _BULK_RECORD_BYTES and not is_link(info.key)


def _expired(tombstone: Tombstone) -> ExpiredError:
    marked = datetime.fromtimestamp(tombstone.at, UTC)
    message = f"record {tombstone.ref!r} {_WHY[tombstone.reason]}; marked for deletion at {marked:%F %T} UTC"
    return ExpiredError(message, tombstone.reason, tombstone.at)


def _checked(record: StoredRecord, info: RecordInfo) -> StoredRecord:
    if not record.header.is_drawn():
        raise CorruptError(f"{info.key}: the id does not match the content")
    return record

"""The records of one session on one store: written once, found by ref, read back or refused."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

from offload.codec import Codec, Content, Encoded, Fetch, StoredRecord, find_codec, parse_sidecar
from offload.errors import CollisionError, ConfigError, CorruptError, ExistsError, NotFoundError, OffloadError
from offload.index import Catalog, record_key, sidecar_key
from offload.record import (
    MAX_REF_LETTERS,
    REF_LETTERS,
    Counts,
    Header,
    RecordInfo,
    draw_ref,
)
from offload.store import OffloadStore, SupportsBulk

# A bulk read holds at most this much at once.
_BULK_RECORDS, _BULK_RECORD_BYTES = 256, 256 * 1024
# An open record holds 64 KiB, or its whole table if that is larger.
_OPEN_RECORDS = 16
_MAX_NAME_CHARS = 1000
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Draft:
    """An item on its way into a record.

    Attributes:
        item_type: what kind of part of a message it is.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        content: its text, measured.
        form: what `restore` needs beside the text, as JSON, or None.
        render: returns the placeholder for a ref.
    """

    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    content: Content
    form: str | None
    render: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Placed:
    """A record that is durable in the store, and the text that stands for it from now on."""

    info: RecordInfo
    placeholder: str


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


@dataclass(frozen=True, slots=True)
class _Attempt:
    header: Header
    key: str
    encoded: Encoded


class Session:
    """The records of one agent conversation.

    Args:
        store: where they are kept.
        name: the session's name; any text, it becomes a key part by `offload.keys.encode_part`.
        codec: how new records are written; existing ones are read by the codec that their key names.
    """

    def __init__(self, store: OffloadStore, name: str, codec: Codec) -> None:
        self.store = store
        self.name = name
        self._codec = codec
        # Asked once: a check against a protocol takes longer than preparing a small record.
        self._bulk = store if isinstance(store, SupportsBulk) else None
        self._opened: dict[str, StoredRecord] = {}
        self.catalog = Catalog(store, name)

    def write(self, drafts: Sequence[Draft]) -> list[Placed | OffloadError]:
        """Store every draft and return, in the same order, what became of each.

        A new record costs one create-only put, concurrent where the store can. A record that exists
        already with the same content is a success, and its placeholder is the one that it was stored
        with. Another item under the same ref makes the ref longer.
        """
        attempts = [self._attempt(draft, REF_LETTERS) for draft in drafts]
        outcomes = self._create_many(attempts)
        return [
            self._settle(draft, attempt, outcome)
            for draft, attempt, outcome in zip(drafts, attempts, outcomes, strict=True)
        ]

    def find(self, ref: str) -> RecordInfo:
        """Return the entry of `ref`. Raises `NotFoundError`, the same for unknown and foreign ones."""
        found = self.catalog.find(ref) if is_ref(ref) else []
        if not found:
            raise self._unknown(ref)
        return found[0]

    def read(self, ref: str) -> StoredRecord:
        """Open the record of `ref` for reading by range.

        The last few stay open, since a model reads page after page: what finds a place in them is then
        at hand. Records are never rewritten, so nothing that is held can be out of date.

        Raises `NotFoundError` and `CorruptError` as `find` and `open` do.
        """
        info = self.find(ref)
        record = self._opened.pop(info.key, None) or self.open(info)
        codec = find_codec(info.key)
        if codec is not None and codec.reads_ranges:
            self._opened[info.key] = record
            while len(self._opened) > _OPEN_RECORDS:
                self._opened.pop(next(iter(self._opened)), None)
        return record

    def open(self, info: RecordInfo, held: bytes | None = None) -> StoredRecord:
        """Open the record of a catalog entry for reading by range; `held` is its object, if at hand.

        Raises `NotFoundError` if it is gone, `CorruptError` if its structure is damaged or it is another
        record that was moved under this key.
        """
        try:
            record = self._open(info.key, held)
        except NotFoundError:
            raise self._unknown(info.ref) from None
        if (record.ref, record.session) != (info.ref, self.name):
            raise CorruptError(f"{info.key} holds record {record.ref} of another place")
        return record

    def load(self, info: RecordInfo) -> tuple[Header, bytes]:
        """Return the header and the whole content of a record, every checksum compared."""
        return self._load(info, None)

    def _load(self, info: RecordInfo, held: bytes | OffloadError | None) -> tuple[Header, bytes]:
        record = self.open(info, held if isinstance(held, bytes) else None)
        content = record.load()
        header = record.header
        if not _is_drawn(header):
            raise CorruptError(f"{info.key}: the ref is not that of its content")
        return header, content

    def load_many(self, infos: Sequence[RecordInfo]) -> Iterator[tuple[Header, bytes]]:
        """Yield what `load` returns for each entry, in order; small records are fetched concurrently."""
        if self._bulk is None:
            yield from map(self.load, infos)
            return
        for start in range(0, len(infos), _BULK_RECORDS):
            group = infos[start : start + _BULK_RECORDS]
            small = [i.key for i in group if i.stored_bytes <= _BULK_RECORD_BYTES]
            held = dict(zip(small, self._bulk.get_many(small), strict=True))
            for info in group:
                yield self._load(info, held.get(info.key))

    def headers(self, ref: str) -> Iterator[Header]:
        """Yield the header of every record that stands under `ref`; those that cannot be read are none."""
        for info in self.catalog.find(ref, is_fresh=True) if is_ref(ref) else ():
            with suppress(NotFoundError, CorruptError):
                yield self.open(info).header

    def infos(self) -> list[RecordInfo]:
        """Return the entry of every record of the session, oldest first, from a fresh listing."""
        self.catalog.load()
        return self.catalog.entries()

    def verify(self) -> Iterator[Damage]:
        """Read every object of the session whole and yield each that is damaged; one hides no other."""
        self.catalog.load()
        for info in self.catalog.objects():
            try:
                self.load(info)
            except OffloadError as error:
                yield Damage(info, error)

    def _unknown(self, ref: str) -> NotFoundError:
        return NotFoundError(f"no record {str(ref)[:40]!r} in session {self.name!r}")

    def _attempt(self, draft: Draft, letters: int) -> _Attempt:
        counts = draft.content.counts
        ref = draw_ref(
            self.name, draft.item_type, draft.tool_use_id, counts.sha256, draft.form, letters=letters
        )
        header = Header(
            ref=ref,
            session=self.name,
            item_type=draft.item_type,
            tool_name=draft.tool_name,
            tool_use_id=draft.tool_use_id,
            created_at=time.time(),
            sha256=counts.sha256,
            placeholder=draft.render(ref),
            form=draft.form,
        )
        key = record_key(header, counts, self._codec.suffix)
        return _Attempt(header, key, self._codec.encode(header, draft.content))

    def _create_many(self, attempts: Sequence[_Attempt]) -> list[_Attempt | OffloadError]:
        known = [bool(self.catalog.known(a.header.ref)) for a in attempts]
        fresh = [a for a, is_known in zip(attempts, known, strict=True) if not is_known]
        if self._bulk is not None and len(fresh) > 1 and not self._codec.has_sidecar:
            errors = self._bulk.put_many([(a.key, a.encoded.body) for a in fresh])
            outcomes = [error or a for a, error in zip(fresh, errors, strict=True)]
        else:
            outcomes = [self._create(a) for a in fresh]
        done = iter(outcomes)
        return [
            ExistsError(f"{a.key} is known") if is_known else next(done)
            for a, is_known in zip(attempts, known, strict=True)
        ]

    def _create(self, attempt: _Attempt) -> _Attempt | OffloadError:
        try:
            if attempt.encoded.sidecar is not None:
                attempt = self._create_sidecar(attempt, attempt.encoded.sidecar)
            self.store.put(attempt.key, attempt.encoded.body)
        except OffloadError as error:
            return error
        return attempt

    def _create_sidecar(self, attempt: _Attempt, sidecar: bytes) -> _Attempt:
        """Store a header before its body; one that a writer left who got no further is taken over."""
        key = sidecar_key(attempt.key)
        try:
            self.store.put(key, sidecar)
        except ExistsError:
            header = parse_sidecar(self.store.get(key))
            if not header.is_same_item(attempt.header):
                raise CollisionError(f"{key} holds the header of another item") from None
            return replace(attempt, header=header)
        return attempt

    def _settle(
        self, draft: Draft, attempt: _Attempt, outcome: _Attempt | OffloadError
    ) -> Placed | OffloadError:
        """Turn the outcome of a create into a placed record: adopt our own, lengthen past any other."""
        letters = REF_LETTERS
        while isinstance(outcome, ExistsError) and letters < MAX_REF_LETTERS:
            letters += 1
            try:
                return self._adopt(attempt, outcome)
            except (CollisionError, CorruptError):
                # Another's, or a torn one that nobody can read: neither is overwritten.
                attempt = self._attempt(draft, letters)
            except NotFoundError:
                pass  # It was collected meanwhile: the key is free again.
            except OffloadError as error:
                return error
            outcome = self._create(attempt)
        if isinstance(outcome, OffloadError):
            return outcome
        return self._place(outcome.header, draft.content.counts, outcome.key, len(outcome.encoded.body))

    def _adopt(self, attempt: _Attempt, outcome: ExistsError) -> Placed:
        """Take the record that stands under this ref already, if it is of the same item."""
        if isinstance(outcome, CollisionError):
            raise outcome
        known = self.catalog.known(attempt.header.ref)
        key, stored = (
            (known[0].key, known[0].stored_bytes) if known else (attempt.key, len(attempt.encoded.body))
        )
        record = self._open(key)
        if not record.header.is_same_item(attempt.header):
            raise CollisionError(f"{key} holds another item")
        return self._place(record.header, record.counts, key, stored)

    def _place(self, header: Header, counts: Counts, key: str, stored_bytes: int) -> Placed:
        info = RecordInfo(
            ref=header.ref,
            session=self.name,
            item_type=header.item_type,
            tool_name=header.tool_name,
            tool_use_id=header.tool_use_id,
            chars=counts.chars,
            tokens=counts.tokens,
            lines=counts.lines,
            bytes=counts.bytes,
            stored_bytes=stored_bytes,
            created_at=header.created_at,
            key=key,
        )
        self.catalog.add(info)
        return Placed(info, header.placeholder)

    def _open(self, key: str, held: bytes | None = None) -> StoredRecord:
        codec = find_codec(key)
        if codec is None:
            raise CorruptError(f"no codec reads {key}")
        sidecar = partial(self.store.get, sidecar_key(key)) if codec.has_sidecar else None
        try:
            return codec.open(partial(self.store.get, key) if held is None else _fetch_from(held), sidecar)
        except NotFoundError:
            self.catalog.drop(key)
            raise
        except CorruptError as error:
            raise CorruptError(f"{key}: {error}") from error


def _fetch_from(data: bytes) -> Fetch:
    def fetch(*, start: int = 0, end: int | None = None) -> bytes:
        return data[start:end]

    return fetch


def new_name() -> str:
    """Return a name that no other session has: `session_{YYYYMMDD_HHMMSS}_{6 random}`."""
    letters = string.ascii_lowercase + string.digits
    random = "".join(secrets.choice(letters) for _ in range(6))
    return f"session_{time.strftime('%Y%m%d_%H%M%S')}_{random}"


def check_name(session: object) -> str:
    """Return `session` if it can name a session. Raises `ConfigError` if it cannot."""
    if not isinstance(session, str) or not 1 <= len(session) <= _MAX_NAME_CHARS:
        raise ConfigError(
            f"a session's name is a text of 1 to {_MAX_NAME_CHARS} characters, not {session!r:.60}"
        )
    try:
        session.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"a session's name has a UTF-8 form, {session!r:.60} has none") from None
    return session


def is_ref(text: object) -> TypeGuard[str]:
    """Tell whether `text` has the form of a ref; nothing else is ever looked up in a store."""
    return isinstance(text, str) and REF_LETTERS <= len(text) <= MAX_REF_LETTERS and _LETTERS.issuperset(text)


def _is_drawn(header: Header) -> bool:
    drawn = draw_ref(
        header.session,
        header.item_type,
        header.tool_use_id,
        header.sha256,
        header.form,
        letters=len(header.ref),
    )
    return drawn == header.ref

"""The catalog of a session: store keys ⇄ entries. A cache: the records themselves are the truth.

    r/<session>/<ref>~<item_type>~<tool>~<chars>~<tokens><suffix>     one record
    h/<session>/<the same name>.json                                  its header, where kept apart

The key is the entry, so one listing of a session's prefix tells what it holds without reading a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import msgspec

from offload.codec import find_codec
from offload.errors import InvalidKeyError, OffloadError
from offload.keys import check_key, decode_part, encode_part, is_hashed
from offload.record import Counts, Header, RecordInfo
from offload.store import OffloadStore, StoredObject

RECORDS, SIDECARS = "r", "h"

_KEY = re.compile(
    r"r/(?P<session>[^/]+)/(?P<ref>[a-z]{10,20})~(?P<item_type>[a-z_]+)~(?P<tool>[^/~]*)"
    r"~(?P<chars>\d{1,15})~(?P<tokens>\d{1,15})(?P<suffix>\.[a-z]+)",
    re.ASCII,
)


def session_prefix(session: str) -> str:
    """Return what the keys of every record of `session` start with."""
    return f"{RECORDS}/{encode_part(session)}/"


def record_key(header: Header, counts: Counts, suffix: str) -> str:
    """Return the key of a record: everything that a listing needs to know about it."""
    tool = "" if header.tool_name is None else encode_part(header.tool_name)
    name = f"{header.ref}~{header.item_type}~{tool}~{counts.chars}~{counts.tokens}{suffix}"
    key = check_key(session_prefix(header.session) + name)
    if not _KEY.fullmatch(key):
        raise InvalidKeyError(f"{key} would not be found again in a listing")
    return key


def sidecar_key(key: str) -> str:
    """Return the key under which the header of the record at `key` is kept apart."""
    return f"{SIDECARS}{key.removeprefix(RECORDS)}.json"


def parse_key(stored: StoredObject) -> RecordInfo | None:
    """Return the entry that a listed object stands for, or None if it is no record."""
    match = _KEY.fullmatch(stored.key)
    if match is None or find_codec(stored.key) is None:
        return None
    try:
        session, tool = decode_part(match["session"]), decode_part(match["tool"])
    except InvalidKeyError:
        return None
    return RecordInfo(
        ref=match["ref"],
        session=session,
        item_type=match["item_type"],
        tool_name=tool if match["tool"] else None,
        chars=int(match["chars"]),
        tokens=int(match["tokens"]),
        stored_bytes=stored.size,
        created_at=stored.modified,
        key=stored.key,
    )


def sessions(store: OffloadStore) -> Iterator[str]:
    """Yield the names of the sessions that hold records in `store`, one short listing for each."""
    after = ""
    while True:
        first = next(store.keys(f"{RECORDS}/", after=after), None)
        if first is None:
            return
        if first.key.count("/") == 1:
            after = first.key  # No record: they lie one level deeper.
            continue
        part = first.key.split("/")[1]
        with suppress(InvalidKeyError):
            yield _name_in(store, first.key) if is_hashed(part) else decode_part(part)
        # "0" follows "/": the next key past everything below this session.
        after = f"{RECORDS}/{part}0"


def _name_in(store: OffloadStore, key: str) -> str:
    """Return the session's name as the record at `key` tells it; one that cannot be read tells its part."""
    codec = find_codec(key)
    sidecar = partial(store.get, sidecar_key(key))
    try:
        name = codec.open(partial(store.get, key), sidecar).session if codec else None
    except OffloadError:
        name = None
    return decode_part(key.split("/")[1]) if name is None else name


class Catalog:
    """What is known of one session's records in one store.

    Entries that this process wrote are known at once; those of others come with `load`, or one by one
    when an unknown ref is looked up.
    """

    def __init__(self, store: OffloadStore, session: str) -> None:
        self._store = store
        self._session = session
        self._entries: dict[str, RecordInfo] = {}
        self._keys_of: dict[str, list[str]] = {}
        self.is_loaded = False

    def add(self, info: RecordInfo) -> None:
        """Remember a record. What was known of it beyond a listing is kept; the time is the store's."""
        known = self._entries.get(info.key)
        if known is not None and info.lines is None:
            info = msgspec.structs.replace(known, created_at=info.created_at, stored_bytes=info.stored_bytes)
        self._entries[info.key] = info
        keys = self._keys_of.setdefault(info.ref, [])
        if info.key not in keys:
            keys.append(info.key)
            keys.sort()

    def drop(self, key: str) -> None:
        """Forget a key whose object turned out to be gone."""
        info = self._entries.pop(key, None)
        if info is not None:
            self._keys_of[info.ref].remove(key)

    def load(self) -> None:
        """List the session's records: one request per 1,000 of them on an object store."""
        listed = list(self._list(session_prefix(self._session)))
        for key in self._entries.keys() - {info.key for info in listed}:
            self.drop(key)
        for info in listed:
            self.add(info)
        self.is_loaded = True

    def known(self, ref: str) -> list[RecordInfo]:
        """Return the entries of `ref` that are known without asking the store, in key order."""
        return [self._entries[key] for key in self._keys_of.get(ref, ())]

    def find(self, ref: str, *, is_fresh: bool = False) -> list[RecordInfo]:
        """Return the entries of `ref` in key order.

        An unknown one costs one listing by its prefix, and so does a known one with `is_fresh`: another
        writer may have stored the same item under another key.
        """
        if is_fresh or not self.known(ref):
            for info in self._list(session_prefix(self._session) + ref + "~"):
                self.add(info)
        return self.known(ref)

    def entries(self) -> list[RecordInfo]:
        """Return the entry of every known ref, oldest first; of several keys the first in key order."""
        first = (self._entries[keys[0]] for keys in self._keys_of.values() if keys)
        return sorted(first, key=lambda info: (info.created_at, info.key))

    def objects(self) -> list[RecordInfo]:
        """Return an entry for every known key, in key order."""
        return [self._entries[key] for key in sorted(self._entries)]

    def _list(self, prefix: str) -> Iterator[RecordInfo]:
        infos = (parse_key(stored) for stored in self._store.keys(prefix))
        # A hashed name decodes to its beginning: the session's own name is the exact one.
        return (msgspec.structs.replace(info, session=self._session) for info in infos if info is not None)

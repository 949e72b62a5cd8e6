"""The store of context files: one folder per conversation, one file per id.

    <conversation>/artifacts/<id>.txt        the content, for people and tools
    <conversation>/artifacts/<id>.txt.zst    the compressed content; `zstdcat` shows it
    <conversation>/headers/<id>.json         header of a record whose content file has none
    <conversation>/manifest.json             list of the files, for people; derived
    ~state/…                                 marks of the library: pins, last uses, deletions

A record that was deleted and stored again is `<id>.2`, then `<id>.3`. `offload.layout.encode_part` encodes
conversation names that are not slugs.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from offload.codec import get_codec
from offload.errors import CorruptError, InvalidKeyError, NotFoundError, OffloadError
from offload.index import record_key
from offload.layout import LAST_READ, RECORD, SIDECAR, Family, check_key, name_of, ref_of, sidecar_key
from offload.record import Counts, Header
from offload.store import OffloadStore, StoredObject, put_stream
from offload.wrappers import WrapperStore

MANIFEST = "manifest.json"
ARTIFACTS, HEADERS = "artifacts", "headers"
# No encoded conversation name starts with this.
_STATE = "~state/"
_ENDINGS = {".txt": ".txt", ".zst": ".txt.zst"}
_FOLDERS = {RECORD: ARTIFACTS, SIDECAR: HEADERS}
# Reads of a file are recorded at most this often.
_NOTED_SECONDS = 60.0

_log = logging.getLogger("offload.context_refs")


class _Sidecar(msgspec.Struct):
    header: Header
    counts: Counts


class _ManifestItem(msgspec.Struct):
    record: str


class _Manifest(msgspec.Struct):
    items: list[_ManifestItem]


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_SIDECARS = msgspec.json.Decoder(_Sidecar)
_MANIFESTS = msgspec.json.Decoder(_Manifest)


class Place(NamedTuple):
    """Path of an object; for a record, the conversation's key part and the id with its generation too."""

    path: str
    part: str = ""
    stem: str = ""
    is_artifact: bool = False


class ContextTree(WrapperStore):
    """A store that keeps records as context files and all other objects under `~state/`.

    File names contain only the id, so a listing reads the other fields of a key from each header once. Keys
    of other objects have at most 505 characters, more than the library uses.
    """

    def __init__(self, inner: OffloadStore) -> None:
        super().__init__(inner)
        self.is_changed = True
        self._keys: dict[str, str] = {}
        self._recalled: set[str] = set()
        self._noted: dict[str, float] = {}

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`; see `OffloadStore.put`."""
        place = place_of(key)
        if place.is_artifact and overwrite and not data:
            # gc empties a record and then deletes its header; this mark keeps the record's key.
            self.inner.put(_STATE + key, data, overwrite=True)
        self.inner.put(place.path, data, overwrite=overwrite)
        self._note_change(place, len(data))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` piece by piece; see `SupportsStreams.put_stream`."""
        place = place_of(key)
        put_stream(self.inner, place.path, pieces, size)
        self._note_change(place, size)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        place = place_of(key)
        data = self.inner.get(place.path, start=start, end=end)
        if place.is_artifact:
            self._note_use(place)
        return data

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order; see `OffloadStore.keys`."""
        listed = [self._tree_keys(family, prefix, after) for family in _FOLDERS]
        merged = heapq.merge(*listed, self._state_keys(prefix, after), key=attrgetter("key"))
        return (next(same) for _, same in groupby(merged, key=attrgetter("key")))

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        place = place_of(key)
        self.inner.delete(place.path)
        if place.is_artifact:
            self.inner.delete(_STATE + key)
            self.inner.delete(_read_mark(place))
            self._note_change(place)

    def last_reads(self, part: str) -> dict[str, float]:
        """Return the time of the last read of each file of a conversation, by id."""
        marks = self._state_keys(LAST_READ.prefix(part), "")
        return {match["ref"]: mark.modified for mark in marks if (match := LAST_READ.match(mark.key))}

    def _note_change(self, place: Place, size: int = 0) -> None:
        if not place.is_artifact:
            return
        self.is_changed = True
        if size:
            _log.info("[ContextStore] Created ref: %s", place.stem)
            _log.info("[ContextStore] Wrote content: %s/%s (%d bytes)", self.url, place.path, size)

    def _note_use(self, place: Place) -> None:
        """Record the use of a file, at most once a minute; a failure is ignored."""
        now = time.monotonic()
        if now - self._noted.get(place.path, -_NOTED_SECONDS) < _NOTED_SECONDS:
            return
        self._noted[place.path] = now
        with suppress(OffloadError):
            self.inner.put(_read_mark(place), b"", overwrite=True)

    def _state_keys(self, prefix: str, after: str) -> Iterator[StoredObject]:
        for mark in self.inner.keys(_STATE + prefix, after=_STATE + after):
            yield StoredObject(mark.key.removeprefix(_STATE), mark.size, mark.modified)

    def _tree_keys(self, family: Family, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield the records or headers of the tree, one conversation after another."""
        root = family.prefix()
        if not (prefix.startswith(root) or root.startswith(prefix)) or after.partition("/")[0] > root[:-1]:
            return
        start = "".join(after.removeprefix(root).partition("/")[:2]) if after.startswith(root) else ""
        files = self.inner.keys(_tree_prefix(family, prefix.removeprefix(root)), after=start)
        for _, of_part in groupby(files, key=lambda file: file.key.partition("/")[0]):
            objects = [
                stored for file in of_part if (stored := self._stored_object(family, file)) is not None
            ]
            for stored in sorted(objects, key=attrgetter("key")):
                if stored.key.startswith(prefix) and stored.key > after:
                    yield stored

    def _stored_object(self, family: Family, file: StoredObject) -> StoredObject | None:
        """Return a file of the tree under its store key; None for a foreign file."""
        part, _, rest = file.key.partition("/")
        folder, _, name = rest.partition("/")
        stem, dot, ending = name.rpartition(".txt" if folder == ARTIFACTS else ".json")
        if folder != _FOLDERS[family] or not dot:
            return None
        key = self._key_of(_artifact(part, stem, dot + ending if folder == ARTIFACTS else ".txt"))
        if key is None:
            return None
        return StoredObject(key if family is RECORD else sidecar_key(key), file.size, file.modified)

    def _key_of(self, place: Place) -> str | None:
        """Return the record key of a file, from the known keys or from its header."""
        self._recall(place.part)
        if place.path not in self._keys:
            try:
                key = self._read_key(place)
            except (NotFoundError, CorruptError, InvalidKeyError, msgspec.MsgspecError):
                return None
            if place_of(key) != place:
                return None
            self._keys[place.path] = key
        return self._keys[place.path]

    def _recall(self, part: str) -> None:
        """Load the record keys from a conversation's manifest once; this saves a read per file."""
        if part in self._recalled:
            return
        self._recalled.add(part)
        # A missing or damaged manifest saves nothing.
        with suppress(NotFoundError, InvalidKeyError, ValueError, RecursionError):
            manifest = _MANIFESTS.decode(self.inner.get(f"{part}/{MANIFEST}"))
            for item in manifest.items:
                place = place_of(item.record)
                if place.part == part:
                    self._keys[place.path] = item.record

    def _read_key(self, place: Place) -> str:
        _, dot, generation = place.stem.partition(".")
        if place.path.endswith(".txt"):
            sidecar = self.inner.get(f"{place.part}/{HEADERS}/{place.stem}.json")
            decoded = _SIDECARS.decode(sidecar)
            header, counts, suffix = decoded.header, decoded.counts, ".txt"
        else:
            record = get_codec("zstd").open(partial(self.inner.get, place.path))
            header, counts, suffix = record.header, record.counts, ".zst"
        if dot and not generation.isdecimal():
            raise InvalidKeyError(f"{place.path} is not a valid name of a context file")
        return record_key(header, counts, suffix, int(generation) if dot else 1)


def place_of(key: str) -> Place:
    """Return the place of a store key in the tree or under `~state/`."""
    check_key(key)
    match = RECORD.match(key) or SIDECAR.match(key)
    if match is None or match["suffix"] not in _ENDINGS:
        return Place(_STATE + key)
    part, stem = match["session"], name_of(key).partition("~")[0]
    if key.startswith(SIDECAR.prefix()):
        return Place(f"{part}/{HEADERS}/{stem}.json", part, stem)
    return _artifact(part, stem, _ENDINGS[match["suffix"]])


def _artifact(part: str, stem: str, ending: str) -> Place:
    return Place(f"{part}/{ARTIFACTS}/{stem}{ending}", part, stem, is_artifact=True)


def _tree_prefix(family: Family, rest: str) -> str:
    part, slash, name = rest.partition("/")
    return f"{part}/{_FOLDERS[family]}/{name.partition('~')[0]}" if slash else part


def _read_mark(place: Place) -> str:
    return _STATE + LAST_READ.key(session=place.part, ref=ref_of(place.stem))

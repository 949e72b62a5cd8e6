"""The store of context files: a folder per conversation, in which each file is named by its id alone.

    <conversation>/artifacts/<id>.txt        the content, once: what a person opens
    <conversation>/artifacts/<id>.txt.zst    the same, compressed: `zstdcat` shows it
    <conversation>/headers/<id>.json         what the record is, where the content cannot tell
    <conversation>/manifest.json             the list of the files, for a person; made of the tree
    ~state/…                                 marks of the library: what is pinned, used, being removed

A record that was collected and stored again is `<id>.2`, and so on. A name of a conversation that is no
slug is encoded by `offload.keys.encode_part`.
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
from typing import NamedTuple, TypeGuard

import msgspec

from offload.codec import get_codec
from offload.errors import CorruptError, InvalidKeyError, NotFoundError, OffloadError
from offload.index import RECORDS, SIDECARS, marks_prefix, parse_key, record_key, sidecar_key
from offload.keys import check_key
from offload.presets.context_refs._manifest import MANIFEST, record_keys
from offload.record import Counts, Header, RecordInfo
from offload.store import OffloadStore, StoredObject
from offload.wrappers import StreamWrapperStore, WrapperStore

ARTIFACTS, HEADERS = "artifacts", "headers"
# No name of a conversation is encoded so.
_STATE = "~state/"
_ENDINGS = {".txt": ".txt", ".zst": ".txt.zst"}
_FOLDERS = {RECORDS: ARTIFACTS, SIDECARS: HEADERS}
_READ_MARK = "read~"
# So long one mark of a read stands for all reads of a file.
_NOTED_SECONDS = 60.0

_log = logging.getLogger("offload.context_refs")


class _Sidecar(msgspec.Struct):
    header: Header
    counts: Counts


class _Place(NamedTuple):
    """Where an object of a record lies: the conversation's part, the id with its generation, the ending."""

    part: str
    stem: str
    ending: str
    folder: str

    @property
    def path(self) -> str:
        return f"{self.part}/{self.folder}/{self.stem}{self.ending}"


class ContextTree(WrapperStore):
    """Keeps the records of any conversation in the tree, and everything else beside it.

    What the key of a record tells beside its id stands in its header; a listing reads it once per file.

    A key that is not of a record has at most 505 characters here, which is more than the library uses.

    Args:
        inner: the store that holds the tree.

    Attributes:
        is_changed: whether a file came or went since it was last set to False.
    """

    def __init__(self, inner: OffloadStore) -> None:
        super().__init__(inner)
        self.is_changed = True
        self._keys: dict[str, str] = {}
        self._recalled: set[str] = set()
        self._noted: dict[str, float] = {}

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`; see `OffloadStore.put`."""
        place = _place_of(key)
        if _is_artifact(place) and overwrite and not data:
            # Emptied by a collector: its header goes next, and this tells its key from then on.
            self.inner.put(_STATE + key, data, overwrite=True)
        self.inner.put(_path(key, place), data, overwrite=overwrite)
        self._note_change(place, len(data))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        place = _place_of(key)
        data = self.inner.get(_path(key, place), start=start, end=end)
        if _is_artifact(place):
            self._note_use(place)
        return data

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order; see `OffloadStore.keys`."""
        listed = [self._tree_keys(top, prefix, after) for top in _FOLDERS]
        merged = heapq.merge(*listed, self._state_keys(prefix, after), key=attrgetter("key"))
        return (next(same) for _, same in groupby(merged, key=attrgetter("key")))

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        place = _place_of(key)
        self.inner.delete(_path(key, place))
        if _is_artifact(place):
            self.inner.delete(_STATE + key)
            self.inner.delete(_read_mark(place))
            self._note_change(place)

    def last_reads(self, part: str) -> dict[str, float]:
        """Return when each file of the conversation with this key part was last read, by id."""
        prefix = f"{_STATE}{marks_prefix(part)}{_READ_MARK}"
        return {mark.key.removeprefix(prefix): mark.modified for mark in self.inner.keys(prefix)}

    def path_of(self, key: str) -> str | None:
        """Return where the file of a record's key lies in the tree; None if it is not of the tree."""
        place = _place_of(key)
        return None if place is None else place.path

    def _note_change(self, place: _Place | None, size: int = 0) -> None:
        if not _is_artifact(place):
            return
        self.is_changed = True
        if size:
            _log.info("[ContextStore] Created ref: %s", place.stem)
            _log.info("[ContextStore] Wrote content: %s/%s (%d bytes)", self.url, place.path, size)

    def _note_use(self, place: _Place) -> None:
        """Mark that a file is used: a hint, which no reader waits for twice in a minute."""
        now = time.monotonic()
        if now - self._noted.get(place.path, -_NOTED_SECONDS) < _NOTED_SECONDS:
            return
        self._noted[place.path] = now
        with suppress(OffloadError):
            self.inner.put(_read_mark(place), b"", overwrite=True)

    def _state_keys(self, prefix: str, after: str) -> Iterator[StoredObject]:
        for found in self.inner.keys(_STATE + prefix, after=_STATE + after):
            yield StoredObject(found.key.removeprefix(_STATE), found.size, found.modified)

    def _tree_keys(self, top: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield the records (`top` "r") or headers ("h") of the tree, conversation by conversation."""
        root = f"{top}/"
        if not (prefix.startswith(root) or root.startswith(prefix)) or after.partition("/")[0] > top:
            return
        start = "".join(after.removeprefix(root).partition("/")[:2]) if after.startswith(root) else ""
        files = self.inner.keys(_tree_prefix(top, prefix.removeprefix(root)), after=start)
        for _, of_part in groupby(files, key=lambda file: file.key.partition("/")[0]):
            found = [named for file in of_part if (named := self._named(top, file)) is not None]
            for named in sorted(found, key=attrgetter("key")):
                if named.key.startswith(prefix) and named.key > after:
                    yield named

    def _named(self, top: str, file: StoredObject) -> StoredObject | None:
        """Return a file of the tree under its store key; None for a file that is none of ours."""
        part, _, rest = file.key.partition("/")
        folder, _, name = rest.partition("/")
        stem, dot, ending = name.rpartition(".txt" if folder == ARTIFACTS else ".json")
        if folder != _FOLDERS[top] or not dot:
            return None
        place = _Place(part, stem, dot + ending if folder == ARTIFACTS else ".txt", ARTIFACTS)
        key = self._key_of(place)
        if key is None:
            return None
        return StoredObject(key if top == RECORDS else sidecar_key(key), file.size, file.modified)

    def _key_of(self, place: _Place) -> str | None:
        """Return the record key of a file, from what is known or from its header."""
        self._recall(place.part)
        if place.path not in self._keys:
            try:
                key = self._read_key(place)
            except (NotFoundError, CorruptError, InvalidKeyError, msgspec.MsgspecError):
                return None
            if _place_of(key) != place:
                return None
            self._keys[place.path] = key
        return self._keys[place.path]

    def _recall(self, part: str) -> None:
        """Learn from the manifest of a conversation, once, what else takes a read per file."""
        if part in self._recalled:
            return
        self._recalled.add(part)
        with suppress(NotFoundError):
            for key in record_keys(self.inner.get(f"{part}/{MANIFEST}")):
                place = _place_of(key)
                if place is not None and place.part == part:
                    self._keys[place.path] = key

    def _read_key(self, place: _Place) -> str:
        _, dot, generation = place.stem.partition(".")
        if place.ending == _ENDINGS[".txt"]:
            sidecar = self.inner.get(place._replace(folder=HEADERS, ending=".json").path)
            known = msgspec.json.decode(sidecar, type=_Sidecar)
            header, counts, suffix = known.header, known.counts, ".txt"
        else:
            record = get_codec("zstd").open(partial(self.inner.get, place.path))
            header, counts, suffix = record.header, record.counts, ".zst"
        if dot and not generation.isdecimal():
            raise InvalidKeyError(f"{place.path} is no name of a context file")
        return record_key(header, counts, suffix, int(generation) if dot else 1)


class StreamContextTree(ContextTree, StreamWrapperStore, extends=ContextTree):
    """The tree in a store that takes a file piece by piece."""

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` piece by piece; see `SupportsStreams.put_stream`."""
        place = _place_of(key)
        self.streams.put_stream(_path(key, place), pieces, size)
        self._note_change(place, size)


def _place_of(key: str) -> _Place | None:
    """Return where the object of a store key lies in the tree; None for what is kept beside it."""
    check_key(key)
    is_header = key.startswith(f"{SIDECARS}/") and key.endswith(".json")
    record = f"{RECORDS}{key[1 : -len('.json')]}" if is_header else key
    ending = _ENDINGS.get(record[record.rfind(".") :])
    if ending is None or not isinstance(parse_key(StoredObject(record, 0, 0.0)), RecordInfo):
        return None
    _, part, name = record.split("/")
    stem = name.partition("~")[0]
    return _Place(part, stem, ".json", HEADERS) if is_header else _Place(part, stem, ending, ARTIFACTS)


def _is_artifact(place: _Place | None) -> TypeGuard[_Place]:
    return place is not None and place.folder == ARTIFACTS


def _path(key: str, place: _Place | None) -> str:
    return _STATE + key if place is None else place.path


def _tree_prefix(top: str, rest: str) -> str:
    part, slash, name = rest.partition("/")
    return f"{part}/{_FOLDERS[top]}/{name.partition('~')[0]}" if slash else part


def _read_mark(place: _Place) -> str:
    return f"{_STATE}{marks_prefix(place.part)}{_READ_MARK}{place.stem.partition('.')[0]}"

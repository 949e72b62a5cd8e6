"""The store of context files: one folder per conversation, one file per id.

    <conversation>/artifacts/<id>.txt        the content, for people and tools
    <conversation>/artifacts/<id>.txt.zst    the compressed content; `zstdcat` shows it
    <conversation>/headers/<id>.json         header of a record whose content file has none
    <conversation>/manifest.json             list of the files, for people; derived
    ~state/…                                 marks of the library: pins, last uses, deletions

A record that was deleted and stored again is `<id>.2`, then `<id>.3`. `_folders` has the names of folders.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Self

import msgspec

from offload.agent.presets._files import IndexFiles
from offload.agent.presets.context_refs._folders import part_of, readable_folder
from offload.agent.presets.context_refs._tools import ToolGroups
from offload.engine.placeholder.default import tool_label
from offload.errors import CorruptError, InvalidKeyError, NotFoundError, OffloadError
from offload.records.codec import get_codec
from offload.records.index.entries import parse_key, record_key
from offload.records.index.objects import list_session, session_name
from offload.records.record import Header, RecordInfo
from offload.records.record.header import Counts
from offload.storage import layout
from offload.storage.store import OffloadStore, StoredObject, check_plain, put_stream
from offload.storage.wrappers import WrapperStore

MANIFEST = "manifest.json"
ARTIFACTS, HEADERS = "artifacts", "headers"
# No encoded conversation name starts with this.
_STATE = "~state/"
_ENDINGS = {".txt": ".txt", ".zst": ".txt.zst"}
_FOLDERS = {layout.RECORD: ARTIFACTS, layout.SIDECAR: HEADERS}
# Reads of a file are recorded at most this often.
_NOTED_SECONDS = 60.0
# The list of all folders is used for 20 times as long as it took to read.
_REUSE_FACTOR = 20

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


class TreeFile(NamedTuple):
    """Path of an object; for a record or its header, the conversation's key part and the id too."""

    path: str
    part: str = ""
    stem: str = ""
    is_artifact: bool = False


class ContextTree(WrapperStore):
    """A store that keeps records as context files and all other objects under `~state/`.

    File names contain only the id, so a listing reads the other fields of a key from each header once. Keys
    of other objects have at most 505 characters, more than the library uses. `groups` are the groups of
    tools, for the categories in manifests and logs. If it `notes_uses`, reads of files are recorded.
    """

    def __init__(self, inner: OffloadStore, groups: ToolGroups | None = None) -> None:
        super().__init__(inner)
        self._groups = ToolGroups() if groups is None else groups
        self._index = IndexFiles(inner, self._rows, self._entry, self._head)
        self._names: dict[str, str] = {}
        self._all_parts: list[str] = []
        self._parts_until = 0.0
        self._keys: dict[str, str] = {}
        self._recalled: set[str] = set()
        self._noted: dict[str, float] = {}
        self.notes_uses = True

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        file = self.file_of(key)
        if file.is_artifact and overwrite and not data:
            # gc empties a record and then deletes its header; this mark keeps the record's key.
            self.inner.put(_STATE + key, data, overwrite=True)
        self.inner.put(file.path, data, overwrite=overwrite)
        self._note_change(key, file, len(data))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        file = self.file_of(key)
        put_stream(self.inner, file.path, pieces, size)
        self._note_change(key, file, size)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        file = self.file_of(key)
        data = self.inner.get(file.path, start=start, end=end)
        if file.is_artifact:
            self._note_use(file)
        return data

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        listed = [self._tree_keys(family, prefix, after) for family in _FOLDERS]
        merged = heapq.merge(*listed, self._state_keys(prefix, after), key=attrgetter("key"))
        return (next(same) for _, same in groupby(merged, key=attrgetter("key")))

    def delete(self, key: str) -> None:
        file = self.file_of(key)
        self.inner.delete(file.path)
        if file.is_artifact:
            self.inner.delete(_STATE + key)
            self.inner.delete(_read_mark(file))
        self._note_change(key, file)

    def update_index(self) -> None:
        self._index.update()

    def file_of(self, key: str) -> TreeFile:
        """Return the file of a store key in the tree or under `~state/`."""
        layout.check_key(key)
        match = layout.RECORD.match(key) or layout.SIDECAR.match(key)
        if match is None or match["suffix"] not in _ENDINGS:
            return TreeFile(_STATE + key)
        part, stem = match["session"], layout.name_of(key).partition("~")[0]
        if key.startswith(layout.SIDECAR.prefix()):
            return TreeFile(f"{readable_folder(part)}/{HEADERS}/{stem}.json", part, stem)
        return self._artifact(part, stem, _ENDINGS[match["suffix"]])

    def name_session(self, session: str) -> None:
        """Note the name of a session, which its key part may not contain."""
        self._names[layout.encode_part(session)] = session

    def without_notes(self) -> Self:
        """Return this tree for reads that do not count as use."""
        other = copy(self)
        other.notes_uses = False
        return other

    def path_of(self, key: str) -> str:
        return self.file_of(key).path

    def reindex(self) -> None:
        """Make every manifest match the records again. Raises `StoreError`."""
        for part in self._parts("", ""):
            self._index.note_change(f"{readable_folder(part)}/{MANIFEST}")
        self.update_index()

    def last_reads(self, part: str) -> dict[str, float]:
        """Return the time of the last read of each file of a conversation, by id."""
        marks = self._state_keys(layout.LAST_READ.prefix(part), "")
        return {match["ref"]: mark.modified for mark in marks if (match := layout.LAST_READ.match(mark.key))}

    def _note_change(self, key: str, file: TreeFile, size: int = 0) -> None:
        """Note that the manifest is out of date, and log a new file of `size` bytes."""
        if file.is_artifact or layout.TOMBSTONE.match(key):
            self._index.note_change(f"{readable_folder(layout.session_part(key))}/{MANIFEST}")
        if not file.is_artifact or not size:
            return
        _log.info("[ContextStore] Created ref: %s", file.stem)
        _log.info("[ContextStore] Wrote content: %s/%s (%d bytes)", self.url, file.path, size)
        info = parse_key(StoredObject(key, size, 0.0))
        if not isinstance(info, RecordInfo):
            return
        if self._groups.category(info.item_type, info.tool_name) == "Bash":
            _log.info("[AgentBashHandler] Offloaded output: %s", info.ref)
        else:
            label = tool_label(info.tool_name or info.item_type)
            _log.info("[ToolCallProcessor] Offloaded tool output: %s (%d chars)", label, info.chars)

    def _note_use(self, file: TreeFile) -> None:
        """Record the use of a file, at most once a minute; a failure is ignored."""
        now = time.monotonic()
        if not self.notes_uses or now - self._noted.get(file.path, -_NOTED_SECONDS) < _NOTED_SECONDS:
            return
        self._noted[file.path] = now
        with suppress(OffloadError):
            self.inner.put(_read_mark(file), b"", overwrite=True)

    def _state_keys(self, prefix: str, after: str) -> Iterator[StoredObject]:
        for mark in self.inner.keys(_STATE + prefix, after=_STATE + after):
            yield StoredObject(mark.key.removeprefix(_STATE), mark.size, mark.modified)

    def _tree_keys(self, family: layout.Family, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield the records or headers of the tree, one conversation after another."""
        root = family.prefix()
        if not (prefix.startswith(root) or root.startswith(prefix)) or after.partition("/")[0] > root[:-1]:
            return
        part_start, slash, name = prefix.removeprefix(root).partition("/")
        first = after.removeprefix(root).partition("/")[0] if after.startswith(root) else ""
        for part in [part_start] if slash else self._parts(part_start, first):
            self._recall(part)
            files = self.inner.keys(f"{readable_folder(part)}/{_FOLDERS[family]}/{name.partition('~')[0]}")
            objects = [o for file in files if (o := self._stored_object(family, part, file)) is not None]
            for stored in sorted(objects, key=attrgetter("key")):
                if stored.key.startswith(prefix) and stored.key > after:
                    yield stored

    def _parts(self, start: str, first: str) -> list[str]:
        """Return the key parts of all conversations that begin with `start`, from `first` on, in order."""
        began = time.monotonic()
        # Folders are not in the order of key parts; the next part of a listing uses the list of the first.
        if not first or began > self._parts_until:
            folders = dict.fromkeys(o.key.partition("/")[0] for o in self.inner.keys("") if "/" in o.key)
            parts = {part for folder in folders if f"{folder}/" != _STATE and (part := part_of(folder))}
            self._all_parts = sorted(parts)
            self._parts_until = time.monotonic() + _REUSE_FACTOR * (time.monotonic() - began)
        return [part for part in self._all_parts if part.startswith(start) and part >= first]

    def _stored_object(self, family: layout.Family, part: str, file: StoredObject) -> StoredObject | None:
        """Return a file of a conversation under its store key; None for a foreign file."""
        if family is layout.RECORD and (known := self._keys.get(file.key)):
            return StoredObject(known, file.size, file.modified)
        name = file.key.partition("/")[2].partition("/")[2]
        stem, dot, ending = name.rpartition(".txt" if family is layout.RECORD else ".json")
        if not dot:
            return None
        key = self._key_of(self._artifact(part, stem, dot + ending if family is layout.RECORD else ".txt"))
        if key is None:
            return None
        return StoredObject(
            key if family is layout.RECORD else layout.sidecar_key(key), file.size, file.modified
        )

    def _key_of(self, file: TreeFile) -> str | None:
        if file.path not in self._keys:
            try:
                key = self._read_key(file)
            except (NotFoundError, CorruptError, InvalidKeyError, msgspec.MsgspecError):
                return None
            if self.file_of(key) != file:
                return None
            self._keys[file.path] = key
        return self._keys[file.path]

    def _recall(self, part: str) -> None:
        """Load the record keys from a conversation's manifest once; this saves a read per file."""
        if part in self._recalled:
            return
        self._recalled.add(part)
        # A missing or damaged manifest saves nothing.
        with suppress(NotFoundError, InvalidKeyError, ValueError, RecursionError):
            manifest = _MANIFESTS.decode(self.inner.get(f"{readable_folder(part)}/{MANIFEST}"))
            for item in manifest.items:
                file = self.file_of(item.record)
                if file.part == part:
                    self._keys[file.path] = item.record

    def _read_key(self, file: TreeFile) -> str:
        _, dot, generation = file.stem.partition(".")
        if file.path.endswith(".txt"):
            key = f"{readable_folder(file.part)}/{HEADERS}/{file.stem}.json"
            sidecar = self.inner.get(key)
            check_plain(sidecar, key)
            decoded = _SIDECARS.decode(sidecar)
            header, counts, suffix = decoded.header, decoded.counts, ".txt"
        else:
            record = get_codec("zstd").open(partial(self.inner.get, file.path))
            header, counts, suffix = record.header, record.counts, ".zst"
        if dot and not generation.isdecimal():
            raise InvalidKeyError(f"{file.path} is not a valid name of a context file")
        return record_key(header, counts, suffix, int(generation) if dot else 1)

    def _artifact(self, part: str, stem: str, ending: str) -> TreeFile:
        path = f"{readable_folder(part)}/{ARTIFACTS}/{stem}{ending}"
        return TreeFile(path, part, stem, is_artifact=True)

    # Manifest

    def _rows(self, manifest: str) -> list[RecordInfo]:
        """Return the records in a manifest, which is for people and for a quick start, oldest first."""
        folder = manifest.partition("/")[0]
        records = list_session(self, part_of(folder) or folder).records
        # A link, or a record of another codec, is not a context file.
        endings = tuple(_ENDINGS)
        return [info for info in records if info.key.endswith(endings) and not layout.is_link(info.key)]

    def _entry(self, info: RecordInfo) -> dict[str, Any]:
        return {
            "id": info.ref,
            "category": self._groups.category(info.item_type, info.tool_name),
            "tool": info.tool_name,
            "chars": info.chars,
            "size": info.stored_bytes,
            "created": datetime.fromtimestamp(info.created_at, UTC).isoformat(timespec="seconds"),
            "path": self.file_of(info.key).path.partition("/")[2],
            "record": info.key,
        }

    def _head(self, manifest: str) -> dict[str, Any]:
        folder = manifest.partition("/")[0]
        part = part_of(folder) or folder
        return {"conversation": self._names.get(part) or session_name(self.without_notes(), part)}


def _read_mark(file: TreeFile) -> str:
    return _STATE + layout.LAST_READ.key(session=file.part, ref=layout.ref_of(file.stem))

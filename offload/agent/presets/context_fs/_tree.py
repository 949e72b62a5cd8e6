"""The tree: a document for each record of a local store under `.offload`, and the index of the documents."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path

from offload.agent.presets import _files as disk
from offload.agent.presets.context_fs._document import document_of
from offload.agent.presets.context_fs._layout import (
    DOCUMENT,
    INDEX,
    JSON,
    SUFFIXES,
    Document,
    stem_of,
    suffix_of,
)
from offload.base.system import is_own, patiently
from offload.errors import CorruptError, ExistsError, NotFoundError, StorePermissionError
from offload.records.codec import find_codec
from offload.records.index.entries import parse_key
from offload.records.index.objects import list_session, list_sessions
from offload.records.record import RecordInfo
from offload.records.record.header import ITEM_TYPES
from offload.storage.layout import RECORD, TOMBSTONE, check_key, is_link, sidecar_key
from offload.storage.registry import folder_of, open_backend
from offload.storage.store import OffloadStore, StoredObject
from offload.storage.wrappers import WrapperStore

RECORDS_FOLDER = ".offload"


class TreeStore(WrapperStore):
    """A store whose records are also documents in a tree.

    The record alone counts: a document is made from it, may be edited or lost, and is rebuilt by `reindex`.
    `put` returns once both are durable. A root that other users can change is refused.
    """

    def __init__(self, store: OffloadStore) -> None:
        self.root = folder_of(store) or Path()
        self._url = store.url
        super().__init__(open_backend(self.root / RECORDS_FOLDER))
        # The store of the root holds only the index: its keys are lower-case, tool names need not be.
        self._index = disk.IndexFiles(store, lambda _: self._rows(), lambda row: asdict(Document.of(*row)))
        self._index.note_change(INDEX)
        self._has_root = False
        # Whether records may have been deleted whose documents are in the tree.
        self._has_deletions = False

    @property
    def url(self) -> str:
        """The address of the tree, which opens it."""
        return self._url

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        info = parse_key(StoredObject(check_key(key), len(data), 0.0))
        is_emptied = overwrite and not data
        # A link belongs to the tree of another session.
        if not isinstance(info, RecordInfo) or is_link(info.key) or is_emptied:
            super().put(key, data, overwrite=overwrite)
            self._note_deletion(key)
            return
        if not self._has_root:
            self._index.create(INDEX)
            self._has_root = True
        self._index.note_change(INDEX)
        try:
            super().put(key, data, overwrite=overwrite)
        except ExistsError:
            # The writer of an existing record may have been killed before it wrote the document.
            self._add_document(info)
            raise
        self._write_document(info, data)

    def delete(self, key: str) -> None:
        super().delete(key)
        self._note_deletion(key)

    def update_index(self) -> None:
        if self._has_deletions:
            self._has_deletions = False
            try:
                self._sync_documents()
            except BaseException:
                self._has_deletions = True
                raise
        self._index.update()

    def path_of(self, key: str) -> str:
        """Return the path of the document of a record, or of any other object, relative to the root."""
        info = parse_key(StoredObject(key, 0, 0.0))
        if not isinstance(info, RecordInfo) or is_link(key):
            return f"{RECORDS_FOLDER}/{key}"
        paths = [f"{stem_of(info)}{suffix}" for suffix in SUFFIXES]
        return next((path for path in paths if os.path.lexists(self.root / path)), paths[0])

    def documents(self, part: str | None = None) -> list[Document]:
        """Return the documents of a session, given by its key part, or of all; oldest first."""
        return [Document.of(*row) for row in self._rows(part)]

    def reindex(self) -> None:
        """Make every document and the index match the records again. Raises `StoreError`."""
        self._sync_documents()
        for info in self._live().values():
            self._repair_document(info)
        for path in self._files(disk.TEMPORARY):
            disk.remove_abandoned(self.root / path)
        self.update_index()

    def _note_deletion(self, key: str) -> None:
        """Note that a record was deleted, or its deletion undone, if `key` shows that."""
        if RECORD.match(key) or TOMBSTONE.match(key):
            self._has_deletions = True

    def _rows(self, part: str | None = None) -> list[tuple[RecordInfo, str]]:
        """Return the records that have a document, and its path, oldest first."""
        paths = {_stem(path): path for path in self._files()}
        live = sorted((int(info.created_at), stem_of(info), info.key, info) for info in self._infos(part))
        return [(info, paths[stem.casefold()]) for _, stem, _, info in live if stem.casefold() in paths]

    def _sync_documents(self) -> None:
        # A document is written after its record, so a file without a record in a later listing is stale.
        files = self._files()
        live = self._live()
        for path in files:
            if _stem(path) not in live:
                with disk.mapped_errors(self.root / path):
                    patiently((self.root / path).unlink, missing_ok=True)
        # List again: an item may have been stored again since, under the same path.
        for info in self._live().values():
            self._add_document(info)
        self._index.note_change(INDEX)

    def _live(self) -> dict[str, RecordInfo]:
        """Return the readable records by the path of their document, as `_stem` returns it.

        The records of a session and its fork share their documents.
        """
        return {stem_of(info).casefold(): info for info in self._infos()}

    def _infos(self, part: str | None = None) -> Iterator[RecordInfo]:
        listed = list_sessions(self.inner) if part is None else [list_session(self.inner, part)]
        return (info for objects in listed for info in objects.records if not is_link(info.key))

    def _files(self, name: re.Pattern[str] = DOCUMENT) -> list[str]:
        """Return the paths in the tree, relative to the root, with such names, by default documents'."""
        walks = (os.walk(self.root / item_type, onerror=_raise) for item_type in ITEM_TYPES)
        with disk.mapped_errors(self.root):
            found = [(Path(folder), files) for folder, _, files in chain.from_iterable(walks)]
        below = ((folder.relative_to(self.root).as_posix(), files) for folder, files in found)
        return sorted(f"{folder}/{each}" for folder, files in below for each in files if name.fullmatch(each))

    def _add_document(self, info: RecordInfo) -> None:
        if not os.path.lexists(self.root / self.path_of(info.key)):
            self._write_document(info)

    def _write_document(self, info: RecordInfo, data: bytes | None = None) -> None:
        """Write the document of a record, in place of that of an earlier record of the item.

        `data` is the object of the record if it is known.
        """
        document = self._document(info, data)
        if document is not None:
            self._replace(*document)

    def _repair_document(self, info: RecordInfo) -> None:
        """Write a document again if it was edited."""
        document = self._document(info)
        if document is None:
            return
        path, data = document
        with disk.mapped_errors(path), suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and path.read_bytes() == data:
                return
        self._replace(path, data)

    def _document(self, info: RecordInfo, data: bytes | None = None) -> tuple[Path, bytes] | None:
        """Return the path and the bytes of a record's document; None if the record is gone or damaged."""
        codec = find_codec(info.key)
        try:
            body = self.inner.get(info.key) if data is None else data
            sidecar = partial(self.inner.get, sidecar_key(info.key)) if codec.has_sidecar else None
            record = codec.open(lambda *, start=0, end=None: body[start:end], sidecar)
            suffix = suffix_of(info, record.header.placeholder)
            return self.root / f"{stem_of(info)}{suffix}", document_of(record) if suffix == JSON else body
        except (CorruptError, NotFoundError):
            return None

    def _replace(self, path: Path, data: bytes) -> None:
        with disk.mapped_errors(path):
            self._make_folders(path.parent)
            disk.replace_file(path, data)

    def _make_folders(self, path: Path) -> None:
        for folder in (*reversed(path.relative_to(self.root).parents[:-1]), path.relative_to(self.root)):
            made = self.root / folder
            with suppress(FileExistsError):
                made.mkdir(0o700)
                disk.sync_folder(made.parent)
            info = made.lstat()
            # In a shared root like /tmp another user may have created a folder or a link first.
            if not stat.S_ISDIR(info.st_mode) or not (is_own(info) or info.st_uid == 0):
                raise StorePermissionError(f"{made} must be a folder of this user; remove it")


def _stem(path: str) -> str:
    """Return the path of a document without its suffix.

    A file system that folds case lists it in the folder of a tool whose name differs in case only.
    """
    return path.rpartition(".")[0].casefold()


def _raise(error: OSError) -> None:
    # A file in place of a folder holds no document; writing one reports it.
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error

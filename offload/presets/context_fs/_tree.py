"""The tree: documents as hard links to the records of a local store under `.offload`, and their index."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from offload.errors import StorePermissionError
from offload.index import list_session, list_sessions, parse_key
from offload.layout import RECORD, TOMBSTONE, check_key, is_link
from offload.presets._files import IndexFiles, entry_of, mapped_errors, sync_folder
from offload.presets.context_fs._layout import DOCUMENT, Document, path_of
from offload.record import ITEM_TYPES, RecordInfo
from offload.registry import open_store
from offload.store import StoredObject
from offload.wrappers import WrapperStore

INDEX = "index.json"
_RECORDS_FOLDER = ".offload"


class TreeStore(WrapperStore):
    """A store whose records are also documents in a tree.

    `put` returns once the record and its document are durable. A root that other users can change is refused.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(open_store(root / _RECORDS_FOLDER))
        self.root = root
        # Holds only the index: store keys are lower-case, tool names need not be.
        self._index = IndexFiles(open_store(root), self._entries)
        self._index.note_change(INDEX)
        self._has_root = False
        # Whether records may have been deleted whose documents are in the tree.
        self._has_deletions = False

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, and link the document of a record."""
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
        finally:
            # The writer of an existing record may have been killed before it linked the document.
            self._link_document(info)

    def documents(self, part: str | None = None) -> list[Document]:
        """Return the documents of a session, given by its key part, or of all; oldest first."""
        live, files = self._live(part), set(self._files())
        documents = [Document.of(info) for path, info in live.items() if self.root / path in files]
        return sorted(documents, key=lambda document: (document.offloaded_at, document.path))

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        super().delete(key)
        self._note_deletion(key)

    def update_index(self) -> None:
        """Remove the documents of deleted records and update the index; see `SupportsIndex.update_index`."""
        if self._has_deletions:
            self._has_deletions = False
            try:
                self._sync_documents()
            except BaseException:
                self._has_deletions = True
                raise
        self._index.update()

    def reindex(self) -> None:
        """Rebuild the documents and the index from the records. Raises `StoreError`."""
        self._has_deletions = True
        self.update_index()

    def _sync_documents(self) -> None:
        """Remove the documents of deleted records, and link those that are missing."""
        # Documents are linked after their records, so a file without a record in a later listing is stale.
        files = self._files()
        live = {self.root / path for path in self._live()}
        for path in files:
            if path not in live:
                with mapped_errors(path):
                    path.unlink(missing_ok=True)
        # List again: an item may have been stored again since, under the same path.
        for info in self._live().values():
            self._link_document(info)
        self._index.note_change(INDEX)

    def _note_deletion(self, key: str) -> None:
        """Note that a record was deleted, or its deletion undone, if `key` shows that."""
        if RECORD.match(key) or TOMBSTONE.match(key):
            self._has_deletions = True

    def _entries(self, _key: str) -> Iterator[dict[str, Any]]:
        live, files = self._live(), set(self._files())
        listed = sorted(live.items(), key=lambda item: (int(item[1].created_at), item[0]))
        return (entry_of(info, path) for path, info in listed if self.root / path in files)

    def _live(self, part: str | None = None) -> dict[str, RecordInfo]:
        """Return the readable records by the path of their document."""
        listed = list_sessions(self.inner) if part is None else [list_session(self.inner, part)]
        infos = (info for objects in listed for info in objects.records)
        return {path_of(info): info for info in infos if not is_link(info.key)}

    def _files(self) -> list[Path]:
        """Return the files in the tree that are named like documents."""
        with mapped_errors(self.root):
            paths = (path for item_type in ITEM_TYPES for path in (self.root / item_type).rglob("*"))
            return [path for path in paths if DOCUMENT.fullmatch(path.name)]

    def _link_document(self, info: RecordInfo) -> None:
        """Link the document of a record, unless the record was deleted."""
        source, target = self.root / _RECORDS_FOLDER / info.key, self.root / path_of(info)
        with mapped_errors(target), suppress(FileNotFoundError):
            if not source.stat().st_size:
                return
            self._make_folders(target.parent)
            _link(source, target)
            sync_folder(target.parent)

    def _make_folders(self, path: Path) -> None:
        for folder in (*reversed(path.relative_to(self.root).parents[:-1]), path.relative_to(self.root)):
            made = self.root / folder
            with suppress(FileExistsError):
                made.mkdir(0o700)
                sync_folder(made.parent)
            info = made.lstat()
            # In a shared root like /tmp another user may have created a folder or a link first.
            if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (os.geteuid(), 0):
                raise StorePermissionError(f"{made} must be a folder of this user; remove it")


def _link(source: Path, target: Path) -> None:
    """Link `target` to `source`, replacing the document of an earlier record of the item."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        if os.path.samestat(source.lstat(), target.lstat()):
            return
        target.unlink(missing_ok=True)
        # Another process may link the same record at the same time.
        with suppress(FileExistsError):
            target.hardlink_to(source)

"""The tree: documents as hard links to the records of a local store, and the index of them.

Records lie below `.offload`, under the keys that they have in any store: listing, expiry, tombstones and
further generations of a record are the engine's and know nothing of the tree. The tree gives each record
that can be read a second name, so its bytes are stored once. It can be made again from the records at any
time, and so can the index.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from offload.errors import ExistsError, NotFoundError, OffloadError, StorePermissionError
from offload.index import LINK_SUFFIX, RECORDS, Tombstone, parse_key
from offload.keys import check_key
from offload.presets._files import mapped_errors
from offload.presets.context_fs._layout import Document, is_document, path_of
from offload.record import ITEM_TYPES, RecordInfo
from offload.registry import open_store
from offload.store import OffloadStore, StoredObject
from offload.wrappers import WrapperStore

INDEX = "index.json"
_RECORDS_FOLDER = ".offload"
_SCHEMA = "1.0"


def open_tree(root: Path) -> TreeStore:
    """Return the store of the tree at `root`, an absolute path, without touching it."""
    return TreeStore(open_store(root / _RECORDS_FOLDER), root)


class TreeStore(WrapperStore):
    """A store whose records are also documents in a tree.

    A record is stored once its document is there too, whole and durable. The tree is its owner's alone;
    a root that others may change is refused.

    Args:
        inner: the local store at `<root>/.offload`.
        root: the root of the tree, an absolute path on a file system with hard links.

    Attributes:
        root: the same.
    """

    def __init__(self, inner: OffloadStore, root: Path) -> None:
        super().__init__(inner)
        self.root = root
        # Of its files only the index: keys are lower-case, and names of tools are not.
        self._front = open_store(root)
        self._has_root = False
        self._is_stale = True

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, and for a record the document beside it."""
        info = _record(StoredObject(check_key(key), len(data), 0.0))
        if info is None:
            super().put(key, data, overwrite=overwrite)
            return
        self._claim_root()
        self._is_stale = True
        try:
            super().put(key, data, overwrite=overwrite)
        except ExistsError:
            # Who stored it may have been killed before the document was there.
            self._show(info)
            raise
        self._show(info)

    def documents(self, prefix: str = f"{RECORDS}/") -> list[Document]:
        """Return the documents that are there and not collected, oldest first, from a fresh listing.

        Args:
            prefix: what the keys of their records start with: `session_prefix` of a session, or all.
        """
        live, shown = self._live(prefix), set(self._shown())
        found = [Document.of(info) for path, info in live.items() if self.root / path in shown]
        return sorted(found, key=lambda document: (document.offloaded_at, document.path))

    def refresh(self) -> None:
        """Write the index if this process stored something since it last did. Raises `StoreError`."""
        if self._is_stale:
            self._is_stale = False
            try:
                self._write_index()
            except OffloadError:
                self._is_stale = True
                raise

    def reindex(self) -> None:
        """Make the tree and the index anew from the records: nothing is missing and nothing too much.

        Raises `StoreError`.
        """
        # A document comes after its record: what is seen now has one in the listing, or it was collected.
        shown = self._shown()
        kept = {self.root / path for path in self._live()}
        for path in shown:
            if path not in kept:
                with mapped_errors(path):
                    path.unlink(missing_ok=True)
        # Anew: an item may have been stored again, under its old path, since.
        for info in self._live().values():
            self._show(info)
        self._write_index()

    def _write_index(self) -> None:
        """Write the index until what it tells is what a listing after that shows.

        So the last of all writers found its own to be right, and nobody waits for anybody: it takes
        another's new document to make a second round.
        """
        while self._stored_index() != (index := _render(self.documents())):
            self._front.put(INDEX, index, overwrite=True)

    def _stored_index(self) -> bytes:
        try:
            return self._front.get(INDEX)
        except NotFoundError:
            return _render([])

    def _claim_root(self) -> None:
        """Make the root with an empty index if it is not there; refuse one that others may change."""
        if not self._has_root:
            with suppress(ExistsError):
                self._front.put(INDEX, _render([]))
            self._has_root = True

    def _live(self, prefix: str = f"{RECORDS}/") -> dict[str, RecordInfo]:
        """Return the records that can be read, by the path of their document."""
        listed = list(self.inner.keys(prefix))
        marked = {mark.key for mark in map(parse_key, listed) if isinstance(mark, Tombstone)}
        infos = [info for info in map(_record, listed) if info is not None]
        return {path_of(i): i for i in infos if i.stored_bytes and i.key not in marked}

    def _shown(self) -> list[Path]:
        """Return the files of the tree that have the name of a document."""
        with mapped_errors(self.root):
            found = (path for item_type in ITEM_TYPES for path in (self.root / item_type).rglob("*"))
            return [path for path in found if is_document(path.name)]

    def _show(self, info: RecordInfo) -> None:
        """Give a record the name that its document has in the tree; an emptied one gets none."""
        source, target = self.root / _RECORDS_FOLDER / info.key, self.root / path_of(info)
        with mapped_errors(target), suppress(FileNotFoundError):
            if not source.stat().st_size:
                return
            self._make_folders(target.parent)
            _link(source, target)
            _sync(target.parent)

    def _make_folders(self, path: Path) -> None:
        for folder in (*reversed(path.relative_to(self.root).parents[:-1]), path.relative_to(self.root)):
            made = self.root / folder
            with suppress(FileExistsError):
                made.mkdir(0o700)
                _sync(made.parent)
            info = made.lstat()
            # In a root like /tmp another user may have been first, with a folder or a link.
            if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (os.geteuid(), 0):
                raise StorePermissionError(f"{made} is no folder of this user's; remove it")


def _record(stored: StoredObject) -> RecordInfo | None:
    """Return the entry of a record, None for all other objects; a shared one belongs to another tree."""
    info = parse_key(stored)
    return info if isinstance(info, RecordInfo) and not info.key.endswith(LINK_SUFFIX) else None


def _render(documents: list[Document]) -> bytes:
    index = {"schema_version": _SCHEMA, "items": [asdict(document) for document in documents]}
    return json.dumps(index, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace") + b"\n"


def _link(source: Path, target: Path) -> None:
    """Make `target` a name of `source`; what another record of the item left there goes."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        if os.path.samestat(source.lstat(), target.lstat()):
            return
        target.unlink(missing_ok=True)
        # Another process may put the same record there at the same time.
        with suppress(FileExistsError):
            target.hardlink_to(source)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

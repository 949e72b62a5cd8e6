"""A session in one file: a plain tar whose names are the keys of a store.

An archive is a store that is read and added to, so that exporting and importing are copying. Nothing of
it is ever extracted: a name is compared with the grammar of keys and never becomes a path.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from offload.errors import (
    CorruptError,
    ExistsError,
    InvalidKeyError,
    NotFoundError,
    OffloadError,
    StoreError,
    StorePermissionError,
)
from offload.index import sessions
from offload.layout import (
    JOURNAL,
    PIN,
    RECORD,
    SIDECAR,
    TOMBSTONE,
    check_key,
    decode_part,
    encode_part,
    family_of,
    is_hashed,
    session_part,
)
from offload.store import Durability, OffloadStore, StoredObject, check_range
from offload.transfer._copy import CopyReport, copy
from offload.transfer._tar import END, Member, read_members, write_member


def export(store: OffloadStore, session: str, path: str | os.PathLike[str]) -> CopyReport:
    """Write a session into one new tar file, readable by its owner alone.

    The file appears when it is complete. The same session makes the same bytes, wherever it is kept.

    Args:
        store: where the session is.
        session: its name.
        path: the file.

    Raises:
        NotFoundError: there is no such session, or no folder for the file.
        ExistsError: there is such a file.
        StoreError: the store could not be read, or the file not be written.
    """
    with _errors_of(path), _new_file(Path(path)) as file:
        archive = TarStore(file, str(path))
        report = copy(store, archive, session)
        archive.finish()
    return report


def import_(store: OffloadStore, path: str | os.PathLike[str], *, name: str | None = None) -> CopyReport:
    """Copy the session of an archive into `store`, as `copy` does.

    The archive may come from anybody: each name and size is checked before anything is stored, each record
    before it is stored itself.

    Args:
        store: where the session goes.
        path: the file.
        name: its name there; the one it had if None.

    Raises:
        NotFoundError: there is no such file.
        CorruptError: it is no archive of one session, or a damaged one. Nothing is stored.
        StoreError: the file could not be read, or the store failed; importing again goes on.
    """
    with _errors_of(path), Path(path).open("rb") as file:
        archive = TarStore.read(file, str(path))
        return copy(archive, store, archive.session(), name=name)


class TarStore:
    """A store in a tar file. Objects are added and read, neither replaced nor removed. For one thread.

    Until it is finished nothing of it survives, and to one that was read nothing is added.

    Args:
        file: the file, empty; `TarStore.read` takes one that is written.
        url: what errors call it.
    """

    is_shared = False
    has_atomic_create = True
    durability: Durability = "memory"

    def __init__(self, file: BinaryIO, url: str) -> None:
        self.url = url
        self._file = file
        self._members: dict[str, Member] = {}

    @classmethod
    def read(cls, file: BinaryIO, url: str) -> TarStore:
        """Open a written archive. Raises `CorruptError` if it is anything else than plain files of a tar."""
        archive = cls(file, url)
        try:
            archive._members = read_members(file)
        except CorruptError as error:
            raise CorruptError(f"{url}: {error}") from error
        return archive

    def session(self) -> str:
        """Return the name of the session that is kept here.

        Raises `CorruptError` if anything else is kept here, too.
        """
        try:
            parts = {_session_part(key) for key in self._members}
            if len(parts) != 1:
                raise CorruptError(f"{self.url} holds {len(parts)} sessions, an archive holds one")
            [part] = parts
            name = next(sessions(self), "") if is_hashed(part) else decode_part(part)
        except InvalidKeyError as error:
            raise CorruptError(f"{self.url}: {error}") from error
        if encode_part(name) != part:
            raise CorruptError(f"{self.url}: no session has the key part {part!r}")
        return name

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Add an object; see `OffloadStore.put`. Raises `StorePermissionError` with `overwrite`."""
        if overwrite:
            raise StorePermissionError(f"{self.url}: {check_key(key)} stays, an archive is only added to")
        self.put_stream(key, (data,), len(data))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Add an object piece by piece; see `SupportsStreams.put_stream`."""
        if check_key(key) in self._members:
            raise ExistsError(f"{self.url}: key {key!r} is taken")
        if not self._file.writable():
            raise StorePermissionError(f"{self.url} is open for reading")
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._members[key] = write_member(self._file, key, pieces, size)
        except BaseException:
            self._file.truncate(end)
            raise

    def finish(self) -> None:
        """Write what ends a tar file."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(END)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        check_range(start, end)
        member = self._members.get(check_key(key))
        if member is None:
            raise NotFoundError(f"{self.url}: no key {key!r}")
        first, last, _ = slice(start, end).indices(member.size)
        self._file.seek(member.start + first)
        return self._file.read(max(0, last - first))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order; an archive keeps no times. See `OffloadStore.keys`."""
        for key in sorted(self._members):
            if key.startswith(prefix) and key > after:
                yield StoredObject(key, self._members[key].size, 0.0)

    def delete(self, key: str) -> None:
        """Raise `StorePermissionError`: nothing is removed from an archive."""
        raise StorePermissionError(f"{self.url}: {check_key(key)} stays, an archive is only added to")


def _session_part(key: str) -> str:
    """Return the session part of a key that may stand in an archive. Raises `CorruptError` for any other."""
    # A link is a grant, which nobody imports.
    if family_of(check_key(key)) not in (RECORD, TOMBSTONE, SIDECAR, PIN, JOURNAL):
        raise CorruptError(
            f"{key[:80]!r} is no key of a record, its header, tombstone or pin, or of a journal"
        )
    return session_part(key)


@contextmanager
def _errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say what happened to a file in errors of ours."""
    try:
        yield
    except OffloadError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"no file {error.filename or path}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file that appears as `path` at the end, or never; what another made there stays."""
    if path.exists():
        raise _taken(path)
    if not path.parent.is_dir():
        raise NotFoundError(f"no folder {path.parent} to write {path.name} in")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(Path(temporary), path)
    except FileExistsError:
        raise _taken(path) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _give_name(temporary: Path, path: Path) -> None:
    """Make a file appear as `path`. Raises `FileExistsError` if anything is there."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        # No links here: the name is claimed first, and what was claimed is replaced.
        path.touch(0o600, exist_ok=False)
        temporary.replace(path)


def _taken(path: Path) -> ExistsError:
    return ExistsError(f"{path} is there; give another name")


if TYPE_CHECKING:
    _conforms: type[OffloadStore] = TarStore

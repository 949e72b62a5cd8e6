"""A session in one file: a plain tar whose member names are the keys of a store.

The file is a store that can be read and added to, so that export and import are copies. Nothing is extracted:
a member name is checked as a key and never becomes a path.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from offload import errors
from offload.maintenance.transfer._copy import copy_part, copy_session
from offload.maintenance.transfer._report import CopyReport, OnProgress
from offload.storage import layout
from offload.storage.store import Durability, OffloadStore, StoredObject, sized

_EXPORTED = (
    *(layout.RECORD, layout.TOMBSTONE, layout.FOREIGN, layout.SIDECAR),
    *(layout.PIN, layout.JOURNAL, layout.CALLS, layout.SHADOW),
)
_END = bytes(2 * tarfile.BLOCKSIZE)
# More than the headers of any key take: what claims more is not read.
_MAX_HEADER_BYTES = 64 * 1024


def export_session(
    store: OffloadStore,
    session: str,
    path: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Write a session of `store` into one new tar file at `path`, readable by its owner alone.

    The file appears when it is complete. The same session gives the same bytes from any store. `on_progress`
    is as for `copy_session`.

    Raises:
        ConfigError: `path` is not a path, or a name is invalid.
        NotFoundError: the session or the folder of the file does not exist.
        ExistsError: the file exists.
        StoreError: the store could not be read, or the file could not be written.
    """
    with _errors_of(path), _new_file(Path(path)) as file:
        archive = TarStore(file, str(path))
        report = copy_session(store, archive, session, on_progress=on_progress)
        archive.finish()
    return report


def import_session(
    store: OffloadStore,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy the session of the exported file at `path` into `store`, as `copy_session` does.

    It keeps its name, or gets the new `name`. The file need not be trusted: all names and sizes are checked
    before anything is stored, and each object before it is stored. What the store has is read too, and
    replaced if it is damaged. `on_progress` is as for `copy_session`.

    Raises:
        ConfigError: `path` is not a path, or `name` is invalid.
        NotFoundError: the file does not exist.
        CorruptError: the file is damaged or contains more than one session. Nothing is stored.
        StoreError: the file could not be read, or the store failed; importing again continues.
    """
    with _errors_of(path), Path(path).open("rb") as file:
        archive = TarStore(file, str(path))
        return copy_part(archive, store, archive.part(), name=name, repair=True, on_progress=on_progress)


class _Member(NamedTuple):
    start: int
    size: int


class TarStore:
    """A store in a tar file, for one thread. Objects can be added and read, not replaced or deleted.

    Args:
        file: an empty file to write, complete after `finish`; or a file that is open for reading only.
        url: the name of the file in errors.

    Raises:
        CorruptError: the file to read is not a tar of plain files.
    """

    is_shared = False
    has_atomic_create = True
    durability: Durability = "memory"

    def __init__(self, file: BinaryIO, url: str) -> None:
        self.url = url
        self._file = file
        try:
            self._members = {} if file.writable() else _read_members(file)
        except errors.CorruptError as error:
            raise errors.CorruptError(f"{url}: {error}") from error

    def part(self) -> str:
        """Return the key part of the only session in the file; a long name may not be in it.

        Raises `CorruptError` if the file contains anything else.
        """
        try:
            parts = {_session_part(key) for key in self._members}
            if len(parts) != 1:
                raise errors.CorruptError(f"{self.url} must contain one session, got {len(parts)}")
            [part] = parts
            is_part = layout.is_part(part)
        except errors.InvalidKeyError as error:
            raise errors.CorruptError(f"{self.url}: {error}") from error
        if not is_part:
            raise errors.CorruptError(f"{self.url}: {part!r} is not the key part of a session name")
        return part

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if overwrite:
            raise errors.StorePermissionError(f"{self.url}: cannot replace or delete {layout.check_key(key)}")
        self.put_stream(key, (data,), len(data))

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        if layout.check_key(key) in self._members:
            raise errors.ExistsError(f"{self.url}: key {key!r} is taken")
        if not self._file.writable():
            raise errors.StorePermissionError(f"{self.url} is open for reading only")
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._members[key] = _write_member(self._file, key, pieces, size)
        except BaseException:
            self._file.truncate(end)
            raise

    def finish(self) -> None:
        """Write the end of the tar file."""
        self._file.seek(0, os.SEEK_END)
        self._file.write(_END)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        member = self._members.get(key)
        if member is None:
            raise errors.NotFoundError(f"{self.url}: no key {key!r}")
        first, last, _ = slice(start, end).indices(member.size)
        self._file.seek(member.start + first)
        return self._file.read(max(0, last - first))

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        for key in sorted(self._members):
            if key.startswith(prefix) and key > after:
                yield StoredObject(key, self._members[key].size, 0.0)

    def delete(self, key: str) -> None:
        raise errors.StorePermissionError(f"{self.url}: cannot replace or delete {layout.check_key(key)}")


def _session_part(key: str) -> str:
    """Return the session part of a member's key. Raises `CorruptError` for a key that no export writes."""
    # A link is a grant, which must not be imported.
    if layout.family_of(layout.check_key(key)) not in _EXPORTED:
        raise errors.CorruptError(
            f"{key[:80]!r} is not the key of a record, header, tombstone, pin, journal entry or call"
        )
    return layout.session_part(key)


@contextmanager
def _errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    errors.check_path("path", path)
    try:
        yield
    except errors.OffloadError:
        raise
    except FileExistsError as error:
        raise errors.ExistsError(f"{path} exists; use another name") from error
    except FileNotFoundError as error:
        raise errors.NotFoundError(f"file not found: {error.filename or path}") from error
    except OSError as error:
        raise errors.StoreError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that becomes `path` on success; an existing file is never replaced."""
    if path.exists():
        raise FileExistsError(path)
    if not path.parent.is_dir():
        raise errors.NotFoundError(f"folder not found: {path.parent}")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _link(Path(temporary), path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """Make a file appear as `path`. Raises `FileExistsError` if `path` exists."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: create an empty file first, then replace it.
        path.touch(0o600, exist_ok=False)
        temporary.replace(path)


def _write_member(file: BinaryIO, name: str, pieces: Iterable[bytes], size: int) -> _Member:
    """Write a member of `size` bytes at the position of `file`, without owner and time."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    start = file.tell()
    file.writelines(sized(pieces, size))
    file.write(bytes(-size % tarfile.BLOCKSIZE))
    return _Member(start, size)


def _read_members(file: BinaryIO) -> dict[str, _Member]:
    """Return every member by name; only headers are read.

    Raises `CorruptError` for a damaged or compressed tar file, and for one that contains anything other than
    plain files with different names.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    members: dict[str, _Member] = {}
    end = 0
    try:
        with tarfile.TarFile(fileobj=_Headers(file)) as tar:
            while (info := tar.next()) is not None:
                _check_member(info, size, members)
                members[info.name] = _Member(info.offset_data, info.size)
                end = info.offset_data + info.size + -info.size % tarfile.BLOCKSIZE
        file.seek(end)
    except (tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
        raise errors.CorruptError(f"not a plain tar file, or damaged: {error}") from error
    # The tar module reports an unreadable header as the end.
    if file.read(len(_END)) != _END:
        raise errors.CorruptError("the tar file is truncated or damaged: no end marker")
    return members


def _check_member(info: tarfile.TarInfo, size: int, members: dict[str, _Member]) -> None:
    name = repr(info.name[:80])
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
        raise errors.CorruptError(f"{name} must be a plain file")
    if info.name in members:
        raise errors.CorruptError(f"{name} occurs twice")
    if not 0 <= info.size <= size - info.offset_data:
        raise errors.CorruptError(f"{name} claims {info.size} bytes, but the file is shorter")


class _Headers(io.RawIOBase):
    """A file for reading headers; a claimed size never costs more memory than a header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._is_at_end = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; none at the end, but only once: the tar module would read forever."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        data = self._file.read(size)
        if self._is_at_end and not data:
            raise tarfile.ReadError("the file ends within a header")
        self._is_at_end = not data
        return data

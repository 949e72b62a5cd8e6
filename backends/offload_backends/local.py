"""A store in a local folder whose objects are whole and durable, whatever kills the process.

A new object is written to a file without a name (`O_TMPFILE`), synced, and given its name by a hard
link, which fails if the name is taken; then the folder is synced. Where the file system cannot do
that, a file with a temporary name takes its part. Every path below the root is walked part by part
without following symbolic links.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from offload.errors import (
    ConfigError,
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
)
from offload.keys import check_key
from offload.store import StoredObject
from offload_backends._checks import check_options, check_range, is_key, may_hold

_SCHEME = "file://"
_DURABILITIES = ("fsync", "none")
_TEMPORARY = ".tmp-"

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
# Absent on Windows, which the constructor refuses.
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
# Without O_NONBLOCK, opening a planted named pipe would wait for its writer.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | _NO_LINK | getattr(os, "O_NONBLOCK", 0)
_UNNAMED = getattr(os, "O_TMPFILE", 0)

# What a file system, or a system without /proc, answers to O_TMPFILE and to linking the result.
_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
# A folder, a link or a file in the place of a folder: no object that this store wrote.
_NOT_AN_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RENAME_NOREPLACE = 1
_HAS_FOLDER_HANDLES = os.open in os.supports_dir_fd


class LocalStore:
    """Objects as files under a root folder, readable by their owner alone.

    Args:
        url: a path, absolute or not, `~` allowed, or a `file://` URL. The first put makes the
            folder; the root itself may be a symbolic link, nothing below it.
        storage_options: `durability`: "fsync" (the default: a put survives a power cut) or "none"
            (it survives the death of the process only).

    Raises:
        ConfigError: an option or the URL cannot be meant, or the system lacks POSIX folder handles.
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        check_options(storage_options, ("durability",), url)
        if not _HAS_FOLDER_HANDLES:
            raise ConfigError("the local store needs POSIX folder handles; use local:// of fsspec")
        self._durability: str = (storage_options or {}).get("durability", "fsync")
        if self._durability not in _DURABILITIES:
            raise ConfigError(f"durability is one of {_DURABILITIES}, not {self._durability!r}")
        self._is_synced = self._durability == "fsync"
        self._root = _root_of(url)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        """The root folder as a `file://` URL."""
        return self._root.as_uri()

    @property
    def is_shared(self) -> bool:
        """False: a path means another folder on another machine."""
        return False

    @property
    def has_atomic_create(self) -> bool:
        """True: the kernel gives a name to one writer only."""
        return True

    @property
    def durability(self) -> str:
        """What a finished put survives: "fsync" a power cut, "none" the death of the process."""
        return self._durability

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`; see `OffloadStore.put`."""
        check_key(key)
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), self._folder(path, is_made=True) as folder:
            if overwrite:
                _replace(folder, name, data, is_synced=self._is_synced)
                return
            try:
                _create(folder, name, data, is_synced=self._is_synced)
            except FileExistsError as error:
                if not _is_object(folder, name):
                    raise
                raise ExistsError(f"{self.url}: key {key!r} is taken") from error

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them; see `OffloadStore.get`."""
        check_key(key)
        check_range(start, end)
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), _absence_ignored(), self._folder(path) as folder:
            return _read(folder, name, slice(start, end))
        raise NotFoundError(f"{self.url}: no key {key!r}")

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, reading one folder at a time; see `OffloadStore.keys`."""
        path = prefix.rpartition("/")[0]
        if path == "" or is_key(path):
            with self._mapped_errors(prefix):
                yield from self._walk(path, prefix, after)

    def delete(self, key: str) -> None:
        """Remove `key`; see `OffloadStore.delete`."""
        check_key(key)
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), _absence_ignored(), self._folder(path) as folder:
            if _is_object(folder, name):
                os.unlink(name, dir_fd=folder)

    def _walk(self, path: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield what matches below folder `path`, entering no folder that cannot match."""
        with _absence_ignored(), self._folder(path) as folder:
            base = f"{path}/" if path else ""
            for name in _sorted_names(folder):
                key = base + name
                if name.endswith("/"):
                    if may_hold(key, prefix, after):
                        yield from self._walk(key[:-1], prefix, after)
                elif key.startswith(prefix) and key > after and is_key(key):
                    # Deleted since the folder was read: no longer in the listing.
                    with suppress(FileNotFoundError):
                        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        yield StoredObject(key, info.st_size, info.st_mtime)

    @contextmanager
    def _folder(self, path: str, *, is_made: bool = False) -> Iterator[int]:
        """Open folder `path` below the root, part by part so that no link is followed."""
        folder = self._open_root(is_made=is_made)
        try:
            for part in path.split("/") if path else ():
                child = _open_child(folder, part, is_made=is_made, is_synced=self._is_synced)
                os.close(folder)
                folder = child
            yield folder
        finally:
            os.close(folder)

    def _open_root(self, *, is_made: bool) -> int:
        try:
            return os.open(self._root, _FOLDER)
        except NotADirectoryError as error:
            raise StoreMissingError(f"{self.url} is not a folder; name a folder") from error
        except FileNotFoundError:
            if not is_made:
                raise
        _make_folder(self._root, is_synced=self._is_synced)
        return os.open(self._root, _FOLDER)

    @contextmanager
    def _mapped_errors(self, key: str) -> Iterator[None]:
        """Turn the system's errors into ours; `key` names what was worked on."""
        where = f"{self.url}: {key!r}"
        try:
            yield
        except OffloadError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in _REFUSED:
                message = f"{where}: {reason}; the folder must belong to this user and be writable"
                raise StorePermissionError(message) from error
            if error.errno in _FULL:
                raise StoreError(f"{where}: {reason}; free space or raise the limit") from error
            if error.errno in _NOT_AN_OBJECT or error.errno == errno.EEXIST:
                message = f"{where}: {reason}; a file, folder or link that is no object is in its way"
                raise StoreError(message) from error
            raise StoreError(f"{where}: {reason}") from error


def _root_of(url: str) -> Path:
    path = url
    if url.startswith(_SCHEME):
        host, _, rest = url.removeprefix(_SCHEME).partition("/")
        if host not in ("", "localhost") or "?" in rest or "#" in rest:
            raise ConfigError(f"{url}: a file URL is file:///absolute/path, with %3F for ? and %23 for #")
        path = "/" + unquote(rest)
    if "\0" in path:
        raise ConfigError(f"{url!r}: a path holds no NUL character")
    try:
        return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  # resolve() would read links
    except RuntimeError as error:
        raise ConfigError(f"{url}: {error}") from error


def _make_folder(path: Path, *, is_synced: bool) -> None:
    """Make `path` and its missing parents, private to the user and durable."""
    try:
        path.mkdir(_FOLDER_MODE)
    except FileExistsError:
        return
    except FileNotFoundError:
        if path.parent.is_dir():
            raise  # Some file systems, such as /proc, answer so where nothing can be made.
        _make_folder(path.parent, is_synced=is_synced)
        _make_folder(path, is_synced=is_synced)
        return
    # The umask may have taken bits away.
    path.chmod(_FOLDER_MODE)
    if is_synced:
        with _closing(os.open(path.parent, _FOLDER)) as parent:
            os.fsync(parent)


def _open_child(folder: int, name: str, *, is_made: bool, is_synced: bool) -> int:
    """Open folder `name` in `folder`, first making it if `is_made`."""
    try:
        return os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)
    except FileNotFoundError:
        if not is_made:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
        os.chmod(name, _FOLDER_MODE, dir_fd=folder)
        if is_synced:
            os.fsync(folder)
    return os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)


def _create(folder: int, name: str, data: bytes, *, is_synced: bool) -> None:
    """Make file `name` appear with all its bytes, or raise `FileExistsError`."""
    try:
        _create_unnamed(folder, name, data, is_synced=is_synced)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
        with _temporary(folder, data, is_synced=is_synced) as temporary:
            _give_name(folder, temporary, name)
    if is_synced:
        try:
            os.fsync(folder)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise


def _create_unnamed(folder: int, name: str, data: bytes, *, is_synced: bool) -> None:
    with _closing(os.open(".", _WRITE | _UNNAMED, _FILE_MODE, dir_fd=folder)) as file:
        _fill(file, data, is_synced=is_synced)
        # Only with dst_dir_fd does Python call linkat(2), which follows the link that /proc shows.
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)


def _replace(folder: int, name: str, data: bytes, *, is_synced: bool) -> None:
    """Make file `name` hold `data`, whatever it held."""
    with _temporary(folder, data, is_synced=is_synced) as temporary:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    if is_synced:
        os.fsync(folder)


@contextmanager
def _temporary(folder: int, data: bytes, *, is_synced: bool) -> Iterator[str]:
    """Give the name of a file that holds `data`, and remove that name at the end."""
    name = _TEMPORARY + secrets.token_hex(8)
    file = os.open(name, _WRITE | os.O_CREAT | os.O_EXCL | _NO_LINK, _FILE_MODE, dir_fd=folder)
    try:
        with _closing(file):
            _fill(file, data, is_synced=is_synced)
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _fill(file: int, data: bytes, *, is_synced: bool) -> None:
    # The umask may have taken bits away.
    os.fchmod(file, _FILE_MODE)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    if is_synced:
        os.fsync(file)


def _give_name(folder: int, temporary: str, name: str) -> None:
    """Give the file a name that is not taken, by a hard link or by a rename that refuses."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_exclusively(folder, temporary, name)


def _rename_exclusively(folder: int, old: str, new: str) -> None:
    # Python has no call for it, and a plain rename replaces.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOTSUP, "the file system has no hard links, the system no renameat2")
    if rename(folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


def _read(folder: int, name: str, part: slice) -> bytes:
    with _closing(os.open(name, _READ, dir_fd=folder)) as handle:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.ENOENT, "not a regular file", name)
        first, last, _ = part.indices(info.st_size)
        with open(handle, "rb", closefd=False) as file:
            file.seek(first)
            return file.read(max(0, last - first))


def _is_object(folder: int, name: str) -> bool:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        # It was there a moment ago, and only objects are ever removed.
        return True
    return stat.S_ISREG(mode)


def _sorted_names(folder: int) -> list[str]:
    """Return the names of files and, with a slash, folders, in the order of the keys they make."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
            for entry in entries
            if not entry.name.startswith(".")
            and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        )


@contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _absence_ignored() -> Iterator[None]:
    """End the block quietly where no object can be."""
    try:
        yield
    except OffloadError:
        raise
    except OSError as error:
        if error.errno not in _NOT_AN_OBJECT:
            raise


if TYPE_CHECKING:
    from offload.store import OffloadStore

    _conforms: type[OffloadStore] = LocalStore

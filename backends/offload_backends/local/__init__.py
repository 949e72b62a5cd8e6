"""A store in a local folder, whose objects are complete and durable even if the process is killed.

`_files` contains the method, `_folders` and `_system` the calls of the operating system. Paths below the
root are opened part by part without following symbolic links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote

from offload import errors
from offload.storage.layout import check_key
from offload.storage.store import Durability, OneByOne, StoredObject, check_range, sized, without_secrets
from offload_backends._checks import check_options, is_key, may_hold
from offload_backends.local import _files as files, _system
from offload_backends.local._batches import Batch
from offload_backends.local._folders import Folder, open_folder

_SCHEME = "file://"
_DURABILITIES = ("fsync", "none")
# Concurrent writers share one commit of the file system's journal.
_CONCURRENT = 8
# Folders that are open at once.
_MOST_BATCHES = 32

# A folder, a link, or a file instead of a folder: not an object of this store.
_NOT_AN_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FIXES = (
    (_REFUSED, "; the folder must belong to this user and be writable"),
    ({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}, "; free space or raise the limit"),
    ({errno.ENAMETOOLONG}, "; use a folder with a shorter path"),
    ({errno.ENOTSUP}, "; use a folder on another medium"),
    ({errno.ENOENT}, "; a folder of its path is missing and cannot be made here: use another folder"),
    (_NOT_AN_OBJECT | {errno.EEXIST}, "; remove the file, folder or link that is in its place"),
)
# Errors of Windows that share an errno.
_WINDOWS_ERRORS = {
    3: (errors.StoreError, "; use a folder on a drive that exists"),
    5: (
        errors.StorePermissionError,
        "; the folder must be writable, and no other program may have the file open",
    ),
    32: (errors.StoreUnavailableError, "; close the program that has the file open, and try again"),
    33: (errors.StoreUnavailableError, "; close the program that has the file open, and try again"),
    123: (errors.StoreError, "; use a folder whose path Windows accepts"),
    206: (errors.StoreError, "; use a folder with a shorter path"),
}


class LocalStore(OneByOne):
    """Objects as files under a root folder, readable by their owner alone.

    Args:
        url: an absolute or relative path, `~` allowed, or a `file://` URL. The first put creates the
            folder. The root may be a symbolic link; links below it are not followed. A folder that others
            may change is refused at the first use: one of another user than this one and root, or one
            to which its group or everybody may write, unless its sticky bit is set, as for /tmp. The
            user's own group may write if it has no other members, as with umask 002. On a system whose
            files have no owners, such as Windows, none of this is checked.
        storage_options: `durability`: "fsync" (the default: a put survives a power cut; on a system that
            cannot sync folders, as Windows, a power cut may lose the newest objects, each as a whole) or
            "none" (a put survives the death of the process only: a power cut may leave an empty file).

    Raises:
        ConfigError: an option or the URL is invalid.
        StorePermissionError: at the first use: others may change the folder.
    """

    is_shared = False  # A path means another folder on another machine.
    has_atomic_create = True  # The kernel gives a name to one writer only.

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        check_options(storage_options, ("durability",), url)
        durability = (storage_options or {}).get("durability", "fsync")
        errors.check_choice("durability", durability, _DURABILITIES)
        self._is_synced = durability == "fsync"
        self._root = _root_of(url)
        self.url = _url_of(self._root)
        is_power_safe = self._is_synced and _system.SYSTEM.has_folder_handles
        self.durability: Durability = "power" if is_power_safe else "process"
        self._swept: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        check_key(key)
        if not overwrite:
            self._create(key, [data])
            return
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), self._folder(path, is_made=True) as folder:
            files.replace(folder, name, data, is_synced=self._is_synced)
            self._sweep_once(path, folder)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        check_key(key)
        try:
            self._create(key, _Source(pieces, size))
        except _SourceError as carrier:
            failure = carrier.failure
        else:
            return
        # Outside the handler, so that the error of the pieces has no context from this module.
        raise failure

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), _absence_ignored(), self._folder(path) as folder:
            return files.read(folder, name, slice(start, end))
        raise errors.NotFoundError(f"{self.url}: no key {key!r}")

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        path = prefix.rpartition("/")[0]
        if path == "" or is_key(path):
            with self._mapped_errors(prefix):
                yield from self._walk(path, prefix, after)

    def folders(self, prefix: str = "") -> Iterator[str]:
        path = prefix.rpartition("/")[0]
        if path == "" or is_key(path):
            with self._mapped_errors(prefix), _absence_ignored(), self._folder(path) as folder:
                for name in files.sorted_names(folder, ""):
                    inner = prefix + name
                    if name.endswith("/") and next(self._walk(inner[:-1], inner, ""), None) is not None:
                        yield name[:-1]

    def delete(self, key: str) -> None:
        check_key(key)
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), _absence_ignored(), self._folder(path) as folder:
            if files.is_object(folder, name):
                folder.remove(name)

    def set_time(self, key: str, modified: float) -> None:
        path, _, name = check_key(key).rpartition("/")
        with self._mapped_errors(key), _absence_ignored(), self._folder(path) as folder:
            if files.is_object(folder, name):
                folder.set_time(name, modified)

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[errors.OffloadError | None]:
        put = partial(errors.result_or_error, partial(self.put, overwrite=overwrite))
        made: set[str] = set()
        batches: dict[str, Batch] = {}
        started: list[_Started] = []
        with ExitStack() as folders:
            with ExitStack() as stack:
                pool: ThreadPoolExecutor | None = None
                for key, data in items:
                    path = key.rpartition("/")[0]
                    if path not in made:
                        # It makes the folder; no other may count on one whose maker then fails to sync it.
                        started.append(_Started(key, put(key, data)))
                        made.update([path] * started[-1].is_there)
                        continue
                    pool = pool or stack.enter_context(ThreadPoolExecutor(_CONCURRENT))
                    if overwrite or (path not in batches and len(batches) == _MOST_BATCHES):
                        started.append(_Started(key, pool.submit(put, key, data)))
                        continue
                    if path not in batches:
                        batch = errors.result_or_error(self._batch, path, folders)
                        if isinstance(batch, errors.OffloadError):
                            started.append(_Started(key, batch))
                            continue
                        batches[path] = batch
                    started.append(_Started(key, pool.submit(self._added, batches[path], key, data), path))
            failed = {path: errors.result_or_error(self._end, batch, path) for path, batch in batches.items()}
        return [each.outcome(failed) for each in started]

    def _create(self, key: str, pieces: Iterable[files.Buffer]) -> None:
        path, _, name = key.rpartition("/")
        with self._mapped_errors(key), self._folder(path, is_made=True) as folder:
            batch = Batch(folder, is_synced=self._is_synced)
            is_new = batch.add(name, pieces)
            self._end(batch, path)
        if not is_new:
            raise self._taken(key)

    def _batch(self, path: str, opened: ExitStack) -> Batch:
        with self._mapped_errors(path):
            return Batch(opened.enter_context(self._folder(path)), is_synced=self._is_synced)

    def _added(self, batch: Batch, key: str, data: bytes) -> errors.OffloadError | None:
        """Create an object of a batch; return its error if it has one."""
        try:
            with self._mapped_errors(key):
                is_new = batch.add(check_key(key).rpartition("/")[2], [data])
        except errors.OffloadError as error:
            return error
        return None if is_new else self._taken(key)

    def _end(self, batch: Batch, path: str) -> None:
        """Make the objects of a batch durable."""
        with self._mapped_errors(path):
            batch.end()
        if batch.had_temporary_names:
            self._sweep_once(path, batch.folder)

    def _taken(self, key: str) -> errors.ExistsError:
        return errors.ExistsError(f"{self.url}: key {key!r} is taken")

    def _sweep_once(self, path: str, folder: Folder) -> None:
        if path not in self._swept:
            self._swept.add(path)
            files.sweep(folder)

    def _walk(self, path: str, prefix: str, after: str) -> Iterator[StoredObject]:
        """Yield the matching objects below folder `path`, skipping folders that cannot match."""
        with _absence_ignored(), self._folder(path) as folder:
            base = f"{path}/" if path else ""
            for name in files.sorted_names(
                folder, prefix.removeprefix(base) if prefix.startswith(base) else ""
            ):
                key = base + name
                if name.endswith("/"):
                    if may_hold(key, prefix, after):
                        yield from self._walk(key[:-1], prefix, after)
                elif key.startswith(prefix) and key > after and is_key(key):
                    # An object deleted since the folder was read is not listed.
                    with suppress(FileNotFoundError):
                        info = folder.stat(name)
                        yield StoredObject(key, info.st_size, info.st_mtime)

    @contextmanager
    def _folder(self, path: str, *, is_made: bool = False) -> Iterator[Folder]:
        """Open folder `path` below the root, part by part, without following links."""
        folder = self._open_root(is_made=is_made)
        try:
            is_common = _check_root(folder, self._root)
            for part in path.split("/") if path else ():
                child = _open_child(folder, part, is_made=is_made, is_synced=self._is_synced)
                folder.close()
                folder = child
                # Another user's folder is no more than a file in its place.
                if is_common and not files.is_own(folder.info()):
                    raise OSError(errno.ENOTDIR, "a folder of another user", part)
            yield folder
        finally:
            folder.close()

    def _open_root(self, *, is_made: bool) -> Folder:
        try:
            return open_folder(self._root)
        except NotADirectoryError as error:
            raise errors.StoreMissingError(f"{self.url} is not a folder; use the path of a folder") from error
        except FileNotFoundError:
            if not is_made:
                raise
        _make_root(self._root, is_synced=self._is_synced)
        return open_folder(self._root)

    @contextmanager
    def _mapped_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except errors.OffloadError:
            raise
        except OSError as error:
            kind, fix = _meaning_of(error)
            raise kind(f"{self.url}: {key!r}: {error.strerror or error}{fix}") from error


class _SourceError(Exception):
    """Carries an exception of a caller's pieces past the handlers of system errors."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(failure)
        self.failure = failure


class _Started(NamedTuple):
    """A put of many: its error, None for success, maybe later; the path of the batch that it is in."""

    key: str
    error: Future[errors.OffloadError | None] | errors.OffloadError | None
    batch: str | None = None

    def outcome(self, failed: Mapping[str, errors.OffloadError | None]) -> errors.OffloadError | None:
        """Return the error of the put, or that of its batch, by path."""
        failure = None if self.batch is None or not self.is_there else failed[self.batch]
        return failure or self._result

    @property
    def is_there(self) -> bool:
        """Whether the object exists now."""
        return self._result is None or isinstance(self._result, errors.ExistsError)

    @property
    def _result(self) -> errors.OffloadError | None:
        return self.error.result() if isinstance(self.error, Future) else self.error


class _Source:
    """A caller's pieces, of `size` bytes in total; their exceptions become `_SourceError`."""

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        self._pieces, self._size = pieces, size

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from sized(self._pieces, self._size)
        except Exception as error:
            raise _SourceError(error) from error


def _meaning_of(error: OSError) -> tuple[type[errors.StoreError], str]:
    """Return the kind of a system error, and what would fix it."""
    known = _WINDOWS_ERRORS.get(getattr(error, "winerror", None) or 0)
    if known is not None:
        return known
    kind = errors.StorePermissionError if error.errno in _REFUSED else errors.StoreError
    return kind, next((fix for numbers, fix in _FIXES if error.errno in numbers), "")


def _root_of(url: str) -> Path:
    path = _path_in(url) if url.startswith(_SCHEME) else url
    if "\0" in path:
        raise errors.ConfigError(f"{url!r}: a path must not contain a NUL character")
    if os.path.splitdrive(path)[0].startswith("\\\\?\\"):
        raise errors.ConfigError(f"{url}: write the path without \\\\?\\, which is added if it is needed")
    try:
        return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  # resolve() would read links
    except RuntimeError as error:
        raise errors.ConfigError(f"{url}: {error}") from error


def _path_in(url: str) -> str:
    """Return the path in a `file://` URL: with a drive or a host only where paths have drives, on Windows."""
    host, _, rest = url.removeprefix(_SCHEME).partition("/")
    is_here = host in ("", "localhost")
    path = unquote(rest) if is_here else unquote(f"//{host}/{rest}")
    has_drive = os.path.splitdrive(path)[0] != ""
    if "?" in rest or "#" in rest or not (is_here or has_drive):
        raise errors.ConfigError(
            f"{without_secrets(url)}: must be file:///absolute/path, with %3F for ? and %23 for #"
        )
    return path if has_drive else "/" + path


def _url_of(path: Path) -> str:
    """Return its `as_uri`, which in Python 3.14 loads an HTTP client."""
    return path.as_uri() if path.drive else _SCHEME + quote_from_bytes(bytes(path))


def _make_root(path: Path, *, is_synced: bool) -> None:
    # A drive of Windows that is not there has itself for its parent.
    if path.parent != path and not path.parent.exists():
        _make_root(path.parent, is_synced=is_synced)
    with closing(open_folder(path.parent)) as parent:
        files.make_folder(parent, path.name, is_synced=is_synced)


def _check_root(root: Folder, path: Path) -> bool:
    """Raise `StorePermissionError` if users other than this one and root may change files in the open root.

    Return whether others may add files, which a sticky bit allows.
    """
    if not _system.SYSTEM.has_owners:
        return False
    info = root.info()
    if not files.is_own(info):
        raise errors.StorePermissionError(
            f"{path} belongs to user {info.st_uid}, who could change its files; use a folder of your "
            f"own, or give this one to user {os.geteuid()} with chown"
        )
    is_common = files.is_written_by_others(info)
    if is_common and not info.st_mode & stat.S_ISVTX:
        raise errors.StorePermissionError(
            f"others may write to {path} (mode {stat.S_IMODE(info.st_mode):04o}): chmod go-w {path}"
        )
    return is_common


def _open_child(folder: Folder, name: str, *, is_made: bool, is_synced: bool) -> Folder:
    """Open folder `name` in `folder`, creating it first if `is_made`."""
    try:
        return folder.child(name)
    except FileNotFoundError:
        if not is_made:
            raise
    files.make_folder(folder, name, is_synced=is_synced)
    return folder.child(name)


@contextmanager
def _absence_ignored() -> Iterator[None]:
    """End the block quietly if no object can be there."""
    try:
        yield
    except errors.OffloadError:
        raise
    except OSError as error:
        if error.errno not in _NOT_AN_OBJECT:
            raise

"""An LRU cache in a folder that several processes share.

There are no locks. Before a fetch, a process creates an empty pending file next to the entry's path; then it
writes the fetched bytes to that file and renames it to the entry. A drop removes pending files first and then
the entry. So a rename happens before the entry is removed, or fails because its file is gone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from offload.errors import ConfigError, StorePermissionError
from offload.system import HAS_USERS, is_own, patiently
from offload.threads.locks import Lock

_DIGEST_BYTES = 32
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SCAN_SHARE = 16
# Pending files of this age belong to no running fetch.
_PENDING_SECONDS = 3600.0


class FolderCache:
    """A cache of at most `max_bytes` in files of a private folder; each scope has its own entries.

    An incomplete file is never served.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int, *, scope: Callable[[], str]) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._max_bytes = max_bytes
        # At the first use: a store may have to connect to find its endpoint and account.
        self._scope = cache(scope)
        # Full, so that the first fill scans.
        self._written = max_bytes
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        """Return the bytes of `name`, or None; a damaged file is removed."""
        path = self._path(name)
        try:
            stored = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if digest == _digest(path, data):
            return data
        with suppress(OSError):
            path.unlink()
        return None

    @contextmanager
    def filling(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """Yield the function that caches bytes fetched inside the `with`.

        If `name` was dropped since the `with` began, the bytes may be outdated and are not cached.
        """
        path = self._path(name)
        pending = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with suppress(OSError):
            path.parent.mkdir(_FOLDER_MODE, exist_ok=True)
            pending.touch(_FILE_MODE, exist_ok=False)

        def fill(data: bytes) -> None:
            with suppress(OSError):
                self._make_room(_DIGEST_BYTES + len(data))
                _write(pending, _digest(path, data) + data)
                pending.replace(path)

        try:
            yield fill
        finally:
            with suppress(OSError):
                pending.unlink()

    def drop(self, name: str) -> None:
        """Remove `name` and disable the fills that have begun.

        Raises `StorePermissionError` if a file cannot be removed: reads would still return it.
        """
        path = self._path(name)
        try:
            for pending in _pending_files(path):
                patiently(pending.unlink, missing_ok=True)
            patiently(path.unlink, missing_ok=True)
        except OSError as error:
            raise StorePermissionError(
                f"cache folder {self._folder}: {error.strerror}; make it writable or use another folder"
            ) from error

    def _path(self, name: str) -> Path:
        self._prepare()
        place = f"{self._scope()}\0{name}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(place).hexdigest()
        return self._folder / digest[:2] / digest[2:]

    def _prepare(self) -> None:
        """Create the folder, and refuse one to which others could write entries."""
        try:
            # `parents=True` would create the parents with other modes.
            for folder in reversed((self._folder, *self._folder.parents)):
                folder.mkdir(_FOLDER_MODE, exist_ok=True)
            info = self._folder.stat()
        except OSError as error:
            raise StorePermissionError(
                f"cache folder {self._folder}: {error.strerror}; use a folder that can be created"
            ) from error
        if not is_own(info) or (HAS_USERS and info.st_mode & _OTHERS_WRITE):
            raise ConfigError(
                f"cache folder {self._folder}: others can write to it; use your own folder with mode 0700"
            )

    def _make_room(self, size: int) -> None:
        """Evict files before a write of `size` bytes, if writes since the last scan may fill the folder."""
        share = self._max_bytes // _SCAN_SHARE
        with self._lock:
            self._written += size
            if self._written <= share:
                return
            self._written = 0
            _shrink(self._files(), self._max_bytes - share - size)

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of the last use, the size and the path of each file."""
        for folder in self._folder.iterdir():
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        yield info.st_mtime, info.st_size, Path(entry.path)


def _pending_files(path: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}.")]
    return []


def _shrink(files: Iterable[tuple[float, int, Path]], max_bytes: int) -> None:
    """Remove files, the least recently used first, until the rest takes at most `max_bytes`."""
    by_use = sorted(files)
    total = sum(size for _, size, _ in by_use)
    expired = time.time() - _PENDING_SECONDS
    for used, size, path in by_use:
        is_pending = path.suffix != ""
        if used < expired if is_pending else total > max_bytes:
            path.unlink(missing_ok=True)
            total -= size


def _write(path: Path, data: bytes) -> None:
    # Without O_CREAT: this must not recreate a file that a drop removed.
    with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:  # noqa: PTH123  # of a file descriptor
        file.write(data)


def _digest(path: Path, data: bytes) -> bytes:
    """Return the digest of the entry's path and bytes, so that a file at another path does not match."""
    digest = hashlib.sha256(f"{path.parent.name}{path.name}".encode())
    digest.update(data)
    return digest.digest()

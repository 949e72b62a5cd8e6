"""Bytes under names, in a folder that several processes share, the least recently used dropped first.

Nobody locks. A process that is about to fetch first makes an empty file of its own beside the entry's place,
writes what it fetched to it and renames it into place; a drop removes these files first and the entry
after. A rename then comes before the drop of the entry, which removes it, or finds its file gone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from offload.errors import ConfigError, StorePermissionError
from offload.locks import Lock

_DIGEST_BYTES = 32
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SCAN_SHARE = 16
# The fetch that such a file waits for has ended, or its process has.
_PENDING_SECONDS = 3600.0


class FolderCache:
    """A cache of at most `max_bytes` in files; a file that is not whole is never served.

    Args:
        folder: where the files are; made private at the first use.
        max_bytes: what the files may take together.
        scope: tells what the names belong to; the same name in another scope is another entry.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int, *, scope: Callable[[], str]) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._max_bytes = max_bytes
        self._tell_scope = scope
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
        """Give the function that keeps bytes fetched inside the `with`.

        If `name` was dropped since the `with` began, the bytes may be older than that and are not kept.
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
        """Forget `name`, and let no fill that has begun bring it back.

        Raises `StorePermissionError` if a file cannot be removed: reads would go on seeing it.
        """
        path = self._path(name)
        try:
            for pending in _waiting_for(path):
                pending.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorePermissionError(
                f"cache folder {self._folder}: {error.strerror}; make it writable or name another"
            ) from error

    def _path(self, name: str) -> Path:
        self._prepare()
        place = f"{self._scope}\0{name}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(place).hexdigest()
        return self._folder / digest[:2] / digest[2:]

    @cached_property
    def _scope(self) -> str:
        # Not before the first use: to tell an endpoint and an account, a store may have to connect.
        return self._tell_scope()

    def _prepare(self) -> None:
        """Make the folder; whoever else can write to it could plant entries."""
        try:
            # `parents=True` would make those above with the modes that the umask leaves.
            for folder in reversed((self._folder, *self._folder.parents)):
                folder.mkdir(_FOLDER_MODE, exist_ok=True)
            info = self._folder.stat()
        except OSError as error:
            raise StorePermissionError(
                f"cache folder {self._folder}: {error.strerror}; name a folder that can be made"
            ) from error
        if info.st_uid != os.getuid() or info.st_mode & _OTHERS_WRITE:
            raise ConfigError(
                f"cache folder {self._folder}: others can write to it; name one that is yours, with mode 0700"
            )

    def _make_room(self, size: int) -> None:
        """Before `size` bytes are written: scan and remove files, unless enough room is known to be left."""
        share = self._max_bytes // _SCAN_SHARE
        with self._lock:
            self._written += size
            if self._written <= share:
                return
            self._written = 0
            _shrink(self._files(), self._max_bytes - share - size)

    def _files(self) -> Iterator[_File]:
        for folder in self._folder.iterdir():
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        yield _File(info.st_mtime, info.st_size, Path(entry.path))


class _File(NamedTuple):
    used: float
    size: int
    path: Path


def _waiting_for(path: Path) -> list[Path]:
    """Return the files beside `path` that wait to become it."""
    with suppress(FileNotFoundError):
        return [found for found in path.parent.iterdir() if found.name.startswith(f"{path.name}.")]
    return []


def _shrink(files: Iterable[_File], max_bytes: int) -> None:
    """Remove files, the least recently used first, until those left take at most `max_bytes`."""
    found = sorted(files)
    total = sum(file.size for file in found)
    expired = time.time() - _PENDING_SECONDS
    for file in found:
        is_pending = file.path.suffix != ""
        if file.used < expired if is_pending else total > max_bytes:
            file.path.unlink(missing_ok=True)
            total -= file.size


def _write(path: Path, data: bytes) -> None:
    # Without O_CREAT: a file that a drop removed stays removed.
    with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:  # noqa: PTH123  # of a file descriptor
        file.write(data)


def _digest(path: Path, data: bytes) -> bytes:
    """Return the digest over the entry's place and its bytes: a file in another's place does not match."""
    digest = hashlib.sha256(f"{path.parent.name}{path.name}".encode())
    digest.update(data)
    return digest.digest()

"""Local folders and derived files of the presets."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from offload.base.system import patiently
from offload.errors import ConfigError, NotFoundError, OffloadError, StoreError, check_path
from offload.storage.store import OffloadStore, create

try:
    import fcntl
except ImportError:  # absent on Windows
    fcntl = None  # type: ignore[assignment]

RowT = TypeVar("RowT", bound=Hashable)

_SCHEMA = "1.0"
TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_ABANDONED_SECONDS = 3600
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# Absent on Windows.
_HAS_FOLDER_HANDLES = os.open in os.supports_dir_fd
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def local_path(path: str | os.PathLike[str], argument: str) -> Path:
    """Return `path` as an absolute path; raise `ConfigError` for a URL, naming the `argument`."""
    check_path(argument, path)
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(
            f"{argument} must be a local folder, got {text!r}: a Read tool opens local paths only; "
            "use offload.Offloader for a URL"
        )
    if "\0" in text:
        raise ConfigError(f"{argument} must not contain a NUL character, got {text!r}")
    # Not resolve(): results and placeholders name the folder as the caller does, symbolic links included.
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111  # Path keeps `..`


@contextmanager
def mapped_errors(path: Path) -> Iterator[None]:
    """Raise a `StoreError` for an error of the operating system."""
    try:
        yield
    except OffloadError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"{path}: {reason}; the folder must belong to this user, who must be able to write to it"
        ) from error


def read_regular(path: Path) -> bytes:
    """Return the content of a file; empty if it is of another kind.

    No link is followed, and a pipe in its place does not block.
    """
    handle = os.open(path, os.O_RDONLY | _NO_LINK)
    with os.fdopen(handle, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(handle).st_mode) else b""


def write_new(path: Path, data: bytes) -> None:
    """Write a durable file that is not there yet, readable by its owner alone."""
    with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        _sync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file durably; a reader sees the old or the new bytes."""
    temporary = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        write_new(temporary, data)
        patiently(temporary.replace, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def remove_abandoned(path: Path) -> None:
    """Remove the temporary file of a killed `replace_file`; a recent one may be in use."""
    with suppress(OSError):
        if path.lstat().st_mtime < time.time() - _ABANDONED_SECONDS:
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names of the files in `folder` durable, if the system can open a folder."""
    if not _HAS_FOLDER_HANDLES:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    """Write a file or folder to the medium; on macOS only F_FULLFSYNC reaches it."""
    if _FULL_SYNC is not None:
        with suppress(OSError):  # a file system without it has fsync
            fcntl.fcntl(handle, _FULL_SYNC)
            return
    os.fsync(handle)


class IndexFiles(Generic[RowT]):
    """JSON files that list the records of a tree for people and agents, such as `index.json`; derived.

    Each has `schema_version`, the fields of `head`, and `items`, one to a line. A line is rendered
    once: a turn pays for its own records, and only a listing for those of earlier turns.

    Args:
        store: the folder of the files.
        rows: returns the rows of the file at a key, from a fresh listing; no two are equal.
        entry: returns the entry of a row, which depends on nothing else.
        head: returns the other fields of the file at a key.
    """

    def __init__(
        self,
        store: OffloadStore,
        rows: Callable[[str], Sequence[RowT]],
        entry: Callable[[RowT], Mapping[str, Any]],
        head: Callable[[str], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._store = store
        self._rows = rows
        self._entry = entry
        self._head = head
        self._stale: set[str] = set()
        # The lines that were rendered last, by file.
        self._lines: dict[str, dict[RowT, str]] = {}

    def note_change(self, key: str) -> None:
        """Note that the records in the file at `key` have changed; the next `update` writes it."""
        self._stale.add(key)

    def update(self) -> None:
        """Write the files whose records have changed. Raises `StoreError`; the next call tries again."""
        for key in sorted(self._stale):
            # Before the listing: a record that another thread writes meanwhile makes the file stale again.
            self._stale.discard(key)
            try:
                self._write(key)
            except BaseException:
                self._stale.add(key)
                raise

    def create(self, key: str) -> None:
        """Write the file at `key` without entries if there is none. Raises `StoreError`."""
        create(self._store, key, self._render(key, ()))

    def _write(self, key: str) -> None:
        """Write a file until a listing after the write gives the same.

        So the last of several concurrent writers misses no entry. An empty file is not written first.
        """
        try:
            stored = self._store.get(key)
        except NotFoundError:
            stored = self._render(key, ())
        rows = self._rows(key)
        while (current := self._render(key, rows)) != stored:
            self._store.put(key, current, overwrite=True)
            stored, before, rows = current, rows, self._rows(key)
            if rows == before:
                return

    def _render(self, key: str, rows: Sequence[RowT]) -> bytes:
        known = self._lines.get(key, {})
        lines = {row: known.get(row) or json.dumps(self._entry(row), ensure_ascii=False) for row in rows}
        self._lines[key] = lines
        head = json.dumps({"schema_version": _SCHEMA, **self._head(key), "items": []}, ensure_ascii=False)
        text = ",\n".join(lines.values())
        return f"{head[:-2]}\n{text}\n]}}\n".encode("utf-8", "backslashreplace")

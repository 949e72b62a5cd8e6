"""Local folders and derived files of the presets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offload.errors import ConfigError, NotFoundError, OffloadError, StoreError
from offload.store import OffloadStore


def local_path(path: str | os.PathLike[str], argument: str) -> Path:
    """Return `path` as an absolute path; raise `ConfigError` for a URL, naming the `argument`."""
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(f"{argument} must be a local folder, got {text!r}; offload.Offloader takes URLs")
    # Not resolve(): results and placeholders name the folder as the caller does, symbolic links included.
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111


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
            f"{path}: {reason}; the folder must belong to this user, on a file system with hard links"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names of the files in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_until_current(
    store: OffloadStore, key: str, render: Callable[[], bytes], empty: bytes = b""
) -> None:
    """Store what `render` makes of a fresh listing, until a listing after the write gives the same.

    So the last of several concurrent writers misses no entry. Content equal to `empty` is not stored first.
    """
    try:
        stored = store.get(key)
    except NotFoundError:
        stored = empty
    while (current := render()) != stored:
        store.put(key, current, overwrite=True)
        stored = current

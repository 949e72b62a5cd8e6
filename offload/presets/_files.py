"""What presets that lay out files of their own share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offload.errors import OffloadError, StoreError


@contextmanager
def mapped_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours; the store has done so with its own."""
    try:
        yield
    except OffloadError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"{path}: {reason}; the folder must be this user's, on a file system with hard links"
        ) from error

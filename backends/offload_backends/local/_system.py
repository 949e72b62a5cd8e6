"""The file interface of the operating system, found once at import.

Nothing else asks for the capabilities of a system, and nothing asks for its name. Tests replace `SYSTEM` by
one that offers less.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Each call that a folder's handle must serve.
_BY_HANDLE = {os.access, os.chmod, os.mkdir, os.open, os.rename, os.rmdir, os.stat, os.unlink}
# The medium cannot do what F_FULLFSYNC requests, as a network share.
_NO_FULL_SYNC = {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}


@dataclass(frozen=True)
class System:
    """The file interface of one operating system. A medium may still refuse what the system offers.

    Attributes:
        has_folder_handles: a folder can be opened, synced, and be the base of calls (`dir_fd`).
        has_owners: files have an owner, a group and a mode.
        has_hard_links: a file can have two names.
        unnamed_file: the flag of `os.open` for a file without a name; 0 if there is none.
        full_sync: the command of `fcntl` that reaches the disk where `fsync` does not; None elsewhere.
        exclusive_renames: functions of the C library, with their flag, that rename to a free name only.
        rename: renames a file; it either replaces a file of the new name or refuses.
    """

    has_folder_handles: bool
    has_owners: bool
    has_hard_links: bool
    unnamed_file: int
    full_sync: int | None
    exclusive_renames: tuple[tuple[str, int], ...]
    rename: Callable[..., None]


SYSTEM = System(
    has_folder_handles=os.supports_dir_fd >= _BY_HANDLE and hasattr(os, "O_DIRECTORY"),
    has_owners=hasattr(os, "geteuid"),
    has_hard_links=hasattr(os, "link"),
    unnamed_file=getattr(os, "O_TMPFILE", 0),
    full_sync=getattr(fcntl, "F_FULLFSYNC", None),
    exclusive_renames=(("renameat2", 1), ("renameatx_np", 4)),
    rename=os.rename,
)


def sync(handle: int) -> None:
    """Bring an open file or folder to the disk."""
    if SYSTEM.full_sync is not None:
        try:
            fcntl.fcntl(handle, SYSTEM.full_sync)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(handle)

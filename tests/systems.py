"""Operating systems that offer less than this one, for the suites of the local store.

`use` and `use_for_a_test` replace the `System` of the running process. Systems without folder handles
resemble Windows in two more ways: a rename refuses a taken name, and in a test a file that the process has
open is neither renamed nor removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from offload_backends.local import _system

if TYPE_CHECKING:
    import pytest

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_ACCESS_DENIED, _SHARING_VIOLATION = 5, 32
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def refusing_rename(
    old: str | Path, new: str | Path, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
) -> None:
    """Rename as Windows does: to a free name only."""
    assert _renameat2 is not None
    folders = [_AT_FDCWD if handle is None else handle for handle in (src_dir_fd, dst_dir_fd)]
    if _renameat2(folders[0], os.fsencode(old), folders[1], os.fsencode(new), _RENAME_NOREPLACE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(new))


def _refusing_held(call: Callable[..., None]) -> Callable[..., None]:
    def refuse(*paths: str | Path, **folders: int | None) -> None:
        if not any(folders.values()):
            for path in paths:
                if _is_open(path):
                    raise denied(path, _SHARING_VIOLATION)
                if Path(path).is_dir():
                    raise denied(path, _ACCESS_DENIED)
        call(*paths, **folders)

    return refuse


def _is_open(path: str | Path) -> bool:
    """Return whether this process has the file open."""
    try:
        file = os.lstat(path)
    except FileNotFoundError:
        return False
    for handle in os.listdir("/proc/self/fd"):  # noqa: PTH208  # numbers, not paths
        with suppress(OSError):
            if os.path.samestat(file, os.fstat(int(handle))):
                return True
    return False


def denied(path: str | Path, number: int) -> PermissionError:
    """Return the error `number` of Windows."""
    error = PermissionError(errno.EACCES, "The process cannot access the file", os.fspath(path))
    error.winerror = number  # type: ignore[attr-defined]  # on Windows it is there
    return error


ALL = _system.SYSTEM
NAMED = replace(ALL, unnamed_file=0)
NO_LINKS = replace(NAMED, has_hard_links=False)
BY_PATH = replace(
    NAMED, has_folder_handles=False, has_owners=False, exclusive_renames=(), rename=refusing_rename
)
RENAME_ONLY = replace(BY_PATH, has_hard_links=False)
FORMS = {
    "everything": ALL,
    "no unnamed files": NAMED,
    "no hard links": NO_LINKS,
    "no folder handles": BY_PATH,
    "a refusing rename only": RENAME_ONLY,
}


def use(name: str) -> None:
    """Give the process the system `name` of `FORMS`, for good: a child of a test."""
    _system.SYSTEM = FORMS[name]


def use_for_a_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the process the system `name`, which refuses open files if it has no folder handles."""
    system = FORMS[name]
    if not system.has_folder_handles:
        system = replace(system, rename=_refusing_held(system.rename))
        monkeypatch.setattr(os, "unlink", _refusing_held(os.unlink))
        monkeypatch.setattr(os, "replace", _refusing_held(os.replace))
    monkeypatch.setattr(_system, "SYSTEM", system)

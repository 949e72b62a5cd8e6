"""An open folder: by its handle, or by its path if the system opens no folders.

Both kinds have the same methods. Names are single path parts, and no method follows a link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from offload.base.system import patiently
from offload_backends.local import _system

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _OPEN
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
# Without O_NONBLOCK, opening a planted named pipe would wait for its writer.
_READ = os.O_RDONLY | _OPEN | _NO_LINK | getattr(os, "O_NONBLOCK", 0)

# A reparse point of Windows that is a link to a file or folder: a symbolic link, a junction.
_NAME_SURROGATE = 0x20000000


class HandleFolder:
    """A folder by its handle: every call is made in it, even if its path means another folder by now."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        """Close the handle."""
        os.close(self._handle)

    def info(self) -> os.stat_result:
        """Return the owner, mode and times of the folder."""
        return os.fstat(self._handle)

    def sync(self) -> None:
        """Make the names in the folder survive a power cut."""
        _system.sync(self._handle)

    def child(self, name: str) -> HandleFolder:
        """Open folder `name`."""
        return HandleFolder(os.open(name, _FOLDER | _NO_LINK, dir_fd=self._handle))

    def make_child(self, name: str) -> None:
        """Create folder `name`."""
        os.mkdir(name, _FOLDER_MODE, dir_fd=self._handle)

    def make_private(self, name: str) -> None:
        """Give a new folder the mode of which the umask may have removed bits."""
        os.chmod(name, _FOLDER_MODE, dir_fd=self._handle)

    def remove_child(self, name: str) -> None:
        """Remove the empty folder `name`."""
        os.rmdir(name, dir_fd=self._handle)

    def entries(self) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """Scan the folder."""
        return os.scandir(self._handle)

    def exists(self, name: str) -> bool:
        """Return whether the name is taken, by anything."""
        return os.access(name, os.F_OK, dir_fd=self._handle, follow_symlinks=False)

    def stat(self, name: str) -> os.stat_result:
        """Return the facts of file `name`."""
        return os.stat(name, dir_fd=self._handle, follow_symlinks=False)

    def open_file(self, name: str) -> int:
        """Open file `name` to read it."""
        return os.open(name, _READ, dir_fd=self._handle)

    open_to_sync = open_file

    def create_file(self, name: str) -> int:
        """Create file `name` and open it to write to it."""
        return os.open(name, _CREATE | _NO_LINK, _FILE_MODE, dir_fd=self._handle)

    def create_unnamed(self, name: str, fill: Callable[[int], None]) -> None:
        """Create a file that has no name until `fill` has written to its handle; the name must be free."""
        flags = os.O_WRONLY | _OPEN | _system.SYSTEM.unnamed_file
        file = os.open(".", flags, _FILE_MODE, dir_fd=self._handle)
        try:
            fill(file)
            # Only with dst_dir_fd does Python call linkat(2), which follows the link that /proc shows.
            os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=self._handle)
        finally:
            os.close(file)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which must be free."""
        os.link(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)

    def rename_exclusively(self, old: str, new: str) -> None:
        """Rename a file to a free name by a function of the C library."""
        _rename_exclusively(self._handle, old, new)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file of the new name is replaced, or is an error: see `System.rename`."""
        _system.SYSTEM.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def replace(self, old: str, new: str) -> None:
        """Rename a file and replace a file of the new name."""
        os.replace(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove(self, name: str) -> None:
        """Remove file `name`."""
        os.unlink(name, dir_fd=self._handle)

    def set_time(self, name: str, modified: float) -> None:
        """Set the time of file `name`, in seconds since the epoch."""
        os.utime(name, (modified, modified), dir_fd=self._handle, follow_symlinks=False)


class PathFolder:
    """A folder by its path, with the methods of `HandleFolder`.

    A folder or file is checked not to be a link just before its use. That is weaker than a handle: a program
    that may write to a folder above could replace it by a link between the check and the use. The names in
    the folder cannot be synced.

    Windows refuses to open, rename or remove a file that another program has open; such a call is repeated
    for up to two seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Do nothing: a path is not open."""

    def info(self) -> os.stat_result:
        return self._path.stat()

    def sync(self) -> None:
        """Do nothing: the system has no call for it."""

    def child(self, name: str) -> PathFolder:
        info = self.stat(name)
        if not stat.S_ISDIR(info.st_mode) or _is_link(info):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        return PathFolder(self._path / name)

    def make_child(self, name: str) -> None:
        (self._path / name).mkdir(_FOLDER_MODE)

    def make_private(self, name: str) -> None:
        (self._path / name).chmod(_FOLDER_MODE)

    def remove_child(self, name: str) -> None:
        (self._path / name).rmdir()

    def entries(self) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        return os.scandir(self._path)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path / name)

    def stat(self, name: str) -> os.stat_result:
        return (self._path / name).lstat()

    def open_file(self, name: str) -> int:
        return self._open_file(name, os.O_RDONLY)

    def open_to_sync(self, name: str) -> int:
        """Open file `name` to sync it, which Windows does for a writer only."""
        return self._open_file(name, os.O_RDWR)

    def create_file(self, name: str) -> int:
        return patiently(os.open, self._path / name, _CREATE, _FILE_MODE)

    def create_unnamed(self, name: str, fill: Callable[[int], None]) -> None:
        """Raise `OSError`: a file without a name gets one by the handle of its folder."""
        del fill
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), name)

    def link(self, old: str, new: str) -> None:
        # Not repeated: some media deny access to say that they have no hard links, and a rename follows.
        os.link(self._path / old, self._path / new)

    def rename_exclusively(self, old: str, new: str) -> None:
        # Of an absolute path the function ignores the handle.
        _rename_exclusively(-1, self._path / old, self._path / new)

    def rename(self, old: str, new: str) -> None:
        patiently(_system.SYSTEM.rename, self._path / old, self._path / new)

    def replace(self, old: str, new: str) -> None:
        target = self._path / new
        if target.is_dir():
            # Windows would say that access is denied, as for a file that is open.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
        patiently(os.replace, self._path / old, target)

    def remove(self, name: str) -> None:
        patiently(os.unlink, self._path / name)

    def set_time(self, name: str, modified: float) -> None:
        patiently(os.utime, self._path / name, (modified, modified))

    def _open_file(self, name: str, access: int) -> int:
        info = self.stat(name)
        if not stat.S_ISREG(info.st_mode) or _is_link(info):
            raise OSError(errno.ELOOP, "not a regular file", name)
        return patiently(os.open, self._path / name, access | _OPEN)


Folder = HandleFolder | PathFolder


def open_folder(path: Path) -> Folder:
    """Open the folder at an absolute path, which may be a link."""
    if _system.SYSTEM.has_folder_handles:
        return HandleFolder(os.open(path, _FOLDER))
    extended = Path(extended_path(str(path)))
    if not stat.S_ISDIR(extended.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return PathFolder(extended)


def extended_path(path: str) -> str:
    r"""Return a path with a drive in the form `\\?\C:\folder`, any other path unchanged.

    In this form Windows takes more than 260 characters, names of devices such as `con`, and a trailing dot.
    """
    drive = os.path.splitdrive(path)[0]
    if not drive or drive.startswith("\\\\?\\"):
        return path
    return "\\\\?\\UNC" + path[1:] if drive.startswith("\\\\") else "\\\\?\\" + path


def _is_link(info: os.stat_result) -> bool:
    return stat.S_ISLNK(info.st_mode) or bool(getattr(info, "st_reparse_tag", 0) & _NAME_SURROGATE)


def _rename_exclusively(folder: int, old: str | Path, new: str | Path) -> None:
    rename, flag = _exclusive_rename(_system.SYSTEM.exclusive_renames)
    if rename is None:
        raise OSError(errno.ENOSYS, "the system has no call that renames to a free name only")
    if rename(folder, os.fsencode(old), folder, os.fsencode(new), flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(new))


@cache
def _exclusive_rename(known: tuple[tuple[str, int], ...]) -> tuple[Callable[..., int] | None, int]:
    """Return the first of the `known` functions that the C library has, and its flag."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows has no such library.
        return None, 0
    found = ((getattr(library, name, None), flag) for name, flag in known)
    return next((pair for pair in found if pair[0] is not None), (None, 0))

"""Files and folders in an open folder: complete, private and durable before they are visible.

A new file is written without a name (`O_TMPFILE`), synced, and named by a hard link, which fails if the
name is taken; then the folder is synced. If the file system does not support that, the file first gets a
temporary name. If `is_synced` is false, nothing is synced.

After a failed fsync the kernel marks the lost pages as clean, so another fsync would wrongly succeed: the
unsynced file is removed, and the error is raised.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

Buffer = bytes | memoryview

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
# Absent on Windows, which the store refuses.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
# Without O_NONBLOCK, opening a planted named pipe would wait for its writer.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | _NO_LINK | getattr(os, "O_NONBLOCK", 0)
_UNNAMED = getattr(os, "O_TMPFILE", 0)

# Errors of O_TMPFILE, or of linking the result, on a file system or a system without /proc.
_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_RENAME_NOREPLACE = 1

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_ABANDONED_SECONDS = 3600


def make_folder(parent: int, name: str, *, is_synced: bool) -> None:
    """Create folder `name` in the open folder `parent`, unless it exists."""
    try:
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    try:
        # The umask may have removed bits.
        os.chmod(name, _FOLDER_MODE, dir_fd=parent)
        if is_synced:
            os.fsync(parent)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent)
        raise


def create(folder: int, name: str, pieces: Iterable[Buffer], *, is_synced: bool) -> bool:
    """Create file `name` with all its bytes at once; raise `FileExistsError` if the name is taken.

    If the first attempt shows that unnamed files are not supported, `pieces` is iterated again. It must
    not raise `OSError`, which would be mistaken for an error of the medium.

    Return whether the file had a temporary name first, which a killed writer does not remove.
    """
    if os.access(name, os.F_OK, dir_fd=folder, follow_symlinks=False):
        # This also works on a full disk, and avoids a useless write.
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    is_named = False
    try:
        _create_unnamed(folder, name, pieces, is_synced=is_synced)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
        is_named = True
    if is_named:
        with _temporary(folder, pieces, is_synced=is_synced) as temporary:
            _give_name(folder, temporary, name)
    if is_synced:
        try:
            os.fsync(folder)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
    return is_named


def replace(folder: int, name: str, data: bytes, *, is_synced: bool) -> None:
    """Replace the content of file `name` by `data`; the file has a temporary name first."""
    with _temporary(folder, [data], is_synced=is_synced) as temporary:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    if is_synced:
        os.fsync(folder)


def sync_object(folder: int, name: str) -> None:
    """Sync a file of another writer, who may not have synced it yet or at all."""
    with suppress(FileNotFoundError), closing(os.open(name, _READ, dir_fd=folder)) as file:
        os.fsync(file)
        os.fsync(folder)


def sweep(folder: int) -> None:
    """Remove temporary files of killed writers; `folder` was written to just now."""
    with suppress(OSError), os.scandir(folder) as entries:
        # The folder's time is "now" by the clock of the file system, which may be a server's.
        oldest = os.fstat(folder).st_mtime - _ABANDONED_SECONDS
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry.name, dir_fd=folder)


def read(folder: int, name: str, part: slice) -> bytes:
    """Return the bytes of file `name` in `part`; an irregular file raises `FileNotFoundError`."""
    with closing(os.open(name, _READ, dir_fd=folder)) as handle:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.ENOENT, "not a regular file", name)
        first, last, _ = part.indices(info.st_size)
        with open(handle, "rb", closefd=False) as file:
            file.seek(first)
            return file.read(max(0, last - first))


def is_object(folder: int, name: str) -> bool:
    """Return whether the taken name `name` belongs to a regular file."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        # It was there a moment ago, and only objects are deleted.
        return True
    return stat.S_ISREG(mode)


def is_own(info: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user, or to root, who can change anything anyway."""
    return info.st_uid in (os.geteuid(), 0)


def is_written_by_others(folder: os.stat_result) -> bool:
    """Return whether users other than the owner may write to a folder."""
    if folder.st_mode & stat.S_IWOTH:
        return True
    return bool(folder.st_mode & stat.S_IWGRP) and not _is_private(folder.st_gid, os.geteuid())


@cache
def _is_private(group: int, user: int) -> bool:
    """Return whether a group is the user's own group without other members."""
    import grp  # noqa: PLC0415  # absent on Windows, and needed for few folders
    import pwd  # noqa: PLC0415

    try:
        known = pwd.getpwuid(user)
        return group == known.pw_gid and set(grp.getgrgid(group).gr_mem) <= {known.pw_name}
    except KeyError:
        # The system has no name for the user, as in a container, or none for the group.
        return group == os.getegid()


def sorted_names(folder: int, beginning: str) -> list[str]:
    """Return the names of files and, with a slash, folders, in the order of their keys.

    Names that do not start with `beginning` are skipped before any check: a lookup of one record by its ref
    lists a folder of thousands.
    """
    with os.scandir(folder) as entries:
        return sorted(
            entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
            for entry in entries
            if entry.name.startswith(beginning)
            and not entry.name.startswith(".")
            and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        )


@contextmanager
def closing(handle: int) -> Iterator[int]:
    """Close `handle` at the end of the block."""
    try:
        yield handle
    finally:
        os.close(handle)


def _create_unnamed(folder: int, name: str, pieces: Iterable[Buffer], *, is_synced: bool) -> None:
    with closing(os.open(".", _WRITE | _UNNAMED, _FILE_MODE, dir_fd=folder)) as file:
        _fill(file, pieces, is_synced=is_synced)
        # Only with dst_dir_fd does Python call linkat(2), which follows the link that /proc shows.
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)


@contextmanager
def _temporary(folder: int, pieces: Iterable[Buffer], *, is_synced: bool) -> Iterator[str]:
    """Yield the name of a temporary file with `pieces`, and remove that name at the end."""
    name = ".tmp-" + secrets.token_hex(8)
    file = os.open(name, _WRITE | os.O_CREAT | os.O_EXCL | _NO_LINK, _FILE_MODE, dir_fd=folder)
    try:
        with closing(file):
            _fill(file, pieces, is_synced=is_synced)
        yield name
    finally:
        # A rename has removed it, or `sweep` will.
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _fill(file: int, pieces: Iterable[Buffer], *, is_synced: bool) -> None:
    # The umask may have removed bits.
    os.fchmod(file, _FILE_MODE)
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(file, rest) :]
    if is_synced:
        os.fsync(file)


def _give_name(folder: int, temporary: str, name: str) -> None:
    """Rename the file to a free name, by a hard link or an exclusive rename."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_exclusively(folder, temporary, name)


def _rename_exclusively(folder: int, old: str, new: str) -> None:
    # Python has no call for it, and a plain rename replaces a file.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOTSUP, "the file system has no hard links, the system no renameat2")
    if rename(folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)

"""Files and folders in an open folder: whole, private and durable before anyone can count on them.

A new file is written without a name (`O_TMPFILE`), synced, and given its name by a hard link, which
fails if the name is taken; then the folder is synced. Where the file system cannot do that, a file
with a temporary name takes its part. With `is_synced` false nothing is synced.

After a failed fsync the kernel takes the lost pages for clean, so that another fsync would lie: what
was not synced is removed, and the error goes to the caller.
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

# What a file system, or a system without /proc, answers to O_TMPFILE and to linking the result.
_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_RENAME_NOREPLACE = 1

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_ABANDONED_SECONDS = 3600


def make_folder(parent: int, name: str, *, is_synced: bool) -> None:
    """Make folder `name` in the open folder `parent`, unless it is there."""
    try:
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    try:
        # The umask may have taken bits away.
        os.chmod(name, _FOLDER_MODE, dir_fd=parent)
        if is_synced:
            os.fsync(parent)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent)
        raise


def create(folder: int, name: str, pieces: Iterable[Buffer], *, is_synced: bool) -> bool:
    """Make file `name` appear with all its bytes; raise `FileExistsError` if the name is taken.

    Where a first try shows that files cannot be unnamed, `pieces` is iterated again. What it raises
    must be no `OSError`, which would be taken for the medium's.

    Returns whether the file had a temporary name first, which a killed writer leaves behind.
    """
    if os.access(name, os.F_OK, dir_fd=folder, follow_symlinks=False):
        # Found also where nothing can be written any more, and the bytes are not written for nothing.
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
    """Make file `name` hold `data`, whatever it held; the file has a temporary name first."""
    with _temporary(folder, [data], is_synced=is_synced) as temporary:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    if is_synced:
        os.fsync(folder)


def sync_object(folder: int, name: str) -> None:
    """Make durable what another writer created, who may not have come so far or not have wanted to."""
    with suppress(FileNotFoundError), closing(os.open(name, _READ, dir_fd=folder)) as file:
        os.fsync(file)
        os.fsync(folder)


def sweep(folder: int) -> None:
    """Remove the temporary files that killed writers left; `folder` has just been written to."""
    with suppress(OSError), os.scandir(folder) as entries:
        # The folder's own time is "now" by the clock that stamps its files, which may be a server's.
        oldest = os.fstat(folder).st_mtime - _ABANDONED_SECONDS
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry.name, dir_fd=folder)


def read(folder: int, name: str, part: slice) -> bytes:
    """Return the bytes of file `name` in `part`; what is no regular file raises `FileNotFoundError`."""
    with closing(os.open(name, _READ, dir_fd=folder)) as handle:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.ENOENT, "not a regular file", name)
        first, last, _ = part.indices(info.st_size)
        with open(handle, "rb", closefd=False) as file:
            file.seek(first)
            return file.read(max(0, last - first))


def is_object(folder: int, name: str) -> bool:
    """Tell whether `name`, which was found taken, belongs to a file that a store wrote."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        # It was there a moment ago, and only objects are ever removed.
        return True
    return stat.S_ISREG(mode)


def is_own(info: os.stat_result) -> bool:
    """Tell whether a file or folder is of this user, or of root, who can do anything anyway."""
    return info.st_uid in (os.geteuid(), 0)


def is_written_by_others(folder: os.stat_result) -> bool:
    """Tell whether others than the folder's user may write to it."""
    if folder.st_mode & stat.S_IWOTH:
        return True
    return bool(folder.st_mode & stat.S_IWGRP) and not _is_private(folder.st_gid, os.geteuid())


@cache
def _is_private(group: int, user: int) -> bool:
    """Return whether a group is the user's own, with nobody else in it."""
    import grp  # noqa: PLC0415  # absent on Windows, and needed for few folders
    import pwd  # noqa: PLC0415

    try:
        known = pwd.getpwuid(user)
        return group == known.pw_gid and set(grp.getgrgid(group).gr_mem) <= {known.pw_name}
    except KeyError:
        # The system has no name for the user, as in a container, or none for the group.
        return group == os.getegid()


def sorted_names(folder: int, beginning: str) -> list[str]:
    """Return the names of files and, with a slash, folders, in the order of the keys they make.

    What does not start with `beginning` is not looked at: one record of thousands is asked for by its ref.
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
    """Give the name of a file that holds `pieces`, and remove that name at the end."""
    name = ".tmp-" + secrets.token_hex(8)
    file = os.open(name, _WRITE | os.O_CREAT | os.O_EXCL | _NO_LINK, _FILE_MODE, dir_fd=folder)
    try:
        with closing(file):
            _fill(file, pieces, is_synced=is_synced)
        yield name
    finally:
        # Gone by a rename, or left to `sweep`.
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _fill(file: int, pieces: Iterable[Buffer], *, is_synced: bool) -> None:
    # The umask may have taken bits away.
    os.fchmod(file, _FILE_MODE)
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(file, rest) :]
    if is_synced:
        os.fsync(file)


def _give_name(folder: int, temporary: str, name: str) -> None:
    """Give the file a name that is not taken, by a hard link or by a rename that refuses."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_exclusively(folder, temporary, name)


def _rename_exclusively(folder: int, old: str, new: str) -> None:
    # Python has no call for it, and a plain rename replaces.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOTSUP, "the file system has no hard links, the system no renameat2")
    if rename(folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)

"""Files and folders in an open folder: complete, private and durable before they are visible.

A new file is written without a name (`O_TMPFILE`), synced, and named by a hard link, which fails if the
name is taken; then the folder is synced. If the system or the medium does not support that, the file first
gets a temporary name, and its own name by a hard link or by a rename that does not replace. If `is_synced`
is false, nothing is synced.

After a failed fsync the kernel marks the lost pages as clean, so another fsync would wrongly succeed: the
unsynced file is removed, and the error is raised.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial

from offload_backends.local import _system
from offload_backends.local._folders import Folder

Buffer = bytes | memoryview

_FILE_MODE = 0o600
# Errors of O_TMPFILE, or of linking the result, on a file system or a system without /proc.
_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV}
# Errors of a link, or of an exclusive rename, that the medium does not support. If the medium refuses every
# change, the next call says so too.
_UNSUPPORTED = {
    *(errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
}

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_ABANDONED_SECONDS = 3600

# Whether a plain rename refuses a taken name, by system and device.
_refusing_renames: dict[tuple[_system.System, int], bool] = {}


def make_folder(parent: Folder, name: str, *, is_synced: bool) -> None:
    """Create folder `name` in the open folder `parent`, unless it exists."""
    try:
        parent.make_child(name)
    except FileExistsError:
        return
    try:
        parent.make_private(name)
        if is_synced:
            parent.sync()
    except OSError:
        with suppress(OSError):
            parent.remove_child(name)
        raise


def create(folder: Folder, name: str, pieces: Iterable[Buffer], *, is_synced: bool) -> bool:
    """Create file `name` with all its bytes at once; raise `FileExistsError` if the name is taken.

    Its bytes survive a power cut then, and its name once `sync_names` has returned.

    If the first attempt shows that unnamed files are not supported, `pieces` is iterated again. It must
    not raise `OSError`, which would be mistaken for an error of the medium.

    Return whether the file had a temporary name first, which a killed writer does not remove.
    """
    if folder.exists(name):
        # This also works on a full disk, and avoids a useless write.
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    is_named = not _system.SYSTEM.unnamed_file
    if not is_named:
        try:
            folder.create_unnamed(name, partial(_fill, pieces=pieces, is_synced=is_synced))
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
            is_named = True
    if is_named:
        with _temporary(folder, pieces, is_synced=is_synced) as temporary:
            _give_name(folder, temporary, name)
    return is_named


def sync_names(folder: Folder, created: Iterable[str]) -> None:
    """Sync the names in a folder; if that fails, remove the files that were `created` since."""
    try:
        folder.sync()
    except OSError:
        for name in created:
            folder.remove(name)
        raise


def replace(folder: Folder, name: str, data: bytes, *, is_synced: bool) -> None:
    """Replace the content of file `name` by `data`; the file has a temporary name first."""
    with _temporary(folder, [data], is_synced=is_synced) as temporary:
        folder.replace(temporary, name)
    if is_synced:
        folder.sync()


def sync_bytes(folder: Folder, name: str) -> None:
    """Sync the bytes of another writer's file, who may not have synced it yet or at all."""
    with suppress(FileNotFoundError), closing(folder.open_to_sync(name)) as file:
        _system.sync(file)


def sweep(folder: Folder) -> None:
    """Remove temporary files of killed writers; `folder` was written to just now."""
    with suppress(OSError), folder.entries() as entries:
        # The folder's time is "now" by the clock of the file system, which may be a server's.
        oldest = folder.info().st_mtime - _ABANDONED_SECONDS
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                folder.remove(entry.name)


def read(folder: Folder, name: str, part: slice) -> bytes:
    """Return the bytes of file `name` in `part`; an irregular file raises `FileNotFoundError`."""
    with closing(folder.open_file(name)) as handle:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.ENOENT, "not a regular file", name)
        first, last, _ = part.indices(info.st_size)
        with open(handle, "rb", closefd=False) as file:
            file.seek(first)
            return file.read(max(0, last - first))


def is_object(folder: Folder, name: str) -> bool:
    """Return whether the taken name `name` belongs to a regular file."""
    try:
        mode = folder.stat(name).st_mode
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
    import pwd  # noqa: PLC0415  # absent on Windows

    try:
        known = pwd.getpwuid(user)
        return group == known.pw_gid and set(grp.getgrgid(group).gr_mem) <= {known.pw_name}
    except KeyError:
        # The system has no name for the user, as in a container, or none for the group.
        return group == os.getegid()


def sorted_names(folder: Folder, beginning: str) -> list[str]:
    """Return the names of files and, with a slash, folders, in the order of their keys.

    Names that do not start with `beginning` are skipped before any check: a lookup of one record by its ref
    lists a folder of thousands.
    """
    with folder.entries() as entries:
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


@contextmanager
def _temporary(folder: Folder, pieces: Iterable[Buffer], *, is_synced: bool) -> Iterator[str]:
    """Yield the name of a temporary file with `pieces`, and remove that name at the end."""
    name = ".tmp-" + secrets.token_hex(8)
    file = folder.create_file(name)
    try:
        with closing(file):
            _fill(file, pieces, is_synced=is_synced)
        yield name
    finally:
        # A rename has removed it, or `sweep` will.
        with suppress(OSError):
            folder.remove(name)


def _fill(file: int, pieces: Iterable[Buffer], *, is_synced: bool) -> None:
    if _system.SYSTEM.has_owners:
        # The umask may have removed bits.
        os.fchmod(file, _FILE_MODE)
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(file, rest) :]
    if is_synced:
        _system.sync(file)


def _give_name(folder: Folder, temporary: str, name: str) -> None:
    """Rename the file to a free name; no step replaces a file of that name."""
    if _system.SYSTEM.has_hard_links and _is_done(folder.link, temporary, name):
        return
    if _is_done(folder.rename_exclusively, temporary, name):
        return
    if not _does_rename_refuse(folder):
        raise OSError(errno.ENOTSUP, "the medium has neither hard links nor a rename that does not replace")
    folder.rename(temporary, name)


def _is_done(give_name: Callable[[str, str], None], temporary: str, name: str) -> bool:
    """Return whether the medium supports the call, which then has been done."""
    try:
        give_name(temporary, name)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _does_rename_refuse(folder: Folder) -> bool:
    """Return whether a plain rename refuses a taken name, by one trial per device with temporary files."""
    place = _system.SYSTEM, folder.info().st_dev
    if place not in _refusing_renames:
        _refusing_renames[place] = _is_rename_refused(folder)
    return _refusing_renames[place]


def _is_rename_refused(folder: Folder) -> bool:
    with (
        _temporary(folder, [], is_synced=False) as one,
        _temporary(folder, [], is_synced=False) as other,
    ):
        try:
            folder.rename(one, other)
        except FileExistsError:
            return True
        return False

"""A tar file as a table of members: written plainly, read without trust."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from offload.errors import ConfigError, CorruptError

END = bytes(2 * tarfile.BLOCKSIZE)
# More than the headers of any key take: what claims more is not read.
_MAX_HEADER_BYTES = 64 * 1024


class Member(NamedTuple):
    """The position and size of a member's bytes in the tar file."""

    start: int
    size: int


def write_member(file: BinaryIO, name: str, pieces: Iterable[bytes], size: int) -> Member:
    """Write a member of `size` bytes at the position of `file`, without owner and time.

    Raises `ConfigError` if the total size of `pieces` is different.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    start = file.tell()
    file.writelines(pieces)
    if file.tell() != start + size:
        raise ConfigError(f"{name}: size must be the total of the pieces, got {size}")
    file.write(bytes(-size % tarfile.BLOCKSIZE))
    return Member(start, size)


def read_members(file: BinaryIO) -> dict[str, Member]:
    """Return every member by name; only headers are read.

    Raises `CorruptError` for a damaged or compressed tar file, and for one that contains anything other than
    plain files with different names.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    members: dict[str, Member] = {}
    try:
        with tarfile.TarFile(fileobj=_Headers(file)) as tar:
            while (info := tar.next()) is not None:
                _check(info, size, members)
                members[info.name] = Member(info.offset_data, info.size)
        file.seek(tar.offset)
    except (tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
        raise CorruptError(f"not a plain tar file, or damaged: {error}") from error
    # The tar module reports an unreadable header as the end.
    if file.read(len(END)) != END:
        raise CorruptError("the tar file is truncated or damaged: no end marker")
    return members


def _check(info: tarfile.TarInfo, size: int, members: dict[str, Member]) -> None:
    name = repr(info.name[:80])
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
        raise CorruptError(f"{name} must be a plain file")
    if info.name in members:
        raise CorruptError(f"{name} occurs twice")
    if not 0 <= info.size <= size - info.offset_data:
        raise CorruptError(f"{name} claims {info.size} bytes, but the file is shorter")


class _Headers(io.RawIOBase):
    """A file for reading headers; a claimed size never costs more memory than a header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._is_at_end = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the file."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; none at the end, but only once: the tar module would read forever."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        data = self._file.read(size)
        if self._is_at_end and not data:
            raise tarfile.ReadError("the file ends within a header")
        self._is_at_end = not data
        return data

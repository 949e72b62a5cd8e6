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
    """Where the bytes of a file in the archive lie: from `start` on, `size` of them."""

    start: int
    size: int


def write_member(file: BinaryIO, name: str, pieces: Iterable[bytes], size: int) -> Member:
    """Write a file of `size` bytes where `file` stands. It tells nothing of who wrote it, or when.

    Raises `ConfigError` if `pieces` add up to another size.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    start = file.tell()
    file.writelines(pieces)
    if file.tell() != start + size:
        raise ConfigError(f"{name}: the pieces add up to another size than {size}")
    file.write(bytes(-size % tarfile.BLOCKSIZE))
    return Member(start, size)


def read_members(file: BinaryIO) -> dict[str, Member]:
    """Return every member by name; only headers are read.

    Raises `CorruptError` for a damaged or compressed tar file, and for one that holds anything else than
    plain files of different names.
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
        raise CorruptError(f"no plain tar file, or a damaged one: {error}") from error
    # Where a header cannot be read the tar module sees the end.
    if file.read(len(END)) != END:
        raise CorruptError("it does not end as a tar file does; it is truncated or damaged")
    return members


def _check(info: tarfile.TarInfo, size: int, members: dict[str, Member]) -> None:
    name = repr(info.name[:80])
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
        raise CorruptError(f"{name} is not a plain file")
    if info.name in members:
        raise CorruptError(f"{name} is there twice")
    if not 0 <= info.size <= size - info.offset_data:
        raise CorruptError(f"{name} claims {info.size} bytes, the file is shorter")


class _Headers(io.RawIOBase):
    """A file as its headers are read: what one claims costs no more than a header is worth."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._is_over = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; at the end none, once: the tar module would ask for ever."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        data = self._file.read(size)
        if self._is_over and not data:
            raise tarfile.ReadError("it ends within a header")
        self._is_over = not data
        return data

"""The irreducible work that the library is compared with, written down as plainly as it can be."""

from __future__ import annotations

import io
import os
import struct
from hashlib import sha256
from pathlib import Path

import zstandard

# As codec `zstd`: frames of 256 KiB, level 3 up to 8 MiB and 1 beyond.
_FRAME_BYTES = 256 * 1024
_SLOW_LEVEL_BYTES = 8 * 1024 * 1024
_TABLE_FOOTER = struct.Struct("<IBI")
_TABLE_ROW = struct.Struct("<II")
_SUFFIX_BYTES = 64 * 1024


def durable_write(folder: Path, name: str, data: bytes) -> None:
    """Make a file appear whole and durable: a file without a name, fsync, a link, fsync of the folder."""
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)
    os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=parent)
    os.fsync(parent)
    os.close(file)
    os.close(parent)


def offload(folder: Path, content: bytes) -> int:
    """Store `content` under its SHA-256, compressed and durable; return the stored size in bytes."""
    name = sha256(content).hexdigest()
    level = 3 if len(content) <= _SLOW_LEVEL_BYTES else 1
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    view = memoryview(content)
    frames = [compressor.compress(view[i : i + _FRAME_BYTES]) for i in range(0, len(content), _FRAME_BYTES)]
    stored = b"".join(frames)
    durable_write(folder, name, stored)
    return len(stored)


def restore(folder: Path, name: str) -> bytes:
    """Return the content that `offload` stored as `name`, its SHA-256 compared."""
    with io.BytesIO((folder / name).read_bytes()) as stored:
        reader = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
        content: bytes = reader.read()
    if sha256(content).hexdigest() != name:
        raise RuntimeError(f"{name} is damaged")
    return content


def read_frame(path: Path, byte: int) -> bytes:
    """Return the frame that holds the content's byte `byte`, found by the official seek table at the end."""
    file = os.open(path, os.O_RDONLY)
    total = os.fstat(file).st_size
    suffix = os.pread(file, _SUFFIX_BYTES, max(0, total - _SUFFIX_BYTES))
    count, _, _ = _TABLE_FOOTER.unpack(suffix[-_TABLE_FOOTER.size :])
    table = suffix[-_TABLE_FOOTER.size - count * _TABLE_ROW.size : -_TABLE_FOOTER.size]
    stored_at = plain_at = 0
    for stored, plain in _TABLE_ROW.iter_unpack(table):
        if plain_at <= byte < plain_at + plain:
            break
        stored_at, plain_at = stored_at + stored, plain_at + plain
    frame = os.pread(file, stored, stored_at)
    os.close(file)
    return zstandard.ZstdDecompressor().decompress(frame)

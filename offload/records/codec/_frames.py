"""The zstd frames of content: one independent frame per chunk, with content size and checksum."""

from __future__ import annotations

import threading

import zstandard

from offload.errors import CorruptError
from offload.storage.store import check_plain

# Content up to this size is worth the slower level.
SLOW_BYTES = 8 * 1024 * 1024
SLOW_LEVEL, FAST_LEVEL = 3, 1
_local = threading.local()


def compress(chunk: bytes | memoryview, level: int) -> bytes:
    # Creating a compressor takes longer than compressing a small record; threads cannot share one.
    """Return `chunk` as one frame."""
    made: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    if level not in made:
        made[level] = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return made[level].compress(chunk)


def decompress(frame: bytes, size: int) -> bytes:
    """Return the chunk of `size` bytes in `frame`.

    Raises `CorruptError` for any other size or damage, `EncryptionError` for an encrypted object.
    """
    try:
        claim = zstandard.get_frame_parameters(frame)
        # Check the claim before the decompressor allocates memory for it.
        if claim.content_size == size and claim.has_checksum:
            return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        check_plain(frame)
        raise CorruptError(str(error)) from error
    raise CorruptError("its size does not match the table")

"""The zstd frames of content: one independent frame per chunk, with content size and checksum."""

from __future__ import annotations

import threading

import zstandard

from offload.errors import CorruptError
from offload.storage.store import check_plain

# Content up to these sizes is worth the time of a slower level.
_SMALL_BYTES, SLOW_BYTES = 64 * 1024, 8 * 1024 * 1024
_SMALL_LEVEL, _SLOW_LEVEL, FAST_LEVEL = 6, 3, 1
_local = threading.local()


def level_for(size: int) -> int:
    """Return the level of zstd for the chunks of a content of `size` bytes."""
    if size <= _SMALL_BYTES:
        return _SMALL_LEVEL
    return _SLOW_LEVEL if size <= SLOW_BYTES else FAST_LEVEL


def compress(chunk: bytes | memoryview, level: int | None = None) -> bytes:
    """Return `chunk` as one frame; without a level it is a whole content."""
    level = level_for(len(chunk)) if level is None else level
    # Creating a compressor takes longer than compressing a small record; threads cannot share one.
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

"""Arithmetic of sealed objects: chunks of one size, the last one shorter, and a footer."""

from __future__ import annotations

from offload.storage.store import SEALED_FOOTER

CHUNK = 64 * 1024
TAG = 16
SEALED_CHUNK = CHUNK + TAG


def count_chunks(size: int) -> int:
    """Return the number of chunks of `size` plain bytes; empty data has one empty chunk."""
    return max(1, -(-size // CHUNK))


def sealed_size(size: int) -> int:
    """Return the size of the sealed object of `size` plain bytes."""
    return size + TAG * count_chunks(size) + SEALED_FOOTER


def plain_size(sealed: int) -> int:
    """Return the plain size of a sealed object of this size; any number for other objects."""
    body = sealed - SEALED_FOOTER
    return max(0, body - TAG * -(-body // SEALED_CHUNK))


def suffix_size(count: int) -> int:
    """Return the number of sealed bytes that contain the last `count` plain ones in any case."""
    return (count_chunks(count) + 1) * SEALED_CHUNK + SEALED_FOOTER


def chunks_of(start: int, end: int, size: int) -> range:
    """Return the chunks of the plain bytes from `start` to `end` of `size`.

    There is always one, so that every read authenticates the size in the footer.
    """
    first = min(start // CHUNK, count_chunks(size) - 1)
    return range(first, max(first + 1, count_chunks(min(end, size))))

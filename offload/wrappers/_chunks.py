"""Arithmetic of sealed objects: chunks of one size, the last one shorter, and a footer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

CHUNK = 64 * 1024
TAG = 16
SEALED_CHUNK = CHUNK + TAG
FOOTER = 56


def count_chunks(size: int) -> int:
    """Return how many chunks `size` plain bytes have; nothing has one, which is empty."""
    return max(1, -(-size // CHUNK))


def sealed_size(size: int) -> int:
    """Return the size of the sealed object of `size` plain bytes."""
    return size + TAG * count_chunks(size) + FOOTER


def plain_size(sealed: int) -> int:
    """Return how many plain bytes a sealed object of this size holds; for other objects, some number."""
    body = sealed - FOOTER
    return max(0, body - TAG * -(-body // SEALED_CHUNK))


def suffix_size(count: int) -> int:
    """Return how many sealed bytes hold the last `count` plain ones, wherever the last chunk ends."""
    return (count_chunks(count) + 1) * SEALED_CHUNK + FOOTER


def chunks_of(start: int, end: int, size: int) -> range:
    """Return the chunks that hold the plain bytes from `start` to `end` of `size`.

    There is always one, so that something is authenticated, whatever the footer says of the size.
    """
    first = min(start // CHUNK, count_chunks(size) - 1)
    return range(first, max(first + 1, count_chunks(min(end, size))))


def blocks_of(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes of `pieces` in blocks of `size` bytes, the last one shorter; of nothing, none."""
    held = bytearray()
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            missing = size - len(held)
            held += rest[:missing]
            rest = rest[missing:]
            if len(held) == size:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)

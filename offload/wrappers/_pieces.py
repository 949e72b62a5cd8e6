"""The bytes of a stream, cut anew: callers give pieces of any size, a wrapper works in blocks of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


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

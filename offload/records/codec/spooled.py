"""Content that arrives in parts and is compressed at once, so that memory does not grow with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import accumulate

import msgspec

from offload.base.text import decode_text, encode_text
from offload.base.threads.locks import NO_FORK, cached
from offload.errors import StoreError
from offload.records.codec._frames import FAST_LEVEL, SLOW_BYTES, compress, decompress
from offload.records.codec.content import (
    CHUNK_BYTES,
    Borders,
    ChunkSize,
    StoredContent,
    end_of_chunk,
    split,
    total,
)
from offload.records.record.header import Counts

# Frames beyond this size go to a temporary file.
SPOOL_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 512 * 1024
_BLOCK_BYTES = 16


# Returns bytes encrypted, or decrypted, for their place in a file.
Cipher = Callable[[bytes, int], bytes]


def _temporary_cipher() -> Cipher:
    """Return AES-256 in counter mode with a new key; without the extra `crypto`, what changes nothing.

    No place of a file may get other bytes later. `EncryptingStore` needs the extra.
    """
    try:
        with NO_FORK:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 # slow to import
    except ImportError:
        return lambda data, _: data
    key = algorithms.AES256(secrets.token_bytes(32))

    def apply(data: bytes, place: int) -> bytes:
        block, skipped = divmod(place, _BLOCK_BYTES)
        counter = modes.CTR(block.to_bytes(_BLOCK_BYTES, "big"))
        stream = Cipher(key, counter).encryptor()
        stream.update(bytes(skipped))
        return stream.update(data)

    return apply


class Spool:
    """Bytes to append and to read: in memory up to 8 MiB, then in a temporary file.

    The file has no name, so it vanishes with the process. It is encrypted if the extra `crypto` is installed,
    with a key that is in the memory of the process alone.
    """

    def __init__(self) -> None:
        with NO_FORK:
            from tempfile import SpooledTemporaryFile  # noqa: PLC0415 # 2 ms that only a sink pays

        self._file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 # it lives as long as the spool
        self.size = 0

    @cached
    def _cipher(self) -> Cipher:
        return _temporary_cipher()

    def append(self, data: bytes) -> None:
        """Add `data` at the end. Raises `StoreError` if the temporary file cannot take it."""
        try:
            self._file.seek(self.size)
            self._file.write(self._cipher(data, self.size))
            self._file.flush()  # A full disk fails here, not at a later read.
        except OSError as error:
            raise StoreError(f"the temporary file of a sink: {error}; free space or set TMPDIR") from error
        self.size += len(data)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`. Raises `StoreError` if they cannot be read."""
        try:
            self._file.seek(start)
            return self._cipher(self._file.read(end - start), start)
        except OSError as error:
            raise StoreError(f"the temporary file of a sink: {error}") from error

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self.size, _PIECE_BYTES):
            yield self.read(start, min(start + _PIECE_BYTES, self.size))

    def close(self) -> None:
        """Delete the temporary file."""
        with suppress(OSError):  # A full disk may fail again.
            self._file.close()


class SpooledContent(msgspec.Struct, frozen=True, dict=True):
    """A long text to be stored, already compressed: `spool` holds a frame of `stored` bytes per chunk."""

    counts: Counts
    sizes: list[ChunkSize]
    stored: list[int]
    spool: Spool

    @property
    def text(self) -> StoredContent:
        """The text by range, for one thread."""
        return StoredContent(Borders.between(self.sizes), self._read, self.counts.lines)

    def __iter__(self) -> Iterator[bytes]:
        return self._read(0, len(self.sizes))

    @property
    def data(self) -> bytes:
        """The whole content in memory, for codec `json`."""
        return b"".join(self)

    @cached
    def _borders(self) -> list[int]:
        return [0, *accumulate(self.stored)]

    def _read(self, first: int, last: int) -> Iterator[bytes]:
        for i in range(first, last):
            frame = self.spool.read(self._borders[i], self._borders[i + 1])
            yield decompress(frame, self.sizes[i].bytes)


class ContentWriter:
    """Builds content from the parts of a text.

    Holds a text of up to 8 MiB; of a longer one 256 KiB and its frames, up to 8 MiB of them in memory and
    more in a temporary file. Tokens are counted by `count_tokens`, once per chunk of a long text.
    """

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        self._count_tokens = count_tokens
        self._held = bytearray()
        self._spool = Spool()
        self._sizes: list[ChunkSize] = []
        self._stored: list[int] = []
        self._tokens = 0
        self._digest = sha256()

    def add(self, text: str) -> None:
        """Append `text`. Raises `StoreError` if the temporary file cannot take it."""
        self._held += encode_text(text)
        if self._sizes or len(self._held) > SLOW_BYTES:
            # The last chunk may still grow.
            while len(self._held) > CHUNK_BYTES:
                self._compress(end_of_chunk(self._held, 0))

    def finish(self) -> str | SpooledContent:
        """Return a text of at most 8 MiB, or the content of a longer one. Nothing can be added after that."""
        if not self._sizes:
            return decode_text(bytes(self._held))
        ends_line = self._held.endswith(b"\n")
        self._compress(len(self._held))
        counts = total(self._sizes, self._tokens, self._digest.digest(), ends_line=ends_line)
        return SpooledContent(counts, self._sizes, self._stored, self._spool)

    def close(self) -> None:
        """Free everything that was added, and the content that `finish` returned."""
        self._held.clear()
        self._spool.close()

    def _compress(self, size: int) -> None:
        """Move the first `size` held bytes, one chunk, to the spool."""
        chunk = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        frame = compress(chunk, FAST_LEVEL)
        self._spool.append(frame)
        self._stored.append(len(frame))
        self._sizes += split(chunk, is_ascii=chunk.isascii())
        self._digest.update(chunk)
        self._tokens += self._count_tokens(decode_text(chunk))

"""The content of a stored record as text: characters, lines and bytes, found through a table of chunks.

A chunk is read and checked as one. The table holds the size of each in bytes, characters and newlines, so
any position is found without reading the content before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

import msgspec

from offload.base.binary import ENCODINGS, MAX_CHARS, decoded
from offload.base.text import decode_text, encode_text
from offload.errors import CorruptError
from offload.records.record.header import Counts

CHUNK_BYTES = 256 * 1024
_HELD_CHUNKS = 8
_HELD_TEXTS = 2

# All bytes of a UTF-8 character but the first.
_CONTINUES = bytes(range(0b1000_0000, 0b1100_0000))


class ChunkSize(NamedTuple):
    """The measures of one chunk."""

    bytes: int
    chars: int
    newlines: int


class Borders(NamedTuple):
    """The borders of chunks: one number more than there are chunks.

    Arrays take eight bytes per number, so a table takes little more memory than its own size.
    """

    bytes: array[int]
    chars: array[int]
    newlines: array[int]

    @classmethod
    def of(cls, bytes: Iterable[int], chars: Iterable[int], newlines: Iterable[int]) -> Borders:  # noqa: A002 # as in the fields
        """Return the borders of chunks of these sizes."""
        return cls(*(array("Q", accumulate(sizes, initial=0)) for sizes in (bytes, chars, newlines)))

    @classmethod
    def between(cls, sizes: Sequence[ChunkSize]) -> Borders:
        """Return the borders of chunks of these sizes."""
        return cls.of((s.bytes for s in sizes), (s.chars for s in sizes), (s.newlines for s in sizes))


class Quote(NamedTuple):
    """A part of another record's content: its index in `Header.quotes`, the first character, and how many."""

    source: int
    start: int
    chars: int


# A part of a content: its own text, or that of another record.
Part = str | Quote


class TextContent(msgspec.Struct, frozen=True):
    """A text to be stored: its bytes, their measures and the sizes of their chunks.

    If it quotes other records, its `parts`.
    """

    data: bytes
    counts: Counts
    sizes: list[ChunkSize]
    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, text: str, tokens: int) -> TextContent:
        """Return the content of `text`, which has `tokens` tokens."""
        data = encode_text(text)
        sizes = split(data, is_ascii=text.isascii())
        ends_line = text == "" or text.endswith("\n")
        return cls(data, total(sizes, tokens, sha256(data).digest(), ends_line=ends_line), sizes)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the chunks of the text."""
        view, start = memoryview(self.data), 0
        for size in self.sizes:
            yield view[start : start + size.bytes]
            start += size.bytes


def total(sizes: Sequence[ChunkSize], tokens: int, digest: bytes, *, ends_line: bool) -> Counts:
    """Return the measures of content whose chunks have `sizes`."""
    return Counts(
        bytes=sum(size.bytes for size in sizes),
        chars=sum(size.chars for size in sizes),
        lines=sum(size.newlines for size in sizes) + (not ends_line),
        tokens=tokens,
        sha256=digest,
    )


def end_of_chunk(data: bytes | bytearray, start: int) -> int:
    """Return the end, between two characters, of the chunk of `data` that begins at `start`."""
    end = min(start + CHUNK_BYTES, len(data))
    if end < len(data):
        end -= next((back for back in range(4) if data[end - back] not in _CONTINUES), 0)
    return end


def split(data: bytes, *, is_ascii: bool) -> list[ChunkSize]:
    """Cut `data` into chunks of at most 256 KiB that end between characters; return their sizes.

    Raises `UnicodeDecodeError` if it is not text.
    """
    view, sizes, start = memoryview(data), [], 0
    while start < len(data):
        end = end_of_chunk(data, start)
        chars = end - start if is_ascii else len(decode_text(view[start:end]))
        sizes.append(ChunkSize(end - start, chars, data.count(b"\n", start, end)))
        start = end
    return sizes


def _end_of_line(text: str, line: int) -> int:
    """Return the offset after the newline that ends `line`, from 1, by bisection."""
    start, end = 0, len(text)
    while end - start > 1:
        middle = (start + end) // 2
        newlines = text.count("\n", start, middle)
        if newlines < line:
            start, line = middle, line - newlines
        else:
            end = middle
    return end


class StoredContent:
    """Random access to the text of one record, of so many lines.

    `read` returns the checked chunks of a range of them.

    Attributes:
        encoding: the encoding that the text was decoded from; None if it is as stored.
    """

    def __init__(self, borders: Borders, read: Callable[[int, int], Iterator[bytes]], lines: int) -> None:
        self.lines = lines
        self.encoding: str | None = None
        self._bytes, self._chars, self._newlines = borders
        # The numbers of bytes, characters and newline characters of the text.
        self.size, self.chars, self.newlines = (column[-1] for column in borders)
        self._read = read
        self._held: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}

    @classmethod
    def of(cls, data: bytes, lines: int) -> StoredContent:
        """Return the content of a text in memory. Raises `UnicodeDecodeError` if it is not UTF-8."""
        borders = Borders.between(split(data, is_ascii=data.isascii()))

        def read(first: int, last: int) -> Iterator[bytes]:
            return (data[borders.bytes[i] : borders.bytes[i + 1]] for i in range(first, last))

        return cls(borders, read, lines)

    def decoded(self, encoding: str | None) -> StoredContent:
        """Return the content as a reader sees it: in its encoding, its text in memory."""
        if encoding not in ENCODINGS or self.chars > MAX_CHARS:
            return self
        text = decoded(self.text(0, self.chars), encoding)
        content = StoredContent.of(encode_text(text), text.count("\n") + (not text.endswith("\n")))
        content.encoding = encoding
        return content

    def chunks_from(self, byte: int) -> tuple[int, Iterator[bytes]]:
        """Return an offset and the checked chunks from there, the first with the byte before offset `byte`.

        With the byte before it, a search that resumes at `byte` sees the character to its left.
        """
        first = bisect_right(self._bytes, max(0, min(byte, self.size) - 1)) - 1
        first = min(first, max(0, len(self._bytes) - 2))
        return self._bytes[first], self._fetch(first, len(self._bytes) - 1)

    def text(self, start: int, end: int) -> str:
        """Return the characters from `start` up to `end`; both are clipped to the content."""
        start, end = max(0, start), min(end, self.chars)
        if start >= end:
            return ""
        first = bisect_right(self._chars, start) - 1
        last = bisect_right(self._chars, end - 1)
        if last - first > _HELD_CHUNKS:
            text = "".join(decode_text(data) for data in self._fetch(first, last))
        else:
            self._hold(first, last)
            text = "".join(self._text(i) for i in range(first, last))
        return text[start - self._chars[first] : end - self._chars[first]]

    def line_start(self, line: int) -> int:
        """Return the character offset where `line`, from 1, starts, or the end if there is no such line."""
        if line <= 1:
            return 0
        newline = line - 1
        if newline > self.newlines:
            return self.chars
        chunk = bisect_right(self._newlines, newline - 1) - 1
        # A caller usually reads from the start of this line, so fetch the next chunk with it.
        self._hold(chunk, min(chunk + 2, len(self._bytes) - 1))
        return self._chars[chunk] + _end_of_line(self._text(chunk), newline - self._newlines[chunk])

    def line_at(self, char: int) -> int:
        """Return the number, from 1, of the line with the character at offset `char`."""
        if char >= self.chars:
            return self.newlines + 1
        chunk = bisect_right(self._chars, char) - 1
        return self._newlines[chunk] + self._text(chunk).count("\n", 0, char - self._chars[chunk]) + 1

    def char_at(self, byte: int) -> int:
        """Return the offset of the character that contains the byte at offset `byte`."""
        if byte >= self.size:
            return self.chars
        chunk = bisect_right(self._bytes, byte) - 1
        at = byte - self._bytes[chunk]
        if self._is_ascii(chunk):
            return self._chars[chunk] + at
        self._hold(chunk, chunk + 1)
        data = self._held[chunk]
        begun = len(data[:at].translate(None, _CONTINUES))
        return self._chars[chunk] + begun - (data[at] in _CONTINUES)

    def byte_at(self, char: int) -> int:
        """Return the byte offset of the character at offset `char`."""
        if char >= self.chars:
            return self.size
        chunk = bisect_right(self._chars, char) - 1
        at = char - self._chars[chunk]
        if not self._is_ascii(chunk):
            at = len(encode_text(self._text(chunk)[:at]))
        return self._bytes[chunk] + at

    def _is_ascii(self, chunk: int) -> bool:
        return self._bytes[chunk + 1] - self._bytes[chunk] == self._chars[chunk + 1] - self._chars[chunk]

    def _text(self, chunk: int) -> str:
        """Return the text of a chunk; the last two texts are cached."""
        if chunk not in self._texts:
            text = self._decode(chunk)
            if len(self._texts) == _HELD_TEXTS:
                del self._texts[next(iter(self._texts))]
            self._texts[chunk] = text
        return self._texts[chunk]

    def _decode(self, chunk: int) -> str:
        self._hold(chunk, chunk + 1)
        try:
            text = decode_text(self._held[chunk])
        except UnicodeDecodeError as error:
            raise CorruptError(f"chunk {chunk} is not UTF-8: {error}") from error
        chars = self._chars[chunk + 1] - self._chars[chunk]
        newlines = self._newlines[chunk + 1] - self._newlines[chunk]
        if (len(text), text.count("\n")) != (chars, newlines):
            raise CorruptError(f"chunk {chunk} does not have the characters and lines of its table")
        return text

    def _hold(self, first: int, last: int) -> None:
        """Cache the chunks from `first` up to `last`, fetching the missing ones by one read."""
        missing = [i for i in range(first, last) if i not in self._held]
        if missing:
            for _ in self._fetch(missing[0], missing[-1] + 1):
                pass

    def _fetch(self, first: int, last: int) -> Iterator[bytes]:
        """Yield chunks in order; cache the last few, since callers often read near them again."""
        for i, data in enumerate(self._read(first, last), first):
            self._held.pop(i, None)
            self._held[i] = data
            if len(self._held) > _HELD_CHUNKS:
                del self._held[next(iter(self._held))]
            yield data

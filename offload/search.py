"""Finding a pattern in content that comes chunk by chunk: bounded memory, linear time.

Literals are found by `bytes.find`, regular expressions by RE2, which has no pattern that takes
exponential time; its matches do not cross lines. The last bytes of each buffer are looked at again with the
next one, so a match may lie across chunks as long as it is shorter than the overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple, Protocol, get_args

from offload.errors import ConfigError
from offload.record import encode_text

MAX_PATTERN_CHARS = 1000
Mode = Literal["literal", "regex"]

_BUFFER_BYTES = 1024 * 1024
_REGEX_OVERLAP = 64 * 1024
# What `^` and `\b` need to see to the left of where a search goes on.
_LOOKBEHIND = 4


class Span(NamedTuple):
    """A match: byte offsets of its start and its end in the content."""

    start: int
    end: int


class _FindIn(Protocol):
    def __call__(self, buffer: bytes, start: int) -> Iterator[tuple[int, int]]: ...


class Pattern(NamedTuple):
    """A pattern that is ready to search with.

    Attributes:
        find_in: yields the matches in a buffer from an offset on.
        overlap: how many bytes of a buffer are looked at again with the next.
    """

    find_in: _FindIn
    overlap: int


def compile_pattern(pattern: str, mode: Mode = "literal", *, ignore_case: bool = False) -> Pattern:
    """Return `pattern` ready to search with.

    Args:
        pattern: a text or an RE2 expression, of 1 to 1,000 characters.
        mode: "literal" or "regex".
        ignore_case: whether case makes no difference.

    Raises:
        ConfigError: an expression that RE2 does not take, with its reason, or that matches the empty
            text, or a pattern that is empty or too long.
    """
    if mode not in get_args(Mode):
        raise ConfigError(f"mode is one of {', '.join(get_args(Mode))}, not {mode!r:.40}")
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise ConfigError(f"a pattern has 1 to {MAX_PATTERN_CHARS} characters, this one {len(pattern)}")
    if mode == "literal" and not ignore_case:
        needle = encode_text(pattern)
        return Pattern(partial(_find_literal, needle), len(needle) - 1)
    return Pattern(partial(_find_regex, _compile_regex(pattern, mode, ignore_case)), _REGEX_OVERLAP)


class Search:
    """One pass over content in search of a pattern.

    Args:
        pattern: what to look for.
        start: byte offset in the content to search from.

    Attributes:
        searched_to: byte offset from which a later search goes on without missing or repeating a match.
    """

    def __init__(self, pattern: Pattern, start: int = 0) -> None:
        self._pattern = pattern
        self.searched_to = start

    def find(self, chunks: Iterable[bytes], *, offset: int = 0) -> Iterator[Span]:
        """Yield the matches in order, not overlapping, none of them empty.

        Args:
            chunks: the content, in order. If they raise, `searched_to` says how far the search came.
            offset: byte offset of the first chunk in the content, at most where the search starts.
        """
        buffer = b""
        for grown in _buffers(chunks):
            keep = max(0, self.searched_to - offset - _LOOKBEHIND) if buffer else 0
            buffer = buffer[keep:] + grown
            offset += keep
            yield from self._find_in(buffer, offset, len(buffer) - self._pattern.overlap)
        yield from self._find_in(buffer, offset, len(buffer))

    def _find_in(self, buffer: bytes, offset: int, limit: int) -> Iterator[Span]:
        """Yield the matches that begin before `limit`, a place in `buffer`."""
        for start, end in self._pattern.find_in(buffer, self.searched_to - offset):
            if start >= limit:
                break
            self.searched_to = offset + end
            yield Span(offset + start, offset + end)
        self.searched_to = max(self.searched_to, offset + limit)


def _buffers(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= _BUFFER_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _find_literal(needle: bytes, buffer: bytes, start: int) -> Iterator[tuple[int, int]]:
    while (start := buffer.find(needle, start)) >= 0:
        yield start, start + len(needle)
        start += len(needle)


def _find_regex(regex: object, buffer: bytes, start: int) -> Iterator[tuple[int, int]]:
    for match in regex.finditer(buffer, start):  # type: ignore[attr-defined] # re2 ships no types
        if match.end() > match.start():
            yield match.span()


def _compile_regex(pattern: str, mode: Mode, ignore_case: bool) -> object:
    import re2  # noqa: PLC0415 # 10 ms that only a search pays

    options = re2.Options()
    options.log_errors = False
    options.never_nl = mode == "regex"
    options.case_sensitive = not ignore_case
    encoded = encode_text(pattern)
    source = re2.escape(encoded) if mode == "literal" else b"(?m)" + encoded
    try:
        regex = re2.compile(source, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        raise ConfigError(
            f"RE2 does not take this expression: {reason}. It has no look-around, back-references or "
            'possessive repeats; use a simpler one, or mode="literal"'
        ) from None
    if regex.search(b"") is not None:
        raise ConfigError("this expression matches the empty text, so it would match everywhere")
    return regex

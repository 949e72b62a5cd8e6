"""A text as the bytes of a record, and as a model or a terminal may be shown it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from offload.base.patterns import lazy_pattern

# Controls but tab and newline; zero-width and direction marks; lone surrogates; tags.
_INVISIBLE = lazy_pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# The three bytes of U+DC80 to U+DCFF, which replace invalid bytes, and the first of them before a cut.
_ESCAPED_BYTE = lazy_pattern(rb"\xed[\xb2\xb3][\x80-\xbf]")
_UNFINISHED = lazy_pattern(rb"\xed[\xb2\xb3]?\Z")
# A sequence that colors a text on a terminal, or clears the rest of a line as `grep` does; then its beginning
# before a cut. No program writes longer ones, and digits after the beginning must not wait for an end.
COLOR_PATTERN = r"\x1b\[[0-9;:]{0,60}[mK]"
_COLOR = lazy_pattern(COLOR_PATTERN)
_BEGUN_COLOR = lazy_pattern(r"\x1b(?:\[[0-9;:]{0,60})?\Z")
_ESCAPED_ESC = "\\u001b"
# Controls that a reader does not see; not those of lines and colors. A run of one is written once.
_UNSEEN = lazy_pattern(r"([\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f])(\1{7,})?")
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F
_UNITS = ("", "k", "M", "G", "T")
_STEP, _TENS = 1000, 10
_MOST_COMPOSED = 1000


def encode_text(text: str) -> bytes:
    """Return the content bytes of `text`: UTF-8, with lone surrogates in three bytes."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(content: bytes | memoryview) -> str:
    """Return the text of content bytes, the inverse of `encode_text`."""
    return str(content, "utf-8", "surrogatepass")


def printed_bytes(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield content bytes as a program printed them: with the byte that a lone surrogate replaces."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        cut = _UNFINISHED.search(data)
        end = cut.start() if cut else len(data)
        rest = data[end:]
        yield _ESCAPED_BYTE.sub(_byte_of, data[:end])
    yield rest


def _byte_of(escaped: re.Match[bytes]) -> bytes:
    return escaped[0].decode("utf-8", "surrogatepass").encode("utf-8", "surrogateescape")


def without_colors(text: str) -> str:
    """Return `text` without the sequences that color it on a terminal, so that none parts or hides a word."""
    return _COLOR.sub("", text)


def words_without_colors(text: str) -> str:
    """Return `text` as `without_colors` does, to look for words in: also without colors that JSON escapes."""
    return without_colors(text.replace(_ESCAPED_ESC, "\x1b"))


def chunks_without_colors(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the chunks of a text as `without_colors` returns the whole."""
    rest = ""
    for chunk in chunks:
        text = without_colors(rest + chunk)
        begun = _BEGUN_COLOR.search(text)
        end = begun.start() if begun else len(text)
        yield text[:end]
        rest = text[end:]
    if rest:
        yield rest


def composable(chunks: Iterable[str]) -> Iterator[str]:
    """Yield a text in parts, none of which begins with an accent of a letter in the part before it."""
    held = ""
    for chunk in chunks:
        text = held + chunk
        # A character of ASCII is never composed with one before it.
        places = range(len(text) - 1, max(-1, len(text) - _MOST_COMPOSED), -1)
        end = next((at for at in places if text[at] < "\x80"), len(text))
        held = text[end:]
        if end:
            yield text[:end]
    if held:
        yield held


def escape_surrogates(text: str) -> str:
    """Return `text` with lone surrogates as escapes, which headers, APIs and terminals accept."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape_controls(text: str) -> str:
    r"""Return `text` with characters escaped that act on a terminal or mislead a reader.

    ESC becomes `␛`, a bidi override `\u{202e}`.
    """
    return _INVISIBLE.sub(_picture, text)


def show_controls(text: str) -> str:
    """Return `text` with a picture in place of each control that a reader does not see: NUL becomes `␀`."""
    return _UNSEEN.sub(_pictures, text)


def _pictures(match: re.Match[str]) -> str:
    return f"{_picture(match)}{{{len(match[0])} times}}" if match[2] else _picture(match)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0][0])
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else f"\\u{{{code:x}}}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things, as "1 record" or "2,000 records"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size_text(size: float) -> str:
    """Return a number of bytes with up to three digits and a unit of powers of 1,000, as "1.2 MB"."""
    for unit in _UNITS:
        if round(size) < _STEP or unit == _UNITS[-1]:
            break
        size /= _STEP
    return f"{size:.1f} {unit}B" if unit and round(size, 1) < _TENS else f"{size:,.0f} {unit}B"

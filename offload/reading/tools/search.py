"""Search for a pattern in content that arrives in chunks: bounded memory, linear time.

Literals are found by `bytes.find`, regular expressions by RE2 in linear time; their matches do not cross
lines. The last bytes of each buffer are searched again with the next one, so a match may cross chunks if it
is shorter than this overlap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args
from unicodedata import is_normalized, normalize

from offload.base.text import COLOR_PATTERN, encode_text
from offload.base.threads.locks import NO_FORK
from offload.errors import ConfigError

MAX_PATTERN_CHARS = 1000
PatternMode = Literal["literal", "regex", "words"]
NormalForm = Literal["NFC", "NFD"]

# Marks of a text that was meant as a regular expression: classes, repeats, alternatives, anchors.
_EXPRESSION = re.compile(r"\\[bdswBDSW.]|[.)\]][*+?{]|\||^\^|\$$")

_BUFFER_BYTES = 1024 * 1024
_REGEX_OVERLAP = 64 * 1024
# RE2 takes up to 4 ns per byte and instruction, without interruption. Expressions of over 250 instructions
# get smaller buffers, so that no call into RE2 takes more than a few seconds.
_BYTE_INSTRUCTIONS = 256 * 1024 * 1024
_LEAST_BUFFER_BYTES = 64 * 1024
# Bytes before the place to resume that `^` and `\b` need to see.
_LOOKBEHIND = 4
# In a longer line, all words are within so many bytes on either side of the longest one.
_REACH = 64 * 1024
_MAX_WORDS = 32
# The colors that `without_colors` removes, and the mark of UTF-8; a match has at most so many bytes of them.
_MARK = b"\xef\xbb\xbf"
_COLOR = re.compile(COLOR_PATTERN.encode() + rb"|\A" + _MARK)
_COLOR_BYTES = 4 * 1024
# The bytes before the place to resume that have a whole sequence, and the character before it.
_COLOR_LOOKBEHIND = 64
# A pattern that looks for colors.
_OF_COLORS = re.compile(r"\x1b|\\(?:x1b|x\{1b\}|033)|\[[0-9;:]*[mK]", re.IGNORECASE)

# In an expression: what is quoted, an escape, a class, or a `$` or letter beyond ASCII that is none of these.
_PART = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|(?P<end>\$)|(?P<letter>[^\x00-\x7f])",
    re.DOTALL,
)

# In front of each expression: `^` and `$` match at each line.
_LINES = b"(?m)"
# RE2 repeats the whole expression in its reason.
_REASON_CHARS = 200
# RE2's reason for refusing a construct, and how to write the pattern instead.
_FIXES = {
    r"perl operator: \(\?(=|!|<=|<!)": "no look-around; search for one part and use context_lines",
    r"perl operator: \(\?(P|&|R)|sequence: \\[1-9gk]": "no back-references; write the repeated text out",
    r"no argument for": r"put something before the repeat, or escape a literal * as \*",
    r"repetition operator: .*\+$|operator: \(\?>": "no possessive or atomic groups; drop the extra + or ?>",
    r"repetition operator": "put the inner repeat in a group",
    r"operator: \(\?\(": "no conditions; write the alternatives with |",
    r"operator: \(\?": "start groups with (?:, (?P<name>, or the flags (?i), (?m), (?s), (?U)",
    r"sequence: \\Z": r"use \z for the end of the text, $ for the end of a line",
    r"sequence: \\[uUNx]": r"write the character itself, or \x{2014}",
    r"sequence: \\h": r"use [ \t]",
    r"sequence: \\e": r"use \x1b",
    r"sequence: \\|trailing": r"escape a literal backslash as \\",
    r"repetition size": "repeat at most 1000 times, nested repeats multiplied",
    r"class range: (\[:|\\p)": r"use classes like [[:alpha:]] and \p{L}",
    r"class range": "put the lower character of a range first",
    r"missing|unexpected": r"balance brackets, or escape them as \( and \[",
    r"too large": "use fewer or smaller repeats",
}


class Span(NamedTuple):
    """A match: byte offsets of its start and its end in the content."""

    start: int
    end: int


class Pattern(NamedTuple):
    """A compiled pattern, which finds the matches in a buffer from an offset.

    A buffer takes `buffer` new bytes, and `overlap` bytes of it are searched again with the next. To resume,
    `lookbehind` bytes before the place are needed. `form` is that of the pattern if it has two, else "".
    """

    find_in: Callable[[bytes, int], Iterator[tuple[int, int]]]
    overlap: int
    buffer: int
    lookbehind: int = _LOOKBEHIND
    form: NormalForm | Literal[""] = ""

    def first_byte(self, place: int) -> int:
        """Return the byte offset in content to read from, to resume a search at `place`."""
        return max(0, place - self.lookbehind + _LOOKBEHIND)


def compile_pattern(pattern: str, mode: PatternMode = "literal", *, ignore_case: bool = False) -> Pattern:
    """Compile `pattern`, a text, an RE2 expression or words, of 1 to 1,000 characters.

    It matches a text as a terminal shows it, without what colors it, unless the pattern itself has that. A
    letter with an accent matches as one character and as two.
    Words match a line that has all of them, in any order; in a longer line they are at most 64 KiB apart. The
    match begins at the longest word.

    Raises:
        ConfigError: an expression that RE2 rejects, with its reason and a fix; one that matches the empty
            string; a pattern that is empty, too long or not a str.
    """
    if mode not in get_args(PatternMode):
        raise ConfigError(f"mode must be {' or '.join(get_args(PatternMode))}, got {mode!r:.40}")
    if not isinstance(pattern, str):
        raise ConfigError(f"pattern must be a str, got {type(pattern).__name__}")
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise ConfigError(f"pattern must have 1 to {MAX_PATTERN_CHARS} characters, got {len(pattern)}")
    plain = _plain_pattern(pattern, mode, ignore_case=ignore_case)
    if len(_forms(pattern)) > 1:
        plain = plain._replace(form="NFC" if is_normalized("NFC", pattern) else "NFD")
    if _OF_COLORS.search(pattern):
        return plain
    return plain._replace(
        find_in=partial(_find_without_colors, plain.find_in),
        overlap=plain.overlap + _COLOR_BYTES,
        lookbehind=max(plain.lookbehind, _COLOR_LOOKBEHIND),
    )


def _plain_pattern(pattern: str, mode: PatternMode, *, ignore_case: bool) -> Pattern:
    if mode == "literal" and not ignore_case and len(_forms(pattern)) == 1:
        needle = encode_text(pattern)
        return Pattern(partial(_find_literal, needle), len(needle) - 1, _BUFFER_BYTES)
    if mode == "words":
        return _words_pattern(pattern, ignore_case)
    regex = _compile_regex(pattern, mode, ignore_case)
    most = max(_BYTE_INSTRUCTIONS // regex.programsize, _LEAST_BUFFER_BYTES)
    return Pattern(partial(_find_regex, regex), min(_REGEX_OVERLAP, most // 4), min(_BUFFER_BYTES, most))


def hint(pattern: str, mode: str) -> str:
    """Return advice after a search without a match; empty if there is none."""
    if is_expression(pattern, mode):
        return '; the pattern was read as literal text, mode="regex" reads it as a regex'
    if mode == "regex" and ("\n" in pattern or r"\n" in pattern):
        return "; no match of a regex crosses lines: search for one line, with context_lines"
    if mode == "literal" and len(pattern.split()) > 1:
        return '; mode="words" finds lines with all of these words'
    return ""


def is_expression(pattern: str, mode: str) -> bool:
    """Return whether a pattern that was read as literal text looks like a regular expression."""
    return mode == "literal" and _EXPRESSION.search(pattern) is not None


class Search:
    """One search of content for a pattern.

    Args:
        start: byte offset in the content to search from.
        check: called at every match, also at empty ones, which are not yielded; may raise to end the search.

    Attributes:
        searched_to: byte offset to resume at without missing or repeating a match.
    """

    def __init__(self, pattern: Pattern, start: int = 0, check: Callable[[], None] = lambda: None) -> None:
        self._pattern = pattern
        self._check = check
        self.searched_to = start

    def find(self, chunks: Iterable[bytes], *, offset: int = 0) -> Iterator[Span]:
        """Yield the matches in order, not overlapping, none of them empty.

        The first chunk begins at `offset`, at most where the search starts. The chunks may raise;
        `searched_to` is valid then.
        """
        rest = b""
        for batch in _batches(chunks, self._pattern.buffer):
            buffer = b"".join((rest, *batch))
            yield from self._find_in(buffer, offset, len(buffer) - self._pattern.overlap)
            keep = max(0, self.searched_to - offset - self._pattern.lookbehind)
            rest = buffer[keep:]
            offset += keep
        yield from self._find_in(rest, offset, len(rest))

    def _find_in(self, buffer: bytes, offset: int, limit: int) -> Iterator[Span]:
        """Yield the matches that begin before `limit`, a place in `buffer`."""
        for start, end in self._pattern.find_in(buffer, self.searched_to - offset):
            if start >= limit:
                break
            self._check()
            self.searched_to = offset + end
            if start < end:
                yield Span(offset + start, offset + end)
        self.searched_to = max(self.searched_to, offset + limit)


def _batches(chunks: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield the bytes of `chunks` in lists of at least `size` bytes."""
    batch: list[bytes] = []
    total = 0
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            batch.append(chunk[start : start + size])
            total += len(batch[-1])
            if total >= size:
                yield batch
                batch, total = [], 0
    if batch:
        yield batch


def _find_without_colors(
    find_in: Callable[[bytes, int], Iterator[tuple[int, int]]], buffer: bytes, start: int
) -> Iterator[tuple[int, int]]:
    """Yield the matches in a buffer without its colors, as places in the buffer."""
    if b"\x1b[" not in buffer and not buffer.startswith(_MARK):
        yield from find_in(buffer, start)
        return
    earlier = _COLOR.finditer(buffer, 0, start + _COLOR_LOOKBEHIND)
    first = start - sum(min(color.end(), start) - color.start() for color in earlier if color.start() < start)
    colors, removed = _COLOR.finditer(buffer), 0
    color = next(colors, None)

    def real(place: int) -> int:
        # Matches come in order, so that each color is looked at once, and none without a match.
        nonlocal color, removed
        while color is not None and color.start() - removed <= place:
            removed += color.end() - color.start()
            color = next(colors, None)
        return place + removed

    for begin, end in find_in(_COLOR.sub(b"", buffer), first):
        begun = real(begin)
        yield begun, real(end - 1) + 1 if begin < end else begun


def _find_literal(needle: bytes, buffer: bytes, start: int) -> Iterator[tuple[int, int]]:
    while (start := buffer.find(needle, start)) >= 0:
        yield start, start + len(needle)
        start += len(needle)


def _find_regex(regex: Any, buffer: bytes, start: int) -> Iterator[tuple[int, int]]:
    return (match.span() for match in regex.finditer(buffer, start))


def _words_pattern(pattern: str, ignore_case: bool) -> Pattern:
    words = sorted(dict.fromkeys(pattern.split()), key=len, reverse=True)
    if not 1 <= len(words) <= _MAX_WORDS:
        raise ConfigError(f"pattern must have 1 to {_MAX_WORDS} words, got {len(words)}")
    regexes = [_compile_regex(word, "literal", ignore_case) for word in words]
    return Pattern(partial(_find_words, regexes), _REACH, _BUFFER_BYTES, lookbehind=_REACH)


def _find_words(regexes: Sequence[Any], buffer: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield lines with a match of each expression; an empty span for work without a match."""
    first, *others = regexes
    while (match := first.search(buffer, start)) is not None:
        begin, end = match.span()
        least, most = max(0, begin - _REACH), min(len(buffer), end + _REACH)
        low = buffer.rfind(b"\n", least, begin)
        high = buffer.find(b"\n", end, most)
        high = most if high < 0 else high
        line = buffer[max(least, low) : high]
        missing = next((regex for regex in others if regex.search(line) is None), None)
        if missing is None:
            start = high
            yield begin, high
        else:
            # No line has all words before the next match of the one that is missing.
            following = missing.search(buffer, high)
            place = len(buffer) if following is None else following.start()
            start = max(end, place - _REACH)
            yield begin, begin


def _compile_regex(pattern: str, mode: PatternMode, ignore_case: bool) -> Any:
    with NO_FORK:
        import re2  # noqa: PLC0415 # 10 ms that only a search pays

    options = re2.Options()
    options.log_errors = False
    options.never_nl = mode == "regex"
    options.case_sensitive = not ignore_case
    if mode == "literal":
        source = b"|".join(re2.escape(encode_text(form)) for form in _forms(pattern))
    else:
        source = _LINES + encode_text(_PART.sub(_widened, _composed(pattern)))
    try:
        # RE2 takes locks of its own meanwhile, which a forked child would wait for without end.
        with NO_FORK:
            regex = re2.compile(source, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        reason = reason.replace(_LINES.decode(), "", 1)
        raise ConfigError(
            f"invalid RE2 pattern: {reason[:_REASON_CHARS]}. Fix: {_fix(reason)}; or search for literal text"
        ) from None
    if regex.search(b"") is not None:
        raise ConfigError("pattern matches the empty string; require a character, e.g. a+ instead of a*")
    return regex


def _forms(text: str) -> list[str]:
    """Return a text as it is and in each of its normal forms, one if they are the same."""
    return [*dict.fromkeys([text, normalize("NFC", text), normalize("NFD", text)])]


def _composed(pattern: str) -> str:
    """Return an expression composed, but for characters that both normal forms replace by another one."""
    runs = ((is_whole, "".join(some)) for is_whole, some in groupby(pattern, partial(is_normalized, "NFC")))
    return "".join(normalize("NFC", some) if is_whole else some for is_whole, some in runs)


def _widened(part: re.Match[str]) -> str:
    """Return a part of an expression; `$` matches before the carriage return of a line of Windows too."""
    if part["end"]:
        return r"(?:\r?$)"
    letters = part["letter"] or ("" if part[0].startswith(("\\", "[^")) else part[0])
    apart = [form for letter in letters for form in _forms(letter)[1:]]
    return f"(?:{'|'.join([part[0], *apart])})" if apart else part[0]


def _fix(reason: str) -> str:
    fixes = (fix for refused, fix in _FIXES.items() if re.search(refused, reason))
    return next(fixes, "simplify the pattern")

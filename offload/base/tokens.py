"""Token counting: any `str -> int` serves; the default is an offline estimate.

Vocabularies first cut a text into pieces: a word with the blank before it, up to three digits, a run of
punctuation, the end of a line, an indentation. A piece takes one token or more, so the estimate counts
where pieces begin and adds a weight for what makes a piece longer: more than seven letters, capitals,
letters mixed with digits. A character beyond ASCII weighs by its script, one of a run of the same mark next
to nothing. The weights are fitted to o200k.

Against o200k the estimate is 0.8 to 1.5 times the count for prose, code, logs, JSON, tables, numbers, hex,
base64, emoji, rules and boxes, and for most of the world's languages. Letters drawn at random come out at
0.6, rules of rare marks (`~~~~`) at 0.6, short rules of stars alone at up to 2.6. Other vocabularies make
other counts: for an exact one, give `token_counter=`.
"""

from __future__ import annotations

import re
import string
from typing import Protocol, runtime_checkable

from offload.base.patterns import lazy_pattern
from offload.errors import ConfigError

_SAMPLED_CHARS = 4 * 1024
_WINDOWS = 16

_PRINTED = string.digits + string.ascii_letters + string.punctuation + " \t\n"
# One bit for the class of a character, in this order; the last one takes controls and all beyond ASCII.
_CLASSES = (
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.digits,
    string.punctuation,
    " ",
    "\t",
    "\n",
    "".join(chr(b) for b in range(256) if chr(b) not in _PRINTED),
)
_CLASS_BITS = bytes(
    next(1 << n for n, members in enumerate(_CLASSES) if chr(b) in members) for b in range(256)
)
_TAILS = bytes(range(0x80, 0xC0))  # All but the first byte of a character in UTF-8.
_ONES = int.from_bytes(b"\1" * _SAMPLED_CHARS, "little")
_SEVEN_BITS = 0x7F * _ONES

# Tokens of a character by the first byte of its UTF-8: up to this byte, this weight.
_SCRIPTS = (
    (0x00, 0.5),  # NUL
    (0x7F, 1.0),  # controls
    (0xC2, 1.0),  # signs of Latin-1
    (0xCD, 1.4),  # accented Latin letters, each of which breaks its word
    (0xDF, 0.375),  # Greek, Cyrillic, Armenian, Hebrew, Arabic
    (0xE0, 0.45),  # the scripts of India, Thai, Lao
    (0xE1, 0.62),  # Burmese, Khmer, Vietnamese
    (0xE2, 1.2),  # dashes, quotes, boxes, signs
    (0xEF, 0.74),  # Chinese, Japanese, Korean
    (0xFF, 1.93),  # emoji and rare characters
)
_GEORGIAN, _GEORGIAN_WEIGHT = b"\xe1\x83", 0.36
_FIRST_OF_SCRIPT = bytes(next(n for n, (last, _) in enumerate(_SCRIPTS) if b <= last) for b in range(256))
_SCRIPT_WEIGHTS = tuple(weight for _, weight in _SCRIPTS)
_SIGNS = 0xE2
_RUN_OF_SIGNS = lazy_pattern("([\u2000-\u2bff])\\1+")
_LINE_WEIGHT, _BLOCK_WEIGHT = 0.1, 0.45  # of a sign that repeats the one before it: box drawing, others


@runtime_checkable
class TokenCounter(Protocol):
    """A counter of the tokens of a text, such as a plain function `str -> int`."""

    def __call__(self, text: str, /) -> int:
        """Return the number of tokens of `text`, at least 0."""


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens of `text`.

    Work is bounded: sixteen evenly spaced windows of a text over 4 Ki characters, including both ends, are
    weighed and scaled to its length. The result is deterministic.
    """
    if len(text) <= _SAMPLED_CHARS:
        return round(_weigh(text))
    width = _SAMPLED_CHARS // _WINDOWS
    step = (len(text) - width) / (_WINDOWS - 1)
    starts = [round(i * step) for i in range(_WINDOWS)]
    sampled = "".join([text[s : s + width] for s in starts])
    return round(_weigh(sampled) * len(text) / len(sampled))


def _weigh(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    rare = data.translate(None, _PRINTED.encode())
    return _weigh_pieces(data) + (_weigh_rare(rare, text) if rare else 0)


def _weigh_pieces(data: bytes) -> float:
    """Return the tokens of the ASCII of `data`.

    One integer holds a byte for each character, so `x & y << 8` is set where an x follows a y,
    `x & y >> 8` where a y follows an x, and `x ^ x & y` where an x is not a y.
    """
    chars = int.from_bytes(data.translate(_CLASS_BITS, _TAILS), "little")
    lower, upper, digit, mark, blank, tab, newline, rare = [chars >> n & _ONES for n in range(8)]
    letter = lower | upper
    word = letter | rare
    run_of_marks = mark & mark << 8
    same_marks = _same_as_before(data, run_of_marks)
    lone = mark ^ run_of_marks
    joined = (lone | tab) & word >> 8  # A word takes one mark or tab before it into its piece.
    indents, tabs, newlines = blank & blank << 8, tab & tab << 8, newline & newline << 8
    begins = (
        (word ^ word & word << 8) & letter
        | upper & lower << 8
        | digit ^ digit & digit << 8
        | lone ^ lone & joined
        | newline ^ newline & (newline | mark) << 8
        | indents ^ indents & indents << 8
        | tabs ^ tabs & tabs << 8
        | tab & (digit | mark) >> 8
    )
    # Letters after digits are random ones, mostly; no blank joins the number after it.
    apart = letter & digit << 8 | blank & digit >> 8
    capitals = upper & upper << 8
    more = _beyond_three(digit) | _beyond_seven(upper) | run_of_marks ^ run_of_marks & same_marks
    return (
        begins.bit_count()
        + apart.bit_count()
        + 0.75 * _beyond_seven(lower).bit_count()
        + 0.44 * more.bit_count()
        + 0.22 * joined.bit_count()
        + 0.09 * capitals.bit_count()
        + 0.02 * same_marks.bit_count()
        + 0.008 * indents.bit_count()
        + 0.065 * (newlines | tabs).bit_count()
    )


def _beyond_three(places: int) -> int:
    two = places & places << 8
    return two & two << 16


def _beyond_seven(places: int) -> int:
    four = _beyond_three(places)
    return four & four << 32


def _same_as_before(data: bytes, run_of_marks: int) -> int:
    """Return the places of `run_of_marks` that repeat the mark before them, if there is a run of four."""
    if not run_of_marks & run_of_marks << 16:
        return 0
    chars = int.from_bytes(data.translate(None, _TAILS), "little") & _SEVEN_BITS
    differs = (chars ^ chars << 8) + _SEVEN_BITS >> 7
    return run_of_marks ^ run_of_marks & differs


def _weigh_rare(rare: bytes, text: str) -> float:
    """Return the tokens of controls and characters beyond ASCII, of which `rare` holds the bytes."""
    scripts = rare.translate(_FIRST_OF_SCRIPT, _TAILS)
    weight = sum(scripts.count(n) * each for n, each in enumerate(_SCRIPT_WEIGHTS) if each)
    weight -= rare.count(_GEORGIAN) * (_SCRIPT_WEIGHTS[_FIRST_OF_SCRIPT[0xE1]] - _GEORGIAN_WEIGHT)
    if 32 * scripts.count(_FIRST_OF_SCRIPT[_SIGNS]) > len(text):
        weight -= sum(map(_saved_by_run, _RUN_OF_SIGNS.finditer(text)))
    return weight


def _saved_by_run(run: re.Match[str]) -> float:
    each = _LINE_WEIGHT if run[1] < "\u2580" else _BLOCK_WEIGHT
    return (len(run[0]) - 1) * (_SCRIPT_WEIGHTS[_FIRST_OF_SCRIPT[_SIGNS]] - each)


def in_whole_numbers(counter: TokenCounter) -> TokenCounter:
    """Return `counter` with counts rounded and never negative, as record keys hold them.

    Raises:
        ConfigError: `counter` is not callable. The returned function raises it if a count is not a number.
    """
    if not callable(counter):
        raise ConfigError(f"token_counter must be callable, got {type(counter).__name__}")

    def count(text: str) -> int:
        tokens = counter(text)
        if not isinstance(tokens, int | float):
            raise ConfigError(f"token_counter must return a number, got {type(tokens).__name__}")
        return max(0, round(tokens))

    return count

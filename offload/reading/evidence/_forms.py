"""The forms in which a source may have a value: fixed spellings, by rule.

- number: with and without signs between groups of three digits; with up to three zeros after the decimals;
  if the text says percent, also its hundredth; one such as 20261127 also as a date.
- date: a day as `2026-11-27`, `2026/11/27`, `20261127`, `27 November 2026`, `Nov 27, 2026`, `27/Nov/2026`.
- path: with slashes or backslashes; at the end of a longer path.
- identifier: a hash of seven digits or more at the beginning of a longer one.
- quote: with other white space between its words.

All kinds: as the text of JSON has it, with its escapes. Letters have the case of the text; an accent may be a
character of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple
from unicodedata import normalize

from offload.reading.evidence._values import MONTHS, SEPARATORS, Stated

# No letter, digit or underscore before, unless the letter is that of an escape such as \n.
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
_END = r"(?![A-Za-z0-9_])"
_NUMBER_START = rf"(?:(?<![A-Za-z0-9_])(?<!\d[.{SEPARATORS}])|(?<=\\[nrt]))"
# Letters of a unit may follow, and then nothing that makes it another number or a name.
_NUMBER_END = rf"(?![.]\d|[{SEPARATORS}]\d{{3}}(?!\d))(?=[A-Za-zµ]{{0,3}}(?![A-Za-z0-9_]))"
# A number without groups of digits may be followed by another one in a list.
_LONG_NUMBER_START = r"(?:(?<![A-Za-z0-9_])(?<!\d\.)|(?<=\\[nrt]))"
_LONG_NUMBER_END = r"(?!\.\d)(?=[A-Za-zµ]{0,3}(?![A-Za-z0-9_]))"
_PATH_START = r"(?:(?<![A-Za-z0-9_.~@-])|(?<=\\[nrt]))"
_PATH_END = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"
# A server's log has the time behind the day and a colon.
_DAY_START = r"(?<![A-Za-z0-9_])(?<!\d[-/.:])"
_DAY_END = r"(?:(?=:\d\d:\d\d:\d\d)|(?![0-9A-SU-Za-z_]|[-/:]\d))"
_TIME_START = r"(?:(?<![0-9A-SU-Za-z_:])|(?<=/\d{4}:))"
_URL_END = r"/?(?![A-Za-z0-9_/%&=#@~-]|[.?:]\w)"
_HASH = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,39}")
_HASH_END = r"(?![g-zG-Z_])"
_WORD = re.compile(r"[A-Za-z0-9_]+")
_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)|((?:19|20)\d\d)(\d\d)(\d\d)")
_WRITTEN = re.compile(
    r"(?P<first>\d{1,2}|[A-Z][a-z]+)\.?,?[ /-](?P<second>\d{1,2}|[A-Z][a-z]+)\.?,?[ /-](?P<year>\d{4})"
)
_MONTH_NUMBERS = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
_GROUP, _DAYS = 3, 31
HASH_CHARS = 7


class Spellings(NamedTuple):
    """The spellings of a value, to find it by.

    Attributes:
        anchors: texts; each place of the value begins with one of them.
        pattern: matches the value at such a place.
        words: the words of each spelling; a text with the value has all of them. See `words_of`.
    """

    anchors: Sequence[str]
    pattern: re.Pattern[str]
    words: Sequence[frozenset[str]]

    def find(self, text: str, start: int, end: int, until: int) -> int | None:
        """Return the first place of the value in `text` from `start` up to `end`; it ends before `until`."""
        places = []
        for anchor in self.anchors:
            at = text.find(anchor, start, until)
            while 0 <= at < end and not self.pattern.match(text, at):
                at = text.find(anchor, at + 1, until)
            if 0 <= at < end:
                places.append(at)
        return min(places, default=None)


def spellings_of(value: Stated) -> Spellings:
    """Return the spellings of a value."""
    value = value._replace(text=normalize("NFC", value.text))
    if value.kind == "number":
        return _number(value.text, is_percent=value.is_percent)
    if value.kind == "date":
        return _date(value.text)
    if value.kind == "quote":
        return _quote(value.text)
    if value.kind == "path":
        return _path(value.text)
    if value.kind == "url":
        return _literal([value.text, value.text.replace("/", "\\/")], _START, _URL_END)
    return _identifier(value.text)


def words_of(text: str) -> frozenset[str]:
    """Return the words of a spelling: runs of letters, digits and underscores of ASCII."""
    return frozenset(_WORD.findall(text))


def _spellings(anchors: Iterable[str], pattern: str, words: Iterable[frozenset[str]]) -> Spellings:
    texts = [*dict.fromkeys(filter(None, anchors))]
    # The pattern finds what follows the shortest beginning.
    shortest = [
        text for text in texts if not any(text != other and text.startswith(other) for other in texts)
    ]
    return Spellings(shortest, re.compile(pattern, re.ASCII), [*dict.fromkeys(words)])


def _literal(anchors: Sequence[str], start: str, end: str) -> Spellings:
    return _spellings(anchors, f"{start}(?:{_any_of(anchors)}){end}", map(words_of, anchors))


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(dict.fromkeys(filter(None, texts)), key=len, reverse=True)))


def _number(text: str, *, is_percent: bool) -> Spellings:
    whole, _, decimals = re.sub(f"[{SEPARATORS}]", "", text).partition(".")
    decimals = decimals.rstrip("0")
    endings = [f".{decimals}{zeros}".rstrip(".") for zeros in ("", "0", "00", "000")]
    plain = [whole + ending for ending in endings]
    if whole == "0":
        plain += endings
    if is_percent:
        digits = whole.zfill(_GROUP)
        hundredth = f"{digits[:-2].lstrip('0') or 0}.{digits[-2:]}{decimals}".rstrip("0").rstrip(".")
        dot = "" if "." in hundredth else "."
        written = [hundredth, *(f"{hundredth}{dot}{zeros}" for zeros in ("0", "00", "000"))]
        plain += [*written, *(one.removeprefix("0") for one in written)]
    grouped = [head + ending for head, ending in product(_grouped(whole), endings)]
    is_long = len(whole) > _GROUP
    start, end = (_LONG_NUMBER_START, _LONG_NUMBER_END) if is_long else (_NUMBER_START, _NUMBER_END)
    pattern = f"{start}(?:{_any_of(plain)}){end}"
    if grouped:
        pattern += f"|{_NUMBER_START}(?:{_any_of(grouped)}){_NUMBER_END}"
    # Texts have the words of numbers without the signs between their digits too.
    number = _spellings([*plain, *grouped], pattern, map(words_of, plain))
    if _day_of(text) is None:
        return number
    day = _date(text)
    return _spellings(
        [*number.anchors, *day.anchors],
        f"{pattern}|{day.pattern.pattern}",
        [*number.words, *day.words],
    )


def _grouped(whole: str) -> list[str]:
    if len(whole) <= _GROUP or whole[0] == "0":
        return []
    first = len(whole) % _GROUP
    groups = [whole[:first]] * bool(first) + [
        whole[at : at + _GROUP] for at in range(first, len(whole), _GROUP)
    ]
    return [separator.join(groups) for separator in SEPARATORS]


def _date(text: str) -> Spellings:
    if ":" in text:
        return _literal([text], _TIME_START, r"(?![0-9A-Ya-z_]|:\d)")
    day = _day_of(text)
    if day is None:
        return _literal([text], _DAY_START, _DAY_END)
    year, month, number = day
    name = MONTHS[month - 1]
    anchors = [
        f"{year}-{month:02}-{number:02}",
        f"{year}/{month:02}/{number:02}",
        f"{year}{month:02}{number:02}",
    ]
    for written, shown in product((name, name[:3]), dict.fromkeys((str(number), f"{number:02}"))):
        anchors += [f"{shown} {written} {year}", f"{written} {shown}, {year}", f"{written} {shown} {year}"]
        anchors += [f"{shown}/{written}/{year}", f"{shown}-{written}-{year}"]
    return _literal(anchors, _DAY_START, _DAY_END)


def _day_of(text: str) -> tuple[int, int, int] | None:
    if match := _ISO.fullmatch(text):
        year, month, number = filter(None, match.groups())
        day = int(year), int(month), int(number)
    elif match := _WRITTEN.fullmatch(text):
        first, second = match["first"], match["second"]
        number, name = (first, second) if first.isdigit() else (second, first)
        day = int(match["year"]), _MONTH_NUMBERS.get(name[:3], 0), int(number)
    else:
        return None
    return day if 1 <= day[1] <= len(MONTHS) and 1 <= day[2] <= _DAYS else None


def _path(text: str) -> Spellings:
    parts = re.split(r"[/\\]+", text)
    while parts[0] in (".", "..") and len(parts) > 1:
        parts = parts[1:]
    spelled = [sign.join(parts) for sign in ("/", "\\", "\\\\", "\\/")]
    escaped = [sign.join(json.dumps(part)[1:-1] for part in parts) for sign in ("/", "\\\\", "\\/")]
    return _literal(spelled if text.isascii() else [*spelled, *escaped], _PATH_START, _PATH_END)


def _identifier(text: str) -> Spellings:
    start = r"(?<![A-Za-z0-9_-])" if text.startswith("-") else _START
    if text[0].isdigit():
        start += r"(?<!\d[.-])"
    if _HASH.fullmatch(text):
        return _spellings([text], start + text + _HASH_END, map(words_of, (text, text[:HASH_CHARS])))
    return _literal([text], start, _END + r"(?!\.\d)" if text[-1].isdigit() else _END)


def _quote(text: str) -> Spellings:
    words = text.split()
    start = _START if re.match(r"\w", words[0], re.ASCII) else ""
    end = _END if re.search(r"\w\Z", words[-1], re.ASCII) else ""
    spelled = [f"(?:{_any_of(_in_json(word))})" for word in words]
    plain = " ".join(filter(str.isascii, words))
    return _spellings(_in_json(words[0]), start + r"(?:\s|\\[nrt])+".join(spelled) + end, [words_of(plain)])


def _in_json(word: str) -> list[str]:
    """Return a word as it is, and as JSON escapes it."""
    return [word, *(json.dumps(word, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))]

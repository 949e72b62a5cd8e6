"""The text that `str` makes of a dict, a model or a dataclass, as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from json.encoder import encode_basestring
from typing import Any

# The beginning of a list, a tuple, a dict, a dataclass, or the first field of a model.
_START = re.compile(r"[\[({]|[^\W\d][\w.<>]*\(|(?P<field>[^\W\d]\w*=)")
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<field>[^\W\d]\w*)=
    |(?P<constant>True|False|None)\b
    |<[\w.]+:\ (?P<member>'[^'\\]*'|-?\d+)>  # of an enum
    |[^\W\d][\w.]*\((?P<inner>'[^'\\]*')\)  # of a call such as Decimal('1.5')
    |(?P<call>[^\W\d][\w.]*\((?![^\W\d]\w*=|\))(?:[^()'"]|\((?:[^()]|\([^()]*\))*\))*\))
    |(?P<list>[\[(])
    |(?P<object>\{|[^\W\d][\w.<>]*\()
    |,?(?P<end>[)\]}])
    |(?P<key>-?\d+)(?=:)
    |(?P<other>(?:[:\ ]|,(?![)\]}])|-?\d[-+.\de]*(?![-+.\de:]))+)""",
    re.VERBOSE,
)
# It takes about 0.3 s for a million characters.
_MAX_CHARS = 4_000_000
_INVALID = "?"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_DATE = re.compile(
    r"datetime\.(datetime|date)\(([\d, ]+?)(, tzinfo=(?:datetime\.timezone\.utc|TzInfo\((?:UTC|0)\)))?\)"
)
_DATES: dict[str, type[date]] = {"datetime": datetime, "date": date}


def as_json(text: str) -> str | None:
    """Return the JSON of a value written in Python; None for any other text, and for JSON.

    A model or a dataclass becomes an object, a date its ISO form, any other call a string of itself. Values
    that JSON does not have, such as sets and bytes, and texts over 4,000,000 characters give None.
    """
    start = None if "\n" in text or len(text) > _MAX_CHARS else _START.match(text)
    if start is None or _is_json(text):
        return None
    # The fields of a model are not enclosed, and have no commas between them.
    is_model = start["field"] is not None
    written = "".join(_parts(text, is_model=is_model))
    written = "{" + written + "}" if is_model else written
    return written if _is_json(written) else None


def _is_json(text: str) -> bool:
    """Return whether a text is JSON, without repeated fields."""
    try:
        json.loads(text, object_pairs_hook=_checked)
    except (ValueError, RecursionError):
        return False
    return True


def _checked(pairs: Sequence[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a field is repeated")


def _parts(text: str, *, is_model: bool) -> Iterator[str]:
    """Yield the JSON of each token, and invalid JSON for what is none."""
    # The end of each open bracket, in the text and in JSON.
    ends: list[tuple[str, str]] = []
    at = 0
    while token := _TOKEN.match(text, at):
        kind = token.lastgroup or ""
        part = token[kind]
        if kind == "field" and is_model and at and not ends:
            yield ","
        if kind in _BRACKETS:
            begin, end = _BRACKETS[kind]
            ends.append((_ENDS[part[-1]], end))
            yield begin
        elif kind == "end":
            due, end = ends.pop() if ends else ("", "")
            yield end if part == due else _INVALID
        else:
            yield _WRITTEN[kind](part)
        at = token.end()
    if at < len(text):
        yield _INVALID


def _string(text: str) -> str:
    if text[0] not in "'\"":
        return encode_basestring(text)
    try:
        return encode_basestring(ast.literal_eval(text) if "\\" in text else text[1:-1])
    except (ValueError, SyntaxError):
        return _INVALID


def _call(text: str) -> str:
    found = _DATE.fullmatch(text)
    if found is None:
        return encode_basestring(text)
    kind, numbers, zone = found.groups()
    try:
        iso = _DATES[kind](*map(int, numbers.split(","))).isoformat()
    except (TypeError, ValueError):
        return _INVALID
    return encode_basestring(iso + "+00:00" * bool(zone))


_ENDS = {"(": ")", "[": "]", "{": "}"}
_BRACKETS = {"list": ("[", "]"), "object": ("{", "}")}
_WRITTEN: dict[str, Callable[[str], str]] = {
    "string": _string,
    "member": _string,
    "inner": _string,
    "field": '"{}":'.format,
    "key": '"{}"'.format,
    "constant": _CONSTANTS.__getitem__,
    "call": _call,
    "other": str,
}

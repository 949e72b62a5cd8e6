"""JSON and text lengths as JavaScript has them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

# Only numbers between these are written without an exponent.
_LEAST_PLAIN, _LEAST_LARGE = 1e-6, 1e21
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def length(text: str) -> int:
    """Return the `length` of a text: its UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def stringify(value: Any) -> str:  # noqa: PLR0911 # one return per kind of value
    """Return `JSON.stringify(value)`: compact, and with numbers in the notation of JavaScript.

    An integer keeps all its digits, also above 2**53, where a number of JavaScript would lose some. An object
    with a method `model_dump` is written by its fields, as SDK objects are.

    Raises:
        TypeError: a value has no form in JSON.
        RecursionError: a list or dict contains itself.
    """
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return _quoted(value)
        case int():
            return int.__repr__(value)
        case float():
            return number(value)
        case list() | tuple():
            return f"[{','.join(map(stringify, value))}]"
        case Mapping():
            return f"{{{','.join(f'{_key(key)}:{stringify(each)}' for key, each in value.items())}}}"
        case _:
            return stringify(_fields_of(value))


def number(value: float) -> str:
    """Return a number as ECMAScript's `Number::toString` writes it; `null` if it is not finite."""
    if not math.isfinite(value):
        return "null"
    if value == 0:
        return "0"
    # The shortest digits that give the number again, which both languages write.
    text = float.__repr__(value)
    if _LEAST_PLAIN <= abs(value) < _LEAST_LARGE:
        return f"{Decimal(text):f}".removesuffix(".0")
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):x}", quoted)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _quoted(key)
    if key is None or isinstance(key, bool | int | float):
        return f'"{stringify(key)}"'
    raise TypeError(f"a key must be a text, got {type(key).__name__}")


def _fields_of(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    raise TypeError(f"got {type(value).__name__}")

"""Files of code that the scripted agent edits by exact quotes, and the tools that it has for them.

All libraries have the same tools: one reads a file, whole or a page of its lines; one replaces a text that
is in the file exactly once; a formatter changes every line that has something to quote.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

# Lines of a page, and of the longest text that an edit quotes.
PAGE_LINES, PLACE_LINES = 200, 3
FAILED = "error: "
_WORDS = ("harbour", "lantern", "orchard", "granite", "meadow", "copper", "willow", "summit")
_CHARS_OF_TWO = 150


class Place(NamedTuple):
    """A text of a file that an edit quotes: one line, or three.

    Attributes:
        key: the beginning of its first line, which is once in the file.
        pattern: what its lines look like: the agent knows no number in them.
    """

    key: str
    pattern: str


def module(random: Random, chars: int) -> tuple[str, list[Place]]:
    """Return a file of about `chars` characters, and its places in their order."""
    parts, places = ["import orders\n"], list[Place]()
    for _ in range(max(4, chars // _CHARS_OF_TWO)):
        name, review = _name(random), f"{random.randrange(16**6):06x}"
        key = f"{name.upper()} = "
        parts.append(f"{key}{random.randint(100, 999)} # review {review}\n")
        places.append(Place(key, rf"^{key}\d+ +# review \w{{6}}$"))
        key = f"def {_name(random)}(order):"
        body = f"  limit = {random.randint(100, 999)} # review {random.randrange(16**6):06x}"
        end = f"  return order.total > limit + {random.randint(1, 99)}"
        parts.append(f"{key}\n{body}\n{end}\n")
        pattern = r"\n *limit = \d+ +# review \w{6}\n *return order\.total > limit \+ \d+$"
        places.append(Place(key, f"^{re.escape(key)}{pattern}"))
    return "\n".join(parts), places


def changed(quote: str, to: str) -> str:
    """Return the new text of a place: its first number is `to`."""
    return re.sub(r"= \d+", f"= {to}", quote, count=1)


def formatted(text: str) -> str:
    """Return a file as the formatter leaves it: wider indents, and two spaces before a comment."""
    return re.sub(r" +# ", "  # ", re.sub("^ +", "    ", text, flags=re.MULTILINE))


def found(text: str, place: Place) -> str:
    """Return the text of a place in a file."""
    shown = re.search(place.pattern, text, re.MULTILINE)
    if shown is None:
        raise LookupError(f"{place.key!r} is not in the file")
    return shown[0]


def read(text: str, first: int | None) -> str:
    """Return a file, or the page that begins with the line `first`, counted from 1."""
    if first is None:
        return text
    lines = text.splitlines(keepends=True)[first - 1 : first - 1 + PAGE_LINES]
    return "".join(lines) or f"{FAILED}the file has fewer lines"


def edited(text: str, old: str, new: str) -> str | None:
    """Return a file with `old` replaced; None if it is not in it exactly once."""
    return text.replace(old, new) if text.count(old) == 1 else None


def _name(random: Random) -> str:
    return f"{random.choice(_WORDS)}_{random.choice(_WORDS)}_{random.randrange(16**6):06x}"

"""Names of conversation folders: readable, and different for every conversation.

A store's keys have no capital letters, so the folder of `V1StGXR8` is `v1stgxr8~` and a number whose bits
show which letters are capitals. Any other name has its key part as its folder, see
`offload.encode_part`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from offload.storage.layout import decode_part, encode_part, is_hashed

_TOKEN = re.compile(r"=[0-9a-f]{2}|.", re.DOTALL)
_CAPITAL = re.compile(r"=(?:4[1-9a-f]|5[0-9a])")
_DIGITS = string.digits + string.ascii_lowercase
# A folder name with more characters is not one of these.
_MAX_NUMBER_CHARS = 24


def readable_folder(part: str) -> str:
    """Return the folder name for a conversation's key part."""
    tokens = [part] if is_hashed(part) else _TOKEN.findall(part)
    number = 0
    for token in tokens:
        if _CAPITAL.fullmatch(token) or token in string.ascii_lowercase:
            number = 2 * number + (len(token) > 1)
    folder = "".join(decode_part(t).lower() if _CAPITAL.fullmatch(t) else t for t in tokens)
    stem = folder.partition(".")[0]
    is_device = stem.isalnum() and encode_part(stem) != stem
    if not number or is_device:
        return part
    return f"{folder}~{_in_base_36(number)}"


def part_of(folder: str) -> str | None:
    """Return the key part whose folder has this name; None for the name of a foreign folder."""
    name, mark, number = folder.partition("~")
    if mark and (len(number) > _MAX_NUMBER_CHARS or not number.isalnum()):
        return None
    part = "".join(_with_capitals(name, int(number, 36))) if mark else folder
    return part if readable_folder(part) == folder else None


def _with_capitals(name: str, number: int) -> Iterator[str]:
    tokens = _TOKEN.findall(name)
    letters = [i for i, token in enumerate(tokens) if token in string.ascii_lowercase]
    for place, i in enumerate(reversed(letters)):
        if number >> place & 1:
            tokens[i] = f"={ord(tokens[i].upper()):02x}"
    yield from tokens


def _in_base_36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits

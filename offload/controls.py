"""Escapes for control characters, which would act on a terminal or mislead a reader."""

from __future__ import annotations

import re

# Controls but tab and newline; zero-width and direction marks; lone surrogates; tags.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


def escape_controls(text: str) -> str:
    r"""Return `text` with control characters escaped: ESC as `␛`, a bidi override as `\u{202e}`."""
    return _INVISIBLE.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else f"\\u{{{code:x}}}"

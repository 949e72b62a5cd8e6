"""The provider's refusal of signed thinking after a changed message, recognised by its text.

The text is the message of the error, alone or with other text of a proxy or an SDK around it.
https://platform.claude.com/docs/en/build-with-claude/preserved-thinking
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = "bound to a different conversation"
# The path is before the sentence; a path after it is of the message that changed.
_PATH = re.compile(r"\bmessages\.(\d+)\b")
_NEAR = 300


class BoundRefusal(NamedTuple):
    """A refusal of thinking that is bound to other messages than those before it.

    Attributes:
        first: index of the first message whose thinking was refused, in the provider's own list of messages;
            None if the text does not say it.
    """

    first: int | None


def bound_refusal(text: str) -> BoundRefusal | None:
    """Return what a provider's error says about thinking it refused; None for any other error."""
    at = text.find(_MARK)
    if at < 0:
        return None
    paths = _PATH.findall(text, max(0, at - _NEAR), at)
    return BoundRefusal(int(paths[-1]) if paths else None)

"""How facts that come from outside may stand in a line of ours."""

from __future__ import annotations

import re

# The form of the texts that models read; a table in FORMAT.md lists all forms that were released.
TEXT_VERSION = 2

_LOOK_ALIKE = re.compile(r"\[(?=Offloaded: )")
_PLAIN_NAME = re.compile(r"[\w.:/-]+", re.ASCII)
_LABEL_CHARS = 40


def escape_placeholders(text: str) -> str:
    """Return `text` with a backslash before everything in it that looks like the start of a placeholder.

    Content that is shown must not pass for a placeholder of ours.
    """
    return _LOOK_ALIKE.sub(r"\\[", text)


def tool_label(name: str) -> str:
    """Return a tool's name as it may stand in a line of ours: whatever it holds, it ends nothing there."""
    shown = name if _PLAIN_NAME.fullmatch(name) else ascii(name).replace("[", "(").replace("]", ")")
    return shown if len(shown) <= _LABEL_CHARS else shown[: _LABEL_CHARS - 3] + "..."

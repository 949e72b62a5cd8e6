"""Which tools show a file or a page: told by the whole words of their names."""

from __future__ import annotations

import re

# Some names write two words as one.
_WORDS = frozenset(
    (
        *("read", "reader", "readfile", "view", "viewer", "open", "cat", "notebook", "editor"),
        *("browse", "browser", "fetch", "webfetch"),
    )
)
# As names are written: web_fetch, WebFetch, readURL, fs.read, mcp__fs__read-text.
_WORD = re.compile(r"(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)[0-9]*")


def is_reader(tool_name: str) -> bool:
    """Tell whether a tool shows what the model asked to see, as readers of files and browsers do."""
    return any(word.lower() in _WORDS for word in _WORD.findall(tool_name))

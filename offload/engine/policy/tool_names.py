"""Tool names that a policy treats specially: retrieval tools, and file readers and browsers."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from offload.base.patterns import lazy_pattern
from offload.messages.files import is_file_tool
from offload.records.record.retrieval import RETRIEVAL_TOOLS, TOOL_NAMES, is_read_back

__all__ = [
    "RETRIEVAL_TOOLS",
    "TOOL_NAMES",
    "is_read_back",
    "is_reader",
    "matches",
    "matches_any",
    "shows_file",
    "words_of",
]

# Words in the names of file readers and browsers; some names write two words as one.
_WORDS = frozenset(
    (
        *("read", "reader", "readfile", "view", "viewer", "open", "cat", "notebook", "editor"),
        *("browse", "browser", "fetch", "webfetch"),
    )
)
# Splits web_fetch, WebFetch, readURL, fs.read and mcp__fs__read-text.
_WORD = lazy_pattern(r"(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)[0-9]*")


def words_of(name: str) -> list[str]:
    """Return the words of a tool's or server's name, in lower case: `notebook`, `read` of `NotebookRead`."""
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(1024)
def shows_file(tool_name: str | None) -> bool:
    """Return whether tool results show the text of a file or page, which the model may quote."""
    return tool_name is not None and (is_reader(tool_name) or is_file_tool(tool_name))


def is_reader(tool_name: str) -> bool:
    """Return whether a word in the tool's name marks a file reader or browser."""
    return not _WORDS.isdisjoint(words_of(tool_name))


def matches_any(name: str | None, globs: Iterable[str]) -> bool:
    """Return whether a tool's name matches one of `globs`, ignoring case."""
    return name is not None and any(matches(name, glob) for glob in globs)


@lru_cache(4096)
def matches(name: str, glob: str) -> bool:
    """Return whether a tool's name matches a glob, ignoring case."""
    return fnmatchcase(name.lower(), glob.lower())

"""Command lines as the user's shell reads them."""

from __future__ import annotations

import os
import re
import shlex

# With a backslash between folders, the shell is cmd.exe or PowerShell: a backslash does not escape there, and
# cmd.exe takes single quotes literally.
_IS_POSIX = os.sep == "/"
_PLAIN = re.compile(r"[\w@%+=:,./\\~-]+")


def quoted(word: str) -> str:
    """Return a word as it is written in a command line."""
    if _IS_POSIX:
        return shlex.quote(word)
    return word if _PLAIN.fullmatch(word) else f'"{word}"'


def words_of(line: str) -> list[str]:
    """Return the words of a command line. Raises `ValueError` for an unfinished quotation."""
    words = shlex.split(line, posix=_IS_POSIX)
    return words if _IS_POSIX else [word.strip('"') for word in words]

"""Syntax colors of a text: runs of characters with the name of their class in the style sheet."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, String

# A text without an entry here has no colors. The lexers of all of these take linear time.
_BY_ENDING = {
    **dict.fromkeys(["py", "pyi"], "python"),
    **dict.fromkeys(["js", "mjs", "cjs", "jsx"], "javascript"),
    **dict.fromkeys(["ts", "tsx", "mts"], "typescript"),
    **dict.fromkeys(["json", "jsonl", "ndjson", "ipynb"], "json"),
    **dict.fromkeys(["html", "htm", "svg", "xml"], "html"),
    **dict.fromkeys(["css", "scss"], "css"),
    **dict.fromkeys(["yaml", "yml"], "yaml"),
    **dict.fromkeys(["sh", "bash", "zsh"], "bash"),
    **dict.fromkeys(["c", "h"], "c"),
    **dict.fromkeys(["cpp", "cc", "cxx", "hpp"], "cpp"),
    **dict.fromkeys(["diff", "patch"], "diff"),
    "toml": "toml", "go": "go", "rs": "rust", "rb": "ruby", "java": "java", "kt": "kotlin", "cs": "csharp",
    "swift": "swift", "lua": "lua", "sql": "sql", "md": "markdown",
}  # fmt: skip
_BY_KIND = {"JSON": "json", "JSON lines": "json", "diff": "diff", "HTML": "html", "Markdown": "markdown"}
# A path, alone or behind a command that prints the file.
_FILE = re.compile(r"(?:(?:cat|head|tail|bat|sed -n) (?:\S+ )?)?\S+\.(?P<ending>\w{1,6})")
_SECONDS = 0.08
# The first that a token belongs to.
_CLASSES: Sequence[tuple[Any, str]] = (
    (Comment, "c"),
    (Name.Tag, "k"),
    (Keyword, "k"),
    (String, "s"),
    (Number, "n"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Attribute, "f"),
    (Generic.Deleted, "d"),
    (Generic.Inserted, "i"),
    (Generic.Heading, "k"),
    (Generic.Subheading, "k"),
)

ColorRun = tuple[str, str]


def language_of(title: str | None, kind: str) -> str | None:
    """Return the language of a record by its title, a path or a command, else by the kind of its content."""
    path = _FILE.fullmatch(title or "")
    return (path and _BY_ENDING.get(path["ending"].lower())) or _BY_KIND.get(kind)


def colored(lines: Sequence[str], language: str | None) -> list[list[ColorRun]]:
    """Return each line as runs of a class, "" for none, and its text.

    Without a language, or if a lexer takes too long, a line is one run.
    """
    text = "\n".join(lines)
    runs = list(_runs(text, language)) if language else [("", text)]
    if "".join(run for _, run in runs) != text:
        runs = [("", text)]
    return by_line(runs)


def _runs(text: str, language: str) -> Iterator[ColorRun]:
    lexer, end = get_lexer_by_name(language), 0
    # The time of this thread alone: a busy machine changes no page.
    deadline = time.thread_time() + _SECONDS
    for start, token, run in lexer.get_tokens_unprocessed(text):
        yield _class_of(token), run
        end = start + len(run)
        if time.thread_time() > deadline:
            break
    if end < len(text):
        yield "", text[end:]


@lru_cache(maxsize=512)
def _class_of(token: Any) -> str:
    return next((name for kind, name in _CLASSES if token in kind), "")


def by_line(runs: Iterable[ColorRun]) -> list[list[ColorRun]]:
    """Return runs by line; neighbours of one class are one run."""
    lines: list[list[ColorRun]] = [[]]
    for name, run in runs:
        for number, part in enumerate(run.split("\n")):
            if number:
                lines.append([])
            if part and lines[-1] and lines[-1][-1][0] == name:
                lines[-1][-1] = name, lines[-1][-1][1] + part
            elif part:
                lines[-1].append((name, part))
    return lines

"""Names and quotes that an answer needs, and which of them a request hides.

An answer may need an offloaded text again:

- It writes a *name* (path, identifier, number) that came with a replaced text of 1,000 characters or more,
  that the placeholder does not show with at least half of the words around it, and that no other text
  contains.
- It *quotes* a text in an edit, or in the context and removed lines of a patch, and a line of the quote is
  not in any text, although it would be without offloading.

A name that the placeholder contains is read back by a search, another by a page, a quote by its lines.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from offload.messages import Call
from offload.messages.calls import COMMAND_FIELDS, PATCH_FIELDS

if TYPE_CHECKING:
    from offload.replay._recording import Recording, Request

_NAME = re.compile(r"\w[\w./:-]{5,80}", re.ASCII)
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_WORD = re.compile(r"\w{3,}")
_AROUND = 60
_MAX_OCCURRENCES = 50
_SHORTEST = 6
CHARS_PER_TOKEN = 3.6

# Fields of the edits of clients with the text that they replace, and those with further edits.
_QUOTED = ("old_string", "old_str", "oldString", "oldText", "old_text")
_NESTED = ("edits", "input")
_PATCH = re.compile(r"^\*\*\* Begin Patch$.*?(?:^\*\*\* End Patch|\Z)", re.MULTILINE | re.DOTALL)
# The start of the lines of another hunk, and of those of another file.
_HUNK = re.compile(r"^@@.*$|^\*\*\* .*$", re.MULTILINE)
# A shorter line is not searched for: a bracket is everywhere.
_LEAST_LINE = 4

GREP, READ = "context_grep", "context_read"
# Tokens of answers whose text is not known: a search's, and the least of a quote's; a page's.
GREP_TOKENS, PAGE_TOKENS = 300, 2048
_PAGE_CHARS = 8192
# Lines that are read around a quote.
_MARGIN = 2


class EditQuote(NamedTuple):
    """A text that an edit quotes exactly.

    Attributes:
        text: the text.
        lines: its lines, stripped, each with the rows of the earlier texts that contain it.
    """

    text: str
    lines: Mapping[str, tuple[int, ...]]


class Need(NamedTuple):
    """Something that an answer needs and its request hides.

    Attributes:
        row: the replaced text that has it, None for a quote that no single one has.
        placeholder: the text that is sent in its place; empty without a row.
        tool: the retrieval tool that shows it.
        arguments: its arguments, without the id.
        tokens: the size of the answer of a retrieval tool that is not known.
        words: the names, or the lines of the quote.
        is_quote: whether an edit quotes it.
    """

    row: int | None
    placeholder: str
    tool: str
    arguments: Mapping[str, Any]
    tokens: float
    words: frozenset[str]
    is_quote: bool = False


class Hidden:
    """The texts of the last request, and the names and lines that replacements hide.

    Args:
        recording: the conversation.

    Attributes:
        texts: the texts by row; the texts of read-backs are numbered on from the recorded ones.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.texts: dict[int, str] = {}
        self._ours = range(len(recording.rows), len(recording.rows))
        # In how many texts each name is.
        self._shown: Counter[str] = Counter()
        # Row → the names that its replacement hides, and those that it contains.
        self._names: dict[int, tuple[set[str], frozenset[str]]] = {}
        self._hiding: defaultdict[str, list[int]] = defaultdict(list)
        # Lines in answers whose text is not known.
        self._answered: set[str] = set()

    def send(self, row: int, text: str) -> None:
        """Send `text` as the text of a row from now on."""
        if row in self.texts:
            self._shown.subtract(self._recording.names_of(row, self.texts[row]))
        shown = self._recording.names_of(row, text)
        self._shown.update(shown)
        self.texts[row] = text
        self._ours = range(self._ours.start, max(self._ours.stop, row + 1))
        new = self._recording.new.get(row)
        if new is not None and (row in self._names or text != self._recording.rows[row].text):
            hidden = set(hidden_names(self._recording.rows[row].text, new, text))
            self._names[row] = hidden, shown
            for name in hidden:
                self._hiding[name].append(row)

    def names_of(self, row: int) -> frozenset[str]:
        """Return the names that the replacement of a text hides."""
        return frozenset(self._names[row][0]) if row in self._names else frozenset()

    def needs(self, request: Request) -> list[Need]:
        """Return the needs of the answer to a request, quotes last."""
        return [*self._needed_names(request.written), *self._needed_quotes(request.quotes)]

    def answer(self, need: Need) -> None:
        """Show what was needed, in an answer whose text is not known."""
        if need.is_quote:
            self._answered |= need.words
        elif need.row is not None:
            hidden, _ = self._names[need.row]
            # A page shows all.
            hidden -= need.words if need.tool == GREP else set(hidden)

    def _needed_names(self, written: frozenset[str]) -> Iterator[Need]:
        rows = {row for name in written for row in self._hiding.get(name, ())}
        for row in [row for row in self._names if row in rows] if rows else ():
            hidden, shown = self._names[row]
            used = frozenset(n for n in hidden & written if self._shown[n] == (n in shown))
            if not used:
                continue
            first, text = min(used), self.texts[row]
            if used <= shown:
                yield Need(row, text, GREP, {"pattern": first}, GREP_TOKENS, used)
            else:
                start = max(0, self._recording.rows[row].text.find(first) - _PAGE_CHARS // 2)
                page = {"offset": start, "limit": _PAGE_CHARS}
                yield Need(row, text, READ, page, PAGE_TOKENS, used)

    def _needed_quotes(self, quotes: Iterable[EditQuote]) -> Iterator[Need]:
        for text, lines in quotes:
            if all(line in self._answered or self._shows(line, rows) for line, rows in lines.items()):
                continue
            row = next((r for r in reversed(self._names) if all(r in rows for rows in lines.values())), None)
            place, placeholder = {}, ""
            if row is not None:
                source, placeholder = self._recording.rows[row].text, self.texts[row]
                line = source.count("\n", 0, source.find(next(iter(lines)))) + 1
                end = line + text.count("\n") + _MARGIN
                place = {"start_line": max(1, line - _MARGIN), "end_line": end}
            tokens = max(GREP_TOKENS, 2 * tokens_of(text))
            yield Need(row, placeholder, READ, place, tokens, frozenset(lines), is_quote=True)

    def _shows(self, line: str, rows: Iterable[int]) -> bool:
        """Return whether one of the `rows` that had a line, or a text of a read-back, has it now."""
        return any(line in self.texts[row] for row in (*rows, *self._ours))


def tokens_of(text: str) -> float:
    """Return the tokens of a text, by its characters."""
    return len(text) / CHARS_PER_TOKEN


# Names


@lru_cache(4096)
def names_in(text: str) -> frozenset[str]:
    """Return the names in a text: paths, identifiers, numbers."""
    return _names_in(text)


def _names_in(text: str) -> frozenset[str]:
    tokens = (token.strip("./:-") for token in _NAME.findall(text))
    return frozenset(name for name in tokens if len(name) >= _SHORTEST and _MARKED.search(name))


@lru_cache(4096)
def hidden_names(text: str, names: frozenset[str], placeholder: str) -> frozenset[str]:
    """Return which of the `names` in `text` are hidden when `placeholder` replaces it."""
    views: dict[str, list[set[str]]] = {}
    for line in placeholder.split("\n"):
        for name in names & _names_in(line):
            views.setdefault(name, []).append(next(_words_around(line, name), set()))
    visible = {name for name, words in views.items() if _is_shown(text, name, words)}
    return names - visible


def _is_shown(text: str, name: str, views: list[set[str]]) -> bool:
    places = islice(_words_around(text, name), _MAX_OCCURRENCES)
    return any(words and 2 * len(words & view) >= len(words) for words in places for view in views)


def _words_around(text: str, name: str) -> Iterator[set[str]]:
    """Yield the words around each occurrence of `name` on its line, without the words of the name."""
    own, at = set(_WORD.findall(name)), text.find(name)
    while at >= 0:
        end = at + len(name)
        before = text[max(0, at - _AROUND) : at].rpartition("\n")[2]
        after = text[end : end + _AROUND].partition("\n")[0]
        yield set(_WORD.findall(f"{before} {after}")) - own
        at = text.find(name, end)


# Quotes


def quotes_in(call: Call) -> list[tuple[str, list[str]]]:
    """Return the texts that a tool call quotes, each with its lines, stripped; short lines do not count."""
    fields = call.fields
    texts = [*_edited(fields), *(old for patch in _patches(fields) for old in _replaced(patch))]
    lines = ([line.strip() for line in text.splitlines()] for text in texts)
    pairs = ((t, [n for n in some if len(n) >= _LEAST_LINE]) for t, some in zip(texts, lines, strict=True))
    return [(text, some) for text, some in pairs if some]


def _edited(value: Any) -> Iterator[str]:
    """Yield the texts that the edits in a value replace."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name in _QUOTED and isinstance(part, str):
                yield part
            elif name in _NESTED:
                yield from _edited(part)
    elif isinstance(value, list):
        for part in value:
            yield from _edited(part)


def _patches(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patches in the fields of a call; a command may have one on its standard input."""
    for name in (*PATCH_FIELDS, *COMMAND_FIELDS):
        value = fields.get(name)
        for part in value if isinstance(value, list) else [value]:
            yield from _PATCH.findall(part) if isinstance(part, str) else ()
    if fields.get("type") == "update_file" and isinstance(diff := fields.get("diff"), str):
        yield diff


def _replaced(patch: str) -> Iterator[str]:
    """Yield the context and removed lines of each hunk of a patch."""
    for hunk in _HUNK.split(patch):
        old = [line[1:] for line in hunk.splitlines() if line.startswith((" ", "-"))]
        if old:
            yield "\n".join(old)

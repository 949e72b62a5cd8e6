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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from offload.replay._names import EditQuote, hidden_names, tokens_of
from offload.replay._recording import Recording, Request

GREP, READ = "context_grep", "context_read"
# Tokens of answers whose text is not known: a search's, and the least of a quote's; a page's.
GREP_TOKENS, PAGE_TOKENS = 300, 2048
_PAGE_CHARS = 8192
# Lines that are read around a quote.
_MARGIN = 2


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

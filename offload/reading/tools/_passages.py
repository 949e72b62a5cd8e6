"""context_grep, mode "search": the passages that were found, best first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from offload.engine.placeholder.default import safe_for_model
from offload.reading.search import Passage, SearchResult
from offload.reading.tools.answers import FRAME_CHARS, REDACTED, fitting_rows, readable

# The items that an answer names as not searched.
_NAMED = 5


def passages(found: SearchResult, max_chars: int, note: Callable[[str, str], object]) -> str:
    """Return the answer with the passages that fit, and what was not searched.

    Args:
        found: the passages.
        max_chars: the most characters of the answer.
        note: is called with the ref and the text of each shown passage.
    """
    named = [f"{ref}: {why}" for ref, why in islice(found.unsearched.items(), _NAMED)]
    more = len(found.unsearched) - len(named)
    notes = [f"[Not searched: {'; '.join(named)}{f'; and {more} more' * bool(more)}]"] * bool(named)
    if any(passage.is_redacted for passage in found.passages):
        notes.append(REDACTED)
    room = max_chars - FRAME_CHARS - sum(len(note) + 1 for note in notes)
    rows = fitting_rows(map(_row, found.passages), room)
    for passage, row in zip(found.passages, rows, strict=False):
        note(passage.ref, row)
    searched = f"{found.records} item{'s' * (found.records != 1)}, {found.chars} characters"
    if not rows:
        return "\n".join([f"[No passage has a word of the query; searched {searched}]", *notes])
    count = f"{len(rows)} passage{'s' * (len(rows) != 1)}"
    return "\n".join([f"[{count}, best first; searched {searched}]", *rows, *notes, "[end of passages]"])


def _row(passage: Passage) -> str:
    """Return a passage under its title, its place and the call that reads more."""
    title = safe_for_model(passage.title)
    lines = f"lines {passage.start_line}-{passage.end_line}"
    text = readable(passage.text.removesuffix("\n"))
    return f"[{passage.ref} {lines}: {title}. More: {passage.next_call}]\n{text}"

"""context_list: a page of the records of a session with their titles, newest first."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from offload.engine.placeholder.default import safe_for_model, tool_label
from offload.engine.sources import Sources, source_note
from offload.errors import StoreError, check_texts
from offload.reading.tools.answers import FRAME_CHARS, fitting_rows
from offload.reading.tools.arguments import check_count
from offload.records.record import Header, RecordInfo
from offload.records.record.titles import words_of_query
from offload.records.session import Session
from offload.records.session.titles import FoundTitles, find_titles, why_untitled, with_titles

# An answer has no room for more: a row has at least a ref, a type and two counts.
_MAX_ROWS = 200
# No row is longer.
_ROW_CHARS = 320


@dataclass(frozen=True, slots=True)
class Listing:
    """Lists the records of a session in answers of at most `max_chars` characters."""

    session: Session
    sources: Sources
    max_chars: int

    def page(
        self, *, item_type: str | None, tool: str | None, query: str | None, limit: int, cursor: str | None
    ) -> str:
        """Return the answer of `Tools.list`, which has these arguments and errors."""
        check_count("limit", limit)
        check_texts(item_type=item_type, tool=tool, query=query, cursor=cursor)
        words = words_of_query(query)
        if words:
            limit = min(limit, (self.max_chars - FRAME_CHARS) // _ROW_CHARS)
            found = find_titles(
                self.session, words, item_type=item_type, tool=tool, limit=limit, after=cursor
            )
            return self._found(found, self._stored(found.total, item_type, tool))
        listed = self.session.catalog.page(item_type, tool, min(limit, _MAX_ROWS), cursor)
        infos, unread = listed.infos, "; titles could not be read"
        with suppress(StoreError):
            infos = with_titles(self.session, infos)
            unread *= bool(why_untitled(self.session.unfit, infos))
        lines = fitting_rows(map(self._row, infos), self.max_chars - FRAME_CHARS)
        start, end = listed.start, listed.start + len(lines)
        shown = f"{start + 1}-{end}" if lines else "none"
        first = f"[{self._stored(listed.total, item_type, tool)}, {shown} shown, newest first{unread}]"
        is_more = lines and end < listed.total
        last = f'[more: cursor="{listed.infos[len(lines) - 1].ref}"]' if is_more else "[end of list]"
        return "\n".join([first, *lines, last])

    def _stored(self, count: int, item_type: str | None, tool: str | None) -> str:
        """Return how many entries there are, and if none, how many without the filters."""
        named = [("item_type", item_type), ("tool", tool)]
        filters = " and ".join(f"{name}={value[:40]!r}" for name, value in named if value is not None)
        total = self.session.catalog.page(limit=1).total if filters and not count else 0
        return f"{count} stored" + f" with {filters}, {total} in all" * bool(total)

    def _found(self, found: FoundTitles, stored: str) -> str:
        count = len(found.infos)
        part = f"{min(found.start + 1, found.end)}-{found.end} of {stored}"
        unread = "; not all titles could be read" if self.session.unfit else ""
        first = f"[{count} title{'s' * (count != 1)} with these words, searched {part}, newest first{unread}]"
        last = f'[more: cursor="{found.last}"]' if found.last else "[end of list]"
        return "\n".join([first, *map(self._row, found.infos), last])

    def _row(self, info: RecordInfo) -> str:
        tool = f" of {tool_label(info.tool_name)}" if info.tool_name else ""
        agent = f" by {safe_for_model(info.agent_name)}" if info.agent_name else ""
        known = self.sources.freshness(info.ref)
        note = source_note(known) if known else ""
        title = f": {safe_for_model(info.title)}" if info.title else ""
        size = f"{info.chars} characters, ~{info.tokens} tokens"
        return f"{info.ref}  {info.item_type}{tool}{agent}, {size}{note}{title}"


def label(title: str | None, record: Header | RecordInfo) -> str:
    """Return a record's title, or its tool or type."""
    name = tool_label(record.tool_name) if record.tool_name else record.item_type
    return safe_for_model(title) if title else name

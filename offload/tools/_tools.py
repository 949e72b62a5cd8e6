"""The answers of the four tools. Each is a text of bounded size that says where it is and how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.codec import StoredContent, StoredRecord
from offload.errors import ConfigError, OffloadError
from offload.placeholder import defuse, tool_label
from offload.record import RecordInfo, encodable
from offload.search import Mode
from offload.session import Session
from offload.tools._arguments import check_arguments
from offload.tools._definitions import Format, definitions
from offload.tools._grep import Grep, parse_cursor

MAX_ANSWER_CHARS = 8192
# Left for an answer's first and last line.
_FRAME_CHARS = 320
_LIST_LIMIT = 50
# No answer has room for more: a row names at least a ref, a type and two counts.
_MAX_ROWS = 200


class Tools:
    """Reads the records of one session for its model.

    Every method returns the text of an answer, at most 8,192 characters. A ref of another session, one
    that was guessed and one that never was get the same `NotFoundError`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def definitions(self, format: Format = "anthropic") -> list[dict[str, Any]]:  # noqa: A002 # reads best at the call
        """Return the tools as `tools=` of a request takes them: "anthropic" or "openai"."""
        return definitions(format)

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Answer a model's call. Never raises for what a model can get wrong: the answer says what is right.

        Args:
            name: the tool's name.
            arguments: a mapping, or the JSON text of one.
        """
        try:
            checked = check_arguments(name, arguments)
            method = getattr(self, name.removeprefix("context_"))
            answer: str = method(**checked)
        except OffloadError as error:
            return f"Error: {encodable(str(error))[:1000]}"
        return answer

    def list(
        self,
        *,
        item_type: str | None = None,
        tool: str | None = None,
        limit: int = _LIST_LIMIT,
        cursor: str | None = None,
    ) -> str:
        """Return a page of the session's records, newest first.

        Args:
            item_type: only records of this type.
            tool: only records of this tool.
            limit: entries on the page.
            cursor: the id after which the page starts.
        """
        if limit < 1:
            raise ConfigError(f"limit is at least 1, not {limit}")
        page = self._session.catalog.page(item_type, tool, min(limit, _MAX_ROWS), cursor)
        lines = _fitting(map(_row, page.infos))
        start, end = page.start, page.start + len(lines)
        first = f"[{page.total} stored, {start + 1 if lines else start}-{end} shown, newest first]"
        is_more = lines and end < page.total
        last = f'[more: cursor="{page.infos[len(lines) - 1].ref}"]' if is_more else "[end of list]"
        return "\n".join([first, *lines, last])

    def read(
        self,
        id: str,  # noqa: A002 # the name that the model uses
        *,
        offset: int | None = None,
        limit: int | None = None,
        start_line: int | None = None,
        end_line: int | None = None,
    ) -> str:
        """Return a range of a record: characters from `offset`, or whole lines.

        Args:
            id: the ref.
            offset: first character, from 0, the default.
            limit: characters to read; what does not fit the answer is left for the next call.
            start_line: first line, from 1; not together with `offset`.
            end_line: last line, included; without it as many as fit.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: the record is damaged.
            ConfigError: a range that cannot be meant.
        """
        by_line = start_line is not None or end_line is not None
        if by_line and (offset is not None or limit is not None):
            raise ConfigError("give offset and limit, or start_line and end_line, not both")
        if (offset or 0) < 0 or (limit is not None and limit < 1) or (start_line or 1) < 1:
            raise ConfigError("offset counts from 0, limit and start_line from 1")
        record = self._session.read(id)
        content = record.content
        if not by_line:
            start = offset or 0
            end = start + (MAX_ANSWER_CHARS if limit is None else limit)
        else:
            first = start_line or 1
            if end_line is not None and end_line < first:
                raise ConfigError(f"end_line {end_line} lies before start_line {first}")
            start = content.line_start(first)
            end = content.chars if end_line is None else content.line_start(end_line + 1)
        if start >= content.chars > 0:
            raise ConfigError(
                f"there is nothing there: the item has {content.chars} characters (0-{content.chars - 1}) "
                f"and {record.counts.lines} lines"
            )
        return _page(record, content, start, end)

    def tail(self, id: str, *, lines: int = 20) -> str:  # noqa: A002 # the name that the model uses
        """Return the last `lines` lines of a record; of lines that are too long for an answer, their end.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: the record is damaged.
            ConfigError: fewer than one line.
        """
        if lines < 1:
            raise ConfigError(f"lines is at least 1, not {lines}")
        record = self._session.read(id)
        content = record.content
        first = max(1, record.counts.lines - lines + 1)
        return _page(record, content, content.line_start(first), content.chars, is_tail=True)

    def grep(
        self,
        pattern: str,
        id: str | None = None,  # noqa: A002 # the name that the model uses
        *,
        mode: Mode = "literal",
        ignore_case: bool = False,
        context_lines: int = 0,
        max_matches: int = 20,
        cursor: str | None = None,
    ) -> str:
        """Return the matches of a pattern in one record, or in all of the session, oldest first.

        Each match shows its line, from 1, its character offset, from 0, and its line, or a window around
        it where the line is long.

        Args:
            pattern: a text, or an RE2 expression; matches do not cross lines.
            id: the ref; None searches every record.
            mode: "literal" or "regex".
            ignore_case: whether case makes no difference.
            context_lines: lines to show before and after each match, at most 20.
            max_matches: matches to show, at most 100.
            cursor: where to go on, from the answer before.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: a record is damaged.
            ConfigError: a pattern that RE2 does not take, or a cursor that is none.
        """
        start = parse_cursor(cursor)
        infos = self._session.catalog.recent() if id is None else [self._session.find(id)]
        grep = Grep(
            pattern,
            mode,
            ignore_case=ignore_case,
            context_lines=min(context_lines, 20),
            max_matches=min(max_matches, 100),
            room=MAX_ANSWER_CHARS - _FRAME_CHARS,
        )
        return grep.run(infos, lambda info: self._session.read(info.ref).content, start)


def _page(
    record: StoredRecord, content: StoredContent, start: int, end: int, *, is_tail: bool = False
) -> str:
    """Return the answer that shows the characters from `start` to `end`, or of a tail the last that fit."""
    counts, room = record.counts, MAX_ANSWER_CHARS - _FRAME_CHARS
    start, end = (max(start, end - room), end) if is_tail else (start, min(end, start + room))
    raw = content.text(start, end)
    shown = defuse(encodable(raw))
    while len(shown) > room:
        fits = len(raw) * room // len(shown) - 1
        raw = raw[-fits:] if is_tail else raw[:fits]
        shown = defuse(encodable(raw))
    start, stop = (end - len(raw), end) if is_tail else (start, start + len(raw))
    lines = f"lines {content.line_at(start)}-{content.line_at(max(start, stop - 1))} of {counts.lines}"
    first = f"[{record.ref}: characters {start}-{stop} of {counts.chars}, {lines}]"
    last = (
        f'[more: context_read(id="{record.ref}", offset={stop})]' if stop < counts.chars else "[end of item]"
    )
    return f"{first}\n{shown}\n{last}"


def _row(info: RecordInfo) -> str:
    tool = f" of {tool_label(info.tool_name)}" if info.tool_name else ""
    return f"{info.ref}  {info.item_type}{tool}, {info.chars} characters, ~{info.tokens} tokens"


def _fitting(rows: Any) -> Any:
    fitting, room = [], MAX_ANSWER_CHARS - _FRAME_CHARS
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            break
        fitting.append(row)
    return fitting

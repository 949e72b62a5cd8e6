"""The retrieval tools. Each answer is bounded, and gives its position and the next call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from offload.base.threads.locks import NO_FORK, Recent, cached
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS, TOOL_NAMES
from offload.engine.settings.offer import MAX_ANSWER_CHARS, check_offer
from offload.engine.sources import Sources, source_line
from offload.errors import (
    ConfigError,
    CorruptError,
    EncryptionError,
    ExpiredError,
    NotFoundError,
    OffloadError,
    StoreError,
    check_choice,
)
from offload.reading.tools._definitions import DIFF, Format, definitions, system_prompt
from offload.reading.tools._diff import Diffs
from offload.reading.tools._grep import Grep, Ranking, heading, parse_cursor, ranking
from offload.reading.tools._listing import Listing, label
from offload.reading.tools._passages import passages
from offload.reading.tools._query import MAX_IDS, MAX_SQL_CHARS, Queries
from offload.reading.tools._values import Values
from offload.reading.tools.answers import (
    FRAME_CHARS,
    REDACTED,
    REPEATED,
    Pages,
    error_for_model,
    read_error,
    store_error,
    with_notes,
)
from offload.reading.tools.arguments import check_alone, check_arguments, check_count, check_range, part_of
from offload.reading.tools.search import PatternMode, compile_pattern, hint
from offload.records.observer import Observer, observed
from offload.records.record import Header, RecordInfo
from offload.records.session import Session

if TYPE_CHECKING:
    from offload.reading.search.index import SessionIndex

_log = logging.getLogger("offload.tools")
_LIST_LIMIT = 50
_REF_ARGUMENTS = ("id", "old", "new")
_HELD_RANKINGS = 8
_HELD_SHOWN = 4096


class Tools:
    """Reads the records of one session for its model.

    Every method returns the text of an answer of bounded size. Refs of other sessions and unknown refs raise
    the same `NotFoundError`.

    Args:
        session: the session to read.
        names: the offered tools; calls of others are refused. They must include context_read, which
            every placeholder names. With all default tools, the others are answered too.
        max_answer_chars: the most characters of an answer, at least 2,000.
        observer: is notified of reads.
        sources: what this process knows of the sources of records.

    Raises:
        ConfigError: unknown names, or too small a `max_answer_chars`.
    """

    def __init__(
        self,
        session: Session,
        *,
        names: Sequence[str] = TOOL_NAMES,
        max_answer_chars: int = MAX_ANSWER_CHARS,
        observer: Observer | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._session = session
        self._observer = Observer(session.name) if observer is None else observer
        self.sources: Sources = Sources() if sources is None else sources
        self._names = check_offer(names, max_answer_chars)
        self._answered = RETRIEVAL_TOOLS if {*TOOL_NAMES} <= {*names} else self._names
        self._max_chars = max_answer_chars
        self._values = Values(max_answer_chars)
        self._queries = Queries(max_answer_chars)
        self._rankings: Recent[tuple[str, str, bool], Ranking] = Recent(_HELD_RANKINGS)
        self._diffs = Diffs(max_answer_chars)
        self._listing = Listing(session, self.sources, max_answer_chars)
        # Whether the model has context_diff; before definitions are asked for, it may have all tools.
        self._has_diff = DIFF in self._answered
        # The calls that were answered, and the records of which an answer said that a change is unknown.
        self._shown: Recent[tuple[Any, ...], tuple[()]] = Recent(_HELD_SHOWN)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that `call` answers: a loop passes it the calls of these tools."""
        return tuple(self._answered)

    def definitions(self, format: Format = "anthropic") -> list[dict[str, Any]]:  # noqa: A002 # reads best at the call
        """Return the offered tools as `tools=` of a request takes them, the same in each request.

        Args:
            format: "anthropic" for the Messages API, "openai" for chat completions, "openai-responses" for
                the Responses API, "gemini" for `functionDeclarations`, "gemini-interactions" for Gemini's
                Interactions API, "mcp" for a server of the Model Context Protocol.

        Raises:
            ConfigError: another format.
        """
        self._has_diff = DIFF in self._names
        return definitions(format, self._names)

    def prompt(self) -> str:
        """Return the few lines for the system prompt that explain placeholders."""
        return system_prompt(self._names)

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Answer a model's call. An error of the model is answered with its fix; nothing is raised for it.

        Args:
            name: the tool's name.
            arguments: a mapping, or the JSON text of one.
        """
        checked: dict[str, Any] = {}
        try:
            checked = check_arguments(name, arguments, self._answered)
            method = getattr(self, name.removeprefix("context_"))
            answer: str = method(**checked)
        except OffloadError as error:
            return f"Error: {self._error_text(error, checked)}"
        return answer

    def _error_text(self, error: OffloadError, arguments: Mapping[str, Any]) -> str:
        if isinstance(error, StoreError) and not isinstance(error, EncryptionError):
            _log.warning("session %s: a tool could not read: %s", self._session.name, error)
            return store_error(error)
        refs = [arguments[name] for name in _REF_ARGUMENTS if name in arguments] + arguments.get("ids", [])
        # An id may be several with commas.
        parts = [part for ref in refs for part in ref.split(",")]
        ref = next((ref for ref in (*refs, *parts) if ref in str(error)), refs[0] if refs else None)
        if ref is None or not isinstance(error, CorruptError | EncryptionError | NotFoundError):
            return error_for_model(error)
        is_unknown = isinstance(error, NotFoundError) and not isinstance(error, ExpiredError)
        hint = " Call context_list to see valid ids." if is_unknown and "context_list" in self._names else ""
        return read_error(error, ref, "" if is_unknown else self._lostlabel(ref)) + hint

    def _lostlabel(self, ref: str) -> str:
        """Return what a record that cannot be read was of, if that can still be read."""
        tombstone, infos = self._session.catalog.tombstone(ref), self._session.catalog.known(ref)
        deleted = None if tombstone is None else self._session.deleted_header(tombstone)
        header = deleted if isinstance(deleted, Header) else next(self._session.headers(ref), None)
        if header is not None:
            return label(header.title, header)
        return next((label(info.title, info) for info in infos), "")

    @observed("context_list")
    def list(
        self,
        *,
        item_type: str | None = None,
        tool: str | None = None,
        query: str | None = None,
        limit: int = _LIST_LIMIT,
        cursor: str | None = None,
    ) -> str:
        """Return a page of the session's records with their titles, newest first.

        A title describes a record, such as the path that was read. Titles that this process does not
        know are read, in one bulk read; a search reads at most 1,000, and then returns a cursor.

        Args:
            item_type: only records of this type.
            tool: only records of this tool.
            query: only records whose title has all these words, in any order and case.
            limit: the most entries of the page.
            cursor: the id before the first entry.

        Raises:
            ConfigError: an invalid cursor, or a `limit` below 1.
            StoreError: the store failed.
        """
        return self._listing.page(item_type=item_type, tool=tool, query=query, limit=limit, cursor=cursor)

    @observed("context_read")
    def read(
        self,
        id: str,  # noqa: A002 # the name that the model uses
        *,
        offset: int | None = None,
        limit: int | None = None,
        start_line: int | None = None,
        end_line: int | None = None,
        pointer: str | None = None,
        part: str | None = None,
    ) -> str:
        """Return a part of a record: characters from `offset`, whole lines, or one JSON value.

        Args:
            id: the ref.
            offset: first character, from 0, the default; relative to the value if `pointer` is given.
            limit: the most characters; the rest is for the next call.
            start_line: first line, from 1; not with `offset`.
            end_line: last line, inclusive; by default as many as fit.
            pointer: a JSON pointer; in JSON lines its first step is the line, from 0. The first of duplicate
                keys counts. A large object or array returns its members, unless `offset` or `limit` is given.
            part: what models pass instead of the last three: lines such as "10-40" or "7", the last lines
                such as "-20", or a pointer.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: the record is damaged.
            ConfigError: an invalid range; a pointer to nothing, with the existing members.
        """
        if part is not None:
            check_alone("part", start_line=start_line, end_line=end_line, pointer=pointer)
            start_line, end_line, pointer, last = part_of(part)
            if last is not None:
                check_alone(f'part="{part}"', offset=offset, limit=limit)
                return self._last_lines(id, last)
        check_range(offset, limit, start_line, end_line, pointer)
        asked = ("read", id, offset or 0, limit, start_line, end_line, pointer)
        pages = Pages(self._session.read(id), self._max_chars, self._notes(id, asked))
        if pointer is not None:
            return self._read_back(pages, asked, self._values.answer(pages, pointer, offset, limit))
        content = pages.content
        if start_line is None and end_line is None:
            start = offset or 0
            end = start + (self._max_chars if limit is None else limit)
        else:
            start = content.line_start(start_line or 1)
            end = content.chars if end_line is None else content.line_start(end_line + 1)
        if start >= content.chars > 0:
            lines = content.lines
            raise ConfigError(
                f"past the end: the item has {content.chars} characters (0-{content.chars - 1}) "
                f"and {lines} line{'s' * (lines != 1)}"
            )
        # The next call asks for no more than this one.
        is_short = limit is not None and limit < self._max_chars - FRAME_CHARS
        more = f"offset={end}, limit={limit}" if is_short else ""
        if end_line is not None:
            first = end_line + 1
            more = f'part="{first}-{first + end_line - (start_line or 1)}"'
        return self._read_back(pages, asked, pages.text(start, end, more=more))

    def _notes(self, ref: str, asked: tuple[Any, ...]) -> tuple[str, ...]:
        """Return the lines about the source of a record, and whether the same was asked before."""
        known = self.sources.freshness(ref, self._session.find(ref).tool_name)
        told = self._shown.get((ref,)) is not None
        line = known and source_line(known, ref, has_diff=self._has_diff, is_first=not told)
        repeated = REPEATED if self._shown.get(asked) is not None else None
        return tuple(note for note in (line, repeated) if note)

    def _read_back(self, pages: Pages, asked: tuple[Any, ...], answer: str) -> str:
        """Return an answer with content of a record, after notifying the observer."""
        record, notes = pages.record, pages.notes
        self._note_shown(asked, [record.ref])
        answer = with_notes(answer, [*notes, REDACTED] if record.is_redacted else notes)
        return self._observer.read_back(record.ref, answer)

    def _note_shown(self, asked: tuple[Any, ...], refs: Iterable[str]) -> None:
        for key in (asked, *((ref,) for ref in refs)):
            self._shown.put(key, ())

    @observed("context_tail")
    def tail(self, id: str, *, lines: int = 20) -> str:  # noqa: A002 # the name that the model uses
        """Return the last `lines` lines of a record, cut at the start if too long.

        Raises the errors of `read`; `ConfigError` if `lines` is less than one.
        """
        check_count("lines", lines)
        return self._last_lines(id, lines)

    def _last_lines(self, id: str, lines: int) -> str:  # noqa: A002 # as in `tail`
        asked = ("tail", id, lines)
        pages = Pages(self._session.read(id), self._max_chars, self._notes(id, asked))
        start = pages.content.line_start(max(1, pages.content.lines - lines + 1))
        return self._read_back(pages, asked, pages.text(start, pages.content.chars, is_tail=True))

    @observed("context_grep")
    def grep(
        self,
        pattern: str | None = None,
        id: str | None = None,  # noqa: A002 # the name that the model uses
        *,
        mode: PatternMode | Literal["search", "titles"] = "literal",
        ignore_case: bool = False,
        context_lines: int = 0,
        max_matches: int = 20,
        cursor: str | None = None,
    ) -> str:
        """Return the matches of a pattern in one record, or in all records, those with most matches first.

        Each match has its line number, from 1, its character offset, from 0, and its line, or a window of a
        long line. Of several records each has a line with its title and the number of its matches.

        Mode "search" returns passages that have some of the words, ranked by BM25, each with the call that
        reads from there. Mode "titles" lists the records whose title has all the words.

        Args:
            pattern: a text, an RE2 expression, or words that a line has, in any order; matches do not cross
                lines. None lists all records.
            id: the ref; None searches every record.
            mode: "literal", "regex", "words", "search" or "titles".
            ignore_case: whether to ignore case.
            context_lines: lines before and after each match, at most 20.
            max_matches: the most matches, at most 100.
            cursor: the cursor of the previous answer.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: a record is damaged.
            ConfigError: a pattern that RE2 rejects, an invalid cursor, or too small a count.
        """
        check_count("context_lines", context_lines, least=0)
        check_count("max_matches", max_matches)
        asked = ("grep", id, pattern, mode, ignore_case, context_lines, max_matches, cursor)
        check_choice("mode", mode, (*get_args(PatternMode), "search", "titles"))
        if mode == "titles" or pattern is None:
            check_alone("titles, or without a pattern", id=id)
            return self._listing.page(
                item_type=None, tool=None, query=pattern, limit=_LIST_LIMIT, cursor=cursor
            )
        if mode == "search" and cursor:
            raise ConfigError('mode "search" has no cursor; omit it')
        if mode == "search":
            return self._search(pattern, id, max_matches, asked)
        start = parse_cursor(cursor)
        compiled = compile_pattern(pattern, mode, ignore_case=ignore_case)
        infos = self._searched(id)
        notes = () if id is None else self._notes(id, asked)
        ranked = Ranking(tuple(info.ref for info in infos), {})
        if len(infos) > 1:
            key = pattern, mode, ignore_case
            known = self._rankings.get(key) if cursor else None
            ranked = known or ranking(self._session.read, compiled, ranked.refs)
            self._rankings.put(key, ranked)
        grep = Grep(
            self._session.read,
            compiled,
            context_lines=min(context_lines, 20),
            max_matches=min(max_matches, 100),
            room=self._max_chars - FRAME_CHARS - sum(len(note) + 1 for note in notes),
            headings=partial(heading, ranked.hits) if len(infos) > 1 else None,
            hint=hint(pattern, mode),
            notes=dict(ranked.notes),
        )
        answer = grep.run(ranked.refs, start, len(infos))
        for ref, excerpt in grep.excerpts.items():
            self._observer.read_back(ref, excerpt)
        self._note_shown(asked, grep.excerpts)
        return with_notes(answer, [*notes, *grep.notes])

    def _searched(self, ref: str | None) -> Sequence[RecordInfo]:
        """Return the record of a search, or all but the answers, which repeat others."""
        if ref is not None:
            return [self._session.find(ref)]
        return [info for info in self._session.catalog.recent() if not info.is_answer]

    @cached
    def index(self) -> SessionIndex:
        """The index of the session's texts, for a search."""
        with NO_FORK:
            from offload.reading.search.index import SessionIndex  # noqa: PLC0415 # SQLite, which few calls need

        return SessionIndex(self._session)

    def _search(self, words: str, ref: str | None, limit: int, asked: tuple[Any, ...]) -> str:
        """Return the answer with the passages that fit, and what was not searched."""
        refs = None if ref is None else [self._session.find(ref).ref]
        found = self.index.search(words, limit=limit, refs=refs)
        self._note_shown(asked, {passage.ref for passage in found.passages})
        return passages(found, self._max_chars, self._observer.read_back)

    @observed("context_diff")
    def diff(self, old: str, new: str, *, start_row: int = 1) -> str:
        """Return the lines in which two records differ, as a unified diff with three lines of context.

        Args:
            old: the ref of the older record.
            new: the ref of the newer one.
            start_row: first row of the diff, from 1.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: a record is damaged.
            ConfigError: the same ref twice, records that are too large or too different, or too large a row.
        """
        check_count("start_row", start_row)
        if old == new:
            raise ConfigError(f"old and new are the same item, {old[:40]!r}")
        older, newer = self._session.read(old), self._session.read(new)
        answer = self._diffs.page(older, newer, start_row)
        self._observer.read_back(old, "")
        self._observer.read_back(new, answer)
        return with_notes(answer, [REDACTED]) if older.is_redacted or newer.is_redacted else answer

    @observed("context_query")
    def query(
        self,
        id: str | Sequence[str] | None = None,  # noqa: A002 # the name that the model uses
        sql: str = "",
        *,
        ids: Sequence[str] | None = None,
    ) -> str:
        """Return the rows of one SELECT over records, as SQLite reads it.

        A record is the table `lines(n, text)` and, if its text is one, the table `t`: JSON, JSON lines, CSV,
        tables of commands, grep output, logs. Several records are `t1`, `lines1`, `t2` and so on. A column
        has numbers only if that changes no value; nested values are JSON text. The first query of a record
        loads it; later ones of this process reuse it.

        Args:
            id: the ref, or several: a list, or a text with commas.
            sql: one SELECT.
            ids: several refs, instead of `id`.

        Raises:
            NotFoundError: no such record in this session.
            CorruptError: a record is damaged.
            ConfigError: a wrong statement, with its fix; more than 2 seconds, or too much memory.
        """
        given: tuple[object, ...] = (id, ids)
        if not all(isinstance(each, Sequence | None) for each in given):
            raise ConfigError("id must be an id, and ids a list of them")
        refs = [each.strip() for each in id.split(",")] if isinstance(id, str) else [*(id or ids or ())]
        if not refs or (id and ids):
            raise ConfigError("context_query needs id, or several with commas")
        if len(refs) > MAX_IDS or len(sql) > MAX_SQL_CHARS:
            raise ConfigError(f"at most {MAX_IDS} ids, and {MAX_SQL_CHARS:,} characters of sql")
        records = [self._session.read(ref) for ref in refs]
        asked = ("query", *refs, sql)
        notes = dict.fromkeys(note for ref in refs for note in self._notes(ref, asked))
        if any(record.is_redacted for record in records):
            notes[REDACTED] = None
        answer = self._queries.answer(records, sql, sum(len(note) + 1 for note in notes))
        for record in records:
            self._observer.read_back(record.ref, answer)
        self._note_shown(asked, refs)
        return with_notes(answer, notes)

"""The pages of a store, its sessions and its records, and the forms that change them.

The forms pin and delete. All are sent by POST.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from offload.codec import StoredRecord
from offload.errors import (
    CollisionError,
    ConfigError,
    CorruptError,
    InvalidKeyError,
    NotFoundError,
    StoreError,
)
from offload.index import SessionObjects, Tombstone, list_session, list_sessions, session_name
from offload.layout import JOURNAL, decode_part, encode_part, is_link, session_part
from offload.policy import Retention
from offload.presets.context_refs._tree import ContextTree
from offload.record import RecordInfo
from offload.registry import folder_of
from offload.retention import collect, delete, pin, read_all_marks, read_marks, unpin
from offload.retention._marks import Marks
from offload.session import SessionReader, check_known, find_titles, is_ref, with_titles
from offload.store import OffloadStore, StoredObject, path_of
from offload.titles import words_of_query
from offload.tokens import estimate_tokens
from offload.tools._query import MAX_SQL_CHARS, Queries
from offload.tools.search import Mode, compile_pattern
from offload.web._account import Account, Accounts
from offload.web._color import colored, language_of
from offload.web._contents import find as find_matches
from offload.web._contents import kind_of_content, outline
from offload.web._conversation import conversation
from offload.web._paging import list_page, number_in, page_at, text_page
from offload.web._plot import bars, plot
from offload.web._render import render
from offload.web._titles import Titles, entries_of
from offload.web._versions import changes
from offload.wrappers import ReadOnlyStore

Values = dict[str, Any]

# Each holds the catalog of its session.
_OPEN_SESSIONS = 16
_CHECK_SECONDS = 10.0
_MAX_FORM_BYTES = 4096
_SHOWN = 100
# For the accounts of sessions on one page that were not read before.
_ACCOUNT_SECONDS = 0.05
_SQL, _SQL_OF_LINES = "SELECT * FROM t LIMIT 50", "SELECT * FROM lines LIMIT 50"
_ROWS_CHARS, _CELL_CHARS = 200_000, 500
# A browser must save the bytes as a file and never render them.
_DOWNLOAD = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Type": "application/octet-stream",
}


class Pages:
    """Request handlers for a store; read-only unless visitors may change it.

    Read-only also excludes the snapshots that readers usually store. `form_key` is the secret of every form,
    unknown to other sites.
    """

    def __init__(self, store: OffloadStore, *, allows_changes: bool) -> None:
        # A visit is no use of a context file.
        store = store.without_notes() if isinstance(store, ContextTree) else store
        self.allows_changes = allows_changes
        self.form_key = secrets.token_urlsafe(24)
        self.store = store if allows_changes else ReadOnlyStore(store)
        self._titles = Titles(self.store)
        self._reader = lru_cache(_OPEN_SESSIONS)(self._open)
        self._accounts = Accounts(self._reader)
        # A query's tables are kept by ref, which is valid in one session.
        self._queries = lru_cache(_OPEN_SESSIONS)(lambda _part: Queries(_ROWS_CHARS))

    # The store

    def sessions(self, request: Request) -> Response:
        """Show every session, last used first, and the offloaded tokens over time."""
        marks, talks = read_all_marks(self.store), self._last_entries()
        listed = [
            _summary(self.store, objects, marks.get(objects.part), talks.get(objects.part))
            for objects in _with_talks(list_sessions(self.store), talks)
        ]
        rows = list_page(sorted(listed, key=lambda s: (-s["used"], s["part"])), request.query_params)
        newest = [s["newest"] for s in rows["shown"] if s["newest"] is not None]
        is_titled = False
        with suppress(StoreError):
            newest, is_titled = self._titles.of(newest), True
        return self._render(
            request,
            "sessions.html",
            rows=rows,
            is_titled=is_titled,
            titles={session_part(info.key): info.title for info in newest},
            talks=talks,
            accounts=self._accounts.within(
                {s["part"]: talks[s["part"]].key for s in rows["shown"] if s["part"] in talks},
                _ACCOUNT_SECONDS,
            ),
            live_since=time.time() - Retention().live_for,
            **{name: sum(s[name] for s in listed) for name in ("records", "files", "tokens", "stored_bytes")},
            plot=plot(point for s in listed for point in s["points"]),
        )

    def find(self, request: Request) -> Response:
        """Show the records of all sessions whose title has the words in the query, some at a time."""
        query = request.query_params
        words = words_of_query(query.get("q"))
        found = self._titles.find(words, _SHOWN, query.get("after", "")) if words else None
        more = urlencode({"q": query["q"], "after": found.after}) if found and found.after else None
        return self._render(request, "found.html", q=query.get("q", ""), found=found, more=more)

    def retention(self, request: Request) -> Response:
        """Show what gc would delete under the limits in the query, without deleting it."""
        query = {name: request.query_params.get(name, "").strip() for name in Retention.model_fields}
        values: Values = {"query": query, "shown": _SHOWN, "fault": None, "groups": None}
        # A number without a unit is not a time.
        rules = {
            name: int(text) if text.isdecimal() and name not in ("grace", "live_for") else text
            for name, text in query.items()
            if text
        }
        try:
            report = collect(self.store, Retention.model_validate(rules), dry_run=True)
        except ConfigError as error:
            return self._render(request, "retention.html", 400, **values | {"fault": str(error)})
        groups = [group for group in report.groups() if group[-1]]
        return self._render(request, "retention.html", **values | {"groups": groups})

    # A session

    def session(self, request: Request) -> Response:
        """Show the records of a session, newest first, by the kind, the tool and the words in the query."""
        part = request.path_params["part"]
        reader = self._reader(part)
        infos, deleted = reader.catalog.recent(), self._tombstones(part)
        talk = self._last_entries(part).get(part)
        if not infos and not deleted and talk is None:
            raise NotFoundError(f"session {reader.name!r} has no records in {self.store.url}")
        query = {name: request.query_params.get(name, "") for name in ("kind", "tool", "q")}
        account = None if talk is None else self._accounts.of(part, talk.key)
        rows = self._found_rows(reader, request) if query["q"].strip() else _rows(infos, request)
        is_titled = False
        with suppress(StoreError):
            rows["shown"], is_titled = with_titles(reader, rows["shown"]), True
        return self._render(
            request,
            "session.html",
            rows=rows,
            is_titled=is_titled,
            query=query,
            terms=urlencode({name: text for name, text in query.items() if text}),
            newest=_newest_versions(reader.catalog.completed(infos)),
            files={i.ref: file for i in rows["shown"] if (file := _file_of(self.store, i.key))},
            file_count=_file_count(self.store, infos),
            kinds=Counter(i.item_type for i in infos),
            tools=Counter(i.tool_name for i in infos if i.tool_name),
            records=len(infos),
            deleted=len(deleted),
            tokens=sum(i.tokens for i in infos),
            stored_bytes=sum(i.stored_bytes for i in infos),
            marks=read_marks(self.store, part),
            has_conversation=talk is not None,
            account=account,
            bars=bars((i.tool_name or "", i.tokens, _read_tokens(account, i.ref)) for i in infos),
            is_link=is_link,
        )

    def _found_rows(self, reader: SessionReader, request: Request) -> Values:
        """Return the records with the words in their titles: some, and the ref to continue behind."""
        query = request.query_params
        kind, tool, after = (query.get(name) or None for name in ("kind", "tool", "after"))
        words = words_of_query(query["q"])
        found = find_titles(reader, words, item_type=kind, tool=tool, limit=_SHOWN, after=after)
        return {"shown": list(found.infos), "number": 1, "last": 1, "after": found.last}

    def deleted(self, request: Request) -> Response:
        """Show the deleted records of a session, when and why each was deleted."""
        rows = list_page(self._tombstones(request.path_params["part"]), request.query_params)
        return self._render(request, "deleted.html", rows=rows)

    def conversation(self, request: Request) -> Response:
        """Show the conversation of an agent as the model saw it, or why it cannot be shown."""
        part = request.path_params["part"]
        reader, values = self._reader(part), Values(fault=None)
        try:
            values |= conversation(reader, part, request.query_params)
        except (CollisionError, ConfigError, CorruptError) as error:
            values["fault"] = str(error)
        return self._render(request, "conversation.html", **values)

    def check(self, request: Request) -> Response:
        """Read every record and show damaged ones; a large session takes several requests."""
        reader = self._reader(request.path_params["part"])
        reader.catalog.load()
        after = request.query_params.get("after", "")
        remaining = [info for info in reader.catalog.objects() if info.key > after]
        deadline = time.monotonic() + _CHECK_SECONDS
        checked = [reader.check(i) for i in takewhile(lambda _: time.monotonic() < deadline, remaining)]
        return self._render(
            request,
            "check.html",
            damaged=[damage for damage in checked if damage is not None],
            checked=len(checked),
            remaining=len(remaining) - len(checked),
            last_key=remaining[len(checked) - 1].key if checked else "",
        )

    # A record

    def content(self, request: Request) -> Response:
        """Show a page of the text, or redirect to the page with the line in the query."""
        query = request.query_params
        if "line" in query:
            return self._to_line(request, number_in(query, "line", 1))
        number = number_in(query, "page", 1)
        return self._show(request, "content", lambda record: {"page": _colored_page(record, number)})

    def model(self, request: Request) -> Response:
        """Show the placeholder next to the beginning of the text."""
        return self._show(
            request,
            "model",
            lambda record: {
                "tokens": estimate_tokens(record.header.placeholder),
                "page": _colored_page(record, 1),
            },
        )

    def outline(self, request: Request) -> Response:
        """Show the members of a JSON value, or the structural lines of a text."""
        pointer, line = request.query_params.get("pointer", ""), number_in(request.query_params, "line", 1)
        return self._show(
            request, "outline", lambda record: {"outline": outline(record.content, pointer, line)}
        )

    def search(self, request: Request) -> Response:
        """Show the matches of the pattern in the query."""
        query = request.query_params
        pattern, start = query.get("q", ""), number_in(query, "from", 0)
        mode: Mode = "regex" if query.get("mode") == "regex" else "literal"
        ignore_case = "ignore_case" in query
        terms = {"q": pattern, "mode": mode} | ({"ignore_case": "on"} if ignore_case else {})

        def matches(record: StoredRecord) -> Values:
            if not pattern:
                return {}
            result = find_matches(
                record.content, compile_pattern(pattern, mode, ignore_case=ignore_case), start
            )
            return {"result": result, "more": urlencode(terms | {"from": result["next_byte"]})}

        return self._show(request, "search", matches, query=terms, start=start, result=None)

    def query(self, request: Request) -> Response:
        """Show the rows of the SELECT in the query, by default the first ones of the table or the lines."""
        part, asked = request.path_params["part"], request.query_params.get("sql", "").strip()

        def result(record: StoredRecord, sql: str) -> Values:
            return {"sql": sql, "result": self._queries(part).result([record], sql)}

        def rows(record: StoredRecord) -> Values:
            if len(asked) > MAX_SQL_CHARS:
                raise ConfigError(f"a query may have {MAX_SQL_CHARS:,} characters, got {len(asked):,}")
            if asked:
                return result(record, asked)
            with suppress(ConfigError):
                return result(record, _SQL)
            return result(record, _SQL_OF_LINES)

        return self._show(
            request, "query", rows, sql=asked or _SQL, result=None, shown=_SHOWN, most=_CELL_CHARS
        )

    def changes(self, request: Request) -> Response:
        """Show the difference from an older version of the same source."""
        query = request.query_params
        reader, info = self._record(request)
        old, start = query.get("old", ""), number_in(query, "from", 0)
        return self._show(request, "changes", lambda _: {"diff": changes(reader, info, old, start)})

    def download(self, request: Request) -> Response:
        """Send the content as a file, in constant memory.

        The response has no length: if the record is damaged it is aborted, and the browser reports that.
        """
        reader, info = self._record(request)
        disposition = {"Content-Disposition": f'attachment; filename="{info.ref}.txt"'}
        return StreamingResponse(reader.read(info.ref).stream(), headers=_DOWNLOAD | disposition)

    def _to_line(self, request: Request, line: int) -> Response:
        reader, info = self._record(request)
        record = reader.read(info.ref)
        line = max(1, min(line, record.counts.lines))
        page = page_at(record.content, record.content.line_start(line))
        return RedirectResponse(f"{request.url.path}?page={page}#L{line}", 303)

    def _show(
        self, request: Request, tab: str, show: Callable[[StoredRecord], Values], **values: Any
    ) -> Response:
        """Return a record's page with the values of `show`, or with the damage or the fault that it found."""
        reader, info = self._record(request)
        values |= {
            "info": info,
            "tab": tab,
            "marks": read_marks(self.store, request.path_params["part"]),
            "is_shared": is_link(info.key),
            "file": _file_of(self.store, info.key),
            "header": None,
            "counts": None,
            "fault": None,
        }
        try:
            record = reader.read(info.ref)
            values |= {"header": record.header, "counts": record.counts}
            try:
                values |= show(record)
            except ConfigError as error:
                values["fault"] = str(error)
        except CorruptError as error:
            number = number_in(request.query_params, "page", 1)
            return self._render(
                request, "damaged.html", 500, **values | {"damage": str(error), "number": number}
            )
        return self._render(request, f"{tab}.html", **values)

    # Changes

    async def change(self, request: Request) -> Response:
        """Apply a form and redirect to a page that confirms it."""
        await self._check_form(request)
        return await run_in_threadpool(self._apply, request)

    async def _check_form(self, request: Request) -> None:
        """Raise `HTTPException` unless this site served the form."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                raise HTTPException(413, "The form is too long.")
        [key] = parse_qs(body.decode("ascii", "replace")).get("form_key", [""])[:1]
        if not hmac.compare_digest(key.encode(), self.form_key.encode()):
            raise HTTPException(403, "The form is from another site or an earlier server; reload the page.")

    def _apply(self, request: Request) -> Response:
        act, part, ref = (request.path_params.get(name) for name in ("act", "part", "ref"))
        name, path = self._reader(part).name, f"/s/{part}"
        if ref is not None:
            self._record(request)
        match act:
            case "pin":
                pin(self.store, name, ref)
            case "unpin":
                unpin(self.store, name, ref)
            case "delete" if ref is not None:
                if not delete(self.store, name, [ref]).protected:
                    return RedirectResponse(f"{path}?done=delete", 303)
                act = "protected"
            case _:
                raise HTTPException(404, "Unknown change.")
        return RedirectResponse(f"{path if ref is None else f'{path}/r/{ref}'}?done={act}", 303)

    # Shared by the pages

    def _render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return the page rendered from `template` for the store, or for the session in the request."""
        part, done = request.path_params.get("part"), request.query_params.get("done")
        name = None if part is None else self._reader(part).name
        return render(template, status, site=self, part=part, name=name, done=done, **values)

    def _open(self, part: str) -> SessionReader:
        """Return a reader of the session with this key part. Raises `NotFoundError` if it does not exist."""
        name = ""
        with suppress(InvalidKeyError):
            name = session_name(self.store, part)
        if not name or encode_part(name) != part:
            raise NotFoundError(f"no session has the address {part[:80]!r} in {self.store.url}")
        return SessionReader(self.store, check_known(self.store, name))

    def _record(self, request: Request) -> tuple[SessionReader, RecordInfo]:
        """Return the reader and the current catalog entry of the record in the request.

        Raises `NotFoundError` for an unknown record, `ExpiredError` for a deleted one.
        """
        reader, ref = self._reader(request.path_params["part"]), request.path_params["ref"]
        if is_ref(ref):
            reader.catalog.refresh([ref])
        return reader, reader.find(ref)

    def _last_entries(self, part: str = "") -> dict[str, StoredObject]:
        """Return the last entry of each journal by key part, of one session or of all."""
        entries = (found for found in self.store.keys(JOURNAL.prefix(part)) if JOURNAL.match(found.key))
        return {session_part(found.key): found for found in entries}

    def _tombstones(self, part: str) -> list[Tombstone]:
        deleted = list_session(self.store, part).deleted
        return sorted((record.last_tombstone for record in deleted), key=lambda t: (-t.at, t.key))


def _file_of(store: OffloadStore, key: str) -> str | None:
    """Return the address of the file that agents open, if the store has a layout with such files."""
    path = path_of(store, key)
    return None if path == key or is_link(key) else f"{folder_of(store) or store.url}/{path}"


def _file_count(store: OffloadStore, infos: Iterable[RecordInfo]) -> int:
    """Return the number of context files; all records of a session have one, or none has."""
    keys = [info.key for info in infos if not is_link(info.key)]
    return len(keys) if any(_file_of(store, key) for key in keys[:1]) else 0


def _colored_page(record: StoredRecord, number: int) -> Values:
    """Return a page of a record's text, its lines with syntax colours."""
    page = text_page(record.content, number)
    language = language_of(record.title, kind_of_content(record.content).name)
    lines = [line.removesuffix("\r") for line in page["lines"]]  # the line ends of Windows
    return page | {"lines": colored(lines, language) if lines else []}


def _rows(infos: Sequence[RecordInfo], request: Request) -> Values:
    """Return the page of the records with the kind and the tool in the query, newest first."""
    kind, tool = (request.query_params.get(name, "") for name in ("kind", "tool"))
    matches = [i for i in reversed(infos) if kind in ("", i.item_type) and tool in ("", i.tool_name)]
    return list_page(matches, request.query_params) | {"after": None}


def _newest_versions(infos: Iterable[RecordInfo]) -> dict[tuple[str | None, str], str]:
    """Return the ref of the newest record of each tool and title, of those whose title is known."""
    return {(info.tool_name, info.title): info.ref for info in infos if info.title}


def _with_talks(listed: Iterable[SessionObjects], talks: Iterable[str]) -> Iterator[SessionObjects]:
    """Yield the listed sessions, then those that have only a journal."""
    alone = dict.fromkeys(talks)
    for objects in listed:
        alone.pop(objects.part, None)
        yield objects
    for part in alone:
        with suppress(InvalidKeyError):
            decode_part(part)
            yield SessionObjects(part, [], [], [])


def _read_tokens(account: Account | str | None, ref: str) -> int:
    """Return the tokens of a record that the model read back; 0 if they are not known."""
    return account.tokens.get(ref, 0) if isinstance(account, Account) else 0


def _summary(
    store: OffloadStore, objects: SessionObjects, mark: Marks | None, talk: StoredObject | None
) -> Values:
    """Return one session in numbers; `part` is its key part, `points` are times and tokens of records."""
    infos = entries_of(objects)
    newest = max(infos, key=lambda info: (info.created_at, info.key), default=None)
    ends = [
        newest.created_at if newest else 0.0,
        mark.last_use if mark else 0.0,
        talk.modified if talk else 0.0,
    ]
    return {
        "part": objects.part,
        "name": objects.name,
        "records": len(infos),
        "files": _file_count(store, infos),
        "tokens": sum(info.tokens for info in infos),
        "stored_bytes": sum(info.stored_bytes for info in infos),
        "deleted": len(objects.deleted),
        "newest": newest,
        "used": max(ends),
        "is_pinned": mark is not None and mark.session_pin is not None,
        "points": [(info.created_at, info.tokens) for info in infos],
    }

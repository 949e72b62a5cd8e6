"""The pages of a session: its records, the deleted ones, its conversation, the check for damage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offload.errors import (
    CollisionError,
    ConfigError,
    CorruptError,
    EncryptionError,
    NotFoundError,
    StoreError,
)
from offload.maintenance.retention.marks import read_marks
from offload.records.record import RecordInfo
from offload.records.record.titles import words_of_query
from offload.records.session.reader import SessionReader
from offload.records.session.titles import find_titles, why_untitled, with_titles
from offload.replay import Account
from offload.storage.layout import is_link
from offload.web._account import MANY_ENTRIES
from offload.web._conversation import conversation, evidence
from offload.web._paging import in_order, list_page, order_of
from offload.web._plot import bars
from offload.web._site import AT_SESSION, SHOWN, Site, Values, file_count, file_of

_CHECK_SECONDS = 10.0
_PASSAGES = 20


_ORDERS: dict[str, Callable[[RecordInfo], Any]] = {
    "tool": lambda info: info.tool_name or info.item_type,
    "tokens": lambda info: info.tokens,
    "stored": lambda info: info.stored_bytes,
    "time": lambda info: info.created_at,
}


class SessionPages:
    """Request handlers for a session."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        """Return the address and the handler of each page."""
        return [
            Route(AT_SESSION, self.session),
            Route(f"{AT_SESSION}/deleted", self.deleted),
            Route(f"{AT_SESSION}/conversation", self.conversation),
            Route(f"{AT_SESSION}/timeline", self.timeline),
            Route(f"{AT_SESSION}/evidence", self.evidence),
            Route(f"{AT_SESSION}/check", self.check),
            Route(f"{AT_SESSION}/search", self.search),
        ]

    def session(self, request: Request) -> Response:
        """Show the records of a session, newest first, by the kind, the tool and the words in the query."""
        part, query = request.path_params["part"], request.query_params.get("q", "").strip()
        reader = self._site.reader(part)
        infos, deleted = reader.catalog.recent(), self._site.tombstones(part)
        shown = self._site.overview(part)
        if not infos and not deleted and shown is None:
            raise NotFoundError(f"session {reader.name!r} has no records in {self._site.store.url}")
        account = None
        if shown is not None and (len(shown.keys) <= MANY_ENTRIES or "account" in request.query_params):
            account = self._site.accounts.of(part, shown.keys[-1])
        read, read_tokens = (account.times, account.tokens) if isinstance(account, Account) else ({}, {})
        orders = _ORDERS | {"read": lambda info: read.get(info.ref, 0)}
        order = order_of(request.query_params, orders)
        if query:
            rows = self._found_rows(reader, request)
            rows["shown"] = in_order(rows["shown"], order, orders)
        else:
            listed = in_order(_selected(infos, request), order, orders)
            rows = list_page(listed, request.query_params) | {"after": None}
        try:
            rows["shown"] = with_titles(reader, rows["shown"])
            untitled = why_untitled(reader.unfit, infos if query else rows["shown"])
        except StoreError as error:
            untitled, rows["shown"] = str(error), reader.catalog.completed(rows["shown"])
        return self._site.render(
            request,
            "session.html",
            rows=rows,
            order=order,
            untitled=untitled,
            filters=_filters(infos, request),
            newest={(i.tool_name, i.title): i.ref for i in reader.catalog.completed(infos) if i.title},
            files={i.ref: file for i in rows["shown"] if (file := file_of(self._site.store, i.key))},
            file_count=file_count(self._site.store, infos),
            records=len(infos),
            deleted=len(deleted),
            tokens=sum(i.tokens for i in infos),
            stored_bytes=sum(i.stored_bytes for i in infos),
            marks=read_marks(self._site.store, part),
            has_conversation=account is not None,
            shown=shown,
            account=account,
            bars=bars((i.tool_name or "", i.tokens, read_tokens.get(i.ref, 0)) for i in infos),
            is_link=is_link,
        )

    def _found_rows(self, reader: SessionReader, request: Request) -> Values:
        """Return the records with the words in their titles: some, and the ref to continue after."""
        query = request.query_params
        kind, tool, after = (query.get(name) or None for name in ("kind", "tool", "after"))
        words = words_of_query(query["q"])
        found = find_titles(reader, words, item_type=kind, tool=tool, limit=SHOWN, after=after)
        return {"shown": list(found.infos), "number": 1, "last": 1, "after": found.last}

    def search(self, request: Request) -> Response:
        """Show the passages of the session's texts that fit the words in the query best."""
        part, query = request.path_params["part"], request.query_params.get("q", "")
        infos = self._site.reader(part).catalog.recent()
        filters = _filters(infos, request)
        values: Values = {"q": query, "filters": filters, "found": None, "fault": None}
        if query.strip():
            some = filters["query"]["kind"] or filters["query"]["tool"]
            refs = [info.ref for info in _selected(infos, request)] if some else None
            try:
                found = self._site.index(part).search(query, limit=_PASSAGES, refs=refs)
            except ConfigError as error:
                return self._site.render(request, "passages.html", 400, **values | {"fault": str(error)})
            values |= {"found": found}
        return self._site.render(request, "passages.html", **values)

    def deleted(self, request: Request) -> Response:
        """Show the deleted records of a session, when and why each was deleted."""
        rows = list_page(self._site.tombstones(request.path_params["part"]), request.query_params)
        return self._site.render(request, "deleted.html", rows=rows)

    def conversation(self, request: Request) -> Response:
        """Show the conversation of an agent as the model saw it, or why it cannot be shown."""
        return self._of_journal(request, conversation, "conversation of an agent")

    def timeline(self, request: Request) -> Response:
        """Show the requests of a session and the tokens of each."""
        shown = self._site.overview(request.path_params["part"])
        rows = list_page([], {}) if shown is None else shown.page(request.query_params)
        return self._site.render(request, "timeline.html", rows=rows, shown=shown)

    def evidence(self, request: Request) -> Response:
        """Show where the session has the exact values of the reply to a request, or why that is not known."""
        return self._of_journal(request, evidence, "requests in a journal")

    def _of_journal(self, request: Request, show: Callable[..., Values], what: str) -> Response:
        """Return the page of a function, by its name, with its values, or with the fault that it found."""
        part = request.path_params["part"]
        reader, shown = self._site.reader(part), self._site.overview(part)
        values: Values = {"fault": None, "at": None}
        if shown is None:
            raise NotFoundError(f"session {reader.name!r} has no {what}")
        try:
            values |= show(reader, shown.timeline, request.query_params)
        except (CollisionError, ConfigError, CorruptError) as error:
            values["fault"] = str(error)
        return self._site.render(request, f"{show.__name__}.html", **values)

    def check(self, request: Request) -> Response:
        """Read every record and show damaged ones; a large session takes several requests.

        Those that do not fit the key of the store are shown apart: they are not known to be damaged.
        """
        reader = self._site.reader(request.path_params["part"])
        reader.catalog.load()
        after = request.query_params.get("after", "")
        remaining = [info for info in reader.catalog.objects() if info.key > after]
        deadline = time.monotonic() + _CHECK_SECONDS
        checked = [reader.check(i) for i in takewhile(lambda _: time.monotonic() < deadline, remaining)]
        faults = [damage for damage in checked if damage is not None]
        return self._site.render(
            request,
            "check.html",
            faults=faults,
            unfit=sum(isinstance(damage.error, EncryptionError) for damage in faults),
            checked=len(checked),
            remaining=len(remaining) - len(checked),
            last_key=remaining[len(checked) - 1].key if checked else "",
        )


def _filters(infos: Sequence[RecordInfo], request: Request) -> Values:
    """Return for a template what the query asks for, and the kinds and tools to choose from."""
    query = {name: request.query_params.get(name, "") for name in ("kind", "tool", "q")}
    return {
        "query": query,
        "terms": urlencode({name: text for name, text in query.items() if text}),
        "kinds": Counter(info.item_type for info in infos),
        "tools": Counter(info.tool_name for info in infos if info.tool_name),
    }


def _selected(infos: Sequence[RecordInfo], request: Request) -> list[RecordInfo]:
    """Return the records with the kind and the tool in the query, newest first."""
    kind, tool = (request.query_params.get(name, "") for name in ("kind", "tool"))
    return [i for i in reversed(infos) if kind in ("", i.item_type) and tool in ("", i.tool_name)]

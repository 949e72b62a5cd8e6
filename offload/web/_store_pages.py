"""The pages of a whole store: its sessions, the search of all titles, and the preview of gc."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offload.errors import ConfigError, InvalidKeyError, StoreError
from offload.maintenance.retention import collect
from offload.maintenance.retention.limits import limits, retention_of
from offload.maintenance.retention.marks import Marks, read_all_marks
from offload.reading.timeline.forks import forks_of
from offload.reading.timeline.titles import JournalSummary, list_journals, task_titles
from offload.records.index.objects import SessionObjects, list_sessions, session_name
from offload.records.record.titles import words_of_query
from offload.records.session.titles import why_untitled
from offload.replay import ShadowReport, pairs_in
from offload.storage.layout import decode_part, is_link, session_part
from offload.storage.store import OffloadStore
from offload.web._paging import in_order, list_page, order_of
from offload.web._plot import plot
from offload.web._site import SHOWN, Site, Values, file_count
from offload.web._texts import find_in_texts

# For the accounts of sessions on one page that were not read before.
_ACCOUNT_SECONDS = 0.25


_ORDERS: dict[str, Callable[[Values], Any]] = {
    "name": lambda row: row["name"],
    "records": lambda row: row["records"],
    "tokens": lambda row: row["tokens"],
    "stored": lambda row: row["stored_bytes"],
    "deleted": lambda row: row["deleted"],
    "used": lambda row: row["used"],
}


class StorePages:
    """Request handlers for a store."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        """Return the address and the handler of each page."""
        return [
            Route("/", self.sessions),
            Route("/find", self.find),
            Route("/search", self.search),
            Route("/retention", self.retention),
            Route("/shadow", self.shadow),
        ]

    def sessions(self, request: Request) -> Response:
        """Show every session, last used first, and the offloaded tokens over time."""
        marks, talks = read_all_marks(self._site.store), list_journals(self._site.store)
        listed = [
            _summary(self._site.store, objects, marks.get(objects.part), talks.get(objects.part))
            for objects in _with_talks(list_sessions(self._site.store), talks)
        ]
        listed.sort(key=lambda s: (-s["used"], s["part"]))
        order = order_of(request.query_params, _ORDERS)
        rows = list_page(in_order(listed, order, _ORDERS), request.query_params)
        for row in rows["shown"]:
            row["name"] = session_name(self._site.store, row["part"])
        newest = [s["newest"] for s in rows["shown"] if s["newest"] is not None]
        untitled = ""
        tasks: dict[str, str] = {}
        try:
            newest = self._site.titles.of(newest)
            tasks, _ = task_titles(self._site.store, talks, [s["part"] for s in rows["shown"]])
            untitled = why_untitled(self._site.titles.unfit, newest)
        except StoreError as error:
            untitled = str(error)
        return self._site.render(
            request,
            "sessions.html",
            rows=rows,
            order=order,
            untitled=untitled,
            titles={session_part(info.key): info.title for info in newest} | tasks,
            talks=talks,
            forks=forks_of(talks, [s["part"] for s in rows["shown"]]),
            accounts=self._site.accounts.within(
                {s["part"]: talks[s["part"]].last.key for s in rows["shown"] if s["part"] in talks},
                _ACCOUNT_SECONDS,
            ),
            **{name: sum(s["sums"][name] for s in listed) for name in ("records", "tokens")},
            **{name: sum(s[name] for s in listed) for name in ("files", "stored_bytes")},
            plot=plot(point for s in listed for point in s["points"]),
        )

    def find(self, request: Request) -> Response:
        """Show the records of all sessions whose title has the words in the query, some at a time."""
        query = request.query_params
        words = words_of_query(query.get("q"))
        found = self._site.titles.find(words, SHOWN, query.get("after", "")) if words else None
        more = urlencode({"q": query["q"], "after": found.after}) if found and found.after else None
        untitled = next(map(str, self._site.titles.unfit.values()), "")
        return self._site.render(
            request, "found.html", q=query.get("q", ""), found=found, more=more, untitled=untitled
        )

    def search(self, request: Request) -> Response:
        """Show the passages of all sessions that fit the words of the query, some sessions at a time."""
        text = request.query_params.get("q", "")
        values: Values = {"q": text, "found": None, "more": None, "fault": None}
        if not text.strip():
            return self._site.render(request, "texts.html", **values)
        try:
            after = request.query_params.get("after", "")
            found = find_in_texts(self._site.store, self._site.index, text, after)
        except ConfigError as error:
            return self._site.render(request, "texts.html", 400, **values | {"fault": str(error)})
        more = urlencode({"q": text, "after": found.after}) if found.after else None
        return self._site.render(request, "texts.html", **values | {"found": found, "more": more})

    def retention(self, request: Request) -> Response:
        """Show what gc would delete under the limits in the query, without deleting it."""
        query = {limit.name: request.query_params.get(limit.name, "").strip() for limit in limits()}
        values: Values = {"query": query, "limits": limits(), "shown": SHOWN, "fault": None, "groups": None}
        try:
            report = collect(self._site.store, retention_of(query), dry_run=True)
        except ConfigError as error:
            return self._site.render(request, "retention.html", 400, **values | {"fault": str(error)})
        groups = [group for group in report.groups() if group[-1]]
        return self._site.render(request, "retention.html", **values | {"groups": groups})

    def shadow(self, request: Request) -> Response:
        """Show whether offloading changed next actions, and the disagreements, the latest first."""
        report = ShadowReport([*pairs_in(self._site.store)])
        found = sorted(report.disagreements, key=lambda pair: -pair.time)
        rows = list_page(found, request.query_params)
        return self._site.render(request, "shadow.html", report=report, rows=rows)


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


def _summary(
    store: OffloadStore, objects: SessionObjects, mark: Marks | None, talk: JournalSummary | None
) -> Values:
    """Return one session in numbers; `part` is its key part, `points` are times and tokens of records."""
    infos = objects.entries()
    # A record that another session shares counts there.
    own = [info for info in infos if not is_link(info.key)]
    newest = max(infos, key=lambda info: (info.created_at, info.key), default=None)
    ends = [
        newest.created_at if newest else 0.0,
        mark.last_use if mark else 0.0,
        talk.last.modified if talk else 0.0,
    ]
    return {
        "part": objects.part,
        "name": objects.name,
        "records": len(infos),
        "files": file_count(store, infos),
        "tokens": sum(info.tokens for info in infos),
        "sums": {"records": len(own), "tokens": sum(info.tokens for info in own)},
        "stored_bytes": sum(info.stored_bytes for info in infos),
        "deleted": len(objects.deleted),
        "newest": newest,
        "used": max(ends),
        "is_pinned": mark is not None and mark.session_pin is not None,
        "points": [(info.created_at, info.tokens) for info in own],
    }

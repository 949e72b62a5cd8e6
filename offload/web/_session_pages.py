"""The pages of one session: records, deleted records, a check for damage."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from offload.errors import NotFoundError
from offload.layout import is_link
from offload.record import RecordInfo
from offload.retention import read_marks
from offload.session import Damage, SessionReader
from offload.web._paging import list_page
from offload.web._plot import plot
from offload.web._render import render
from offload.web._site import Site

_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SessionPages:
    """Request handlers for the pages of a session."""

    site: Site

    def records(self, request: Request) -> Response:
        """Show the records of a session, newest first, filtered by the kind and tool in the query."""
        part = request.path_params["part"]
        reader = self.site.reader(part)
        infos = reader.catalog.recent()
        if not infos and not self.site.tombstones(part):
            raise NotFoundError(f"session {reader.name!r} has no records in {self.site.store.url}")
        kind, tool = request.query_params.get("kind", ""), request.query_params.get("tool", "")
        matches = [i for i in reversed(infos) if kind in ("", i.item_type) and tool in ("", i.tool_name)]
        return render(
            "session.html",
            site=self.site,
            part=part,
            name=reader.name,
            rows=list_page(matches, request.query_params),
            kind=kind,
            tool=tool,
            kinds=Counter(i.item_type for i in infos),
            tools=Counter(i.tool_name for i in infos if i.tool_name),
            tokens=sum(i.tokens for i in matches),
            stored_bytes=sum(i.stored_bytes for i in matches),
            marks=read_marks(self.site.store, part),
            plot=plot((i.created_at, i.tokens) for i in infos),
            is_link=is_link,
            done=request.query_params.get("done"),
        )

    def deleted(self, request: Request) -> Response:
        """Show the deleted records of a session, when and why each was deleted."""
        part = request.path_params["part"]
        rows = list_page(self.site.tombstones(part), request.query_params)
        name = self.site.reader(part).name
        return render("deleted.html", site=self.site, part=part, name=name, rows=rows)

    def check(self, request: Request) -> Response:
        """Read every record and show damaged ones; a large session takes several requests."""
        part = request.path_params["part"]
        reader = self.site.reader(part)
        reader.catalog.load()
        after = request.query_params.get("after", "")
        remaining = [info for info in reader.catalog.objects() if info.key > after]
        damaged, checked = _checked(reader, remaining)
        return render(
            "check.html",
            site=self.site,
            part=part,
            name=reader.name,
            damaged=damaged,
            checked=checked,
            remaining=len(remaining) - checked,
            last_key=remaining[checked - 1].key if checked else "",
        )


def _checked(reader: SessionReader, infos: list[RecordInfo]) -> tuple[list[Damage], int]:
    """Check records until a request's time is up; return damaged ones and the number checked."""
    deadline = time.monotonic() + _CHECK_SECONDS
    damaged: list[Damage] = []
    for checked, info in enumerate(infos, 1):
        damage = reader.check(info)
        if damage is not None:
            damaged.append(damage)
        if time.monotonic() > deadline:
            return damaged, checked
    return damaged, len(infos)

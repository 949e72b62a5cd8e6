"""The pages of one session: its records, what was collected of it, what of it is damaged."""

from __future__ import annotations

import time
from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from offload.errors import NotFoundError
from offload.layout import is_link
from offload.record import RecordInfo
from offload.retention import read_marks
from offload.session import Damage, SessionReader
from offload.web._paging import sliced
from offload.web._plot import plot
from offload.web._render import render
from offload.web._site import Site

_CHECK_SECONDS = 10.0


class SessionPages:
    """Answers requests for the pages of a session.

    Args:
        site: what is shown.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def records(self, request: Request) -> Response:
        """Show the records of a session, newest first, those of one kind or tool if the query says so."""
        part = request.path_params["part"]
        reader = self._site.reader(part)
        infos = reader.catalog.recent()
        if not infos and not self._site.tombstones(part):
            raise NotFoundError(f"no record is left of session {reader.name!r} in {self._site.store.url}")
        kind, tool = request.query_params.get("kind", ""), request.query_params.get("tool", "")
        found = [i for i in reversed(infos) if kind in ("", i.item_type) and tool in ("", i.tool_name)]
        return render(
            "session.html",
            site=self._site,
            part=part,
            name=reader.name,
            rows=sliced(found, request.query_params),
            kind=kind,
            tool=tool,
            kinds=Counter(i.item_type for i in infos),
            tools=Counter(i.tool_name for i in infos if i.tool_name),
            tokens=sum(i.tokens for i in found),
            stored_bytes=sum(i.stored_bytes for i in found),
            marks=read_marks(self._site.store, part),
            plot=plot((i.created_at, i.tokens) for i in infos),
            is_link=is_link,
            done=request.query_params.get("done"),
        )

    def collected(self, request: Request) -> Response:
        """Show what was collected of a session, when and why."""
        part = request.path_params["part"]
        rows = sliced(self._site.tombstones(part), request.query_params)
        name = self._site.reader(part).name
        return render("collected.html", site=self._site, part=part, name=name, rows=rows)

    def check(self, request: Request) -> Response:
        """Read records whole and show the damaged ones; a large session takes several requests."""
        part = request.path_params["part"]
        reader = self._site.reader(part)
        reader.catalog.load()
        after = request.query_params.get("after", "")
        left = [info for info in reader.catalog.objects() if info.key > after]
        damaged, checked = _checked(reader, left)
        return render(
            "check.html",
            site=self._site,
            part=part,
            name=reader.name,
            damaged=damaged,
            checked=checked,
            left=len(left) - checked,
            last_key=left[checked - 1].key if checked else "",
        )


def _checked(reader: SessionReader, infos: list[RecordInfo]) -> tuple[list[Damage], int]:
    """Check records until the time of a request is over; return what is damaged and how many were read."""
    deadline = time.monotonic() + _CHECK_SECONDS
    damaged: list[Damage] = []
    for checked, info in enumerate(infos, 1):
        damage = reader.check(info)
        if damage is not None:
            damaged.append(damage)
        if time.monotonic() > deadline:
            return damaged, checked
    return damaged, len(infos)

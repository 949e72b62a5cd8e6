"""The pages of the whole store: its sessions, and a preview of gc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from offload.errors import ConfigError
from offload.index import SessionObjects, list_sessions
from offload.policy import Retention
from offload.record import RecordInfo
from offload.retention import GcReport, collect
from offload.web._paging import list_page
from offload.web._plot import plot
from offload.web._render import render
from offload.web._site import Site

_SHOWN = 100
_LIMITS = {
    "session_records": "Records per session",
    "session_bytes": "Bytes per session",
    "store_records": "Records in the store",
    "store_bytes": "Bytes in the store",
}
_TIMES = {"grace": "Grace period", "live_for": "Exempt sessions used within"}
_GROUPS = {
    "expired": "Would be deleted: expired",
    "quota": "Would be deleted: over a quota",
    "deleted": "Would be deleted: by request",
    "pinned": "Kept: pinned",
    "active": "Kept although over a quota: the session is in use",
    "shared": "Kept although over a quota: shared with another session",
}


@dataclass(frozen=True, slots=True)
class _Summary:
    """One session in numbers; `part` is its key part, `points` are times and tokens of records."""

    part: str
    name: str
    records: int
    tokens: int
    stored_bytes: int
    deleted: int
    newest: float
    points: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class StorePages:
    """Request handlers for the pages of the store."""

    site: Site

    def sessions(self, request: Request) -> Response:
        """Show every session, last used first, and the offloaded tokens over time."""
        rows = sorted(map(_summary, list_sessions(self.site.store)), key=lambda s: (-s.newest, s.part))
        return render(
            "sessions.html",
            site=self.site,
            rows=list_page(rows, request.query_params),
            records=sum(s.records for s in rows),
            tokens=sum(s.tokens for s in rows),
            stored_bytes=sum(s.stored_bytes for s in rows),
            plot=plot(point for s in rows for point in s.points),
        )

    def retention(self, request: Request) -> Response:
        """Show what gc would delete under the limits in the query, without deleting it."""
        query = {name: request.query_params.get(name, "").strip() for name in (*_TIMES, *_LIMITS)}
        fault, groups = None, None
        try:
            groups = _groups(collect(self.site.store, _rules(query), dry_run=True))
        except ConfigError as error:
            fault = str(error)
        return render(
            "retention.html",
            200 if fault is None else 400,
            site=self.site,
            query=query,
            times=_TIMES,
            limits=_LIMITS,
            fault=fault,
            groups=groups,
            shown=_SHOWN,
        )


def _summary(objects: SessionObjects) -> _Summary:
    infos = sorted((*objects.records, *objects.torn), key=lambda info: info.key, reverse=True)
    # Of several records with one ref the first counts.
    first = {info.ref: info for info in infos}
    points = [(info.created_at, info.tokens) for info in first.values()]
    return _Summary(
        part=objects.part,
        name=objects.name,
        records=len(first),
        tokens=sum(info.tokens for info in first.values()),
        stored_bytes=sum(info.stored_bytes for info in first.values()),
        deleted=len(objects.deleted),
        newest=max((at for at, _ in points), default=0.0),
        points=points,
    )


def _rules(query: dict[str, str]) -> Retention:
    fields: dict[str, Any] = {name: value for name, value in query.items() if value}
    for name in _LIMITS.keys() & fields.keys():
        fields[name] = int(fields[name]) if fields[name].isdecimal() else fields[name]
    return Retention.model_validate(fields)


def _groups(report: GcReport) -> list[tuple[str, list[RecordInfo]]]:
    """Return the affected records by the effect of gc on them."""
    groups = [
        (_GROUPS[reason], infos) for reason, infos in (*report.marked.items(), *report.protected.items())
    ]
    groups += [
        ("Space would be freed: deleted before, and the grace period has passed", report.deleted),
        ("Would be undeleted: deleted before, and pinned since", report.undeleted),
    ]
    return [(title, infos) for title, infos in groups if infos]

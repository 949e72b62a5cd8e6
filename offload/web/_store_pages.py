"""The pages of the store as a whole: its sessions, and what a collection would take."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from offload.errors import ConfigError
from offload.policy import Retention
from offload.record import RecordInfo
from offload.retention import Collection, collect
from offload.web._overview import summaries
from offload.web._paging import sliced
from offload.web._plot import plot
from offload.web._render import render
from offload.web._site import Site

_SHOWN = 100
_LIMITS = {
    "session_records": "Records of a session",
    "session_bytes": "Bytes of a session",
    "store_records": "Records of the store",
    "store_bytes": "Bytes of the store",
}
_TIMES = {"grace": "Grace", "live_for": "A session is live for"}


class StorePages:
    """Answers requests for the pages of the store.

    Args:
        site: what is shown.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def sessions(self, request: Request) -> Response:
        """Show every session, the one that was used last first, and the tokens taken out over time."""
        found = sorted(summaries(self._site.store), key=lambda s: (-s.newest, s.part))
        return render(
            "sessions.html",
            site=self._site,
            rows=sliced(found, request.query_params),
            records=sum(s.records for s in found),
            tokens=sum(s.tokens for s in found),
            stored_bytes=sum(s.stored_bytes for s in found),
            plot=plot(point for s in found for point in s.points),
        )

    def retention(self, request: Request) -> Response:
        """Show what a collection would do under the limits in the query; it does nothing."""
        asked = {name: request.query_params.get(name, "").strip() for name in (*_TIMES, *_LIMITS)}
        rules, fault = Retention(), None
        try:
            rules = _rules(asked)
        except ConfigError as error:
            fault = str(error)
        found = None if fault else _groups(collect(self._site.store, rules, dry_run=True))
        return render(
            "retention.html",
            200 if fault is None else 400,
            site=self._site,
            asked=asked,
            times=_TIMES,
            limits=_LIMITS,
            defaults=Retention(),
            fault=fault,
            groups=found,
            shown=_SHOWN,
        )


def _rules(asked: dict[str, str]) -> Retention:
    given: dict[str, Any] = {name: value for name, value in asked.items() if value}
    for name in _LIMITS.keys() & given.keys():
        given[name] = int(given[name]) if given[name].isdecimal() else given[name]
    return Retention.model_validate(given)


def _groups(report: Collection) -> list[tuple[str, list[RecordInfo]]]:
    """Return what would become of which records, without what concerns none."""
    why = {
        "expired": "Would go: their time to live is over",
        "quota": "Would go: over a limit",
        "deleted": "Would go: deleted",
        "pinned": "Would go, but are pinned",
        "live": "Over a limit, but their session is live",
        "shared": "Over a limit, but another session reads them",
    }
    groups = [(why[reason], infos) for reason, infos in (*report.marked.items(), *report.spared.items())]
    groups += [
        ("Would be emptied: collected before, and their grace is over", report.emptied),
        ("Would come back: collected, and pinned since", report.revived),
    ]
    return [(title, infos) for title, infos in groups if infos]

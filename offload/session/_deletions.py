"""Deletions by this process, which its open sessions learn of without a request."""

from __future__ import annotations

from collections.abc import Iterable

from offload.layout import session_part
from offload.record import RecordInfo
from offload.store import OffloadStore

_latest: dict[tuple[str, str], object] = {}


def note_deletions(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Note that this process marked records of `store` for deletion."""
    for part in {session_part(info.key) for info in infos}:
        _latest[store.url, part] = object()


def latest_deletion(store: OffloadStore, part: str) -> object:
    """Return an object that changes each time this process marks records of the session."""
    return _latest.get((store.url, part))

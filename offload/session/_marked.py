"""What this process itself has marked: who has such a session open learns of it without asking the store."""

from __future__ import annotations

from collections.abc import Iterable

from offload.layout import session_part
from offload.record import RecordInfo
from offload.store import OffloadStore

_latest: dict[tuple[str, str], object] = {}


def note_marked(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Note that records of `store` were marked here."""
    for part in {session_part(info.key) for info in infos}:
        _latest[store.url, part] = object()


def latest_marks(store: OffloadStore, part: str) -> object:
    """Return what is another object after each time that records of the session were marked here."""
    return _latest.get((store.url, part))

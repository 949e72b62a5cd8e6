"""`offload reindex`: the index of large sessions, made anew from the keys of their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offload.cli.stores import existing, holding, place_of
from offload.cli.terminal import (
    JsonOption,
    SessionOption,
    StoreOption,
    count,
    print_json,
    print_table,
    progress,
    say,
)
from offload.index import reindex as rebuild
from offload.index import sessions
from offload.store import OffloadStore


def reindex(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Drop what is derived of the sessions of a store, or of one, and derive it from the records again.

    Needed only where a listing seems wrong: the index is a cache, and no record is touched.
    """
    held = existing(store)
    names = list(sessions(held)) if session is None else [session]
    rows = list(_rebuilt(held, names))
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table(rows)
    records = sum(row["records"] for row in rows)
    say(f"indexed: {count(records, 'record')} in {count(len(rows), 'session')} of {place_of(held)}")


def _rebuilt(store: OffloadStore, names: list[str]) -> Iterator[dict[str, Any]]:
    for name in progress(names, "sessions"):
        yield {"session": name, "records": rebuild(holding(store, name), name)}

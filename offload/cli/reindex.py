"""`offload reindex`: the index of large sessions, made anew from the keys of their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offload.cli.stores import opened
from offload.cli.terminal import (
    JsonOption,
    SessionOption,
    StoreOption,
    out,
    print_json,
    print_table,
    progress,
)
from offload.index import reindex as rebuild
from offload.index import sessions


def reindex(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Drop what is derived of the sessions of a store, or of one, and derive it from the records again.

    Needed only where a listing seems wrong: the index is a cache, and no record is touched.
    """
    rows = list(_rebuilt(store, session))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows)
    else:
        out.print("nothing is stored here")


def _rebuilt(url: str | None, session: str | None) -> Iterator[dict[str, Any]]:
    store = opened(url)
    names = list(sessions(store)) if session is None else [session]
    for name in progress(names, "sessions"):
        yield {"session": name, "records": rebuild(store, name)}

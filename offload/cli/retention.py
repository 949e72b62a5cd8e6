"""`offload gc`, `du`, `rm`, `pin` and `unpin`: what a store keeps, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offload import ConfigError, NotFoundError, RecordInfo
from offload.cli.stores import opened
from offload.cli.terminal import (
    JsonOption,
    SessionOption,
    StoreOption,
    out,
    print_done,
    print_json,
    print_table,
    working,
)
from offload.policy import Retention
from offload.retention import Collection, Usage, collect, delete, usage
from offload.retention import pin as pin_record
from offload.retention import unpin as unpin_record

_SessionName = Annotated[str, typer.Option("--session", metavar="NAME", show_default=False)]
_OneRef = Annotated[str | None, typer.Argument(metavar="REF", show_default=False)]


def _limit(what: str) -> Any:
    return typer.Option(min=1, metavar="N", help=what, show_default=False)


def _duration(what: str) -> Any:
    return typer.Option(metavar="TIME", help=f'{what}: "90s", "15m", "2h", "7d".')


def gc(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, tell what would go.")] = False,
    grace: Annotated[str, _duration("How long a marked record stays")] = "1h",
    session_bytes: Annotated[int | None, _limit("Stored bytes of a session.")] = None,
    session_records: Annotated[int | None, _limit("Records of a session.")] = None,
    store_bytes: Annotated[int | None, _limit("Stored bytes of the store.")] = None,
    store_records: Annotated[int | None, _limit("Records of the store.")] = None,
    live_for: Annotated[str, _duration("How long after its last use no quota touches a session")] = "1d",
    as_json: JsonOption = False,
) -> None:
    """Collect what is over its time to live or a quota, of one session or of the whole store."""
    retention = Retention.model_validate(
        {
            "grace": grace,
            "live_for": live_for,
            "session_bytes": session_bytes,
            "session_records": session_records,
            "store_bytes": store_bytes,
            "store_records": store_records,
        }
    )
    if session is not None and (store_bytes or store_records):
        raise ConfigError("a quota of the store is kept by collecting all of it: leave off --session")
    with working("collecting"):
        done = collect(opened(store), retention, session=session, dry_run=dry_run)
    _print(done, as_json=as_json)


def du(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Tell what each session takes of a store, and all of them together."""
    rows = [_used(session) for session in usage(opened(store))]
    summed = ("records", "stored_bytes", "marked", "marked_bytes", "pinned")
    total = {name: sum(row[name] for row in rows) for name in summed}
    if as_json:
        print_json({"sessions": rows, "total": total})
    elif rows:
        print_table([*rows, {"session": "(all)", **total, "last_use": None}], whole="session")
    else:
        out.print("nothing is stored here")


def rm(
    refs: Annotated[list[str] | None, typer.Argument(metavar="REF", show_default=False)] = None,
    *,
    session: _SessionName,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete records of a session, all of them if none is named; their bytes go with a later `gc`."""
    done = delete(opened(store), session, refs)
    if not done.marked and not done.spared:
        raise NotFoundError(f"the store holds no records of session {session!r} (offload ls)")
    _print(done, as_json=as_json)


def pin(
    ref: _OneRef = None, *, session: _SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Keep a record, or without REF a whole session, from every collection."""
    pin_record(opened(store), session, ref)
    print_done("pinned", as_json=as_json, session=session, ref=ref)


def unpin(
    ref: _OneRef = None, *, session: _SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Take a pin of a record, or without REF that of the session, back."""
    unpin_record(opened(store), session, ref)
    print_done("no longer pinned", as_json=as_json, session=session, ref=ref)


def _used(used: Usage) -> dict[str, Any]:
    return {
        "session": used.session,
        "records": used.records,
        "stored_bytes": used.stored_bytes,
        "marked": used.marked,
        "marked_bytes": used.marked_bytes,
        "pinned": used.pinned,
        "last_use": datetime.fromtimestamp(used.last_use, UTC) if used.last_use else None,
    }


def _print(done: Collection, *, as_json: bool) -> None:
    rows = list(_rows(done))
    if as_json:
        print_json({"is_dry_run": done.is_dry_run, "bytes_freed": done.bytes_freed, "records": rows})
        return
    if rows:
        print_table(rows, whole="ref")
    would = "would be " if done.is_dry_run else ""
    out.print(f"{would}freed: {done.bytes_freed:,} bytes of {len(done.emptied):,} records")


def _rows(done: Collection) -> Iterator[dict[str, Any]]:
    for reason, infos in done.marked.items():
        yield from _each(infos, "marked", reason)
    yield from _each(done.emptied, "emptied")
    yield from _each(done.revived, "revived")
    yield from _each(done.purged, "purged")
    for why, infos in done.spared.items():
        yield from _each(infos, "spared", why)


def _each(infos: Iterable[RecordInfo], what: str, why: str | None = None) -> Iterator[dict[str, Any]]:
    for info in infos:
        yield {
            "ref": info.ref,
            "session": info.session,
            "what": what,
            "why": why,
            "tool": info.tool_name,
            "stored_bytes": info.stored_bytes,
        }

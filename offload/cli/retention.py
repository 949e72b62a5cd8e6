"""`offload gc`, `du`, `rm`, `pin` and `unpin`: what a store keeps, and for how long."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offload import ConfigError, NotFoundError, Offloader, OffloadStore, RecordInfo
from offload.cli.stores import check_ref, existing, holding, looking_in, place_of
from offload.cli.terminal import (
    JsonOption,
    SessionOption,
    StoreOption,
    count,
    err,
    one_line,
    out,
    print_done,
    print_json,
    print_table,
    say,
    working,
)
from offload.layout import tombstone_key
from offload.policy import Retention
from offload.retention import Collection, Usage, collect, delete, usage
from offload.retention import pin as pin_record
from offload.retention import unpin as unpin_record

_SessionName = Annotated[
    str, typer.Option("--session", metavar="NAME", help="The session.", show_default=False)
]
_OneRef = Annotated[str | None, typer.Argument(metavar="REF", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing, tell what would go.")]
# As many commands as one reads; of more records the rule is told.
_SHOWN = 5


def _limit(what: str) -> Any:
    return typer.Option(min=1, metavar="N", help=what, show_default=False)


def _duration(what: str) -> Any:
    return typer.Option(metavar="TIME", help=f'{what}: "90s", "15m", "2h", "7d".')


def gc(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    dry_run: _DryRun = False,
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
    held = existing(store)
    if session is not None:
        holding(held, session)
    with working("collecting"):
        done = collect(held, retention, session=session, dry_run=dry_run)
    if as_json:
        print_json({"store": held.url, "session": session, **_document(done)})
        return
    _print_rows(done)
    would = "would be " if dry_run else ""
    marked, spared = (sum(map(len, infos)) for infos in (done.marked.values(), done.spared.values()))
    where = place_of(held) if session is None else f"session {session} of {place_of(held)}"
    say(
        f"{would}freed: {done.bytes_freed:,} bytes of {count(len(done.emptied), 'record')}; "
        f"{would}marked: {marked:,}; spared: {spared:,}; in {where}"
    )


def du(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Tell what each session takes of a store, and all of them together."""
    held = existing(store)
    rows = [_used(session) for session in usage(held)]
    summed = ("records", "stored_bytes", "marked", "marked_bytes", "pinned")
    total = {name: sum(row[name] for row in rows) for name in summed}
    if as_json:
        print_json({"store": held.url, "sessions": rows, "total": total})
        return
    if rows:
        print_table([*rows, {"session": "(all)", **total, "last_use": None}])
    say(f"{count(total['records'], 'record')} in {count(len(rows), 'session')} of {place_of(held)}")


def rm(
    refs: Annotated[list[str] | None, typer.Argument(metavar="REF", show_default=False)] = None,
    *,
    session: _SessionName,
    store: StoreOption = None,
    dry_run: _DryRun = False,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Delete without being asked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete records of a session, all of them if none is named; their bytes go with a later `gc`.

    It asks first; without a terminal it needs --yes. Until that `gc` a deletion can be undone; it tells how.
    """
    held = holding(existing(store), session)
    where = f"session {session} of {place_of(held)}"
    with looking_in(Offloader(held, session=session)):
        done = delete(held, session, refs, dry_run=True)
    if not done.marked and not done.spared:
        raise NotFoundError(f"{where} holds no record that is not deleted already")
    if not dry_run:
        _ask(done, where, is_sure=is_sure)
        done = delete(held, session, refs)
    if as_json:
        print_json({"store": held.url, "session": session, **_document(done), "undo": _tombstones(done)})
        return
    _print_rows(done)
    would = "would be " if dry_run else ""
    say(f"{would}deleted: {_told(done)} in {where}")
    if not dry_run and done.marked:
        _print_undo(held, _tombstones(done))


def _ask(planned: Collection, where: str, *, is_sure: bool) -> None:
    """Go on only if the user means it. Raises `ConfigError` where nobody can be asked."""
    what = one_line(f"delete {_told(planned)} in {where}")
    if is_sure or not planned.marked:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was deleted: to {what}, say --yes; --dry-run shows what would go")
    if not typer.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
        err.print("offload: nothing was deleted")
        raise typer.Exit(1)


def _told(done: Collection) -> str:
    """Say how much a deletion takes, and what it leaves."""
    going = done.marked.get("deleted", [])
    kept = sum(map(len, done.spared.values()))
    stored = sum(info.stored_bytes for info in going)
    also = f" ({count(kept, 'pinned record')} left)" if kept else ""
    return f"{count(len(going), 'record')}, {stored:,} bytes{also}"


def _tombstones(done: Collection) -> list[str]:
    """Return the keys of the objects whose removal takes a deletion back."""
    return [tombstone_key(info.key, "deleted") for info in done.marked.get("deleted", ())]


def _print_undo(store: OffloadStore, keys: list[str]) -> None:
    say(
        "The bytes are kept for the grace of gc, 1 hour unless it is given another, and go with the first gc "
        "after it. To undo until then, remove what marks a record as deleted:"
    )
    is_local = store.url.startswith("file:")
    for key in keys[:_SHOWN]:
        at = f"{place_of(store)}/{key}"
        out.print(f"  rm {shlex.quote(at)}" if is_local else f"  {at}", soft_wrap=True)
    if len(keys) > _SHOWN:
        say(f"and {count(len(keys) - _SHOWN, 'object')} more: each key of a record, with .deleted at its end")


def pin(
    ref: _OneRef = None, *, session: _SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Keep a record, or without REF a whole session, from every collection."""
    held = holding(existing(store), session)
    off = Offloader(held, session=session)
    with looking_in(off):
        pin_record(held, session, ref)
    _print_pin("pinned", off, ref, as_json=as_json)


def unpin(
    ref: _OneRef = None, *, session: _SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Take a pin of a record, or without REF that of the session, back."""
    held = holding(existing(store), session)
    was_pinned = _unpinned(held, session, ref)
    done = "no longer pinned" if was_pinned else "was not pinned"
    _print_pin(done, Offloader(held, session=session), ref, as_json=as_json)


def _unpinned(store: OffloadStore, session: str, ref: str | None) -> bool:
    """Unpin, and return whether that changed anything. Raises `NotFoundError` if there is no such record."""
    try:
        was_pinned = unpin_record(store, session, ref)
    except NotFoundError:
        was_pinned = False
    if ref is not None and not was_pinned:
        check_ref(store, session, ref)
    return was_pinned


def _print_pin(what: str, off: Offloader, ref: str | None, *, as_json: bool) -> None:
    records = len(off.records()) if ref is None else 1
    print_done(what, as_json=as_json, session=off.session, ref=ref, records=records, store=off.store.url)


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


def _document(done: Collection) -> dict[str, Any]:
    return {"is_dry_run": done.is_dry_run, "bytes_freed": done.bytes_freed, "records": list(_rows(done))}


def _print_rows(done: Collection) -> None:
    rows = list(_rows(done))
    if rows:
        print_table(rows, whole="ref")


def _rows(done: Collection) -> Iterator[dict[str, Any]]:
    for reason, infos in done.marked.items():
        yield from _each(infos, "marked", reason)
    yield from _each(done.emptied, "emptied")
    yield from _each(done.revived, "revived")
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

"""`offload gc`, `du`, `rm`, `pin` and `unpin`: storage use and the deletion of records."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from offload import ConfigError, NotFoundError, Offloader, OffloadStore, StoreError
from offload.cli.shell import REMOVE, quoted
from offload.cli.stores import existing_store, open_session, place_of, ref_named
from offload.cli.terminal import (
    JsonOption,
    SessionName,
    SessionOption,
    StoreOption,
    count,
    err,
    one_line,
    out,
    print_done,
    print_report,
    say,
    working,
)
from offload.cli.workers import OnOption, WorkersOption, executor_of
from offload.layout import tombstone_key
from offload.policy import Retention
from offload.retention import GcReport, collect, delete, usage
from offload.retention import pin as pin_record
from offload.retention import unpin as unpin_record
from offload.session.reader import SessionReader
from offload.store import path_of

_OptionalId = Annotated[str | None, typer.Argument(metavar="ID", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; change nothing.")]
# The number of undo commands that are printed; for more records the pattern is given.
_SHOWN = 5


def _limit(what: str) -> Any:
    return typer.Option(min=1, metavar="N", help=f"Maximum {what}.", show_default=False)


def _duration(what: str) -> Any:
    return typer.Option(metavar="TIME", help=f'{what}, as "90s", "15m", "2h" or "7d".')


def gc(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    dry_run: _DryRun = False,
    grace: Annotated[str, _duration("Keep a marked record's bytes for this grace period")] = "1h",
    session_bytes: Annotated[int | None, _limit("stored bytes of a session")] = None,
    session_records: Annotated[int | None, _limit("records of a session")] = None,
    store_bytes: Annotated[int | None, _limit("stored bytes of the store")] = None,
    store_records: Annotated[int | None, _limit("records of the store")] = None,
    live_for: Annotated[
        str, _duration("Exempt a session from quotas for this long after its last use")
    ] = "1d",
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete records past their TTL or over a quota, in one session or the whole store.

    Example: offload gc --dry-run --store-bytes 20000000000
    """
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
        raise ConfigError("a store quota applies to all sessions: omit --session")
    if session is not None and (workers or on):
        raise ConfigError("--workers and --on share the sessions of a store among workers: omit --session")
    opened = existing_store(store, session)
    with working("deleting"), executor_of(opened, workers, on) as executor:
        report = collect(opened, retention, session=session, dry_run=dry_run, executor=executor)
    would = "would be " if dry_run else ""
    marked, protected = (sum(map(len, group.values())) for group in (report.marked, report.protected))
    summary = (
        f"{would}freed: {report.bytes_freed:,} bytes of {count(len(report.deleted), 'record')}; "
        f"{would}marked: {marked:,}; protected: {protected:,}; {_entries(report, behind='; ')}"
        f"in {place_of(opened, session)}"
    )
    _print_report(report, summary, as_json=as_json, store=opened.url, session=session)
    if report.failures:
        names = ", ".join(f"{name!r:.80}" for name, _ in report.failures[:_SHOWN])
        more = f" and {len(report.failures) - _SHOWN:,} more" if len(report.failures) > _SHOWN else ""
        raise StoreError(f"gc of {names}{more} failed, so run it again: {report.failures[0][1]}")


def du(
    *,
    store: StoreOption = None,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show storage use per session and in total.

    Example: offload du
    """
    opened = existing_store(store)
    with executor_of(opened, workers, on) as executor:
        listed = sorted(usage(opened, executor=executor), key=lambda used: used.last_use or 0, reverse=True)
    rows: list[dict[str, Any]] = [
        asdict(used) | {"last_use": datetime.fromtimestamp(used.last_use, UTC) if used.last_use else None}
        for used in listed
    ]
    sums = ("records", "stored_bytes", "marked", "marked_bytes", "pinned")
    total = {name: sum(row[name] for row in rows) for name in sums}
    print_report(
        [*rows, {"session": "(all)", **total, "last_use": None}] if rows else [],
        f"{count(total['records'], 'record')} in {count(len(rows), 'session')} of {place_of(opened)}",
        as_json=as_json,
        document={"store": opened.url, "sessions": rows, "total": total},
    )


def rm(
    refs: Annotated[list[str] | None, typer.Argument(metavar="ID", show_default=False)] = None,
    *,
    session: SessionName,
    store: StoreOption = None,
    dry_run: _DryRun = False,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a session's records (all, if no ID is given). A later `gc` frees the space.

    It asks for confirmation; without a terminal it needs --yes. It prints how to undo the deletion before
    that `gc`.

    Example: offload rm kqzmwpxhva --session research-42
    """
    with open_session(store, session) as off:
        refs = refs and [ref_named(off, ref) for ref in refs]
        report = delete(off.store, session, refs, dry_run=True)
    place = place_of(off.store, session)
    if not report.marked and not report.protected and not report.entries:
        raise NotFoundError(f"{place} has no record to delete")
    if not dry_run:
        _confirm(report, place, is_sure=is_sure)
        report = delete(off.store, session, refs)
    # The objects whose removal undoes the deletion.
    undo = [tombstone_key(info.key, "deleted") for info in report.marked.get("deleted", ())]
    summary = f"{'would be ' if dry_run else ''}deleted: {_extent(report)} in {place}"
    _print_report(report, summary, as_json=as_json, store=off.store.url, session=session, undo=undo)
    if undo and not dry_run and not as_json:
        _print_undo(off.store, undo)


def _confirm(plan: GcReport, place: str, *, is_sure: bool) -> None:
    """Ask the user to confirm a deletion. Raises `ConfigError` if stdin is not a terminal."""
    action = one_line(f"delete {_extent(plan)} in {place}")
    if is_sure or not (plan.marked or plan.entries):
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was deleted: to {action}, add --yes; --dry-run shows the records")
    if not typer.confirm(f"{action[0].upper()}{action[1:]}?", err=True):
        err.print("offload: nothing was deleted")
        raise typer.Exit(1)


def _extent(report: GcReport) -> str:
    """Return how much a deletion deletes and keeps."""
    deleted = report.marked.get("deleted", [])
    stored = sum(info.stored_bytes for info in deleted)
    kept = [f"{count(len(infos), f'{why} record')} kept" for why, infos in report.protected.items()]
    if report.forks:
        kept.append(f"read by {', '.join(sorted(report.forks))}")
    extent = f"{count(len(deleted), 'record')}, {stored:,} bytes{_entries(report, ', ')}"
    return extent + (f" ({', '.join(kept)})" if kept else "")


def _entries(report: GcReport, before: str = "", behind: str = "") -> str:
    return (
        f"{before}{count(report.entries, 'journal entry', 'journal entries')}{behind}"
        if report.entries
        else ""
    )


def _print_undo(store: OffloadStore, keys: list[str]) -> None:
    say(
        "The first gc after the grace period (1 hour unless set otherwise) frees the space. To undo the "
        "deletion before that, remove its tombstones:"
    )
    is_local = store.url.startswith("file:")
    for key in keys[:_SHOWN]:
        path = path_of(store, key)
        file = quoted(str(Path(place_of(store), path)))
        out.print(f"  {REMOVE} {file}" if is_local else f"  {place_of(store)}/{path}", soft_wrap=True)
    if len(keys) > _SHOWN:
        say(f"and {count(len(keys) - _SHOWN, 'object')} more: each record's key with .deleted at its end")
    if any(path_of(store, key) != key for key in keys[:1]):
        out.print(f"  offload reindex --store {quoted(place_of(store))}", soft_wrap=True)


def pin(
    ref: _OptionalId = None, *, session: SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Protect a record from `gc`, or the whole session if ID is omitted.

    Example: offload pin --session research-42
    """
    with open_session(store, session) as off:
        ref = ref and ref_named(off, ref)
        pin_record(off.store, session, ref)
    _print_pin("pinned", off, ref, as_json=as_json)


def unpin(
    ref: _OptionalId = None, *, session: SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Unpin a record, or the whole session if ID is omitted.

    Example: offload unpin --session research-42
    """
    with open_session(store, session) as off:
        ref = ref and ref_named(off, ref)
        was_pinned = unpin_record(off.store, session, ref)
        if ref is not None and not was_pinned:
            SessionReader(off.store, session).find(ref)
    _print_pin("no longer pinned" if was_pinned else "was not pinned", off, ref, as_json=as_json)


def _print_pin(action: str, off: Offloader, ref: str | None, *, as_json: bool) -> None:
    records = len(off.records()) if ref is None else 1
    print_done(action, as_json=as_json, session=off.session, ref=ref, records=records, store=off.store.url)


def _print_report(report: GcReport, summary: str, *, as_json: bool, **facts: object) -> None:
    rows = [
        {
            "ref": info.ref,
            "session": info.session,
            "what": what,
            "why": why,
            "tool": info.tool_name,
            "stored_bytes": info.stored_bytes,
        }
        for what, why, infos in report.groups()
        for info in infos
    ]
    figures = {
        "is_dry_run": report.is_dry_run,
        "bytes_freed": report.bytes_freed,
        "entries": report.entries,
    }
    print_report(rows, summary, as_json=as_json, document={**facts, **figures, "records": rows})

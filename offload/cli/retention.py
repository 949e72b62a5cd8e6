"""`offload gc`, `du`, `rm`, `undelete`, `pin` and `unpin`: storage use and the deletion of records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from offload import ConfigError, NotFoundError, Offloader
from offload.base.text import size_text
from offload.cli.options import JsonOption, SessionName, SessionOption, StoreOption
from offload.cli.shell import quoted
from offload.cli.stores import existing_store, open_session, place_of, ref_named
from offload.cli.tables import print_done, print_facts, print_report
from offload.cli.terminal import count, err, metering, note, one_line, out, say
from offload.cli.workers import OnOption, WorkersOption, check_failures, check_shared, executor_of
from offload.engine.policy import Retention
from offload.maintenance.retention import (
    GcReport,
    collect,
    delete,
    pin as pin_record,
    store_usage,
    undelete as undelete_records,
    unpin as unpin_record,
)
from offload.maintenance.retention.limits import Limit, limits, retention_of
from offload.records.index.objects import session_parts
from offload.records.journal.format import own_entries
from offload.records.session.reader import SessionReader
from offload.storage.layout import JOURNAL, PIN, RECORD, encode_part

_OptionalId = Annotated[str | None, typer.Argument(metavar="ID")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; change nothing.")]
_Sure = Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")]
# The number of records that gc marks without a question.
_FEW = 10


# How a limit is written, after its description.
_WRITTEN = {"N": "", "SIZE": ', as "500kB", "20MB" or "10G"', "TIME": ', as "90s", "15m", "2h" or "7d"'}


def _option(limit: Limit) -> Parameter:
    """Return the parameter of a command for a limit of `Retention`."""
    about = f"{limit.about}{_WRITTEN[limit.form]}."
    option = typer.Option(metavar=limit.form, help=about, min=1 if limit.form == "N" else None)
    kind = int if limit.form == "N" else str
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type] # for typer
    return Parameter(limit.name, Parameter.KEYWORD_ONLY, default=limit.default, annotation=annotation)


def _limited(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each limit in place of its parameter `retention`."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        texts = {limit.name: arguments.pop(limit.name) for limit in limits()}
        given = {name: None if text is None else str(text) for name, text in texts.items()}
        command(**arguments, retention=retention_of(given))

    before = signature(command, eval_str=True)
    parameters = [
        new
        for parameter in before.parameters.values()
        for new in (map(_option, limits()) if parameter.name == "retention" else [parameter])
    ]
    vars(run)["__signature__"] = before.replace(parameters=parameters)
    return run


@_limited
def gc(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    dry_run: _DryRun = False,
    retention: Retention,
    workers: WorkersOption = None,
    on: OnOption = None,
    is_sure: _Sure = False,
    as_json: JsonOption = False,
) -> None:
    """Delete records past their TTL or over a quota, in one session or the whole store.

    On a terminal it asks before it marks more than ten records; elsewhere it says how to undo that.

    Example: offload gc --dry-run --store-bytes 20GB
    """
    if session is not None and (retention.store_bytes or retention.store_records):
        raise ConfigError("a store quota applies to all sessions: omit --session")
    check_shared(session, workers, on)
    opened = existing_store(store, session)
    place = place_of(opened, session)
    with executor_of([opened], workers, on) as executor:

        def run(*, dry_run: bool) -> GcReport:
            what = "would be marked" if dry_run else "marked"
            # Workers take the sessions without records too.
            families = (RECORD, PIN, JOURNAL) if executor is not None else (RECORD,)
            with metering("sessions", lambda: sum(1 for _ in session_parts(opened, *families))) as told:
                return collect(
                    opened,
                    retention,
                    session=session,
                    dry_run=dry_run,
                    executor=executor,
                    on_progress=lambda done, report: told(done, f"{_marked(report):,} {what}"),
                )

        if not (dry_run or is_sure) and sys.stdin.isatty():
            plan = run(dry_run=True)
            if _marked(plan) > _FEW:
                _ask(f"mark {count(_marked(plan), 'record')} in {place} for deletion")
        report = run(dry_run=dry_run)
    _print_report(report, _effects(report, place), as_json=as_json, store=opened.url, session=session)
    if _marked(report) > _FEW and not (dry_run or is_sure or sys.stdin.isatty()):
        _tell_undo(report, place_of(opened))
    check_failures("gc", report.failures)


def _tell_undo(report: GcReport, store: str) -> None:
    """Print how to undo a gc that nobody confirmed."""
    names = dict.fromkeys(info.session for infos in report.marked.values() for info in infos)
    shown, more = ", ".join(map(quoted, [*names][:_FEW])), len(names) - _FEW
    note(
        f"{_marked(report):,} records were marked for deletion without a question, since this is "
        "no terminal; with --yes nothing is said. To undo it within the grace period: offload undelete "
        f"--store {quoted(store)} --session NAME, for {shown}"
        + (f" and {more:,} more sessions" if more > 0 else "")
    )


def _marked(report: GcReport) -> int:
    return sum(map(len, report.marked.values()))


def _effects(report: GcReport, place: str) -> str:
    protected = sum(map(len, report.protected.values()))
    kept = f"; {count(protected, 'record')} protected ({', '.join(report.protected)})" if protected else ""
    if report.waiting:
        kept += f"; {count(report.waiting, 'marked record')} kept until the grace period is over"
    if not (report.deleted or report.marked or report.undeleted or report.entries):
        return f"Nothing to delete in {place}{kept}."
    would = "would be " if report.is_dry_run else ""
    return (
        f"{would}freed: {size_text(report.bytes_freed)} of {count(len(report.deleted), 'record')}; "
        f"{would}marked: {_marked(report):,}{_entries(report.entries, '; ')} in {place}{kept}"
    )


def du(
    session: Annotated[str | None, typer.Argument(metavar="SESSION")] = None,
    *,
    store: StoreOption = None,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show storage use per session and in total, or of one session by type and tool of its records.

    Example: offload du
    """
    if session is not None:
        check_shared(session, workers, on)
        _print_counts(store, session, as_json=as_json)
        return
    opened = existing_store(store)
    with executor_of([opened], workers, on) as executor:
        listed = sorted(
            store_usage(opened, executor=executor), key=lambda used: used.last_use or 0, reverse=True
        )
    rows: list[dict[str, Any]] = [
        asdict(used) | {"last_use": datetime.fromtimestamp(used.last_use, UTC) if used.last_use else None}
        for used in listed
    ]
    there = [row for row in rows if not row["is_deleted"]]
    sums = ("records", "stored_bytes", "marked", "marked_bytes", "pinned")
    total = {name: sum(row[name] for row in rows) for name in sums}
    shown = [*rows, {"session": "(all)", **total, "last_use": None}] if len(rows) > 1 else rows
    print_report(
        [{name: value for name, value in row.items() if name != "is_deleted"} for row in shown],
        f"{count(total['records'], 'record')} in {count(len(there), 'session')} of {place_of(opened)}",
        as_json=as_json,
        document={"store": opened.url, "sessions": rows, "total": total},
    )


def _print_counts(store: str | None, session: str, *, as_json: bool) -> None:
    with open_session(store, session) as off:
        counts = {"store": off.store.url, **to_builtins(off.stats())}
    # Reads are counted in the process that made them.
    del counts["reads"], counts["chars_read"]
    print_facts(counts, as_json=as_json)


def rm(
    refs: Annotated[list[str] | None, typer.Argument(metavar="ID")] = None,
    *,
    session: SessionName,
    store: StoreOption = None,
    dry_run: _DryRun = False,
    is_sure: _Sure = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a session's records, and without an ID all of it. A later `gc` frees the space.

    What a fork needs is kept, also for a deleted fork until `gc` frees that. It asks for confirmation;
    without a terminal it needs --yes. It prints how to undo the deletion before that `gc`.

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
    summary = f"{'would be ' if dry_run else ''}deleted: {_extent(report)} in {place}"
    _print_report(report, summary, as_json=as_json, store=off.store.url, session=session)
    if (report.marked or report.entries) and not dry_run and not as_json:
        say("The first gc after the grace period (1 hour unless set otherwise) frees the space. Before that:")
        ids = "".join(f" {ref}" for ref in refs or ())
        where = f"--session {quoted(session)} --store {quoted(place_of(off.store))}"
        out.print(f"  offload undelete{ids} {where}", soft_wrap=True)


def _confirm(plan: GcReport, place: str, *, is_sure: bool) -> None:
    """Ask the user to confirm a deletion. Raises `ConfigError` if stdin is not a terminal."""
    action = one_line(f"delete {_extent(plan)} in {place}")
    if is_sure or not (plan.marked or plan.entries):
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was deleted: to {action}, add --yes; --dry-run shows the records")
    _ask(action)


def _ask(action: str) -> None:
    """Let the user confirm an action; exit with 1 if they do not."""
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
    extent = f"{count(len(deleted), 'record')}, {size_text(stored)}{_entries(report.entries, ', ')}"
    lost = _entries(report.entries_lost, "; for good: ", " of an earlier deletion")
    return extent + (f" ({', '.join(kept)})" if kept else "") + lost


def _entries(entries: int, before: str = "", behind: str = "") -> str:
    return f"{before}{count(entries, 'journal entry', 'journal entries')}{behind}" if entries else ""


def undelete(
    refs: Annotated[list[str] | None, typer.Argument(metavar="ID")] = None,
    *,
    session: SessionName,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo `rm`, and what `gc` marked, before `gc` frees the space: for some records, or all of the session.

    Pin a record that `gc` marked, or the next one marks it again.

    Example: offload undelete kqzmwpxhva --session research-42
    """
    opened = existing_store(store)
    part = encode_part(session)
    before = len(own_entries(opened, part))
    infos = undelete_records(opened, session, refs)
    entries = len(own_entries(opened, part)) - before
    rows = [{"ref": info.ref, "tool": info.tool_name, "stored_bytes": info.stored_bytes} for info in infos]
    extent = f"{count(len(infos), 'record')}{_entries(entries, ', ')}"
    summary = f"readable again: {extent} in {place_of(opened, session)}"
    document = {"store": opened.url, "session": session, "records": rows}
    print_report(rows, summary, as_json=as_json, document=document)


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
        "entries_lost": report.entries_lost,
    }
    # The summary counts protected records: a store has many more of them than of those that gc deletes.
    listed = [row for row in rows if row["what"] != "protected"]
    print_report(listed, summary, as_json=as_json, document={**facts, **figures, "records": rows})

"""`offload ls` and `verify`: the records of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload import ConfigError, OffloadError, OffloadStore, RecordInfo, StoreError
from offload.base.schema import seconds_of
from offload.base.text import size_text
from offload.cli.options import JsonOption, LimitOption, SessionOption, StoreOption, ToolOption
from offload.cli.shell import quoted
from offload.cli.stores import existing_store, is_of, note_unfit, place_of
from offload.cli.tables import print_report
from offload.cli.terminal import PROBLEMS, count, metering, note
from offload.cli.workers import OnOption, WorkersOption, executor_of
from offload.reading.timeline.titles import list_journals, task_titles
from offload.records.index.objects import list_session, list_sessions, session_name, session_parts
from offload.records.session.encryption import unfit_objects
from offload.records.session.reader import SessionReader
from offload.records.session.titles import MAX_READS, why_untitled, with_titles
from offload.storage.layout import encode_part, is_link
from offload.storage.store import path_of

if TYPE_CHECKING:
    from offload.maintenance import jobs

_SUMS = ("chars", "tokens", "stored_bytes")
_NEVER = datetime.min.replace(tzinfo=UTC)


class _SortBy(StrEnum):
    """Orders of a listing."""

    TIME = "time"
    TOKENS = "tokens"
    SIZE = "size"
    NAME = "name"


_KEYS: dict[_SortBy, Callable[[dict[str, Any]], Any]] = {
    _SortBy.TIME: lambda row: row["stored_at"] or _NEVER,
    _SortBy.TOKENS: lambda row: row["tokens"],
    _SortBy.SIZE: lambda row: row["stored_bytes"],
    _SortBy.NAME: lambda row: row["session"] if "session" in row else row["title"] or row["tool"] or "",
}


def list_(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    tool: ToolOption = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='Only what was stored since, as "2h", "7d" or "2026-11-30".'),
    ] = None,
    sort: Annotated[
        _SortBy,
        typer.Option(metavar="ORDER", help=f"Order: {', '.join(_SortBy)}; the newest or largest is first."),
    ] = _SortBy.TIME,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions of a store, or the records of one session, newest first.

    Example: offload ls --store s3://bucket/prefix --session research-42
    """
    if tool is not None and session is None:
        raise ConfigError("--tool selects the records of a session: name it with --session")
    opened, start = existing_store(store, session), _start(since)
    facts: dict[str, object]
    if session is None:
        deleted: list[str] = []
        name, rows, facts = "session", [*_sessions(opened, deleted)], {"deleted": deleted}
        titles = _undo(deleted, place_of(opened))
    else:
        name, (rows, titles), facts = "record", _records(opened, session, tool), {"session": session}
    found = [row for row in rows if start is None or (row["stored_at"] or _NEVER) >= start]
    found.sort(key=_KEYS[sort], reverse=sort is not _SortBy.NAME)
    listed = found[:limit]
    extent = f"{count(len(listed), 'record')} in" if session else extent_of(listed)
    rest = f"; {len(rows) - len(listed):,} not listed" if len(listed) < len(rows) else ""
    # A table has no column of titles, shared records or agents without any.
    optional = ["agent"] if session else ["title", "shared"]
    empty = {name for name in optional if not any(row[name] for row in listed)}
    shown = [{name: value for name, value in row.items() if name not in empty} for row in listed]
    document = {"store": opened.url, **facts, f"{name}s": listed, "is_more": len(listed) < len(rows)}
    summary = f"{extent} {place_of(opened, session)}{rest}{titles}"
    print_report(shown, summary, as_json=as_json, document=document)


def _start(since: str | None) -> datetime | None:
    """Return the time of `--since`: a duration before now, or a date, of this time zone if it names none."""
    if since is None:
        return None
    with suppress(ValueError):
        return datetime.fromisoformat(since).astimezone(UTC)
    with suppress(ValueError):
        return datetime.now(UTC) - timedelta(seconds=seconds_of(since))
    raise ConfigError(f'--since must be a time such as "2h", "7d" or "2026-11-30", got {since!r:.40}')


def verify(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every record and list damaged ones; exit with 3 if there are any.

    Records that a lost worker did not check are listed too: run it again. So is each session with objects
    that do not fit OFFLOAD_KEY: they are encrypted with another key, or in clear.

    Example: offload verify --store s3://bucket/prefix --workers 64
    """
    # Only this command needs them here, and a check loads its parts anyway.
    from offload.agent.presets._tool_results_store import ToolResultsStore  # noqa: PLC0415  # few commands need the layouts

    opened = existing_store(store, session)
    report = _verified(opened, session, workers, on)
    faults, unfit = _faults(report), _unfit(report)
    lost = [_fault(name, damage.info.ref, damage.error) for name, damage in report.lost]
    summary = f"{_verdict(report, len(faults))} of {place_of(opened)}"
    if unfit:
        fits = "does not fit" if len(report.unfit) == 1 else "do not fit"
        summary += f"; {count(len(report.unfit), 'object')} {fits} the key"
    if lost:
        summary += f"; {count(len(lost), 'shared record')} deleted by the session that stored it"
    if isinstance(opened, ToolResultsStore):
        summary += "; files of tool results have no checksums, so a changed file is not found"
    document = {
        "store": opened.url,
        "sessions": report.sessions,
        "records": report.checked,
        "links": report.links,
        "entries": report.entries,
        "gateway_objects": report.gateway_objects,
        "faults": [*faults, *unfit],
        "lost": lost,
    }
    style = "red" if faults or unfit else "yellow" if lost else "green"
    print_report([*faults, *unfit, *lost], summary, as_json=as_json, document=document, style=style)
    if faults or unfit:
        raise typer.Exit(PROBLEMS)


def _verdict(report: jobs.VerifyReport, faults: int) -> str:
    """Return whether what was checked is intact, and how much was."""
    if report.failures or (report.unfit and not faults):
        verdict = "not all records were checked: "
    elif faults:
        verdict = f"{faults:,} damaged of "
    else:
        is_any = report.checked or report.links or report.entries or report.gateway_objects
        verdict = "all records are intact: " if is_any else "nothing to check: "
    return verdict + _checked(report)


def _faults(report: jobs.VerifyReport) -> list[dict[str, Any]]:
    others = [_fault(name, None, error) for name, error in (*report.damaged_entries, *report.failures)]
    return [_fault(name, damage.info.ref, damage.error) for name, damage in report.damaged] + others


def _unfit(report: jobs.VerifyReport) -> list[dict[str, Any]]:
    """Return for each session the first object that does not fit the key, and how many others do not."""
    errors: dict[str, list[OffloadError]] = {}
    for name, error in report.unfit:
        errors.setdefault(name, []).append(error)
    rows = [_fault(name, None, of_session[0]) for name, of_session in errors.items()]
    for row, of_session in zip(rows, errors.values(), strict=True):
        if len(of_session) > 1:
            row["message"] += f" (and {count(len(of_session) - 1, 'other object')})"
    return rows


def _fault(session: str, ref: str | None, error: OffloadError) -> dict[str, Any]:
    return {"session": session, "ref": ref, "fault": error.kind, "message": str(error)}


def _verified(
    opened: OffloadStore, session: str | None, workers: int | None, on: str | None
) -> jobs.VerifyReport:
    """Verify a store, or one session, and show how much is done and left."""
    from offload.maintenance import jobs  # noqa: PLC0415 # slow to load

    unit = "sessions" if session is None else "records"
    with (
        metering(unit, lambda: _extent_of(opened, session)) as told,
        executor_of([opened], workers, on) as executor,
    ):

        def tell(report: jobs.VerifyReport) -> None:
            # Entries and gateway objects follow the records, and how many there are is not known.
            is_later = report.entries or report.gateway_objects
            done = report.sessions if session is None else report.checked + report.links
            told(None if is_later else done, f"{_checked(report)}, {size_text(report.checked_bytes)}")

        return jobs.verify(opened, session=session, executor=executor, on_progress=tell)


def _extent_of(store: OffloadStore, session: str | None) -> int:
    """Return the number of sessions, or of the records of one."""
    if session is None:
        return sum(1 for _ in session_parts(store))
    return len(list_session(store, encode_part(session)).records)


def _checked(report: jobs.VerifyReport) -> str:
    entries = f" and {count(report.entries, 'journal entry', 'journal entries')}" if report.entries else ""
    others = ((report.links, "shared record"), (report.gateway_objects, "gateway object"))
    more = "".join(f", {count(number, noun)}" for number, noun in others if number)
    return f"{count(report.checked, 'record')}{more}{entries} in {count(report.sessions, 'session')}"


def extent_of(rows: list[dict[str, Any]]) -> str:
    """Return how many records and sessions the rows of sessions have, as the beginning of a sentence.

    A record counts in the session that stored it, not in those that read it too.
    """
    records = sum(row["records"] - row.get("shared", 0) for row in rows)
    return f"{count(records, 'record')} in {count(len(rows), 'session')} of"


def _undo(names: Sequence[str], place: str) -> str:
    """Return how to undo the deletion of sessions, as the end of a sentence; "" if there are none."""
    if not names:
        return ""
    first, more = quoted(names[0]), f" and {len(names) - 1:,} more" * (len(names) > 1)
    undo = f"offload undelete --session {first} --store {quoted(place)}"
    return f"; deleted: {first}{more}; until a gc frees it: {undo}"


def _sessions(store: OffloadStore, deleted: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each session, then note how many do not fit the key of the store.

    A session that was deleted as a whole has no row; while it can be undone, its name is added to `deleted`.
    """
    titles, unfit = task_titles(store, list_journals(store))
    # Of each session without a title, the smallest record.
    samples: dict[str, int] = {}
    for objects in list_sessions(store):
        if objects.records and objects.part not in titles and objects.part not in unfit:
            smallest = min(objects.records, key=lambda info: info.stored_bytes)
            samples[smallest.key] = smallest.stored_bytes
        name = session_name(store, objects.part)
        infos = _infos(store, name) if objects.is_fork else objects.entries()
        if not infos and objects.deleted:
            if any(record.info.stored_bytes for record in objects.deleted):
                deleted.append(name)
            continue
        own = {info.ref for info in objects.entries() if not is_link(info.key)}
        shared = sum(info.ref not in own for info in infos)
        sums = {field: sum(getattr(info, field) for info in infos) for field in _SUMS}
        newest = max((info.created_at for info in infos), default=None)
        stored_at = newest and _time(newest)
        title = titles.get(objects.part)
        counts = {"records": len(infos), "shared": shared}
        yield {"session": name, "title": title, **counts, **sums, "stored_at": stored_at}
    note_unfit([*unfit.values(), *unfit_objects(store, samples)])


def _infos(store: OffloadStore, fork: str) -> list[RecordInfo]:
    """Return what a fork may read; only its own records if those of its parent cannot be found."""
    try:
        return SessionReader(store, fork).infos()
    except OffloadError as error:
        note(f"{fork}: only its own records: {error}")
        return list_session(store, encode_part(fork)).entries()


def _records(store: OffloadStore, session: str, tool: str | None) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a session, and the end of their summary: which of them are without a title."""
    reader = SessionReader(store, session)
    infos = [info for info in reader.infos() if is_of(info, tool)]
    older, newest = infos[:-MAX_READS], infos[-MAX_READS:]
    about = f"; titles of the {MAX_READS:,} newest" if older else ""
    try:
        newest = with_titles(reader, newest)
        unread = why_untitled(reader.unfit, newest)
    except StoreError as error:
        unread = str(error)
    about = f"; titles could not be read: {unread}" if unread else about
    return [_record(store, info) for info in [*older, *newest][::-1]], about


def _record(store: OffloadStore, info: RecordInfo) -> dict[str, Any]:
    path = path_of(store, info.key)
    return {
        "ref": info.ref,
        "item_type": info.item_type,
        "tool": info.tool_name,
        "title": info.title,
        "agent": info.agent_name,
        "chars": info.chars,
        "tokens": info.tokens,
        "stored_bytes": info.stored_bytes,
        "stored_at": _time(info.created_at),
        # In a store of its own layout, the file that people and agents open.
        **({} if path == info.key else {"path": path}),
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

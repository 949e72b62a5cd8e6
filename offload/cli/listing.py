"""`offload ls`, `verify` and `reindex`: the records of a store, without what a model reads them with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import typer

from offload import OffloadStore, RecordInfo, StoreError, index, jobs
from offload.cli.stores import existing_store, place_of, session_names
from offload.cli.terminal import (
    PROBLEMS,
    JsonOption,
    SessionOption,
    StoreOption,
    count,
    print_report,
    progress,
    working,
)
from offload.cli.workers import OnOption, WorkersOption, executor_of
from offload.index.objects import list_sessions, session_name
from offload.session.reader import SessionReader
from offload.session.titles import MAX_READS, with_titles
from offload.store import path_of
from offload.timeline.titles import list_journals, task_titles

_SUMS = ("chars", "tokens", "stored_bytes")


def list_(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of a store, or the records of one session, newest first.

    Example: offload ls --store s3://bucket/prefix --session research-42
    """
    opened = existing_store(store, session)
    if session is None:
        rows = sorted(_sessions(opened), key=lambda row: str(row["stored_at"] or ""), reverse=True)
        empty = {"title"} - {name for row in rows for name in row if row[name]}
        shown = [{name: row[name] for name in row if name not in empty} for row in rows]
        document = {"store": opened.url, "sessions": rows}
        print_report(shown, _summary(rows, opened), as_json=as_json, document=document)
    else:
        rows, note = _records(opened, session)
        summary = f"{count(len(rows), 'record')} in {place_of(opened, session)}{note}"
        document = {"store": opened.url, "session": session, "records": rows}
        print_report(rows, summary, as_json=as_json, document=document)


def verify(
    *,
    store: StoreOption = None,
    session: SessionOption = None,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every record and list damaged ones; exit with 3 if there are any.

    Records that a lost worker did not check are listed too: run it again.

    Example: offload verify --store s3://bucket/prefix --workers 64
    """
    # Only this command needs it here, and a check loads its parts anyway.
    from offload.presets._tool_results_store import ToolResultsStore  # noqa: PLC0415  # few commands need the layouts

    opened = existing_store(store, session)
    with working("checking") as status, executor_of(opened, workers, on) as executor:
        report = jobs.verify(
            opened, session=session, executor=executor, on_progress=lambda done: status(_checked(done))
        )
    faults = [(name, damage.info.ref, damage.error) for name, damage in report.damaged]
    faults += [(name, "", error) for name, error in (*report.damaged_entries, *report.failures)]
    rows = [
        {"session": name, "ref": ref or None, "fault": error.kind, "message": str(error)}
        for name, ref, error in faults
    ]
    if report.failures:
        verdict = "not all records were checked: "
    elif faults:
        verdict = f"{len(faults):,} damaged of "
    else:
        verdict = "all records are intact: " if report.checked or report.entries else "nothing to check: "
    summary = f"{verdict}{_checked(report)} of {place_of(opened)}"
    if isinstance(opened, ToolResultsStore):
        summary += "; files of tool results have no checksums, so a changed file is not found"
    document = {
        "store": opened.url,
        "sessions": report.sessions,
        "records": report.checked,
        "entries": report.entries,
        "faults": rows,
    }
    print_report(rows, summary, as_json=as_json, document=document, style="red" if rows else "green")
    if rows:
        raise typer.Exit(PROBLEMS)


def _checked(report: jobs.VerifyReport) -> str:
    entries = f" and {count(report.entries, 'journal entry', 'journal entries')}" if report.entries else ""
    return f"{count(report.checked, 'record')}{entries} in {count(report.sessions, 'session')}"


def reindex(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Rebuild the index of one session, or of all sessions, from their records.

    Needed only if a listing seems wrong: the index is a cache, and records are not changed. In a layout of
    files for an agent it rebuilds the documents and the lists of them too.

    Example: offload reindex
    """
    # Few commands need the layouts, which take long to load.
    from offload.presets.context_fs._tree import TreeStore  # noqa: PLC0415  # few commands need the layouts
    from offload.presets.context_refs._tree import ContextTree  # noqa: PLC0415  # few commands need the layouts

    opened = existing_store(store, session)
    names = progress(session_names(opened, session), "sessions")
    rows = [{"session": name, "records": index.reindex(opened, name)} for name in names]
    if isinstance(opened, TreeStore | ContextTree):
        opened.reindex()
    document = {"store": opened.url, "sessions": rows}
    print_report(rows, f"indexed: {_summary(rows, opened)}", as_json=as_json, document=document)


def _summary(rows: list[dict[str, Any]], store: OffloadStore) -> str:
    records = sum(row["records"] for row in rows)
    return f"{count(records, 'record')} in {count(len(rows), 'session')} of {place_of(store)}"


def _sessions(store: OffloadStore) -> Iterator[dict[str, Any]]:
    titles = task_titles(store, list_journals(store))
    for objects in list_sessions(store):
        name = session_name(store, objects.part)
        infos = SessionReader(store, name).infos() if objects.is_fork else objects.entries()
        sums = {field: sum(getattr(info, field) for info in infos) for field in _SUMS}
        newest = max((info.created_at for info in infos), default=None)
        stored_at = newest and _time(newest)
        title = titles.get(objects.part)
        yield {"session": name, "title": title, "records": len(infos), **sums, "stored_at": stored_at}


def _records(store: OffloadStore, session: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a session, and the end of their summary: which of them are without a title."""
    reader = SessionReader(store, session)
    infos = reader.infos()
    older, newest = infos[:-MAX_READS], infos[-MAX_READS:]
    note = f"; titles of the {MAX_READS:,} newest" if older else ""
    try:
        newest = with_titles(reader, newest)
    except StoreError as error:
        note = f"; titles could not be read: {error}"
    return [_record(store, info) for info in [*older, *newest][::-1]], note


def _record(store: OffloadStore, info: RecordInfo) -> dict[str, Any]:
    path = path_of(store, info.key)
    return {
        "ref": info.ref,
        "item_type": info.item_type,
        "tool": info.tool_name,
        "title": info.title,
        "chars": info.chars,
        "tokens": info.tokens,
        "stored_bytes": info.stored_bytes,
        "stored_at": _time(info.created_at),
        # In a store of its own layout, the file that people and agents open.
        **({} if path == info.key else {"path": path}),
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

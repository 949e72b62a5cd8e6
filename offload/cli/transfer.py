"""`offload copy`, `fork`, `rewind`, `export`, `import`, `share`, `revoke`: sessions moved, records shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from offload import ConfigError, OffloadError, OffloadStore
from offload.base.text import size_text
from offload.cli.options import BranchOption, IdArgument, JsonOption, SessionName, SessionOption, StoreOption
from offload.cli.shell import quoted
from offload.cli.stores import existing_store, note_clear, open_record, place_of, store_at
from offload.cli.tables import print_done, print_report
from offload.cli.terminal import PROBLEMS, count, metering, note, progress, say
from offload.cli.workers import OnOption, WorkersOption, check_shared, executor_of
from offload.maintenance import transfer
from offload.reading.timeline import Timeline
from offload.records.index.objects import session_parts
from offload.records.session.reader import SessionReader
from offload.storage.layout import FILE, JOURNAL, RECORD, TRANSCRIPT, VALUE, encode_part

_As = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Session name at the destination [default: unchanged]."),
]
_Repair = Annotated[
    bool, typer.Option("--repair", help="Read what is already there too, and replace what is damaged.")
]
_To = Annotated[str, typer.Option("--to", metavar="NAME", help="Name of the reading session.")]
_File = Annotated[Path, typer.Argument(metavar="FILE")]


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM")],
    target: Annotated[str, typer.Argument(metavar="TO")],
    *,
    session: SessionOption = None,
    name: _As = None,
    repair: _Repair = False,
    workers: WorkersOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy one session, or all sessions, to another store, skipping records that are already there.

    Example: offload copy ./context s3://bucket/prefix --session research-42
    """
    origin, destination = existing_store(source, session), store_at(target)
    if session is None:
        if name is not None:
            raise ConfigError("--as renames one session: add --session NAME")
        _copy_all(origin, destination, (workers, on), repair=repair, as_json=as_json)
        return
    check_shared(session, workers, on)
    with _copying() as told:
        report = transfer.copy_session(
            origin, destination, session, name=name, repair=repair, on_progress=told
        )
    _print_copy(report, place_of(origin, session), place_of(destination, report.session), as_json=as_json)


@contextmanager
def _copying() -> Iterator[Callable[[transfer.CopyProgress], object]]:
    """Show how many records of a session are copied; yield what is called with that."""
    with metering("records") as told:
        yield lambda done: told(done.records, size_text(done.bytes), done.total)


def _copy_all(
    source: OffloadStore,
    target: OffloadStore,
    workers: tuple[int | None, str | None],
    *,
    repair: bool,
    as_json: bool,
) -> None:
    """Copy all sessions, print what failed, and exit with 3 if anything did."""
    sessions, copied, there, repaired = 0, 0, 0, list[str]()
    failures: list[dict[str, str | None]] = []
    with executor_of([source, target], *workers) as executor:
        steps = transfer.copy_sessions(source, target, repair=repair, executor=executor)
        for session, found in progress(steps, "sessions", lambda: _count_sessions(source)):
            sessions += 1
            if isinstance(found, OffloadError):
                failures.append(_failure(found, session=session, ref=None, key=None))
                continue
            copied, there = copied + len(found.copied), there + len(found.already_there)
            repaired += found.repaired
            failures += (_failure(f.error, session=session, ref=f.ref, key=f.key) for f in found.failures)
    failed = sum(failure["key"] is None for failure in failures)
    uncounted = f"; records that {count(failed, 'failed session')} got are not counted" if failed else ""
    print_report(
        failures,
        f"{copied:,} copied, {there:,} already there{_repaired(repaired)}, of {count(sessions, 'session')}: "
        f"{place_of(source)} to {place_of(target)}{uncounted}",
        as_json=as_json,
        document={
            "sessions": sessions,
            "copied": copied,
            "already_there": there,
            **({"repaired": repaired} if repaired else {}),
            "failures": failures,
        },
    )
    left = [family.prefix() for family in (FILE, VALUE, TRANSCRIPT) if any(source.keys(family.prefix()))]
    if left:
        note(f"not copied: {', '.join(left)}, which frameworks have stored; copy it with a tool of the store")
    if failures:
        raise typer.Exit(PROBLEMS)


def _repaired(keys: Sequence[str]) -> str:
    return f", {count(len(keys), 'damaged object')} replaced" if keys else ""


def _count_sessions(store: OffloadStore) -> int:
    return sum(1 for _ in session_parts(store, RECORD, JOURNAL))


def _failure(error: OffloadError, **facts: str | None) -> dict[str, str | None]:
    return {**facts, "fault": error.kind, "message": str(error)}


def fork(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    session: SessionName,
    at: Annotated[
        int | None,
        typer.Option("--at", min=1, metavar="N", help="Continue from request N [default: the end]."),
    ] = None,
    branch: BranchOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the session NAME from a request of another session; one without a journal is copied.

    Example: offload fork research-43 --session research-42
    """
    opened = existing_store(store, session)
    timeline = Timeline(opened, session, branch=branch)
    if at is not None or len(timeline):
        transfer.fork(opened, session, name, at=at, branch=branch)
        print_done("forked", as_json=as_json, session=session, request=at or len(timeline), to=name)
        return
    with _copying() as told:
        report = transfer.copy_session(opened, opened, session, name=name, on_progress=told)
    _print_copy(report, place_of(opened, session), f"session {name} of the same store", as_json=as_json)


def rewind(
    at: Annotated[int, typer.Argument(metavar="REQUEST", min=1)],
    *,
    session: SessionName,
    branch: BranchOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a session continue from its request number REQUEST; the later ones become a branch.

    Example: offload rewind 3 --session research-42
    """
    opened = existing_store(store, session)
    before = Timeline(opened, session).branches
    transfer.rewind(opened, session, at, branch=branch)
    left = [name for name in Timeline(opened, session).branches if name not in before]
    new = next(iter(left), None)
    print_done("rewound", as_json=as_json, session=session, request=at, branch=new)
    if new is not None and not as_json:
        say(f"to list the later requests: offload log {quoted(session)} --branch {new}; gc deletes them")


def export(
    file: _File, *, session: SessionName, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Write a session to a new tar file.

    Example: offload export session.tar --session research-42
    """
    opened = existing_store(store, session)
    with _copying() as told:
        report = transfer.export_session(opened, session, file, on_progress=told)
    note_clear(opened, "the archive is")
    _print_copy(report, place_of(opened, session), f"file {file}", as_json=as_json)


def import_(file: _File, *, name: _As = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Copy the session of an exported file into a store, after verifying each record and journal entry.

    Damaged ones that the store has are replaced.

    Example: offload import session.tar --as research-43
    """
    opened = store_at(store)
    with _copying() as told:
        report = transfer.import_session(opened, file, name=name, on_progress=told)
    _print_copy(report, f"file {file}", place_of(opened, report.session), as_json=as_json)


def share(
    text: IdArgument, *, session: SessionName, to: _To, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Let another session of the store read a record.

    Example: offload share kqzmwpxhva --session research-42 --to review-7
    """
    with open_record(store, session, text) as (off, ref):
        is_new = next(off.store.keys(RECORD.prefix(encode_part(to))), None) is None
        is_shared = transfer.share(off.store, session, ref, to)
    action = "shared" if is_shared else "not shared, since it is its own record"
    print_done(action, as_json=as_json, ref=ref, session=session, to=to, store=off.store.url)
    if is_shared and is_new and not as_json:
        say(f"session {to} has no other records yet")


def revoke(
    text: IdArgument, *, session: SessionName, to: _To, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Revoke access granted with `share`.

    Example: offload revoke kqzmwpxhva --session research-42 --to review-7
    """
    with open_record(store, session, text) as (off, ref):
        was_shared = transfer.revoke(off.store, session, ref, to)
        if not was_shared:
            SessionReader(off.store, session).find(ref)
    action = "no longer shared" if was_shared else "was not shared"
    print_done(action, as_json=as_json, ref=ref, session=session, to=to, store=off.store.url)


def _print_copy(report: transfer.CopyReport, source: str, target: str, *, as_json: bool) -> None:
    """Print a report and exit with 3 if anything was not copied."""
    failures = [_failure(failure.error, ref=failure.ref, key=failure.key) for failure in report.failures]
    print_report(
        failures,
        f"{len(report.copied):,} copied, {len(report.already_there):,} already there"
        f"{_repaired(report.repaired)}: {source} to {target}",
        as_json=as_json,
        document={
            "session": report.session,
            "copied": report.copied,
            "already_there": report.already_there,
            **({"repaired": report.repaired} if report.repaired else {}),
            "failures": failures,
        },
    )
    if failures:
        raise typer.Exit(PROBLEMS)

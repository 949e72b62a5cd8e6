"""`offload verify --chain`: whether journals and their records are as they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from offload.cli.stores import existing_store, place_of
from offload.cli.terminal import PROBLEMS, count, print_report, say, working
from offload.cli.workers import executor_of

if TYPE_CHECKING:
    from offload import jobs


def verify_chain(
    store: str | None,
    session: str | None,
    head: str | None,
    workers: tuple[int | None, str | None],
    *,
    as_json: bool,
) -> None:
    """Check the chain of one session or of all, and print what is wrong; exit with 3 if something is."""
    from offload import jobs  # noqa: PLC0415 # slow to load

    opened = existing_store(store, session)
    with working("checking") as status, executor_of(opened, *workers) as executor:
        report = jobs.verify_chain(
            opened,
            session=session,
            head=head,
            executor=executor,
            on_progress=lambda done: status(_checked(done)),
        )
    rows = _rows(report)
    is_broken = bool(report.problems or report.failures)
    if is_broken:
        verdict = f"{count(len(report.problems) + len(report.failures), 'problem')} in"
    else:
        verdict = "the chain holds:" if report.chained else "nothing is chained:"
    document = {
        "store": opened.url,
        "sessions": report.sessions,
        "entries": report.entries,
        "chained": report.chained,
        "records": report.records,
        "heads": report.heads,
        "findings": rows,
    }
    summary = f"{verdict} {_checked(report)} of {place_of(opened)}"
    print_report(rows, summary, as_json=as_json, document=document, style="red" if is_broken else "green")
    for name, digest in () if as_json else report.heads.items():
        say(f"head of {name}: {digest}")
    if is_broken:
        raise typer.Exit(PROBLEMS)


def _rows(report: jobs.ChainReport) -> list[dict[str, object]]:
    findings = [("problem", found) for found in report.problems]
    findings += [("note", found) for found in report.notes]
    rows: list[dict[str, object]] = [
        {
            "session": found.session,
            "entry": found.entry,
            "ref": found.ref,
            "fault": fault,
            "message": found.text,
        }
        for fault, found in findings
    ]
    lost = [(name, error.kind, str(error)) for name, error in report.failures]
    return rows + [
        {"session": name, "entry": None, "ref": None, "fault": kind, "message": text}
        for name, kind, text in lost
    ]


def _checked(report: jobs.ChainReport) -> str:
    entries = count(report.entries, "journal entry", "journal entries")
    return f"{entries} and {count(report.records, 'cited record')} in {count(report.sessions, 'session')}"

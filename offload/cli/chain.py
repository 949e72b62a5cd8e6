"""`offload verify --chain` and `checkpoint`: checks that journals and their records are unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.options import StoreOption
from offload.cli.stores import existing_store, place_of
from offload.cli.tables import print_report
from offload.cli.terminal import PROBLEMS, count, out, say, working
from offload.cli.workers import executor_of
from offload.errors import ConfigError
from offload.timeline import Checkpoint, Timeline

if TYPE_CHECKING:
    from offload import jobs


PublicKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--public-key", metavar="FILE", help="The Ed25519 key (PEM) that the checkpoint is signed with."
    ),
]


def checkpoint(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    *,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Sign with this Ed25519 private key (PEM).")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Print the head of a session's journal as JSON: keep it outside of the store.

    With it, `offload verify --head FILE` finds later changes and a cut end.

    Example: offload checkpoint research-42 > research-42.checkpoint
    """
    timeline = Timeline(existing_store(store, session), session)
    out.print(timeline.checkpoint(_content(key)).to_json(), soft_wrap=True)


def verify_chain(
    store: str | None,
    session: str | None,
    known: tuple[str | None, Path | None],
    workers: tuple[int | None, str | None],
    *,
    as_json: bool,
) -> None:
    """Check the chain of one session or of all, and print the problems; exit with 3 if there are any.

    Args:
        store: the store's URL.
        session: the session's name.
        known: an earlier head, as a digest or the file of a checkpoint, and the file of a public key.
        workers: the options `--workers` and `--on`.
        as_json: whether to print JSON.
    """
    from offload import jobs  # noqa: PLC0415 # slow to load

    head, public_key = known
    opened = existing_store(store, session)
    with working("checking") as status, executor_of([opened], *workers) as executor:
        report = jobs.verify_chain(
            opened,
            session=session,
            head=_head(head),
            public_key=_content(public_key),
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


def _content(path: Path | None) -> bytes | None:
    """Return what is in a file. Raises `ConfigError`."""
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _head(text: str | None) -> str | Checkpoint | None:
    if text is None or re.fullmatch(r"[0-9a-f]{64}", text):
        return text
    return Checkpoint.from_json(_content(Path(text)) or b"")


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

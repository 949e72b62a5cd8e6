"""`offload copy`, `fork`, `export`, `import`, `share` and `revoke`: sessions on the move, records shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offload import NotFoundError, OffloadStore, open_store, sharing, transfer
from offload.cli.terminal import JsonOption, StoreOption, out, print_json, print_table
from offload.index import session_prefix

_Session = Annotated[str, typer.Option("--session", metavar="NAME", help="The session.", show_default=False)]
_As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Its name there; the same if not given.")
]
_Ref = Annotated[str, typer.Argument(metavar="REF", show_default=False)]
_To = Annotated[str, typer.Option("--to", metavar="NAME", help="The session that reads.", show_default=False)]
_File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", show_default=False)],
    *,
    session: _Session,
    name: _As = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a session to another store; of one that was copied before, what is new."""
    _tell(transfer.copy(_holding(source, session), open_store(target), session, name=name), as_json=as_json)


def fork(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    *,
    session: _Session,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a session to another name in its store; messages of the old one restore in both."""
    opened = _holding(store, session)
    _tell(transfer.copy(opened, opened, session, name=name), as_json=as_json)


def export(file: _File, *, session: _Session, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Write a session into one new tar file."""
    _tell(transfer.export(_holding(store, session), session, file), as_json=as_json)


def import_(file: _File, *, name: _As = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Copy the session of an exported file into a store; each record is verified first."""
    _tell(transfer.import_(open_store(store), file, name=name), as_json=as_json)


def share(ref: _Ref, *, session: _Session, to: _To, store: StoreOption = None) -> None:
    """Let another session of the store read a record."""
    sharing.share(open_store(store), session, ref, to)


def revoke(ref: _Ref, *, session: _Session, to: _To, store: StoreOption = None) -> None:
    """Take back what `share` gave."""
    sharing.revoke(open_store(store), session, ref, to)


def _holding(url: str | None, session: str) -> OffloadStore:
    """Open the store of a session that must be there."""
    store = open_store(url)
    if next(store.keys(session_prefix(session)), None) is None:
        raise NotFoundError(f"{store.url} holds no session {session!r} (offload ls)")
    return store


def _tell(report: transfer.Copied, *, as_json: bool) -> None:
    """Print a report and exit with 1 if a record was refused."""
    refused = [
        {"ref": r.ref, "key": r.key, "fault": r.error.kind, "said": str(r.error)} for r in report.refused
    ]
    if as_json:
        print_json(
            {
                "session": report.session,
                "copied": report.copied,
                "already_there": report.already_there,
                "refused": refused,
            }
        )
    else:
        out.print(f"{len(report.copied)} copied, {len(report.already_there)} already there")
        if refused:
            print_table(refused, whole="ref")
    if refused:
        raise typer.Exit(1)

"""`offload copy`, `fork`, `export`, `import`, `share` and `revoke`: sessions on the move, records shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offload import Offloader, transfer
from offload.cli.stores import check_ref, existing, holding, looking_in, opened, place_of
from offload.cli.terminal import (
    UNSOUND,
    JsonOption,
    StoreOption,
    print_done,
    print_json,
    print_table,
    say,
    working,
)
from offload.layout import RECORD, encode_part

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
    held, there = holding(existing(source), session), opened(target)
    with working("copying"):
        done = transfer.copy(held, there, session, name=name)
    _tell(
        done,
        f"session {session} of {place_of(held)}",
        f"session {done.session} of {place_of(there)}",
        as_json=as_json,
    )


def fork(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    *,
    session: _Session,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a session to another name in its store; messages of the old one restore in both."""
    held = holding(existing(store), session)
    with working("copying"):
        done = transfer.copy(held, held, session, name=name)
    _tell(
        done, f"session {session} of {place_of(held)}", f"session {name} of the same store", as_json=as_json
    )


def export(file: _File, *, session: _Session, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Write a session into one new tar file."""
    held = holding(existing(store), session)
    with working("copying"):
        done = transfer.export(held, session, file)
    _tell(done, f"session {session} of {place_of(held)}", f"file {file}", as_json=as_json)


def import_(file: _File, *, name: _As = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Copy the session of an exported file into a store; each record is verified first."""
    held = opened(store)
    with working("copying"):
        done = transfer.import_(held, file, name=name)
    _tell(done, f"file {file}", f"session {done.session} of {place_of(held)}", as_json=as_json)


def share(
    ref: _Ref, *, session: _Session, to: _To, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Let another session of the store read a record."""
    held = holding(existing(store), session)
    is_new = next(held.keys(RECORD.prefix(encode_part(to))), None) is None
    with looking_in(Offloader(held, session=session)):
        transfer.share(held, session, ref, to)
    print_done("shared", as_json=as_json, ref=ref, session=session, to=to, store=held.url)
    if is_new and not as_json:
        say(f"session {to} holds nothing else yet")


def revoke(
    ref: _Ref, *, session: _Session, to: _To, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Take back what `share` gave."""
    held = holding(existing(store), session)
    was_shared = transfer.revoke(held, session, ref, to)
    if not was_shared:
        check_ref(held, session, ref)
    done = "no longer shared" if was_shared else "was not shared"
    print_done(done, as_json=as_json, ref=ref, session=session, to=to, store=held.url)


def _tell(report: transfer.Copied, source: str, target: str, *, as_json: bool) -> None:
    """Print a report and exit with 3 if a record was refused."""
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
        done = f"{len(report.copied):,} copied, {len(report.already_there):,} already there"
        say(f"{done}: {source} to {target}")
        if refused:
            print_table(refused, whole="ref")
    if refused:
        raise typer.Exit(UNSOUND)

"""`offload ls`, `show`, `cat`, `grep`, `stats` and `verify`: a look at what a store holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Literal

import typer
from msgspec import to_builtins

from offload import ConfigError, NotFoundError, Offloader, open_store
from offload.cli.terminal import (
    JsonOption,
    SessionOption,
    StoreOption,
    out,
    print_json,
    print_table,
    visible,
)
from offload.index import sessions


def list_(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of a store, or with --session the records of one."""
    rows = list(_sessions(store) if session is None else _records(store, session))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows, whole="ref")
    else:
        out.print("nothing is stored here")


def show(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    offset: Annotated[int, typer.Option(min=0, help="First character, from 0.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Characters at most.")] = 8192,
    store: StoreOption = None,
    session: SessionOption = None,
) -> None:
    """Show a part of a record, as a model reads it."""
    answer = _open(store, session).tools.read(ref, offset=offset, limit=limit)
    out.print(visible(answer), soft_wrap=True)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", show_default=False)],
    *,
    ref: Annotated[str | None, typer.Option(metavar="REF", help="Search this record only.")] = None,
    is_regex: Annotated[bool, typer.Option("--regex", help="RE2 syntax, not plain text.")] = False,
    store: StoreOption = None,
    session: SessionOption = None,
) -> None:
    """Search the records of a session, as a model does."""
    mode: Literal["literal", "regex"] = "regex" if is_regex else "literal"
    answer = _open(store, session).tools.grep(pattern, ref, mode=mode)
    out.print(visible(answer), soft_wrap=True)


def cat(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    store: StoreOption = None,
    session: SessionOption = None,
) -> None:
    """Write the whole content of a record to standard output, byte for byte."""
    for chunk in _open(store, session).content(ref):
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def verify(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Read every record and report each that is damaged; exit with 1 if there is one."""
    offloaders = [_open(store, session)] if session is not None else list(_all(store))
    damaged = [
        {"session": off.session, "ref": d.info.ref, "fault": d.error.kind, "said": str(d.error)}
        for off in offloaders
        for d in off.verify()
    ]
    if as_json:
        print_json(damaged)
    elif damaged:
        print_table(damaged, whole="ref")
    else:
        out.print("every record is whole")
    if damaged:
        raise typer.Exit(1)


def stats(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Count what a session holds, by type and by tool."""
    counted = to_builtins(_open(store, session).stats())
    if as_json:
        print_json(counted)
    else:
        print_table([{"fact": name.replace("_", " "), "value": v} for name, v in counted.items()])


def _open(store: str | None, session: str | None) -> Offloader:
    """Open the session that is named, or else the only one that the store holds."""
    opened = open_store(store)
    if session is not None:
        named = Offloader(opened, session=session)
        if not named.records():
            raise NotFoundError(f"{opened.url} holds no session {session!r} (offload ls)")
        return named
    names = list(islice(sessions(opened), 2))
    if not names:
        raise NotFoundError(f"{opened.url} holds no session yet")
    if len(names) > 1:
        raise ConfigError("the store holds several sessions (offload ls): name one with --session")
    return Offloader(opened, session=names[0])


def _all(store: str | None) -> Iterator[Offloader]:
    opened = open_store(store)
    return (Offloader(opened, session=name) for name in sessions(opened))


def _sessions(store: str | None) -> Iterator[dict[str, Any]]:
    for off in _all(store):
        counted = off.stats()
        yield {
            "session": off.session,
            "records": counted.records,
            "chars": counted.chars,
            "tokens": counted.tokens,
            "stored_bytes": counted.stored_bytes,
        }


def _records(store: str | None, session: str) -> Iterator[dict[str, Any]]:
    for info in _open(store, session).records():
        yield {
            "ref": info.ref,
            "type": info.item_type,
            "tool": info.tool_name,
            "chars": info.chars,
            "tokens": info.tokens,
            "stored_bytes": info.stored_bytes,
            "stored_at": datetime.fromtimestamp(info.created_at, UTC),
        }

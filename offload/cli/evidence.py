"""`offload evidence`: the exact values in a text, each with the place where a session has it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from offload.base.text import escape_controls
from offload.cli.options import JsonOption, OneSessionOption, StoreOption
from offload.cli.stores import open_session, place_of
from offload.cli.terminal import PROBLEMS, count, note, one_line, out, print_json
from offload.errors import ConfigError
from offload.reading.evidence import Evidence
from offload.reading.evidence._results import marked_piece

# More is never checked: characters have four bytes at most.
_MAX_BYTES = 4_000_000
_STYLES = {"not_found": "bold red", "unknown": "yellow", "hidden": "yellow"}


def evidence(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Text file, - for standard input.")],
    *,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="N", help="Check the text as the reply to request N [default: the last]."
        ),
    ] = None,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show for each exact value in a text which record or message of a session has it.

    Values are numbers, dates, paths, URLs, identifiers and quotes. Exits with 3 if one is found nowhere.

    Example: offload evidence answer.md --session research-42
    """
    text = _text_of(file)
    with open_session(store, session) as off:
        found = off.evidence(text, at=at)
        place, url = place_of(off.store, off.session), off.store.url
    if as_json:
        fields = asdict(found)
        print_json({"store": url} | {name: value for name, value in fields.items() if name != "text"})
    else:
        out.print(_marked(found), soft_wrap=True, end="" if found.text[-1:] in ("", "\n") else "\n")
    for source, why in found.unsearched.items():
        note(f"{one_line(source)}: {one_line(why)}")
    if found.why_unknown:
        note(f"unknown: {found.why_unknown}")
    if found.checked_chars < len(text):
        note(f"only the first {found.checked_chars:,} characters were checked")
    states = Counter(value.state.replace("_", " ") for value in found.values)
    summary = ", ".join(f"{number:,} {state}" for state, number in states.most_common())
    note(f"{count(len(found.values), 'value')}{': ' * bool(summary)}{summary}; searched {place}")
    if found.not_found:
        raise typer.Exit(PROBLEMS)


def _text_of(file: str) -> str:
    """Return the beginning of a file, or of standard input. Raises `ConfigError`."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    return data.decode("utf-8", "replace")


def _marked(found: Evidence) -> Text:
    pieces = ((escape_controls(marked_piece(text, value)), value) for text, value in found.pieces())
    return Text.assemble(
        *((text, "" if value is None else _STYLES.get(value.state, "")) for text, value in pieces)
    )

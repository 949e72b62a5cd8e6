"""What the commands share: consoles, options, tables, and text that cannot act on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from offload.controls import visible

T = TypeVar("T")

# Texts of records are data: no markup, no emoji codes, no colours guessed from their words.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)
_pipe = Console(width=10_000)

# How a command ends: 0 done, 1 it failed, 2 the call or the settings are wrong, and
UNSOUND = 3  # done, and what it looked at is not sound

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="A path or URL; the default is that of the settings."),
]
SessionOption = Annotated[str | None, typer.Option("--session", metavar="NAME")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def one_line(text: object) -> str:
    """Return `text` as one visible line."""
    return " ".join(visible(str(text)).split())


def print_json(value: Any) -> None:
    """Print `value` as ASCII JSON, which no terminal acts on; a time in its ISO form."""
    out.print(json.dumps(value, indent=2, default=_told), soft_wrap=True)


def _told(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_done(what: str, *, as_json: bool, **facts: str | None) -> None:
    """Print that something is done, and to what; as JSON the facts by name, with `done`."""
    if as_json:
        print_json({"done": what, **facts})
    else:
        said = ", ".join(f"{name} {one_line(value)}" for name, value in facts.items() if value is not None)
        out.print(f"{what}: {said}")


def print_answer(answer: str, *, as_json: bool) -> None:
    """Print what a model would be answered; as JSON with all its controls, escaped."""
    if as_json:
        print_json({"answer": answer})
    else:
        out.print(visible(answer), soft_wrap=True)


def progress(steps: Iterable[T], what: str) -> Iterable[T]:
    """Return `steps`; while they are taken a terminal sees a bar, and a pipe nothing."""
    return track(steps, what, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Tell a terminal, and no pipe, that something takes its time."""
    with err.status(what) if err.is_terminal else nullcontext():
        yield


def print_table(rows: Sequence[Mapping[str, object]], whole: str = "") -> None:
    """Print `rows` under the names of the first row's fields.

    A float is a share and shown in per cent, a time is shown as here, a dict is counts by name; any other
    value is one visible line. Nothing is cut, and a pipe gets each row on one line; on a narrow terminal
    texts are folded, but those of the field `whole` never.
    """
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float)
        shown.add_column(
            name.replace("_", " "),
            justify="right" if is_number else "left",
            no_wrap=is_number or name == whole,
            overflow="fold",
        )
    for row in rows:
        shown.add_row(*(Text(_cell(value)) for value in row.values()))
    (out if out.is_terminal else _pipe).print(shown)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.1%}"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M}"
        case dict():
            return ", ".join(f"{_cell(v)} {_cell(k)}" for k, v in value.items())
        case _:
            return one_line(value)

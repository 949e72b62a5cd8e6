"""What the commands share: consoles, options, tables, and text that cannot act on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from offload.controls import visible

T = TypeVar("T")

# Between the columns of a table; and how narrow one of texts becomes before its rows are shown as blocks.
_GAP, _FOLDED = 2, 12

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
SessionOption = Annotated[str | None, typer.Option("--session", metavar="NAME", help="The session.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def one_line(text: object) -> str:
    """Return `text` as one visible line."""
    return " ".join(visible(str(text)).split())


def print_json(value: Any) -> None:
    """Print `value` as ASCII JSON, which no terminal acts on; a time in its ISO form."""
    out.print(json.dumps(value, indent=2, default=_told), soft_wrap=True)


def _told(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_done(what: str, *, as_json: bool, **facts: str | int | None) -> None:
    """Print that something is done, and to what; as JSON the facts by name, with `done`."""
    if as_json:
        print_json({"done": what, **facts})
    else:
        said = ", ".join(f"{name} {_cell(value)}" for name, value in facts.items() if value is not None)
        say(f"{what}: {said}")


def say(text: str) -> None:
    """Print a line of ours; texts of others in it are shown with their controls visible."""
    out.print(one_line(text), soft_wrap=True)


def count(number: int, noun: str) -> str:
    """Return a number of things, as "1 record" or "2,000 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_answer(answer: str, *, as_json: bool, **facts: str | None) -> None:
    """Print what a model would be answered; as JSON with all its controls, escaped, and with `facts`."""
    if as_json:
        print_json({**facts, "answer": answer})
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
    value is one visible line. Nothing is cut, and a pipe gets each row on one line. On a narrow terminal
    texts are folded, but numbers and those of the field `whole` never: where these have no room beside each
    other, each row is shown as lines of `name: value`.
    """
    columns = [_column(name, [row[name] for row in rows], name == whole) for name in rows[0]]
    console = out if out.is_terminal else _pipe
    if sum(column.least for column in columns) + _GAP * (len(columns) - 1) > console.width:
        _print_blocks(columns)
        return
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for column in columns:
        shown.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_whole,
            overflow="fold",
            min_width=column.least,
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        shown.add_row(*map(Text, cells))
    console.print(shown)


class _Column(NamedTuple):
    """A field of a table: its title and cells, and how narrow it may become."""

    title: str
    cells: list[str]
    is_number: bool
    is_whole: bool
    least: int


def _column(name: str, values: list[object], is_whole: bool) -> _Column:
    title, cells = name.replace("_", " "), list(map(_cell, values))
    is_number = any(isinstance(value, int | float) for value in values)
    is_whole = is_whole or is_number
    widest = max(map(cell_len, [title, *cells]))
    return _Column(title, cells, is_number, is_whole, widest if is_whole else min(widest, _FOLDED))


def _print_blocks(columns: Sequence[_Column]) -> None:
    for number in range(len(columns[0].cells)):
        facts = [(column.title, column.cells[number]) for column in columns]
        out.print("\n".join(f"{title}: {cell}" for title, cell in facts if cell), end="\n\n", soft_wrap=True)


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

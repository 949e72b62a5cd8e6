"""Consoles, shared options and output of the commands; control characters are always escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from offload.controls import escape_controls

T = TypeVar("T")


class Dollars(float):
    """An amount of US dollars, shown with two decimals, or three if it is below one dollar."""

    def __str__(self) -> str:
        amount = f"{abs(self):,.2f}" if abs(self) >= 1 else f"{abs(self):.3f}"
        return f"-${amount}" if self < 0 else f"${amount}"


# Spaces between table columns; the width to which text columns fold before rows are printed as blocks, and
# those that never fold.
_GAP, _FOLDED = 2, 12
_WHOLE = {"ref", "check", "path"}

# Record texts are data: no markup, no emoji codes, no colours guessed from their words.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)
_pipe = Console(width=10_000)

# Exit code of a command that found damaged records or failed checks.
PROBLEMS = 3

_URL_HELP = "Store path or URL [default: from settings]."
StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=_URL_HELP)]
UrlArgument = Annotated[str | None, typer.Argument(metavar="URL", help=_URL_HELP, show_default=False)]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="Session name [default: all sessions].")
]
OneSessionOption = Annotated[
    str | None,
    typer.Option(
        "--session", metavar="NAME", help="Session name [default: from settings, else the only one]."
    ),
]
SessionName = Annotated[
    str, typer.Option("--session", metavar="NAME", help="Session name.", show_default=False)
]
IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id or its beginning, placeholder, or path of a context file.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def one_line(text: object) -> str:
    """Return `text` as one line with control characters escaped."""
    return " ".join(escape_controls(str(text)).split())


def print_json(value: Any) -> None:
    """Print `value` as ASCII JSON, with times in ISO format."""
    text = json.dumps(value, indent=2, default=lambda v: v.isoformat() if isinstance(v, datetime) else str(v))
    out.print(text, soft_wrap=True)


def print_report(
    rows: Sequence[Mapping[str, object]],
    summary: str = "",
    *,
    as_json: bool,
    document: object = None,
) -> None:
    """Print `rows` as a table and `summary` below it; or as JSON the rows, or `document` if one is given."""
    if as_json:
        print_json(rows if document is None else document)
        return
    if rows:
        print_table(rows)
    if summary:
        say(summary)


def print_done(action: str, *, as_json: bool, **facts: str | int | None) -> None:
    """Print a completed action and its facts; as JSON the facts by name, with `done`."""
    if as_json:
        print_json({"done": action, **facts})
    else:
        parts = [f"{_title(name)} {_cell(value)}" for name, value in facts.items() if value is not None]
        say(f"{action}: {', '.join(parts)}")


def say(text: str) -> None:
    """Print one line with control characters escaped."""
    out.print(one_line(text), soft_wrap=True)


def count(number: int, noun: str) -> str:
    """Return a number of things, as "1 record" or "2,000 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def progress(steps: Iterable[T], title: str) -> Iterable[T]:
    """Return `steps` and show a progress bar on a terminal, nothing in a pipe."""
    if not err.is_terminal:
        return steps
    from rich.progress import track  # noqa: PLC0415 # slow to load

    return track(steps, title, console=err, transient=True)


def working(title: str) -> AbstractContextManager[object]:
    """Return a context that shows a spinner on a terminal, nothing in a pipe."""
    return err.status(title) if err.is_terminal else nullcontext()


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print `rows` under the names of the first row's fields.

    A float is a percentage, `Dollars` an amount, a time is local, a dict is counts by name; any other value
    is one line with control characters escaped. A pipe gets each row on one line. On a narrow terminal text
    columns fold, numbers and ids never do: if they do not fit, each row is printed as lines of `name: value`.
    """
    columns = [_column(name, [row[name] for row in rows]) for name in rows[0]]
    lines = [[_cell(row[name]) for name in rows[0]] for row in rows]
    console = out if out.is_terminal else _pipe
    if sum(column.min_width or 0 for column in columns) + _GAP * (len(columns) - 1) > console.width:
        for cells in lines:
            facts = [f"{column.header}: {cell}" for column, cell in zip(columns, cells, strict=True) if cell]
            out.print("\n".join(facts), end="\n\n", soft_wrap=True)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for cells in lines:
        table.add_row(*map(Text, cells))
    console.print(table)


def _column(name: str, values: list[object]) -> Column:
    title, is_number = _title(name), any(isinstance(value, int | float) for value in values)
    is_whole = is_number or name in _WHOLE
    widest = max(map(cell_len, [title, *map(_cell, values)]))
    return Column(
        title,
        justify="right" if is_number else "left",
        no_wrap=is_whole,
        overflow="fold",
        min_width=widest if is_whole else min(widest, _FOLDED),
    )


def _title(name: str) -> str:
    return "id" if name == "ref" else name.replace("_", " ")


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case float() if not isinstance(value, Dollars):
            return f"{value:.1%}"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M}"
        case dict():
            return ", ".join(f"{_cell(v)} {_cell(k)}" for k, v in value.items())
        case _:
            return one_line(value)

"""Output of the commands: tables that fit the terminal, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os.path import commonprefix

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from offload.base.text import size_text
from offload.cli.terminal import age, one_line, out, print_json, say


class Dollars(float):
    """An amount of US dollars, shown with two decimals, or three if it is below one dollar."""

    def __str__(self) -> str:
        amount = f"{abs(self):,.2f}" if abs(self) >= 1 else f"{abs(self):.3f}"
        return f"-${amount}" if self < 0 else f"${amount}"


# Spaces between table columns; the width to which text columns fold before columns are left out; those that
# never fold, and those of names, which are shortened in the middle.
_GAP, _FOLDED = 2, 12
_WHOLE = {"ref", "check", "path"}
# The columns that a narrow terminal does not show, in this order.
_LEFT_OUT = (
    "chars",
    "item_type",
    "lines",
    "marked_bytes",
    "shared",
    "pinned",
    "stored_bytes",
    "model",
    "messages",
    "path",
    "reads",
    "is_compacted",
    "cold",
    "because",
    "predicted_cached",
    "offloaded",
    "cached",
    "predicted",
)
_TITLES = {"ref": "id", "item_type": "type", "stored_bytes": "size", "is_compacted": "compacted"}
_NAMES = {"session", "tool", "title", "transcript"}
# The share of a name's beginning where names differ in their middle.
_SHARE_BEFORE = 3
# The colors of words that judge, in the columns that have them.
_COLOURS = {
    "outcome": {"ok": "green", "slow": "yellow", "warning": "yellow", "failed": "red"},
    "what": {"marked": "yellow", "deleted": "red", "undeleted": "green"},
    "fault": {"corrupt": "red", "not_found": "red"},
}
_DEARER = "red"
_pipe = Console(width=10_000)


def print_report(
    rows: Sequence[Mapping[str, object]],
    summary: str = "",
    *,
    as_json: bool,
    document: Mapping[str, object],
    style: str | None = None,
) -> None:
    """Print `rows` as a table and `summary` below it; or `document` as JSON, which names what it lists.

    On a terminal the summary has a `style` of `rich`.
    """
    if as_json:
        print_json(document)
        return
    if rows:
        print_table(rows)
    if summary:
        say(summary, style)


def print_facts(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print facts by name, one in a line; as JSON an object."""
    if as_json:
        print_json(facts)
        return
    width = max(len(_title(name)) for name in facts)
    for name, value in facts.items():
        out.print(f"{_title(name):{width}}  {_cell(value, name)}", soft_wrap=True)


def print_done(action: str, *, as_json: bool, **facts: str | int | None) -> None:
    """Print a completed action and its facts; as JSON the facts by name, with `done`."""
    if as_json:
        print_json({"done": action, **facts})
    else:
        parts = [f"{_title(name)} {_cell(value, name)}" for name, value in facts.items() if value is not None]
        say(f"{action}: {', '.join(parts)}")


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print `rows` under the names of the first row's fields.

    A float is a percentage, `Dollars` an amount, a time its age, a number of bytes a size, a dict is counts
    by name; any other value is one line with control characters escaped. A pipe gets each row whole, on one
    line. On a narrow terminal names are shortened in the middle and other texts fold, numbers and ids never
    change: if they do not fit, the least important columns are left out, and named below; if that is not
    enough, each row is printed as lines of `name: value`.
    """
    console = out if out.is_terminal else _pipe
    names, left_out = _fitting(rows, console.width)
    lines = [[_cell(row[name], name) for name in names] for row in rows]
    columns = [_column(name, [row[name] for row in rows]) for name in names]
    if _least_width(columns) > console.width:
        for cells in lines:
            facts = [f"{column.header}: {cell}" for column, cell in zip(columns, cells, strict=True) if cell]
            out.print("\n".join(facts), end="\n\n", soft_wrap=True)
        return
    widths = _widths(names, [[_title(name) for name in names], *lines], console.width)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    fitted = [
        _fitted(column, widths[name]) if name in widths else column
        for name, column in zip(names, zip(*lines, strict=True), strict=True)
    ]
    for row, shown in zip(rows, zip(*fitted, strict=True), strict=True):
        table.add_row(*(_styled(name, row[name], cell) for name, cell in zip(names, shown, strict=True)))
    console.print(table)
    if left_out:
        say(f"not shown in {console.width} columns: {', '.join(map(_title, left_out))}", "dim")


def print_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows of values under their names as a table, each value as it is."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for index, name in enumerate(names):
        is_number = all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(one_line(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else one_line(value) for value in row))
    out.print(table)


def _fitting(rows: Sequence[Mapping[str, object]], width: int) -> tuple[list[str], list[str]]:
    """Return the names of the columns that fit, and of those left out; all columns if none of it helps."""
    columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
    droppable = [name for name in _LEFT_OUT if name in columns]
    for number in range(len(droppable) + 1):
        left_out = droppable[:number]
        kept = [name for name in columns if name not in left_out]
        if _least_width([columns[name] for name in kept]) <= width:
            return kept, left_out
    return list(columns), []


def _least_width(columns: Sequence[Column]) -> int:
    return sum(column.min_width or 0 for column in columns) + _GAP * (len(columns) - 1)


def _widths(names: list[str], lines: list[list[str]], width: int) -> dict[str, int]:
    """Return the widths of the columns of names with which the lines fit, the widest shortened first."""
    widest = dict(
        zip(names, (max(map(cell_len, column)) for column in zip(*lines, strict=True)), strict=True)
    )
    excess = sum(widest.values()) + _GAP * (len(names) - 1) - width
    shown = {name: size for name, size in widest.items() if name in _NAMES}
    while excess > 0 and max(shown.values(), default=0) > _FOLDED:
        shown[max(shown, key=lambda name: shown[name])] -= 1
        excess -= 1
    return shown


def _styled(name: str, value: object, cell: str) -> Text:
    is_dearer = isinstance(value, Dollars) and value < 0
    return Text(cell, style=_DEARER if is_dearer else _COLOURS.get(name, {}).get(cell, ""))


def _fitted(names: Sequence[str], width: int) -> list[str]:
    """Return names in at most `width` cells; different ones remain different, or whole and fold."""
    shown = {name: _shortened(name, width) for name in names}
    for alike in _alike(shown):
        start = len(commonprefix(alike))  # noqa: RUF071 # character by character
        shown |= {name: _shortened_around(name, start, width) for name in alike}
    shown |= {name: name for alike in _alike(shown) for name in alike}
    return [shown[name] for name in names]


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of different names that are shown as one text."""
    groups: dict[str, list[str]] = {}
    for name, text in shown.items():
        groups.setdefault(text, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _shortened(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with `…` for the middle if it is longer."""
    if cell_len(text) <= width:
        return text
    kept = width - 1
    return f"{set_cell_size(text, kept - kept // 2)}…{set_cell_size(text[::-1], kept // 2)[::-1]}"


def _shortened_around(text: str, place: int, width: int) -> str:
    """Return `text` in at most `width` cells, with its beginning and what comes at `place` and behind."""
    kept = width // _SHARE_BEFORE
    rest = text[max(place - 1, 0) :]
    return f"{set_cell_size(text, kept)}…{_cut(rest, width - kept - 1)}"


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def _column(name: str, values: list[object]) -> Column:
    title, is_number = _title(name), any(isinstance(value, int | float) for value in values)
    is_whole = is_number or name in _WHOLE
    widest = max(map(cell_len, [title, *(_cell(value, name) for value in values)]))
    return Column(
        title,
        justify="right" if is_number else "left",
        no_wrap=is_whole,
        overflow="fold",
        min_width=widest if is_whole else min(widest, _FOLDED),
    )


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _cell(value: object, name: str = "") -> str:
    match value:
        case None:
            return ""
        case float() if not isinstance(value, Dollars):
            return f"{value:.1%}"
        case int():
            return size_text(value) if name.endswith("_bytes") else f"{value:,}"
        case datetime():
            return age(value)
        case dict():
            return ", ".join(f"{_cell(v)} {_cell(k)}" for k, v in value.items())
        case _:
            return one_line(value)

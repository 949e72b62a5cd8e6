"""Consoles and output of the commands; control characters are always escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from rich.console import Console

from offload.base import text as texts
from offload.base.text import escape_controls, without_colors

T = TypeVar("T")

count = texts.count


class Told(Protocol):
    """Shows the progress of some work."""

    def __call__(self, done: int | None, text: str, total: int | None = None, /) -> object:
        """Show the units done, a text, and their total if it was not known."""


# The units of an age, the largest first.
_AGES = (("day", 86_400), ("hour", 3600), ("min", 60))
_MAX_AGE = timedelta(days=30)

# Record texts are data: no markup, no emoji codes, no colors guessed from their words.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)

# Exit code of a command that found damaged records or failed checks.
PROBLEMS = 3


def visible(text: str) -> str:
    """Return content as it is printed: without terminal colors, other control characters escaped."""
    return escape_controls(without_colors(text))


def one_line(text: object) -> str:
    """Return `text` as one line with control characters escaped."""
    return " ".join(escape_controls(str(text)).split())


def print_json(value: Mapping[str, object]) -> None:
    """Print an object as ASCII JSON, with times in ISO format and bytes in hexadecimal digits."""
    out.print(json.dumps(value, indent=2, default=_json), soft_wrap=True)


def _json(value: object) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def say(text: str, style: str | None = None) -> None:
    """Print one line with control characters escaped, on a terminal in the style of `rich`."""
    out.print(one_line(text), style=style, soft_wrap=True)


def note(text: str) -> None:
    """Print one line about the output to stderr, so that stdout has the content alone."""
    err.print(one_line(text), style="dim", soft_wrap=True)


def page(text: str) -> None:
    """Print a text; on a terminal that is too small for it, page by page in the user's pager."""
    if out.is_terminal and text.count("\n") >= out.height:
        import pydoc  # noqa: PLC0415 # slow to load

        pydoc.pager(text)
    elif text:
        out.print(text, soft_wrap=True)


def age(moment: datetime) -> str:
    """Return how long ago a time was, as "3 hours ago"; its date after 30 days."""
    passed = datetime.now(UTC) - moment
    if passed > _MAX_AGE:
        return f"{moment.astimezone():%Y-%m-%d}"
    seconds = abs(passed).total_seconds()
    for unit, size in _AGES:
        if seconds >= size:
            ago = count(int(seconds // size), unit, plural="min" if unit == "min" else "")
            return f"{ago} ago" if passed > timedelta() else f"in {ago}"
    return "now"


def progress(steps: Iterable[T], title: str, total: Callable[[], int] | None = None) -> Iterable[T]:
    """Return `steps` and show a progress bar with the remaining time on a terminal, nothing in a pipe.

    `total` counts steps that have no length; only a terminal needs it.
    """
    if not err.is_terminal:
        return steps
    from rich.progress import track  # noqa: PLC0415 # slow to load

    return track(steps, title, total=None if total is None else total(), console=err, transient=True)


@contextmanager
def metering(unit: str, total: Callable[[], int] = int) -> Iterator[Told]:
    """Show a bar of the units done with the remaining time on a terminal, nothing in a pipe.

    Yields what sets their number, a text behind the bar, and their total if it was not known; the number None
    is for further work of unknown extent. Only a terminal asks for `total`.
    """
    if not err.is_terminal:
        yield lambda *_: None
        return
    from rich.progress import (  # noqa: PLC0415 # slow to load
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=err, transient=True) as shown:
        known, unknown = shown.add_task("", total=total()), shown.add_task("", total=None, visible=False)

        def told(done: int | None, text: str, total: int | None = None) -> None:
            shown.update(known, completed=done, total=total, description=text, visible=done is not None)
            shown.update(unknown, description=text, visible=done is None)

        yield told


@contextmanager
def working(title: str) -> Iterator[Callable[[str], object]]:
    """Show a spinner with a title on a terminal, nothing in a pipe; yield what adds a text to the title."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")

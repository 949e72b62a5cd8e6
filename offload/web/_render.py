"""Templates and their filters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from offload.base.text import count, escape_controls, size_text
from offload.reading.search import split_at_words

FOLDER = Path(__file__).parent
# The only script of the pages.
SCRIPT = (FOLDER / "lines.js").read_text(encoding="utf-8")
_LEAST_DOLLARS = 0.001


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return the page rendered from `template` with `values`."""
    return HTMLResponse(_templates.get_template(template).render(values), status)


def compact(number: float) -> str:
    """Return a number with up to three digits and a unit, as 1.2M."""
    return size_text(number).removesuffix("B").replace(" ", "")


def _size(size: int) -> str:
    return size_text(size).replace(" ", "\N{NO-BREAK SPACE}")


def _dollars(amount: float) -> str:
    """Return an amount with two decimals, or three if it is below one dollar; "< $0.001" if it is less."""
    if 0 < amount < _LEAST_DOLLARS:
        return f"< ${_LEAST_DOLLARS}"
    return f"{'-' * (amount < 0)}${abs(amount):,.{2 if abs(amount) >= 1 else 3}f}"


def _time(seconds: float) -> Markup:
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), f"{at.astimezone():%Y-%m-%d %H:%M}"
    )


def _without_controls(value: Any) -> Any:
    """Return a template value with control characters escaped; HTML is escaped afterwards."""
    return escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_templates = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_without_controls,
)
_templates.globals["script_of_lines"] = Markup(SCRIPT)  # noqa: S704  # a file of this package
_templates.filters |= {
    "number": "{:,}".format,
    "size": _size,
    "time": _time,
    "compact": compact,
    "count": count,
    "tokens": lambda number: f"{compact(number)} token{'' if number == 1 else 's'}",
    "dollars": _dollars,
    "split_at_words": split_at_words,
}

"""Tables and bars in HTML, for the rich display of results in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from offload.base.text import escape_controls

_MAX_CELL_CHARS = 200
# The hues of the parts of a bar, by their order.
_HUES = (222, 150, 28, 320, 190, 60)


def html_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table with a row for each mapping; the first has the names of the columns."""
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_bar(parts: Iterable[tuple[str, str, int]]) -> str:
    """Return a bar of parts, each as wide as its size; parts of one kind have one color.

    Args:
        parts: the kind, the label and the size of each.
    """
    shown = [part for part in parts if part[2] > 0]
    hues = dict.fromkeys(kind for kind, _, _ in shown)
    colors = {kind: f"hsl({_HUES[n % len(_HUES)]} 45% 55%)" for n, kind in enumerate(hues)}
    cells = "".join(
        f'<span title="{_text(label)}" style="flex:{size} 1 0;background:{colors[kind]}"></span>'
        for kind, label, size in shown
    )
    key = " ".join(
        f'<span style="color:{color}">&#9632;</span> {_text(kind)}' for kind, color in colors.items()
    )
    return f'<div style="display:flex;gap:1px;height:1.2em;max-width:60em">{cells}</div><small>{key}</small>'


def _text(value: object) -> str:
    text = f"{value:,}" if type(value) is int else "" if value is None else str(value)
    cut = text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}…"
    return escape(escape_controls(cut))

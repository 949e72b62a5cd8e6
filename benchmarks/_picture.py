"""A picture of one session: the context of each request with and without offloading, and the cost so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _LEFT, _RIGHT = 720, 64, 170
_PANEL, _GAP, _TOP = 150, 56, 44
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#444}.title{font-size:15px;font-weight:600;fill:#1c1c1c}
.axis{stroke:#ccc}.without{stroke:#c2570c;fill:#c2570c}.with{stroke:#0f766e;fill:#0f766e}
polyline{fill:none!important;stroke-width:2}text.without,text.with{stroke:none;font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.axis{stroke:#444}
.without{stroke:#fb923c;fill:#fb923c}.with{stroke:#2dd4bf;fill:#2dd4bf}}
"""


@dataclass(frozen=True)
class Panel:
    """One chart: its title, the values of both lines, and how a value is written."""

    title: str
    without: Sequence[float]
    with_it: Sequence[float]
    form: str


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return the panels below each other as an SVG for light and dark pages."""
    height = _TOP + len(panels) * (_PANEL + _GAP)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="8" y="20">{title}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _drawn(panel, _TOP + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>\n"])


def _drawn(panel: Panel, top: int) -> list[str]:
    form = panel.form.format
    most, right, bottom = max(*panel.without, *panel.with_it), _WIDTH - _RIGHT, top + _PANEL + 16
    parts = [
        f'<text x="{_LEFT}" y="{top + 4}">{panel.title}</text>',
        f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>',
        f'<text x="{_LEFT - 8}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text x="{_LEFT - 8}" y="{bottom - _PANEL + 14}" text-anchor="end">{form(most)}</text>',
        f'<text x="{right}" y="{bottom + 17}" text-anchor="end">request {len(panel.without)}</text>',
    ]
    for name, values in (("without", panel.without), ("with", panel.with_it)):
        step, last = (right - _LEFT) / max(len(values) - 1, 1), bottom - values[-1] / most * _PANEL
        points = " ".join(
            f"{_LEFT + n * step:.1f},{bottom - value / most * _PANEL:.1f}" for n, value in enumerate(values)
        )
        label = f"{name} offload: {form(values[-1])}"
        parts += [
            f'<polyline class="{name}" points="{points}"/>',
            f'<text class="{name}" x="{right + 8}" y="{last + 4:.1f}">{label}</text>',
        ]
    return parts

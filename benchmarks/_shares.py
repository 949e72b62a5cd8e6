"""A picture of the share of tasks that each library solved, over the size of the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 380, 56, 200, 56, 44
_LABEL = 15
_COLORS = ("#b45309", "#a21caf", "#1d4ed8", "#be123c", "#4d7c0f", "#7c3aed", "#0e7490", "#78716c", "#a8a29e")
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#444}.title{font-size:15px;font-weight:600;fill:#1c1c1c}
.axis{stroke:#ccc}polyline{fill:none;stroke-width:1.5}.ours{stroke:#0f766e;stroke-width:3.5}
text.ours{fill:#0f766e;stroke:none;font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.axis{stroke:#444}
.ours{stroke:#2dd4bf}text.ours{fill:#2dd4bf}}
"""


def svg(title: str, ours: str, sizes: Sequence[int], shares: Mapping[str, Sequence[float]]) -> str:
    """Return the lines as an SVG for light and dark pages; the line of `ours` is the thick one.

    Args:
        title: what the picture shows.
        ours: one of the names.
        sizes: tokens, in even steps from left to right.
        shares: by name, a share from 0 to 1 for each size.
    """
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    frame = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" aria-label="{title}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="8" y="20">{title}</text>',
    ]
    for share in (0, 0.5, 1):
        y = _y(share)
        parts.append(f'<line class="axis" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for number, size in enumerate(sizes):
        x = _x(number, len(sizes))
        label = f"{size // 1000}k" if size < 10**6 else f"{size // 10**6}M"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    others = dict(zip((name for name in shares if name != ours), _COLORS, strict=False))
    for name, height in _labels(shares).items():
        points = " ".join(
            f"{_x(number, len(sizes)):.1f},{_y(share):.1f}" for number, share in enumerate(shares[name])
        )
        line, text = (
            ('class="ours"', 'class="ours"')
            if name == ours
            else (f'stroke="{others[name]}"', f'style="fill:{others[name]}"')
        )
        parts.append(f'<polyline {line} points="{points}"/>')
        parts.append(f'<text {text} x="{right + 10}" y="{height + 4:.1f}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _x(number: int, count: int) -> float:
    return _LEFT + 12 + number * (_WIDTH - _RIGHT - _LEFT - 24) / max(count - 1, 1)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _BOTTOM - _TOP)


def _labels(shares: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the height of each name, next to the end of its line and below the one before it."""
    heights: dict[str, float] = {}
    lowest = 0.0
    names = sorted(shares, key=lambda name: -shares[name][-1])
    for number, name in enumerate(names):
        room = _HEIGHT - 8 - _LABEL * (len(names) - 1 - number)
        lowest = heights[name] = min(max(_y(shares[name][-1]), lowest + _LABEL), room)
    return heights

"""The frontier of policies: input cost against the share of quotes gone, append-only and editable.

Each point is a policy of the table `POINTS`. Cost and quotes gone are those of `bench_cost.py`, tools and
prompt included. `reads seen` is the share of all file reads that were sent in full. The last column of the
table is the range of the cost if any one source of recordings is left out. The full run also draws the
points as `docs/assets/frontier.svg`; the default is marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from _measure import Figure, run
from bench_cost import (
    CACHE,
    QUICK_MESSAGES,
    Session,
    extra_of,
    gone_of,
    is_reader,
    sessions_with_usage,
    share_gone,
)
from peers._tables import markdown

from offload import OffloadPolicy
from offload.engine.policy.facts import PolicyName
from offload.replay import Bill, Offloading, measure

DEFAULT = "balanced"
# The name of each point → the fields of its policy.
POINTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"preset": name} for name in get_args(PolicyName)},
    "thresholds alone": {"cost_plan": "none"},
    "file reads kept": {"file_readers": {"enabled": False}},
    # In append-only sessions, reads of fewer than 1,200 characters for each of these replies are kept.
    **{f"file reads after {n} replies": {"file_readers": {"after_replies": n}} for n in (1, 5, 20, 36)},
    **{
        f"results from {n:,} tokens": {"types": {"tool_result": {"min_tokens": n}}} for n in (750, 3000, 6000)
    },
    **{
        f"previews of {n:,} characters": {"types": {"tool_result": {"preview_chars": n}}} for n in (500, 2000)
    },
    **{f"file previews of {3 * n:,} characters": {"file_readers": {"preview_chars": n}} for n in (300, 3000)},
}
HISTORIES = ("append_only", "editable")
PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "frontier.svg"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 400, 60, 56, 560, 340
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#444}.title{font-size:15px;font-weight:600;fill:#1c1c1c}
.axis{stroke:#ccc}.append_only{fill:#c2570c}.editable{fill:#0f766e}.default{stroke:#1c1c1c;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.axis{stroke:#444}
.append_only{fill:#fb923c}.editable{fill:#2dd4bf}.default{stroke:#eee}}
"""


@dataclass(frozen=True)
class Point:
    """A policy, and the cost of all sessions under it."""

    name: str
    history: str
    cost: float
    bills: Sequence[Bill]
    seen: float
    without_one: tuple[float, float]

    @property
    def title(self) -> str:
        """Its name and its history."""
        return f"{self.name}, {self.history.replace('_', '-')}"


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    sessions = list(sessions_with_usage(QUICK_MESSAGES if is_quick else None))
    names = list(POINTS)[:2] if is_quick else list(POINTS)
    points = [_point(name, history, sessions) for name in names for history in HISTORIES if sessions]
    head = ["", "cost", "quotes gone", "extra requests", "reads seen", "cost without one source"]
    rows = [
        [
            p.title,
            f"{p.cost:.3f}",
            f"{gone_of(p.bills)} ({share_gone(p.bills):.0%})",
            str(extra_of(p.bills)),
            f"{p.seen:.2f}",
            "{:.3f}-{:.3f}".format(*p.without_one),
        ]
        for p in points
    ]
    print(markdown(head, rows), flush=True)
    if points and not is_quick:
        PICTURE.write_text(_svg(points), encoding="utf-8")
    for p in points:
        detail = f"{gone_of(p.bills)} quotes gone, {extra_of(p.bills)} extra requests"
        yield Figure(f"{p.title}: input cost / without offloading", p.cost, detail=detail)


def _point(name: str, history: str, sessions: Sequence[Session]) -> Point:
    policy = OffloadPolicy.model_validate({"preset": DEFAULT, "history": history, **POINTS[name]})
    bills = [measure(session.recording, Offloading(session.recording, policy), CACHE) for session in sessions]
    readers = kept = 0
    for session, bill in zip(sessions, bills, strict=True):
        of_readers = {row for row in session.recording.new if is_reader(session.recording, row)}
        readers += len(of_readers)
        kept += len(of_readers - (bill.replaced - bill.seen))
    sources = sorted({session.source for session in sessions})

    def cost(left_out: str = "") -> float:
        some = [(s, b) for s, b in zip(sessions, bills, strict=True) if s.source != left_out]
        return sum(b.cost for _, b in some) / max(1e-9, sum(s.plain.cost for s, _ in some))

    others = [cost(source) for source in sources] if len(sources) > 1 else [cost()]
    return Point(name, history, cost(), bills, kept / max(1, readers), (min(others), max(others)))


def _svg(points: Sequence[Point]) -> str:
    """Return the chart, for light and dark pages."""
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    title = "Input cost of recorded sessions against the quotes of edits that are gone"
    costs, most = [p.cost for p in points], max(share_gone(p.bills) for p in points) + 0.02
    low, high = min(costs) - 0.05, max(costs) + 0.01
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f'<style>{_STYLE}</style><text class="title" x="8" y="20">{title}</text>',
        f'<line class="axis" x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" y2="{_BOTTOM}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_BOTTOM}"/>',
        f'<text x="{_LEFT}" y="{_TOP - 8}">input cost, 1 without offloading</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 8}" text-anchor="end">{high:.2f}</text>',
        f'<text x="{_LEFT - 8}" y="{_BOTTOM + 4}" text-anchor="end">{low:.2f}</text>',
        f'<text x="{_LEFT}" y="{_BOTTOM + 18}">0 %</text>',
        f'<text x="{_RIGHT}" y="{_BOTTOM + 18}" text-anchor="end">{most:.0%}</text>',
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 38}" text-anchor="middle">quotes gone</text>',
    ]
    for number, history in enumerate(HISTORIES):
        y = _TOP + 20 * number
        parts += [
            f'<circle class="{history}" cx="{_RIGHT + 20}" cy="{y}" r="5"/>',
            f'<text x="{_RIGHT + 32}" y="{y + 4}">{history.replace("_", "-")}</text>',
        ]
    for p in points:
        left = _LEFT + share_gone(p.bills) / most * (_RIGHT - _LEFT)
        top = _BOTTOM - (p.cost - low) / (high - low) * (_BOTTOM - _TOP)
        is_preset, mark = p.name in get_args(PolicyName), " default" if p.name == DEFAULT else ""
        shape = f'cx="{left:.1f}" cy="{top:.1f}" r="{7 if mark else 5 if is_preset else 3}"'
        parts.append(f'<circle class="{p.history}{mark}" {shape}><title>{p.title}</title></circle>')
        if is_preset:
            label = f"{p.name} (default)" if mark else p.name
            side = -6 if p.history == "append_only" else 34 if mark else 4
            parts.append(f'<text x="{left + 10:.1f}" y="{top + side:.1f}">{label}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    run(__doc__, figures)

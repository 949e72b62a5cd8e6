"""The frontier of policies that change nothing that was sent: cost against what the model still sees.

Each point is a policy with `history="append_only"` and one size changed: the smallest read that may leave,
the share of an item that its preview may have, its most characters, and the size up to which it has them.
Cost is that of `bench_cost.py`, tools and prompt included. `reads seen` is the share of all file reads that
were sent in full; `facts shown` is the share of the names in replaced results, written again later, that
the preview shows with half of the words around them. The last column of the table is the range of the cost
if any one source of recordings is left out. The full run also draws the points as
`docs/assets/frontier.svg`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _measure import Figure, run
from bench_cost import CACHE, QUICK_MESSAGES, Session, is_reader, is_result, sessions_with_usage
from peers._tables import markdown

from offload import OffloadPolicy
from offload.policy import policy as _policy
from offload.policy.defaults import DEFAULT_MIN_TOKENS
from offload.replay import Bill, Offloading, Recording, Request, View, measure

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "frontier.svg"
_WIDTH, _HEIGHT, _LEFT, _TOP, _PANEL = 720, 330, 60, 56, 250
_STYLE = """
text{font:13px system-ui,sans-serif;fill:#444}.title{font-size:15px;font-weight:600;fill:#1c1c1c}
.axis{stroke:#ccc}circle{fill:#c2570c}.named{fill:#0f766e}text.named{font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.axis{stroke:#444}
circle{fill:#fb923c}.named{fill:#2dd4bf}}
"""


@dataclass(frozen=True)
class Way:
    """A policy of the frontier.

    Attributes:
        name: how the table names it.
        preset: the named policy that it changes.
        sizes: constants of the policy.
        preview_chars: most characters of a preview; 0 is those of the preset.
    """

    name: str
    preset: str = "balanced"
    sizes: dict[str, Any] = field(default_factory=dict)
    preview_chars: int = 0

    def policy(self) -> OffloadPolicy:
        """Return the policy."""
        changes: dict[str, Any] = {"preset": self.preset, "history": "append_only"}
        if self.preview_chars:
            rule = {"preview_chars": self.preview_chars}
            changes |= {"types": {"tool_result": rule}}
            readers = {"min_tokens": DEFAULT_MIN_TOKENS, "after_turns": 1, **rule}
            changes |= {"readers": readers} if self.preset == "balanced" else {}
        return OffloadPolicy.model_validate(changes)


WAYS = (
    Way("balanced"),
    Way("economy", "economy"),
    *(Way(f"reads from {n:,} tokens", sizes={"KEPT_TOKENS": n}) for n in (250, 1500, 3000, 6000, 40_000)),
    *(Way(f"previews of {n:.0%} at most", sizes={"PREVIEW_SHARE": n}) for n in (0.25, 0.75)),
    *(Way(f"previews of {n:,} characters at most", preview_chars=n // 2) for n in (500, 1000, 4000)),
    *(Way(f"in full up to {n:,} characters", sizes={"PREVIEWED_CHARS": n}) for n in (5000, 20_000)),
)


class Watched:
    """Sends a session by a policy, and notes which facts of replaced results their previews hide."""

    def __init__(self, recording: Recording, policy: OffloadPolicy) -> None:
        self._offloading = Offloading(recording, policy)
        self._recording = recording
        self._view, self._bill = View(recording), Bill()
        self.tools = self._offloading.tools
        self._texts: dict[int, str] = {}
        self._used: set[tuple[int, str]] = set()
        self._hidden: set[tuple[int, str]] = set()

    def replaced(self, request: Request) -> dict[int, str]:
        """Return the texts of a request that changed."""
        due = dict(self._offloading.replaced(request))
        before = set(self._texts)
        self._texts |= {row: text for row, text in due.items() if is_result(self._recording, row)}
        self._view.send(request.rows, due, self._bill)
        for row in self._texts.keys() - before:
            names = self._recording.new.get(row, frozenset())
            hidden, _ = self._view.hidden_of(row)
            later = {n for r in self._recording.requests if r.rows >= request.rows for n in r.written}
            self._used |= {(row, name) for name in names & later}
            self._hidden |= {(row, name) for name in hidden & later}
        return due

    def read_back(self, text: str) -> None:
        """Let the library know of a read."""
        self._offloading.read_back(text)

    @property
    def facts(self) -> tuple[int, int]:
        """Facts that previews show, and all that are used later."""
        return len(self._used) - len(self._hidden), len(self._used)


@dataclass(frozen=True)
class Point:
    """What a policy costs and shows, over all sessions."""

    name: str
    cost: float
    seen: float
    shown: float
    reads: int
    without_one: tuple[float, float]


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    sessions = list(sessions_with_usage(QUICK_MESSAGES if is_quick else None))
    points = [_point(way, sessions) for way in (WAYS[:3] if is_quick else WAYS)] if sessions else []
    head = ["", "cost", "reads seen", "facts shown", "read-backs", "cost without one source"]
    rows = [
        [
            p.name,
            f"{p.cost:.3f}",
            f"{p.seen:.2f}",
            f"{p.shown:.2f}",
            str(p.reads),
            "{:.3f}-{:.3f}".format(*p.without_one),
        ]
        for p in points
    ]
    print(markdown(head, rows), flush=True)
    if points and not is_quick:
        PICTURE.write_text(_svg(points), encoding="utf-8")
    for p in points:
        detail = f"{p.seen:.2f} of file reads seen in full, {p.shown:.2f} of facts shown"
        yield Figure(f"{p.name}: input cost / without offloading", p.cost, detail=detail)


def _point(way: Way, sessions: Sequence[Session]) -> Point:
    bills, shown, used, kept, readers = list[Bill](), 0, 0, 0, 0
    with patch.multiple(_policy, **way.sizes) if way.sizes else patch.object(_policy, "SENT", _policy.SENT):
        for session in sessions:
            recording = session.recording
            sender = Watched(recording, way.policy())
            bill = measure(recording, sender, CACHE)
            bills.append(bill)
            of_readers = {row for row in recording.new if is_reader(recording, row)}
            readers += len(of_readers)
            kept += len(of_readers - (bill.replaced - bill.seen))
            here = sender.facts
            shown, used = shown + here[0], used + here[1]
    sources = sorted({session.source for session in sessions})

    def cost(left_out: str = "") -> float:
        some = [(s, b) for s, b in zip(sessions, bills, strict=True) if s.source != left_out]
        return sum(b.cost for _, b in some) / max(1e-9, sum(s.plain.cost for s, _ in some))

    others = [cost(source) for source in sources] if len(sources) > 1 else [cost()]
    reads = sum(bill.reads for bill in bills)
    return Point(
        way.name, cost(), kept / max(1, readers), shown / max(1, used), reads, (min(others), max(others))
    )


def _svg(points: Sequence[Point]) -> str:
    """Return both charts side by side, for light and dark pages."""
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    title = "Append-only policies: input cost against what the model sees"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f'<style>{_STYLE}</style><text class="title" x="8" y="20">{title}</text>',
    ]
    costs = [point.cost for point in points]
    low, high = min(costs) - 0.01, max(costs) + 0.01
    for number, (label, shares) in enumerate(
        (
            ("file reads seen in full", [p.seen for p in points]),
            ("facts shown in context", [p.shown for p in points]),
        )
    ):
        left = _LEFT + number * (_PANEL + 90)
        bottom = _TOP + 210
        least, most = max(0.0, min(shares) - 0.05), min(1.05, max(shares) + 0.05)
        parts += [
            f'<line class="axis" x1="{left}" y1="{bottom}" x2="{left + _PANEL}" y2="{bottom}"/>',
            f'<line class="axis" x1="{left}" y1="{_TOP}" x2="{left}" y2="{bottom}"/>',
            f'<text x="{left}" y="{_TOP - 8}">input cost</text>',
            f'<text x="{left - 8}" y="{_TOP + 8}" text-anchor="end">{high:.2f}</text>',
            f'<text x="{left - 8}" y="{bottom + 4}" text-anchor="end">{low:.2f}</text>',
            f'<text x="{left}" y="{bottom + 18}">{least:.2f}</text>',
            f'<text x="{left + _PANEL}" y="{bottom + 18}" text-anchor="end">{most:.2f}</text>',
            f'<text x="{left + _PANEL / 2}" y="{bottom + 38}" text-anchor="middle">{label}</text>',
        ]
        for point, share in zip(points, shares, strict=True):
            x = left + (share - least) / (most - least) * _PANEL
            y = bottom - (point.cost - low) / (high - low) * 210
            is_named = point.name in ("balanced", "economy")
            shape = f'cx="{x:.1f}" cy="{y:.1f}" r="{6 if is_named else 4}"'
            named = ' class="named"' if is_named else ""
            parts.append(f"<circle{named} {shape}><title>{point.name}</title></circle>")
            if is_named:
                parts.append(f'<text class="named" x="{x + 9:.1f}" y="{y + 4:.1f}">{point.name}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    run(__doc__, figures)

"""Input cost of recorded sessions under each policy: at recorded times and cache misses, per source.

The measure is that of `offload savings`: where an edit quotes a text that is hidden, or the assistant writes
a hidden name, it reads back first. *Quotes gone* is the share of such quotes, *extra requests* are those that
read back. Plain policies have the shapes of other libraries' defaults; their tools are 400 tokens of each
request, and an answer that they give has the usual size and is kept. With `--clairvoyant` (minutes) each text
is replaced at the moment, and with the preview, that turns out cheapest with hindsight: no policy can do
this, and the distance to it shows what is left to gain. The full run also draws one session, the picture of
the README.

Transcripts are those of `bench_savings.py`; only sessions with the provider's usage are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, get_args

from _measure import Figure, run
from _picture import Panel, svg
from peers._conversations import folder
from peers._tables import markdown

from offload import CacheModel, OffloadPolicy
from offload.engine.policy.facts import PolicyName
from offload.engine.policy.tool_names import words_of
from offload.engine.preview import preview_of
from offload.replay import Bill, Offloading, Recording, Request, Sender, Untouched, load, measure

CACHE = CacheModel()
QUICK_MESSAGES = 150


class Budget(NamedTuple):
    """The most that a policy may cost, relative to no offloading, and the largest share of quotes gone."""

    cost: float
    gone: float


BUDGETS: Mapping[str, Budget] = {
    "balanced": Budget(0.59, 0.1),
    "balanced, append-only": Budget(0.79, 0.17),
    "verbatim": Budget(0.71, 0.03),
}
# How many sessions may be dearer, and how much.
_DEARER, _WORST = 1, 1.03
PLAIN_TOOLS = 400
RESULT = "tool_result"
_READERS = {"read", "view", "open", "cat", "notebook"}
# A session that costs up to this part of its cost without offloading is not dearer.
_SAME = 1.0005
# The picture of the README: of a session of so many requests or more, in dollars at the price of input of
# claude-opus-4-5, https://platform.claude.com/docs/en/about-claude/pricing (2026-10).
PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "session.svg"
_LONG, DOLLARS = 100, 5.0
# The words of a plain placeholder, beside the preview.
_FRAME = " " * 216
# A text that a clairvoyant considers, and the previews that it may leave.
_LEAST_CHARS, _PREVIEWS = 1_500, (1_000, 200)

Preview = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session, its source, and its price without offloading."""

    source: str
    recording: Recording
    plain: Bill


@dataclass
class Plain(Untouched):
    """Replaces results of `min_chars` or more by a preview and 60 tokens of words.

    Attributes:
        recording: the session.
        min_chars: the threshold.
        preview: returns what is left of a text.
        readers: how many answers a file reader's result waits for.
        cold_chars: the threshold of any text that is two answers old when the cache is cold; 0 is none.
    """

    recording: Recording
    min_chars: int
    preview: Preview
    readers: int = 0
    cold_chars: int = 0
    tools: float = PLAIN_TOOLS
    turn: int = -1
    ages: dict[int, int] = field(default_factory=dict)
    known: int = 0

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts that are due now."""
        self.turn += 1
        self.ages |= dict.fromkeys(range(self.known, request.rows), self.turn)
        self.known = request.rows
        due = [row for row, first in self.ages.items() if self._is_due(row, self.turn - first, request)]
        texts = {row: self.preview(self.recording.rows[row].text) + _FRAME for row in due}
        left = {row: text for row, text in texts.items() if len(text) < len(self.recording.rows[row].text)}
        self.ages = {row: first for row, first in self.ages.items() if row not in left}
        return left

    def _is_due(self, row: int, age: int, request: Request) -> bool:
        text = self.recording.rows[row].text
        wait = self.readers if is_reader(self.recording, row) else 0
        is_cold = self.turn > 0 and request.is_cold and age > 1
        return (is_result(self.recording, row) and len(text) >= self.min_chars and age >= wait) or (
            is_cold and 0 < self.cold_chars <= len(text)
        )


@dataclass
class Chosen(Untouched):
    """Replaces texts by choice.

    Attributes:
        recording: the session.
        choice: by row, how many answers the text waits for, None for the first cold moment, and the
            characters of its preview.
    """

    recording: Recording
    choice: Mapping[int, tuple[int | None, int]]
    tools: float = PLAIN_TOOLS
    turn: int = -1
    firsts: dict[int, int] = field(default_factory=dict)

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts whose moment has come."""
        self.turn += 1
        due: dict[int, str] = {}
        for row, (when, chars) in self.choice.items():
            age = self.turn - self.firsts.setdefault(row, self.turn) if row < request.rows else -1
            if (self.turn > 0 and request.is_cold and age > 0) if when is None else age >= when:
                due[row] = _preview(self.recording.rows[row].text, chars) + _FRAME
        return due


def figures(is_quick: bool, *, clairvoyant: bool) -> Iterator[Figure]:
    """Yield the figures."""
    sessions = list(sessions_with_usage(QUICK_MESSAGES if is_quick else None))
    if not sessions:
        print(f"no transcripts with usage in {folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    bills = {name: [_bill(session, make) for session in sessions] for name, make in _ways().items()}
    if clairvoyant:
        bills["clairvoyant"] = [_clairvoyant(session) for session in sessions]
    _print_table(sessions, bills)
    if not is_quick:
        _draw(sessions, bills["balanced"])
    # Budgets are for all sessions.
    budgets = {} if is_quick else BUDGETS
    for name, each in bills.items():
        yield from _figures_of(name, sessions, each, budgets.get(name))


def is_result(recording: Recording, row: int) -> bool:
    """Return whether a text is the result of a tool."""
    return recording.rows[row].kind == RESULT


def is_reader(recording: Recording, row: int) -> bool:
    """Return whether a text is the result of a file reader."""
    tool = recording.rows[row].tool or ""
    return is_result(recording, row) and not _READERS.isdisjoint(words_of(tool))


def sessions_with_usage(most_messages: int | None) -> Iterator[Session]:
    """Yield the recorded sessions, of up to `most_messages` messages."""
    for path in sorted(folder().glob("trajectories/*/*.json")):
        for transcript in load(path):
            if transcript.usage and (most_messages is None or len(transcript.messages) <= most_messages):
                recording = Recording(transcript, CACHE.ttl)
                yield Session(path.parent.name, recording, measure(recording, Untouched(), CACHE))


def _ways() -> dict[str, Callable[[Recording], Sender]]:
    head = partial(_head, chars=1000)
    ways: dict[str, Callable[[Recording], Sender]] = {
        "10k chars, head 4000": partial(Plain, min_chars=10_000, preview=partial(_head, chars=4000)),
        "10k chars, 500 + 500": partial(Plain, min_chars=10_000, preview=_head_and_tail),
        "5k chars, head 1000": partial(Plain, min_chars=5_000, preview=head),
        "5k, head 1000, readers after 1": partial(Plain, min_chars=5_000, preview=head, readers=1),
        "5k, readers after 1, cold from 1,500": partial(
            Plain, min_chars=5_000, preview=head, readers=1, cold_chars=1_500
        ),
        "cold alone, from 1,500": partial(Plain, min_chars=10**12, preview=head, cold_chars=1_500),
    }
    for name in get_args(PolicyName):
        for end, history in (("", "editable"), (", append-only", "append_only")):
            policy = OffloadPolicy.model_validate({"preset": name, "history": history})
            ways[name + end] = partial(Offloading, policy=policy)
    return ways


def _head(text: str, chars: int) -> str:
    return text[:chars]


def _head_and_tail(text: str) -> str:
    half = _PREVIEWS[0] // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n...\n{text[-half:]}"


@lru_cache(50_000)
def _preview(text: str, chars: int) -> str:
    return preview_of(text, chars).text


def _bill(session: Session, make: Callable[[Recording], Sender]) -> Bill:
    return measure(session.recording, make(session.recording), CACHE)


def _clairvoyant(session: Session) -> Bill:
    """Return the bill of the cheapest choice, made text by text, the largest first."""
    recording, best = session.recording, session.plain
    choice: dict[int, tuple[int | None, int]] = {}
    large = [row for row, (_, _, text) in enumerate(recording.rows) if len(text) >= _LEAST_CHARS]
    for row in sorted(large, key=lambda row: -len(recording.rows[row].text)):
        moments = [1, 0] if is_result(recording, row) and not is_reader(recording, row) else [1]
        ways: list[tuple[int | None, int]] = [(when, chars) for when in moments for chars in _PREVIEWS]
        ways += [(None, _PREVIEWS[-1])] if any(r.is_cold for r in recording.requests[1:]) else []
        for way in ways:
            bill = measure(recording, Chosen(recording, {**choice, row: way}), CACHE)
            if bill.cost < best.cost - 1e-6:
                best, choice = bill, {**choice, row: way}
    return best


# Report


def _figures_of(
    name: str, sessions: Sequence[Session], bills: Sequence[Bill], budget: Budget | None
) -> Iterator[Figure]:
    plain = sum(session.plain.cost for session in sessions)
    ratios = [bill.decided / session.plain.cost for bill, session in zip(bills, sessions, strict=True)]
    detail = (
        f"{sum(bill.decided for bill in bills) / plain:.3f} without tools, {gone_of(bills)} quotes gone, "
        f"{extra_of(bills)} extra requests, {sum(len(b.replaced) for b in bills)} texts replaced"
    )
    most, gone, dearer, worst = (*budget, _DEARER, _WORST) if budget else (None,) * 4
    cost = sum(bill.cost for bill in bills) / plain
    yield Figure(f"{name}: input cost / without offloading", cost, at_most=most, detail=detail)
    yield Figure("  quotes gone / quotes in edits", share_gone(bills), "", at_most=gone)
    count = sum(ratio > _SAME for ratio in ratios)
    yield Figure("  sessions dearer by what was decided", count, "", at_most=dearer)
    yield Figure("  the dearest / its cost without offloading", max(ratios), at_most=worst)
    readers = [
        row in bill.seen
        for bill, session in zip(bills, sessions, strict=True)
        for row in bill.replaced
        if is_reader(session.recording, row)
    ]
    if readers:
        yield Figure("  file reads that left, seen in full", sum(readers) / len(readers), "")


def share_gone(bills: Sequence[Bill]) -> float:
    """Return the share of quotes in edits that were gone."""
    return sum(bill.quotes_gone for bill in bills) / max(1, sum(bill.quotes for bill in bills))


def gone_of(bills: Sequence[Bill]) -> str:
    """Return how many quotes in edits were gone, of how many."""
    return f"{sum(bill.quotes_gone for bill in bills)} of {sum(bill.quotes for bill in bills)}"


def extra_of(bills: Sequence[Bill]) -> int:
    """Return the number of requests that read back."""
    return sum(bill.reads for bill in bills)


def _print_table(sessions: Sequence[Session], bills: Mapping[str, Sequence[Bill]]) -> None:
    """Print the cost of each policy per source; without tools in brackets."""
    sources = sorted({session.source for session in sessions})
    rows = [
        [
            name,
            *(_share(sessions, each, {source}) for source in sources),
            _share(sessions, each, set(sources)),
            f"{gone_of(each)} ({share_gone(each):.0%})",
            str(extra_of(each)),
        ]
        for name, each in bills.items()
    ]
    head = ["", *sources, f"all {len(sessions)}", "quotes gone", "extra requests"]
    print(markdown(head, rows), flush=True)


def _share(sessions: Sequence[Session], bills: Sequence[Bill], sources: set[str]) -> str:
    chosen = [(s.plain, b) for s, b in zip(sessions, bills, strict=True) if s.source in sources]
    plain = sum(without.cost for without, _ in chosen)
    cost, decided = (sum(getattr(b, part) for _, b in chosen) / plain for part in ("cost", "decided"))
    return f"{cost:.3f} ({decided:.3f})"


def _draw(sessions: Sequence[Session], bills: Sequence[Bill]) -> None:
    """Draw the long session whose share of the cost is nearest to that of all sessions."""
    whole = sum(bill.cost for bill in bills) / sum(session.plain.cost for session in sessions)
    long = [(s, b) for s, b in zip(sessions, bills, strict=True) if len(b.totals) >= _LONG]
    if not long:
        return
    session, bill = min(long, key=lambda each: abs(each[1].cost / each[0].plain.cost - whole))
    panels = [
        Panel(
            "Tokens in the context, in thousands",
            [size / 1000 for size in session.plain.sizes],
            [size / 1000 for size in bill.sizes],
            "{:.0f}k",
        ),
        Panel(
            f"Input cost so far, at ${DOLLARS:.0f} for a million tokens, cached ones at a tenth",
            [total * DOLLARS / 1e6 for total in session.plain.totals],
            [total * DOLLARS / 1e6 for total in bill.totals],
            "${:.2f}",
        ),
    ]
    title = f"A recorded coding session of {len(bill.totals)} requests, at its recorded times"
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(title, panels), encoding="utf-8")
    print(f"{PICTURE.name}: {session.recording.transcript.name}, {bill.cost / session.plain.cost:.3f}")


if __name__ == "__main__":
    run(__doc__, figures, clairvoyant="also measure a choice by hindsight: minutes")

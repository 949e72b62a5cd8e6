"""How often recorded agents would read an offloaded text again: the reads that offloading by cost expects.

Every text of 1,000 characters or more is offloaded once the model has seen it; a read-back is what `offload
savings` counts as one. A row is the mean number of read-backs of such texts when they are offloaded after so
many replies, with what the policy expects in brackets: of a text that the model did not see, and of one that
it left alone. Last is the range of the first mean if any one source of recordings is left out. Transcripts
are those of `bench_cost.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from _measure import Figure, run
from bench_cost import CACHE, QUICK_MESSAGES, sessions_with_usage

from offload import OffloadPolicy, Rule
from offload.engine.policy.cost import LEFT_ALONE, LEFT_SHARE, READS_OF_FILES, READS_OF_RESULTS, Candidate
from offload.engine.policy.tool_names import shows_file
from offload.replay import Need, Offloading, Recording, Request, measure, tokens_of

_AGES = (1, 4, 8, 16, 32)
_HIDDEN = (0, 500, 1500, 4000, 10**9)
_RULE = Rule(min_chars=1000, after_replies=1)
_TYPES = ("tool_result", "tool_call", "user_message")
_FILE = "file"
EVERYTHING = OffloadPolicy(types=dict.fromkeys(_TYPES, _RULE), max_view_tokens=None, history="editable")


class Text(NamedTuple):
    """An offloaded text.

    Attributes:
        source: the source of its session.
        kind: its item type, or that it is a result that shows a file.
        hidden: tokens that its placeholder hides.
        reads: replies from its request to each read of it.
        replies: replies from its request to the end of the session.
    """

    source: str
    kind: str
    hidden: float
    reads: Sequence[int]
    replies: int


@dataclass
class Watched:
    """Offloads everything and notes when each text was sent, and when it was read back."""

    offloading: Offloading
    recording: Recording
    tools: float = 0
    turn: int = -1
    sent: dict[int, int] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    reads: dict[int, list[int]] = field(default_factory=dict)

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts that are replaced now."""
        self.turn += 1
        for row in range(len(self.sent), request.rows):
            self.sent[row] = self.turn
        due = self.offloading.replaced(request)
        self.left |= {row: text for row, text in due.items() if text != self.recording.rows[row].text}
        return due

    def read(self, need: Need) -> None:
        """Note the read."""
        if need.row is not None:
            self.reads.setdefault(need.row, []).append(self.turn - self.sent[need.row])


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    texts = list(_texts(QUICK_MESSAGES if is_quick else None))
    sources = sorted({text.source for text in texts})
    for kind in (_FILE, *_TYPES):
        for low, high in pairwise(_HIDDEN):
            some = [text for text in texts if text.kind == kind and low <= text.hidden < high]
            if not some:
                continue
            others = ([t for t in some if t.source != source] for source in sources)
            means = [mean for texts in others if (mean := _mean(texts, 1)) is not None]
            yield Figure(
                f"{kind}, {low:,} to {high:,} tokens hidden" if high < 10**9 else f"{kind}, more",
                _mean(some, 1) or 0.0,
                "",
                detail=f"{len(some)} texts; {_by_age(some)}; {min(means):.2f}-{max(means):.2f}",
            )


def _texts(most_messages: int | None) -> Iterator[Text]:
    for session in sessions_with_usage(most_messages):
        recording = session.recording
        watched = Watched(Offloading(recording, EVERYTHING), recording)
        measure(recording, watched, CACHE)
        for row, text in watched.left.items():
            whole = recording.rows[row]
            is_file = whole.kind == "tool_result" and shows_file(whole.tool)
            yield Text(
                session.source,
                _FILE if is_file else whole.kind,
                tokens_of(whole.text) - tokens_of(text),
                watched.reads.get(row, ()),
                watched.turn - watched.sent[row],
            )


def _mean(texts: Sequence[Text], age: int) -> float | None:
    """Return the mean number of read-backs of the texts when they leave after `age` replies."""
    there = [text for text in texts if text.replies >= age]
    return sum(read >= age for text in there for read in text.reads) / len(there) if there else None


def _by_age(texts: Sequence[Text]) -> str:
    """Return the means at each age, and in brackets what is expected of a text of the same size."""
    hidden = round(sum(text.hidden for text in texts) / len(texts))
    most = READS_OF_FILES if texts[0].kind == _FILE else READS_OF_RESULTS
    expected = Candidate("", hidden, hidden, LEFT_ALONE, reads=most).expected_reads
    means = ((age, _mean(texts, age)) for age in _AGES)
    return ", ".join(
        f"{age}: {mean:.2f} ({expected * (1 if age < LEFT_ALONE else LEFT_SHARE):.2f})"
        for age, mean in means
        if mean is not None
    )


if __name__ == "__main__":
    run(__doc__, figures)

"""Value of offloading: input cost of recorded sessions with other libraries, and facts in their previews.

A result is replaced as another library does it with its defaults, in a separate environment; the cost is
that of `bench_cost.py`, whose tools are part of each request. After clearing without a store, a read-back
means that the tool runs again. Facts are those of the program `preview_recall.py` in the folder
OFFLOAD_MEASURE, or in `shared/measure` next to the repository.
`[--quick] [--json FILE]`
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from _measure import Figure, run
from bench_cost import (
    CACHE,
    PLAIN_TOOLS,
    QUICK_MESSAGES,
    RESULT,
    Session,
    extra_of,
    gone_of,
    is_reader,
    is_result,
    sessions_with_usage,
)
from bench_peers import Lab, Task
from peers._conversations import SHARED, folder
from peers._environments import CANDIDATES, Candidate, make_environments, versions
from peers._tables import markdown

from offload import OffloadPolicy
from offload.replay import Bill, Need, Offloading, Recording, Request, Sender, Untouched, measure

_LEAST_CHARS, _RECALL_CHARS = 1_000, 5_000
_CLEARED = "[cleared]"

# Candidate → the file and the names of its defaults in its installed source.
_DEFAULTS = {
    "strands": (
        "strands/vended_plugins/context_offloader/plugin.py",
        ("_DEFAULT_MAX_RESULT_TOKENS", "_DEFAULT_PREVIEW_TOKENS"),
    ),
    "deepagents": ("deepagents/middleware/filesystem.py", ("tool_token_limit_before_evict",)),
    "pydantic-ai-harness": ("pydantic_ai_harness/tool_output_limits/_capability.py", ("_DEFAULT_THRESHOLD",)),
    "agno": ("agno/offload/store.py", ("READ_MAX_CHARS", "DEFAULT_PREVIEW_LINES", "DEFAULT_PREVIEW_CHARS")),
    "ctxtual": ("ctxtual/mcp/offload.py", ("threshold",)),
    "LangChain clearing": ("langchain/agents/middleware/context_editing.py", ("trigger", "keep")),
}

# A text → what is left of it.
Left = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Default:
    """One default of another library.

    Attributes:
        name: its name.
        value: its value.
        line: its line in the file.
    """

    name: str
    value: int
    line: int


@dataclass
class Replacing(Untouched):
    """Replaces each result at once by what a library left of it."""

    recording: Recording
    left: Left
    tools: float = PLAIN_TOOLS
    sent: int = 0

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return what is left of the new results."""
        new = range(self.sent, request.rows)
        self.sent = request.rows
        texts = {row: self.recording.rows[row].text for row in new if is_result(self.recording, row)}
        left = {row: self.left.get(text, text) for row, text in texts.items()}
        return {row: text for row, text in left.items() if text != texts[row]}


@dataclass
class Clearing(Untouched):
    """Clears all but the last `keep` results once a conversation is longer than `trigger` tokens."""

    recording: Recording
    trigger: int
    keep: int
    tools: float = 0

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the cleared results, none before the trigger."""
        rows = self.recording.rows[: request.rows]
        if sum(len(row.text) for row in rows) / 4 <= self.trigger:
            return {}
        results = [row for row in range(len(rows)) if is_result(self.recording, row)]
        return dict.fromkeys(results[: -self.keep], _CLEARED)


@dataclass
class Watched:
    """Another way to send, whose first replacement of each text is noted in `kept`."""

    sender: Sender
    recording: Recording
    kept: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def tools(self) -> float:
        """Tokens of its tools."""
        return self.sender.tools

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return what it replaces."""
        texts = self.sender.replaced(request)
        rows = len(self.recording.rows)
        for row, text in texts.items():
            if row >= rows:
                continue  # of a read-back
            self.kept.setdefault((self.recording.transcript.name, self.recording.rows[row].text), text)
        return texts

    def read(self, need: Need) -> Sequence[str] | None:
        """Let it read back."""
        return self.sender.read(need)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to send sessions, and its description: the places of its defaults."""

    make: Callable[[Recording], Sender]
    source: str


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the cost of each library; print the table."""
    measures = Path(os.environ.get("OFFLOAD_MEASURE", SHARED / "measure"))
    sessions = list(sessions_with_usage(QUICK_MESSAGES if is_quick else None))
    if not sessions or not (measures / "preview_recall.py").is_file():
        print(f"not measured: {measures} and transcripts with usage in {folder()} are not both there")
        return
    sys.path.insert(0, str(measures))
    recall: Any = importlib.import_module("preview_recall")
    facts = _facts(recall, {session.recording.transcript.name for session in sessions})
    plain, cells = sum(session.plain.cost for session in sessions), []
    for name, way in _ways(sessions).items():
        kept: dict[tuple[str, str], str] = {}
        bills = [
            measure(s.recording, Watched(way.make(s.recording), s.recording, kept), CACHE) for s in sessions
        ]
        seen = recall.score((at[1], facts[at], text) for at, text in kept.items() if at in facts)
        cost = sum(bill.cost for bill in bills) / plain
        cells.append([name, f"{cost:.3f}", *_cells(sessions, bills, seen), way.source])
        detail = f"{gone_of(bills)} quotes gone, {extra_of(bills)} extra requests; {way.source}"
        yield Figure(f"{name}: input cost / without offloading", cost, detail=detail)
    print(f"\n{', '.join(f'{name} {version}' for name, version in versions().items())}\n")
    print(markdown(_HEAD, cells))


_HEAD = (
    "",
    "cost",
    "texts replaced",
    "quotes gone",
    "extra requests",
    "file reads that left, seen in full",
    "facts named",
    "facts in context",
    "characters left of a result",
    "defaults",
)


def _cells(sessions: Iterable[Session], bills: Sequence[Bill], seen: dict[str, Any]) -> list[str]:
    readers = [
        row in bill.seen
        for session, bill in zip(sessions, bills, strict=True)
        for row in bill.replaced
        if is_reader(session.recording, row)
    ]
    counts = [str(sum(len(bill.replaced) for bill in bills)), gone_of(bills), str(extra_of(bills))]
    counts.append(f"{sum(readers)} of {len(readers)}" if readers else "none left")
    if not seen["results"]:
        return [*counts, "-", "-", "-"]
    shown = [f"{seen[key]:.2f} of {seen['results']}" for key in ("macro", "context_macro")]
    return [*counts, *shown, f"{seen['chars_kept_mean']:,.0f}"]


def _facts(recall: Any, wanted: set[str]) -> dict[tuple[str, str], set[str]]:
    """Return the facts of large results, by session and text: names that the assistant writes later."""
    samples = recall.samples(folder(), _RECALL_CHARS)
    return {(doc["id"], text): facts for doc, _, _, text, facts in samples if doc["id"] in wanted}


def _ways(sessions: Iterable[Session]) -> dict[str, Way]:
    ways = {"offload": Way(partial(Offloading, policy=OffloadPolicy()), "the default policy")}
    rows = (row for session in sessions for row in session.recording.rows)
    texts = {row.text for row in rows if row.kind == RESULT and len(row.text) >= _LEAST_CHARS}
    make_environments()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(Path(scratch), "http://127.0.0.1:9")
        for candidate in CANDIDATES:
            if candidate.name in _DEFAULTS:
                ways[candidate.name] = _way_of(lab, candidate, sorted(texts))
    return ways


def _way_of(lab: Lab, candidate: Candidate, texts: list[str]) -> Way:
    """Return what another library does at its defaults, as it did it."""
    file, names = _DEFAULTS[candidate.name]
    defaults = _defaults_of(candidate, file, names)
    source = ", ".join(f"{d.name} {d.value:,} ({file}:{d.line})" for d in defaults)
    if candidate.name == "LangChain clearing":
        trigger, keep = (default.value for default in defaults)
        return Way(partial(Clearing, trigger=trigger, keep=keep), source)
    path = lab.folder / "results.json"
    path.write_text(json.dumps(texts), encoding="utf-8")
    task: Task = {"task": "defaults", "texts": str(path)}
    answer = lab.ask(candidate, task)[0]
    if "shown" not in answer:
        raise RuntimeError(f"{candidate.name}: {answer['state']}")
    left = dict(zip(texts, answer["shown"], strict=True))
    return Way(partial(Replacing, left=left), source)


def _defaults_of(candidate: Candidate, file: str, names: Iterable[str]) -> list[Default]:
    path = next(candidate.python.parents[1].glob(f"lib/*/site-packages/{file}"))
    source, found = path.read_text("utf-8"), []
    for name in names:
        match = re.search(rf"^\s*{name}\b[^=\n]*= ?([\d_]+)", source, re.MULTILINE)
        if match is None:
            raise LookupError(f"{file} names no default {name}")
        line = source.count("\n", 0, match.start(1)) + 1
        found.append(Default(name, int(match[1]), line))
    return found


if __name__ == "__main__":
    run(__doc__, figures)

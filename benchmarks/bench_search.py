"""Search: whether the passage with a fact is among the first five, its time, and the size of the index.

A fact is a distinctive name that enters a recorded conversation with a large result and that the assistant
writes later (`preview_recall.py`, see `bench_preview.py`). All large results of a conversation are in one
session. The query is the text around the first later use, 60 characters each way: once with the name, once
without it, as a question that does not know the answer. The passage is found if it holds the name. Grep gets
the longest word of the query, literally. Times are CPU times. Without transcripts nothing else is measured.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from types import ModuleType
from typing import Any, NamedTuple

from _content import output
from _measure import Figure, run
from bench_preview import load_measure

from offload import Offloader, OffloadPolicy, Rule

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_LEAST_CHARS, _AROUND, _FIRST = 5_000, 60, 5
_RECALL_BUDGET, _WARM_BUDGET, _COLD_BUDGET = 0.9, 20, 1
_POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=_LEAST_CHARS)})
_QUICK_CONVERSATIONS = 5
_RECORDS, _RECORD_CHARS = 50, 200_000
WORD = re.compile(r"[\w./:-]+")
_QUERIES = (
    "retry timeout settings",
    "src/report.py",
    "readFile",
    "step 77 of job done",
    "error",
    "line value",
)


class Question(NamedTuple):
    """A fact, and the text around its later use, with it and without it."""

    fact: str
    named: str
    unnamed: str


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    yield from _times()
    program = Path(os.environ.get("OFFLOAD_PREVIEW_RECALL", _SHARED / "measure" / "preview_recall.py"))
    transcripts = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _SHARED / "transcripts"))
    if not program.is_file() or not transcripts.is_dir():
        print(f"recall is not measured: {program} and {transcripts} are not both there")
        return
    found: dict[str, list[bool]] = {}
    sessions = conversations(load_measure(program), transcripts, is_quick=is_quick)
    for number, (texts, questions) in enumerate(sessions):
        off = _session(number, texts)
        for question in questions:
            for name, query in (("with the name", question.named), ("without it", question.unnamed)):
                passages = [passage.text for passage in off.search(query, limit=_FIRST).passages]
                found.setdefault(f"search, {name}", []).append(any(question.fact in p for p in passages))
                found.setdefault(f"grep, {name}", []).append(question.fact in _grep(off, query))
    for name, hits in found.items():
        budget = _RECALL_BUDGET if name == "search, with the name" else None
        yield Figure(
            f"fact in the first {_FIRST}, {name}",
            mean(hits),
            "",
            at_least=budget,
            detail=f"{len(hits)} facts",
        )


def _times() -> Iterator[Figure]:
    off = Offloader("memory://", session="times")
    for n in range(_RECORDS):
        off.offload_text(output(_RECORD_CHARS) + f"\nrecord {n}", tool_name="Bash", tool_use_id=f"t{n}")
    start = time.process_time()
    # A search ends by the clock, also on a busy machine: the next one continues.
    while (found := off.search("warm up")).unsearched:
        pass
    cold, chars = time.process_time() - start, found.chars
    yield Figure(f"first search of {chars:,} characters", cold, "s", at_most=_COLD_BUDGET)
    times = []
    for query in _QUERIES:
        start = time.process_time()
        off.search(query, limit=_FIRST)
        times.append((time.process_time() - start) * 1000)
    detail = f"median {median(times):.1f} ms"
    yield Figure("slowest later search", max(times), "ms", at_most=_WARM_BUDGET, detail=detail)
    yield Figure("index, as a share of the text", off.tools.index.bytes / chars, "")


def conversations(
    measure: ModuleType, transcripts: Path, *, is_quick: bool
) -> Iterator[tuple[list[str], list[Question]]]:
    """Yield each conversation: its large results, and the questions about them."""
    documents: dict[int, tuple[Any, set[str]]] = {}
    for document, _, _, _, facts in measure.samples(transcripts, _LEAST_CHARS):
        documents.setdefault(id(document), (document, set()))[1].update(facts)
        if is_quick and len(documents) > _QUICK_CONVERSATIONS:
            break
    for document, facts in documents.values():
        events = list(measure.events(document))
        texts = [text for *_, kind, text in events if kind == "result" and len(text) >= _LEAST_CHARS]
        yield texts, list(_questions(events, facts))


def _session(number: int, texts: list[str]) -> Offloader:
    off = Offloader("memory://", session=f"s{number}", policy=_POLICY)
    for place, text in enumerate(texts):
        off.offload_text(text, tool_name="tool", tool_use_id=f"t{place}")
    return off


def _questions(events: list[Any], facts: set[str]) -> Iterator[Question]:
    shown: dict[str, int] = {}
    for place, (*_, kind, text) in enumerate(events):
        for fact in facts if kind == "result" else ():
            if fact not in shown and fact in text:
                shown[fact] = place
    for fact in sorted(shown):
        used = next((t for *_, kind, t in events[shown[fact] :] if kind == "assistant" and fact in t), None)
        if used is not None:
            start = used.index(fact)
            before, after = used[max(0, start - _AROUND) : start], used[start + len(fact) :][:_AROUND]
            if any(map(str.isalnum, before + after)):
                yield Question(fact, f"{before}{fact}{after}", f"{before} {after}")


def _grep(off: Offloader, query: str) -> str:
    word = max(WORD.findall(query), key=len, default="")
    arguments = {"pattern": word.strip("./:-"), "max_matches": _FIRST, "ignore_case": True}
    return off.tools.call("context_grep", arguments)


if __name__ == "__main__":
    run(__doc__, figures)

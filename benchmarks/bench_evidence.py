"""Evidence: how many values of assistants' texts are found, why others are not, and the time of a check.

Each recorded conversation is a session with a journal. Before each text of its assistant a request with the
messages so far is made, and the text is checked against it; and against the session of another conversation,
which has none of its values but by chance. `evidence_judged.csv` has a sample of 200 values that were not
found, judged by hand: the place of each, never its text, and why its conversation does not have it. A false
alarm is one that a reader of the conversation would find in it. Times are CPU times. Without transcripts
only times are measured.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _content import output
from _measure import Figure, run

from offload import Offloader
from offload.reading.evidence import Evidence, Value

_TRANSCRIPTS = Path(__file__).resolve().parents[2] / "shared" / "transcripts"
_JUDGED = Path(__file__).with_name("evidence_judged.csv")
_SAMPLE, _QUICK_CONVERSATIONS = 200, 6
_RECORDS, _RECORD_CHARS = 50, 200_000
_WARM_BUDGET, _FOUND_BUDGET, _OTHER_BUDGET = 50, 0.85, 0.15
_FORMATS = ("anthropic", "openai-chat")
# The beginning of a judgement: a reader would find the value, in a form that no rule has.
_FALSE = "false alarm"


class Checked(NamedTuple):
    """The text of an assistant's message, and what its session has of it."""

    transcript: str
    message: int
    evidence: Evidence


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    yield from _times()
    folder = Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _TRANSCRIPTS))
    if not folder.is_dir():
        print(f"found values are not measured: there is no {folder}")
        return
    own, other = list[Checked](), Counter[str]()
    before: Offloader | None = None
    for off, checked in sessions(folder, is_quick=is_quick):
        own += checked
        if before is not None:
            other.update(v.state for one in checked for v in before.evidence(one.evidence.text).values)
        before = off if checked else before
    states = Counter[str](value.state for one in own for value in one.evidence.values)
    detail = ", ".join(f"{number} {state}" for state, number in states.most_common())
    yield Figure("values found in their session", _found(states), "", at_least=_FOUND_BUDGET, detail=detail)
    detail = f"{other.total()} values"
    yield Figure("values found in another session", _found(other), "", at_most=_OTHER_BUDGET, detail=detail)
    yield from _judged({(one.transcript, one.message): one.evidence for one in own})


def sessions(folder: Path, *, is_quick: bool) -> Iterator[tuple[Offloader, list[Checked]]]:
    """Yield the session of each recorded conversation, with the texts of its assistant."""
    paths = sorted(folder.rglob("*.json"))
    documents = ((path.name, json.loads(path.read_text())) for path in paths)
    chats = [(n, d) for n, d in documents if isinstance(d, dict) and d.get("format") in _FORMATS]
    for number, (name, document) in enumerate(chats[:_QUICK_CONVERSATIONS] if is_quick else chats):
        off = Offloader("memory://", session=f"s{number}", journal=True)
        system = document.get("system")
        head = [{"role": "system", "content": system}] if system else []
        yield off, list(_checked(off, name, head, document["messages"]))


def _checked(off: Offloader, name: str, head: list[Any], messages: list[Any]) -> Iterator[Checked]:
    for index, message in enumerate(messages):
        text = _text_of(message.get("content")) if message["role"] == "assistant" else ""
        if text.strip() and index:
            off.offload([*head, *messages[:index]])
            yield Checked(name, index, off.evidence(text))


def _text_of(content: Any) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return "\n".join(block["text"] for block in blocks if block.get("type") == "text")


def _found(states: Counter[str]) -> float:
    return 1 - states["not_found"] / max(1, states.total())


def _judged(texts: dict[tuple[str, int], Evidence]) -> Iterator[Figure]:
    kinds, gone = Counter[str](), 0
    with _JUDGED.open(newline="") as file:
        for row in csv.DictReader(file):
            evidence = texts.get((row["transcript"], int(row["message"])))
            if evidence is None:
                continue
            lost = (value.start for value in evidence.not_found)
            kinds[row["why"]] += 1
            gone += int(row["start"]) not in lost
    if kinds:
        detail = ", ".join(f"{number} {why}" for why, number in kinds.most_common())
        share = sum(number for why, number in kinds.items() if why.startswith(_FALSE)) / kinds.total()
        yield Figure("false alarms among values not found", share, "", detail=f"{detail}; {gone} found now")


def sample(checked: list[Checked]) -> list[tuple[Checked, Value]]:
    """Return the sample of values that were not found, one of each text and spelling, by a hash."""
    lost = {(one.transcript, v.text): (one, v) for one in checked for v in one.evidence.not_found}
    return [lost[key] for key in sorted(lost, key=_place_of)[:_SAMPLE]]


def _place_of(key: tuple[str, str]) -> str:
    return hashlib.sha256("\0".join(key).encode()).hexdigest()


def _times() -> Iterator[Figure]:
    off = Offloader("memory://", session="times", journal=True)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for n in range(_RECORDS):
        call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"command": "make"}}
        text = f"{output(_RECORD_CHARS)}\nrecord {n} has 1,{n:03}.5 and name_{n}"
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": text}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    off.offload(messages)
    reply = " ".join(
        f"record {n} has 1{n:03}.5 and name_{n}, src/x{n}.py took {n * 7919} ms at other_{n}"
        for n in range(15)
    )
    start = time.process_time()
    # A check reads by the clock, also on a busy machine: the next one continues.
    while (found := off.evidence(reply)).unsearched:
        pass
    yield Figure(f"first check in {found.chars:,} characters", time.process_time() - start, "s")
    times = []
    for _ in range(5):
        start = time.process_time()
        off.evidence(reply)
        times.append((time.process_time() - start) * 1000)
    detail = f"{len(found.values)} values, {len(found.not_found)} not found"
    yield Figure("slowest later check", max(times), "ms", at_most=_WARM_BUDGET, detail=detail)


if __name__ == "__main__":
    run(__doc__, figures)

"""Recorded conversations: tokens before and after, bytes at rest over raw content, what whole sessions cost.

The folder of transcripts is named by OFFLOAD_TRANSCRIPTS, or is next to the repository as
`shared/transcripts`; without one there is nothing to measure. The cost of a session is the input of all its
requests, text that the provider has cached at 0.1 and any other at 1.25 a token, read backs included. The
measure is a program of its own, `session_cost.py`, at OFFLOAD_SESSION_COST or next to the repository in
`shared/measure`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _measure import Figure, require, run, size

from offload import MessageError, Offloader, OffloadPolicy, Rule
from offload.cli.transcripts import Transcript, find, load

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_AT_REST_BUDGET = 0.5
# What the measure calls a policy → its name here, and the budget of its cost.
_COST_BUDGETS = {"offload": ("default policy", 0.76), "offload aggressive": ("aggressive", 0.72)}
_QUICK_TRANSCRIPTS = 20


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    transcripts = list(_transcripts())
    if not transcripts:
        print(f"no transcripts in {_folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    if is_quick:
        transcripts = transcripts[:: max(1, len(transcripts) // _QUICK_TRANSCRIPTS)]
    yield from _offload_all(transcripts, "default policy", OffloadPolicy(), _AT_REST_BUDGET)
    # In small records the header outweighs the content; the budget does not apply to them.
    everything = OffloadPolicy(types={"tool_result": Rule(min_tokens=200)})
    yield from _offload_all(transcripts, "200 tokens or more", everything, None)
    program = Path(os.environ.get("OFFLOAD_SESSION_COST", _SHARED / "measure" / "session_cost.py"))
    if program.is_file():
        yield from _costs(program)
    else:
        print(f"cost of sessions is not measured: {program} is not there; set OFFLOAD_SESSION_COST")


def _costs(program: Path) -> Iterator[Figure]:
    """Yield the cost of whole sessions, all of them also where the rest is quick."""
    command = [sys.executable, str(program), str(_folder()), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    ways = json.loads(done.stdout)
    plain = {name: way["cost"] for name, way in ways.items() if way["replaced"] and name not in _COST_BUDGETS}
    best = min(plain, key=lambda name: plain[name])
    for key, (name, budget) in _COST_BUDGETS.items():
        way = ways[key]
        yield Figure(
            f"{name}: input cost of whole sessions / without offloading",
            way["cost"],
            at_most=budget,
            detail=f"{way['sessions']} sessions, {way['reads']} read backs; {best}: {plain[best]:.3f}",
        )
        yield Figure(f"{name}: file reads that left, seen in full", way["seen"], "", at_least=1)


def _offload_all(
    transcripts: list[Transcript], name: str, policy: OffloadPolicy, at_rest: float | None
) -> Iterator[Figure]:
    before = after = raw = records = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, transcript in enumerate(transcripts):
            off = Offloader(folder, session=f"{number}", policy=policy)
            result = off.offload(transcript.messages)
            require(not result.errors, f"{transcript.name}: {result.errors}")
            before, after = before + result.tokens_before, after + result.tokens_after
            raw += sum(info.bytes or 0 for info in result.records)
            records += len(result.records)
            restored = Offloader(folder, session=f"{number}").restore(result.messages)
            require(restored == transcript.messages, f"{transcript.name} was not restored")
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    yield Figure(
        f"{name}: tokens after / before",
        after / before,
        detail=f"{after:,} to {before:,} tokens, {len(transcripts)} conversations, {records} records",
    )
    yield Figure(
        f"{name}: bytes at rest / raw content",
        stored / raw,
        at_most=at_rest,
        detail=f"{size(stored)} to {size(raw)}",
    )


def _folder() -> Path:
    return Path(os.environ.get("OFFLOAD_TRANSCRIPTS", _SHARED / "transcripts"))


def _transcripts() -> Iterator[Transcript]:
    for path in find([_folder()]) if _folder().is_dir() else ():
        try:
            yield from load(path)
        except MessageError:
            continue  # The folder also has files that are not conversations.


if __name__ == "__main__":
    run(__doc__, figures)

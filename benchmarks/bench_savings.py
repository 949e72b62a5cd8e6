"""Recorded conversations: tokens before and after, bytes at rest over raw content.

The folder of transcripts is named by OFFLOAD_TRANSCRIPTS, or is next to the repository as
`shared/transcripts`; without one there is nothing to measure. `bench_cost.py` measures what they cost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from _measure import Figure, require, run, size
from peers._conversations import conversations, folder

from offload import Offloader, OffloadPolicy, Rule
from offload.replay import Transcript

_AT_REST_BUDGET = 0.5
_QUICK_TRANSCRIPTS = 20


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    transcripts = list(conversations())
    if not transcripts:
        print(f"no transcripts in {folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
        return
    if is_quick:
        transcripts = transcripts[:: max(1, len(transcripts) // _QUICK_TRANSCRIPTS)]
    # A whole conversation at once counts as sent.
    default = OffloadPolicy(history="editable")
    yield from _offload_all(transcripts, "default policy", default, _AT_REST_BUDGET)
    # In small records the header outweighs the content; the budget does not apply to them.
    everything = OffloadPolicy(types={"tool_result": Rule(min_tokens=200)}, history="editable")
    yield from _offload_all(transcripts, "200 tokens or more", everything, None)


def _offload_all(
    transcripts: list[Transcript], name: str, policy: OffloadPolicy, at_rest: float | None
) -> Iterator[Figure]:
    before = after = raw = records = 0
    with tempfile.TemporaryDirectory() as store:
        for number, transcript in enumerate(transcripts):
            off = Offloader(store, session=f"{number}", policy=policy)
            result = off.offload(transcript.messages)
            require(not result.errors, f"{transcript.name}: {result.errors}")
            before, after = before + result.tokens_before, after + result.tokens_after
            raw += sum(info.bytes or 0 for info in result.records)
            records += len(result.records)
            restored = Offloader(store, session=f"{number}").restore(result.messages)
            require(restored == transcript.messages, f"{transcript.name} was not restored")
        stored = sum(file.stat().st_size for file in Path(store).rglob("*") if file.is_file())
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


if __name__ == "__main__":
    run(__doc__, figures)

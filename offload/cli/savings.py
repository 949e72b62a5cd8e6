"""`offload savings`: what a policy would take out of recorded conversations, without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from offload import ConfigError, Decision, MessageError, Offloader
from offload.cli.terminal import (
    JsonOption,
    StoreOption,
    err,
    one_line,
    out,
    print_json,
    print_table,
)
from offload.cli.transcripts import Transcript, find, load
from offload.policy import DEFAULT_MIN_TOKENS

_PRIVATE_STORE = "memory://"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What offloading one conversation came to."""

    file: Path
    transcript: Transcript
    tokens_before: int
    tokens_after: int
    decisions: list[Decision]


@dataclass(frozen=True, slots=True)
class _Skipped:
    """A file that holds no conversation."""

    file: Path
    reason: str


def savings(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    *,
    store: StoreOption = _PRIVATE_STORE,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every item.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what would leave the context of recorded conversations, what would stay, and why.

    FILE is a Claude Code session, a chat in the form of Anthropic or OpenAI, or a folder of these.
    Nothing is kept unless --store names a place.
    """
    results = list(_results(list(find(files)), store))
    outcomes = [r for r in results if isinstance(r, _Outcome)]
    skipped = [r for r in results if isinstance(r, _Skipped)]
    if as_json:
        print_json(_as_json(outcomes, skipped))
    elif outcomes:
        _print(outcomes, is_verbose=is_verbose)
    if not outcomes:
        err.print("offload: no transcript found")
        raise typer.Exit(1)


def _results(files: list[Path], store: str | None) -> Iterator[_Outcome | _Skipped]:
    shown = track(files, "reading", console=err, transient=True, disable=not err.is_terminal)
    for file in shown:
        try:
            for transcript in load(file):
                yield _measure(file, transcript, store)
        except (MessageError, ConfigError) as error:
            err.print(f"offload: skipped {one_line(file)}: {one_line(error)}", soft_wrap=True)
            yield _Skipped(file, str(error))


def _measure(file: Path, transcript: Transcript, store: str | None) -> _Outcome:
    done = Offloader(store, session=transcript.name).offload(transcript.messages)
    for error in done.errors:
        raise error
    return _Outcome(file, transcript, done.tokens_before, done.tokens_after, list(done.decisions))


def _figures(outcomes: list[_Outcome]) -> dict[str, Any]:
    before = sum(o.tokens_before for o in outcomes)
    after = sum(o.tokens_after for o in outcomes)
    decisions = [d for o in outcomes for d in o.decisions]
    return {
        "items": len(decisions),
        "offloaded": sum(d.ref is not None for d in decisions),
        "tokens_before": before,
        "tokens_after": after,
        "saved": round(1 - after / before, 4) if before else 0.0,
    }


def _kept_large(outcomes: Iterable[_Outcome]) -> list[dict[str, Any]]:
    """Return why large items stayed: each reason, its items and their tokens, most tokens first."""
    found: dict[str, list[int]] = {}
    for decision in (d for o in outcomes for d in o.decisions):
        if decision.ref is None and decision.item.tokens >= DEFAULT_MIN_TOKENS:
            found.setdefault(decision.reason, []).append(decision.item.tokens)
    rows = [{"reason": r, "items": len(t), "tokens": sum(t)} for r, t in found.items()]
    return sorted(rows, key=lambda row: row["tokens"], reverse=True)


def _as_json(outcomes: list[_Outcome], skipped: list[_Skipped]) -> dict[str, Any]:
    return {
        "transcripts": [
            {
                "transcript": o.transcript.name,
                "file": str(o.file),
                "format": o.transcript.format,
                **_figures([o]),
                "kept_large": _kept_large([o]),
            }
            for o in outcomes
        ],
        "total": _figures(outcomes),
        "kept_large": _kept_large(outcomes),
        "skipped": [{"file": str(s.file), "reason": s.reason} for s in skipped],
    }


def _print(outcomes: list[_Outcome], *, is_verbose: bool) -> None:
    rows = [{"transcript": o.transcript.name, **_figures([o])} for o in outcomes]
    print_table([*rows, {"transcript": f"total of {len(rows)}", **_figures(outcomes)}])
    kept = _kept_large(outcomes)
    if kept:
        out.print(f"\nOf {DEFAULT_MIN_TOKENS:,} tokens or more and kept:\n")
        print_table(kept)
    if is_verbose:
        for outcome in outcomes:
            out.print(f"\n{one_line(outcome.transcript.name)}\n")
            print_table([_item(d) for d in outcome.decisions])


def _item(decision: Decision) -> dict[str, Any]:
    item = decision.item
    return {
        "item": str(item.message) if item.block is None else f"{item.message}.{item.block}",
        "type": item.item_type,
        "tool": item.tool_name,
        "tokens": item.tokens,
        "after": decision.tokens_after,
        "decision": f"{decision.action}: {decision.reason}",
    }

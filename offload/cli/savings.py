"""`offload savings`: tokens and input cost that a policy would save on recorded conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import typer

from offload import ConfigError, Decision, MessageError, Offloader, OffloadPolicy
from offload.cli.simulation import Bill, Prices, Simulation, simulate
from offload.cli.terminal import (
    JsonOption,
    err,
    one_line,
    out,
    print_json,
    print_table,
    progress,
)
from offload.cli.transcripts import Transcript, find, load
from offload.policy import DEFAULT_MIN_TOKENS

_PRIVATE_STORE = "memory://"
_DEFAULT_PRICES = Prices()
_ABOUT_COSTS = """
Policy {policy}; an input token costs {cached:g} if the provider has it cached, else {uncached:g}.
tokens, cost: input of all requests with offloading; its cost relative to no offloading.
reads: the assistant wrote a name that was no longer in view; each costs one more request.
breaks, paid: cached text changed; how many of these changes saved more than they cost.
System prompts are included; images and tool definitions are not."""

Measure = TypeVar("Measure")
# The figures of several conversations together.
_Figures = Callable[[Sequence[Measure]], dict[str, Any]]


class _Row(NamedTuple, Generic[Measure]):
    """One conversation and its measurement."""

    file: Path
    transcript: Transcript
    measure: Measure


class _Saving(NamedTuple):
    """The result of offloading one conversation."""

    tokens_before: int
    tokens_after: int
    decisions: list[Decision]


def savings(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    *,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Policy: balanced, aggressive, archive, or a policy file."),
    ] = "balanced",
    is_simulated: Annotated[
        bool, typer.Option("--simulate", help="Compare the input cost of all requests.")
    ] = False,
    cached: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="Price of a cached input token, for --simulate.")
    ] = _DEFAULT_PRICES.cached,
    uncached: Annotated[
        float,
        typer.Option(
            min=0, metavar="PRICE", help="Price of an uncached input token, in the same unit as --cached."
        ),
    ] = _DEFAULT_PRICES.uncached,
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="Store the records there [default: nowhere].", show_default=False),
    ] = _PRIVATE_STORE,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every item.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which items of recorded conversations a policy would offload or keep, and why.

    FILE is a Claude Code session (~/.claude/projects), a Codex session (~/.codex/sessions), a chat in
    Anthropic or OpenAI format, or a folder of these. Records are stored only if --store is given.

    --simulate replays the requests offline, turn by turn, and compares input cost with and without
    offloading.
    """
    chosen = _policy(policy)
    if is_simulated:
        if is_verbose or store != _PRIVATE_STORE:
            raise ConfigError("--simulate stores and lists nothing: omit --store and --verbose")
        _show_costs(files, chosen, policy, Prices(cached, uncached), as_json=as_json)
    else:
        _show_savings(files, chosen, policy, store, is_verbose=is_verbose, as_json=as_json)


def _policy(name: str) -> OffloadPolicy:
    return OffloadPolicy.load(name) if Path(name).suffix else OffloadPolicy.model_validate({"preset": name})


# Measuring and reporting


def _measure(
    files: list[Path], measure: Callable[[Transcript], Measure]
) -> tuple[list[_Row[Measure]], list[dict[str, str]]]:
    """Return a row per conversation, and each file without one with the reason."""
    rows: list[_Row[Measure]] = []
    skipped: list[dict[str, str]] = []
    for file in progress(list(find(files)), "reading"):
        try:
            rows += (_Row(file, transcript, measure(transcript)) for transcript in load(file))
        except (MessageError, ConfigError) as error:
            err.print(f"offload: skipped {one_line(file)}: {one_line(error)}", soft_wrap=True)
            skipped.append({"file": str(file), "reason": str(error)})
    return rows, skipped


def _document(rows: Sequence[_Row[Measure]], figures: _Figures[Measure]) -> dict[str, Any]:
    return {
        "transcripts": [
            {
                "transcript": row.transcript.name,
                "file": str(row.file),
                "format": row.transcript.format,
                **figures([row.measure]),
            }
            for row in rows
        ],
        "total": figures([row.measure for row in rows]),
    }


def _print_rows(rows: Sequence[_Row[Measure]], figures: _Figures[Measure]) -> None:
    lines = [{"transcript": row.transcript.name, **figures([row.measure])} for row in rows]
    total = figures([row.measure for row in rows])
    print_table([*lines, {"transcript": f"total of {len(rows)}", **total}])


def _fail_without(rows: Sequence[object], files: Sequence[Path]) -> None:
    if not rows:
        err.print(f"offload: no transcript found in {one_line(', '.join(map(str, files)))}", soft_wrap=True)
        raise typer.Exit(1)


# Savings


def _show_savings(
    files: list[Path], policy: OffloadPolicy, name: str, store: str, *, is_verbose: bool, as_json: bool
) -> None:
    rows, skipped = _measure(files, partial(_save, policy=policy, store=store))
    kept = _kept_large([row.measure for row in rows])
    if as_json:
        print_json({"policy": name, **_document(rows, _saved), "skipped": skipped, "kept_large": kept})
    elif rows:
        _print_rows(rows, _saved)
        if kept:
            out.print(f"\nKept although they have {DEFAULT_MIN_TOKENS:,} tokens or more:\n")
            print_table(kept)
        for row in rows if is_verbose else ():
            out.print(f"\n{one_line(row.transcript.name)}\n")
            print_table([_item(decision) for decision in row.measure.decisions])
    _fail_without(rows, files)


def _save(transcript: Transcript, policy: OffloadPolicy, store: str) -> _Saving:
    result = Offloader(store, session=transcript.name, policy=policy).offload(transcript.messages)
    for error in result.errors:
        raise error
    return _Saving(result.tokens_before, result.tokens_after, list(result.decisions))


def _saved(savings: Sequence[_Saving]) -> dict[str, Any]:
    before = sum(s.tokens_before for s in savings)
    after = sum(s.tokens_after for s in savings)
    decisions = [d for s in savings for d in s.decisions]
    return {
        "items": len(decisions),
        "offloaded": sum(d.ref is not None for d in decisions),
        "tokens_before": before,
        "tokens_after": after,
        "saved": round(1 - after / before, 4) if before else 0.0,
    }


def _kept_large(savings: Sequence[_Saving]) -> list[dict[str, Any]]:
    """Return the reasons why large items were kept, each with items and tokens, most tokens first."""
    tokens: dict[str, list[int]] = {}
    for decision in (d for s in savings for d in s.decisions):
        if decision.ref is None and decision.item.tokens >= DEFAULT_MIN_TOKENS:
            tokens.setdefault(decision.reason, []).append(decision.item.tokens)
    rows = [{"reason": r, "items": len(t), "tokens": sum(t)} for r, t in tokens.items()]
    return sorted(rows, key=lambda row: row["tokens"], reverse=True)


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


# Costs


def _show_costs(
    files: list[Path], policy: OffloadPolicy, name: str, prices: Prices, *, as_json: bool
) -> None:
    rows, skipped = _measure(files, partial(simulate, policy=policy, prices=prices))
    if as_json:
        document = {"policy": name, "prices": asdict(prices), **_document(rows, _costs)}
        print_json({**document, "skipped": skipped})
    elif rows:
        _print_rows(rows, _narrow_costs)
        out.print(_ABOUT_COSTS.format(policy=one_line(name), **asdict(prices)), soft_wrap=True)
    _fail_without(rows, files)


def _costs(simulations: Sequence[Simulation]) -> dict[str, Any]:
    plain = sum((s.plain for s in simulations), Bill())
    bill = sum((s.bill for s in simulations), Bill())
    return {
        "requests": sum(s.requests for s in simulations),
        "offloaded": sum(s.offloaded for s in simulations),
        "tokens_plain": plain.tokens,
        "tokens_sent": bill.tokens,
        "cached_share": round(bill.cached / bill.tokens, 4) if bill.tokens else 0.0,
        "cost": round(bill.cost / plain.cost, 4) if plain.cost else 1.0,
        "read_backs": sum(s.read_backs for s in simulations),
        "breaks": sum(s.breaks for s in simulations),
        "breaks_paid": sum(s.breaks_paid for s in simulations),
    }


_COLUMNS = {
    "offloaded": "offloaded",
    "tokens": "tokens_sent",
    "cached": "cached_share",
    "cost": "cost",
    "reads": "read_backs",
    "breaks": "breaks",
    "paid": "breaks_paid",
}


def _narrow_costs(simulations: Sequence[Simulation]) -> dict[str, Any]:
    """Return the costs that fit the width of a terminal."""
    costs = _costs(simulations)
    return {column: costs[name] for column, name in _COLUMNS.items()}

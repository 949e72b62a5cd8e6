"""`offload savings`: tokens and input cost that a policy would save on recorded conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from offload import ConfigError, Decision, MessageError, Offloader, OffloadPolicy, OffloadResult
from offload.cli.simulation import Prices, Simulation, simulate
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

T = TypeVar("T")

_PRIVATE_STORE = "memory://"
_DEFAULT_PRICES = Prices()
_ABOUT_COSTS = """
Policy {policy}; an input token costs {cached:g} if the provider has it cached, else {uncached:g}.
tokens, cost: input of all requests with offloading; its cost relative to no offloading.
reads: the assistant wrote a name that was no longer in view; each costs one more request.
breaks, paid: cached text changed; how many of these changes saved more than they cost.
System prompts are included; images and tool definitions are not."""

# The columns of the tables, and the figures in them.
_SAVED_COLUMNS = {
    name: name for name in ("transcript", "items", "offloaded", "tokens_before", "tokens_after", "saved")
}
_COST_COLUMNS = {
    "transcript": "transcript",
    "offloaded": "offloaded",
    "tokens": "tokens_sent",
    "cached": "cached_share",
    "cost": "cost",
    "reads": "read_backs",
    "breaks": "breaks",
    "paid": "breaks_paid",
}


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
    if is_simulated and (is_verbose or store != _PRIVATE_STORE):
        raise ConfigError("--simulate stores and lists nothing: omit --store and --verbose")
    if is_simulated:
        conversations = _show_costs(files, policy, Prices(cached, uncached), as_json=as_json)
    else:
        conversations = _show_savings(files, policy, store, is_verbose=is_verbose, as_json=as_json)
    if not conversations:
        err.print(f"offload: no transcript found in {one_line(', '.join(map(str, files)))}", soft_wrap=True)
        raise typer.Exit(1)


def _policy(name: str) -> OffloadPolicy:
    return OffloadPolicy.load(name) if Path(name).suffix else OffloadPolicy.model_validate({"preset": name})


def _show_savings(files: list[Path], policy: str, store: str, *, is_verbose: bool, as_json: bool) -> int:
    """Print the savings; return the number of conversations."""
    report, results = _measure(files, partial(_save, policy=_policy(policy), store=store), _saved)
    kept = _kept_large(results)
    if as_json:
        print_json({"policy": policy, **report, "kept_large": kept})
    elif results:
        _print_rows(report, _SAVED_COLUMNS)
        if kept:
            out.print(f"\nKept although they have {DEFAULT_MIN_TOKENS:,} tokens or more:\n")
            print_table(kept)
        for row, result in zip(report["transcripts"], results if is_verbose else (), strict=False):
            out.print(f"\n{one_line(row['transcript'])}\n")
            print_table([_item(decision) for decision in result.decisions])
    return len(results)


def _show_costs(files: list[Path], policy: str, prices: Prices, *, as_json: bool) -> int:
    """Print the costs; return the number of conversations."""
    report, results = _measure(files, partial(simulate, policy=_policy(policy), prices=prices), _costs)
    if as_json:
        print_json({"policy": policy, "prices": asdict(prices), **report})
    elif results:
        _print_rows(report, _COST_COLUMNS)
        out.print(_ABOUT_COSTS.format(policy=one_line(policy), **asdict(prices)), soft_wrap=True)
    return len(results)


def _measure(
    files: list[Path], measure: Callable[[Transcript], T], figures: Callable[[Sequence[T]], dict[str, Any]]
) -> tuple[dict[str, Any], list[T]]:
    """Return the report of all conversations and of files without one, and each conversation's result."""
    rows: list[dict[str, Any]] = []
    results: list[T] = []
    skipped: list[dict[str, str]] = []
    for file in progress(list(find(files)), "reading"):
        try:
            for transcript in load(file):
                results.append(measure(transcript))
                row = {"transcript": transcript.name, "file": str(file), "format": transcript.format}
                rows.append({**row, **figures(results[-1:])})
        except (MessageError, ConfigError) as error:
            err.print(f"offload: skipped {one_line(file)}: {one_line(error)}", soft_wrap=True)
            skipped.append({"file": str(file), "reason": str(error)})
    return {"transcripts": rows, "total": figures(results), "skipped": skipped}, results


def _print_rows(report: dict[str, Any], columns: dict[str, str]) -> None:
    total = {"transcript": f"total of {len(report['transcripts'])}", **report["total"]}
    rows = [*report["transcripts"], total]
    print_table([{column: row[name] for column, name in columns.items()} for row in rows])


def _save(transcript: Transcript, policy: OffloadPolicy, store: str) -> OffloadResult:
    result = Offloader(store, session=transcript.name, policy=policy).offload(transcript.messages)
    for error in result.errors:
        raise error
    return result


def _saved(results: Sequence[OffloadResult]) -> dict[str, Any]:
    before = sum(r.tokens_before for r in results)
    after = sum(r.tokens_after for r in results)
    decisions = [d for r in results for d in r.decisions]
    return {
        "items": len(decisions),
        "offloaded": sum(d.ref is not None for d in decisions),
        "tokens_before": before,
        "tokens_after": after,
        "saved": round(1 - after / before, 4) if before else 0.0,
    }


def _kept_large(results: Sequence[OffloadResult]) -> list[dict[str, Any]]:
    """Return the reasons why large items were kept, each with items and tokens, most tokens first."""
    tokens: dict[str, list[int]] = {}
    for decision in (d for r in results for d in r.decisions):
        if decision.ref is None and decision.item.tokens >= DEFAULT_MIN_TOKENS:
            tokens.setdefault(decision.reason, []).append(decision.item.tokens)
    rows = [{"reason": why, "items": len(t), "tokens": sum(t)} for why, t in tokens.items()]
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


def _costs(simulations: Sequence[Simulation]) -> dict[str, Any]:
    tokens = sum(s.bill.tokens for s in simulations)
    plain_cost = sum(s.plain.cost for s in simulations)
    return {
        "requests": sum(s.requests for s in simulations),
        "offloaded": sum(s.offloaded for s in simulations),
        "tokens_plain": sum(s.plain.tokens for s in simulations),
        "tokens_sent": tokens,
        "cached_share": round(sum(s.bill.cached for s in simulations) / tokens, 4) if tokens else 0.0,
        "cost": round(sum(s.bill.cost for s in simulations) / plain_cost, 4) if plain_cost else 1.0,
        "read_backs": sum(s.read_backs for s in simulations),
        "breaks": sum(s.breaks for s in simulations),
        "breaks_paid": sum(s.breaks_paid for s in simulations),
    }

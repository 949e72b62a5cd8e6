"""`offload savings`: what a policy would take out of recorded conversations, and what that would save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from rich.progress import track

from offload import ConfigError, Decision, MessageError, Offloader, OffloadPolicy
from offload.cli.simulation import Bill, Prices, Simulation, simulate
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
_DEFAULT_PRICES = Prices()
_ABOUT_COSTS = """
Policy {policy}; a token of input costs {cached:g} where the provider has it cached, else {uncached:g}.
tokens, cost: the input of all requests with offloading; its cost against the same without.
reads: the assistant wrote a name that had left its view; each is paid as one request more.
breaks, paid: text that was cached changed; those of them that saved more than they cost.
System prompts count; images and definitions of tools do not."""

Measured = TypeVar("Measured")
# What a number of conversations came to together.
_Figures = Callable[[Sequence[Measured]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Found(Generic[Measured]):
    """One conversation and what was measured of it."""

    file: Path
    transcript: Transcript
    measured: Measured


@dataclass(frozen=True, slots=True)
class _Skipped:
    """A file that holds no conversation."""

    file: Path
    reason: str


@dataclass(frozen=True, slots=True)
class _Saving:
    """What offloading one conversation came to."""

    tokens_before: int
    tokens_after: int
    decisions: list[Decision]


def savings(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    *,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="balanced, aggressive, archive, or a file that holds one."),
    ] = "balanced",
    is_simulated: Annotated[
        bool, typer.Option("--simulate", help="Tell what the input of all requests costs.")
    ] = False,
    cached: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="Of a token that is cached, in --simulate.")
    ] = _DEFAULT_PRICES.cached,
    uncached: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="Of any other, in the same unit.")
    ] = _DEFAULT_PRICES.uncached,
    store: StoreOption = _PRIVATE_STORE,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every item.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what would leave the context of recorded conversations, what would stay, and why.

    FILE is a session of Claude Code (~/.claude/projects) or Codex (~/.codex/sessions), a chat in the form of
    Anthropic or OpenAI, or a folder of these.
    Nothing is kept unless --store names a place.

    With --simulate every request is sent again, turn by turn, and priced, against the same without
    offloading.
    """
    chosen = _policy(policy)
    if is_simulated:
        if is_verbose or store != _PRIVATE_STORE:
            raise ConfigError("--simulate keeps nothing and lists no items: leave out --store and --verbose")
        _show_costs(files, chosen, policy, Prices(cached, uncached), as_json=as_json)
    else:
        _show_savings(files, chosen, policy, store, is_verbose=is_verbose, as_json=as_json)


def _policy(name: str) -> OffloadPolicy:
    return OffloadPolicy.load(name) if Path(name).suffix else OffloadPolicy.model_validate({"preset": name})


# Reading


def _each(
    files: list[Path], measure: Callable[[Transcript], Measured]
) -> tuple[list[_Found[Measured]], list[_Skipped]]:
    results = list(_results(list(find(files)), measure))
    found = [r for r in results if isinstance(r, _Found)]
    return found, [r for r in results if isinstance(r, _Skipped)]


def _results(
    files: list[Path], measure: Callable[[Transcript], Measured]
) -> Iterator[_Found[Measured] | _Skipped]:
    shown = track(files, "reading", console=err, transient=True, disable=not err.is_terminal)
    for file in shown:
        try:
            for transcript in load(file):
                yield _Found(file, transcript, measure(transcript))
        except (MessageError, ConfigError) as error:
            err.print(f"offload: skipped {one_line(file)}: {one_line(error)}", soft_wrap=True)
            yield _Skipped(file, str(error))


# What both reports have


def _document(
    found: Sequence[_Found[Measured]], skipped: Sequence[_Skipped], figures: _Figures[Measured]
) -> dict[str, Any]:
    return {
        "transcripts": [
            {
                "transcript": f.transcript.name,
                "file": str(f.file),
                "format": f.transcript.format,
                **figures([f.measured]),
            }
            for f in found
        ],
        "total": figures([f.measured for f in found]),
        "skipped": [{"file": str(s.file), "reason": s.reason} for s in skipped],
    }


def _print_rows(found: Sequence[_Found[Measured]], figures: _Figures[Measured]) -> None:
    rows = [{"transcript": f.transcript.name, **figures([f.measured])} for f in found]
    total = figures([f.measured for f in found])
    print_table([*rows, {"transcript": f"total of {len(rows)}", **total}])


def _fail_without(found: Sequence[object], files: Sequence[Path]) -> None:
    if not found:
        err.print(f"offload: no transcript found in {one_line(', '.join(map(str, files)))}", soft_wrap=True)
        raise typer.Exit(1)


# What would leave


def _show_savings(
    files: list[Path], policy: OffloadPolicy, name: str, store: str | None, *, is_verbose: bool, as_json: bool
) -> None:
    found, skipped = _each(files, partial(_save, policy=policy, store=store))
    kept = _kept_large([f.measured for f in found])
    if as_json:
        print_json({"policy": name, **_document(found, skipped, _saved), "kept_large": kept})
    elif found:
        _print_rows(found, _saved)
        if kept:
            out.print(f"\nOf {DEFAULT_MIN_TOKENS:,} tokens or more and kept:\n")
            print_table(kept)
        for one in found if is_verbose else ():
            out.print(f"\n{one_line(one.transcript.name)}\n")
            print_table([_item(d) for d in one.measured.decisions])
    _fail_without(found, files)


def _save(transcript: Transcript, policy: OffloadPolicy, store: str | None) -> _Saving:
    done = Offloader(store, session=transcript.name, policy=policy).offload(transcript.messages)
    for error in done.errors:
        raise error
    return _Saving(done.tokens_before, done.tokens_after, list(done.decisions))


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
    """Return why large items stayed: each reason, its items and their tokens, most tokens first."""
    found: dict[str, list[int]] = {}
    for decision in (d for s in savings for d in s.decisions):
        if decision.ref is None and decision.item.tokens >= DEFAULT_MIN_TOKENS:
            found.setdefault(decision.reason, []).append(decision.item.tokens)
    rows = [{"reason": r, "items": len(t), "tokens": sum(t)} for r, t in found.items()]
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


# What it would have cost


def _show_costs(
    files: list[Path], policy: OffloadPolicy, name: str, prices: Prices, *, as_json: bool
) -> None:
    found, skipped = _each(files, partial(simulate, policy=policy, prices=prices))
    if as_json:
        print_json({"policy": name, "prices": asdict(prices), **_document(found, skipped, _costs)})
    elif found:
        _print_rows(found, _narrow_costs)
        out.print(_ABOUT_COSTS.format(policy=one_line(name), **asdict(prices)), soft_wrap=True)
    _fail_without(found, files)


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


def _narrow_costs(simulations: Sequence[Simulation]) -> dict[str, Any]:
    """Return what of the costs is worth a column: with all of them a row is wider than a terminal."""
    costs = _costs(simulations)
    return {
        "offloaded": costs["offloaded"],
        "tokens": costs["tokens_sent"],
        "cached": costs["cached_share"],
        "cost": costs["cost"],
        "reads": costs["read_backs"],
        "breaks": costs["breaks"],
        "paid": costs["breaks_paid"],
    }

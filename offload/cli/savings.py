"""`offload savings`: input cost that a policy would save on recorded conversations, in US dollars."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any, get_args

import typer

from offload import ConfigError, Decision, MessageError, NotFoundError, OffloadPolicy
from offload.cli.options import JsonOption
from offload.cli.reach import Tally, Way, reach_of, sentences as sentences_on
from offload.cli.savings_sent import SAVED_COLUMNS, conclusion, is_store, print_sent, table_row
from offload.cli.shell import quoted
from offload.cli.tables import Dollars, print_table
from offload.cli.terminal import count, err, one_line, out, print_json, progress, say
from offload.engine.policy.defaults import DEFAULT_MIN_TOKENS
from offload.engine.policy.facts import PolicyName
from offload.replay import (
    DEFAULT_MODEL,
    Cause,
    CountCheck,
    PriceCard,
    Prices,
    Replay,
    Transcript,
    find,
    load,
    replay,
)
from offload.storage.registry import default_path

_SHOWN_ROWS = 20
_SHOWN_REASONS = 3
_CAUSES: dict[Cause, str] = {
    "content": "have texts of other tokens than the rest, or content that the file lacks",
    "dropped": "found the cache dropped",
    "kept": "found the cache after its lifetime",
}
# The columns of the table, and the figures in them. They fit in 80 characters.
_COLUMNS = {
    "transcript": "transcript",
    "requests": "requests",
    "offloaded": "offloaded",
    **SAVED_COLUMNS,
}


@dataclass(slots=True)
class _SavingsReport:
    """The figures of each conversation, and files without one.

    Attributes:
        rows: figures by conversation.
        total: the sums of those that add up.
        cards: the prices by the name of their model.
        items: the items of each conversation, if `lists_items`.
        kept: number and tokens of large kept items by the reason.
        skipped: files without a conversation.
        left_out: files of which some messages were left out, with their number and the first reasons.
        unpriced: number of conversations without a model of known price.
        tally: large items that are replaced and kept.
    """

    lists_items: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    total: Counter[str] = field(default_factory=Counter)
    cards: dict[str, PriceCard] = field(default_factory=dict)
    items: list[list[dict[str, Any]]] = field(default_factory=list)
    kept: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: list[dict[str, str]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    unpriced: int = 0
    tally: Tally = field(default_factory=lambda: Tally(Counter(), Counter()))

    def document(self) -> dict[str, Any]:
        """Return everything but the items, as data."""
        return {
            "prices": {name: card.model_dump(mode="json") for name, card in self.cards.items()},
            "transcripts": self.rows,
            "total": _with_ratios(self.total),
            "skipped": self.skipped,
            "left_out": self.left_out,
            "kept_large": self.kept_large(),
            "large": {"replaced": self.tally.replaced, "kept": self.tally.kept},
        }

    @contextmanager
    def skipping(self, file: Path, name: str = "") -> Iterator[None]:
        """Skip a file that has no conversation, or the conversation `name` in it that is malformed."""
        try:
            yield
        except (MessageError, ConfigError) as error:
            place = f"{file} ({name})" if name else str(file)
            err.print(f"offload: skipped {one_line(place)}: {one_line(error)}", soft_wrap=True)
            self.skipped.append({"file": str(file), "reason": f"{name}: {error}" if name else str(error)})

    def note_left_out(self, file: Path, reasons: Sequence[str]) -> None:
        """Report the messages of a file that could not be read."""
        if reasons:
            some = reasons[:_SHOWN_REASONS]
            more = f"; and {len(reasons) - len(some)} more" if len(reasons) > len(some) else ""
            number = count(len(reasons), "malformed message")
            why = "; ".join(map(one_line, some))
            err.print(f"offload: left out {number} of {one_line(str(file))}: {why}{more}", soft_wrap=True)
            self.left_out.append({"file": str(file), "messages": len(reasons), "reasons": list(some)})

    def kept_large(self) -> list[dict[str, Any]]:
        """Return the reasons why large items were kept, each with items and tokens, most tokens first."""
        rows = [{"reason": reason, **kept} for reason, kept in self.kept.items()]
        return sorted(rows, key=lambda row: row["tokens"], reverse=True)


def savings(
    places: Annotated[list[str] | None, typer.Argument(metavar="[FILE...]")] = None,
    *,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"Policy: {', '.join(get_args(PolicyName))}, or a policy file [default: balanced].",
        ),
    ] = None,
    way: Annotated[
        Way | None,
        typer.Option(
            "--for",
            metavar="WAY",
            help=f"Replace only what this integration can: {', '.join(get_args(Way))} [default: all items].",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use the prices of this model [default: each file's own model]."),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]", help="List the prices with their sources; with a file, add its models."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Store the records there [default: nowhere].")
    ] = None,
    shows_all: Annotated[
        bool, typer.Option("--all", help="List every conversation, not only the 20 with the largest effect.")
    ] = False,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every item.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a policy would save of the input cost of recorded conversations.

    FILE is a Claude Code session, a Codex session, a chat in Anthropic or OpenAI format, or a folder of
    these; by default ~/.claude/projects and ~/.codex/sessions. Records are stored only if --store is given.
    For a store, it shows what offloading saved in the sessions of `wrap`, a gateway or an agent.

    Each request is replayed offline with and without offloading, at its recorded time and with the recorded
    cache misses if the file has usage. The retrieval tools and read-backs are part of the cost: where the
    assistant writes a name or quotes a text in an edit that offloading hides, it reads back first. `extra`
    counts these requests, `gone` the quotes.

    Example: offload savings ~/.claude/projects --model claude-opus-5-5
    """
    others = (way, model, prices, store, shows_all or None, is_verbose or None)
    _check(places or [], policy, way, is_alone=all(option is None for option in (policy, *others)))
    if places and is_store(places[0]):
        print_sent(places[0], as_json=as_json)
        return
    name, files = way or policy or "balanced", [*map(Path, places or ())] or _recorded()
    report = _SavingsReport(lists_items=is_verbose)
    chosen = reach_of(way).policy if way else _policy(name)
    cards = Prices(Path(prices) if prices else None, model)
    for file, transcript in _transcripts(report, files):
        with report.skipping(file, transcript.name):
            # A gateway sees the model in each request.
            told = transcript.model if way == "gateway" else None
            _add(report, file, replay(transcript, chosen, prices=cards, store=store, model=told))
            report.unpriced += not cards.knows(transcript.model)
    if as_json:
        print_json({"policy": None if way else name, "for": way, **report.document()})
    elif report.rows:
        _print_table(report, shows_all=shows_all)
        covered = sentences_on(way, report.tally) if way else ()
        listed = _priced(report.cards) if prices is not None else ()
        if is_verbose:
            _print_items(report)
        for sentence in chain(listed, covered, _sentences(report, name)):
            say(sentence)
    if not report.rows:
        err.print(f"offload: no transcript found in {one_line(', '.join(map(str, files)))}", soft_wrap=True)
        raise typer.Exit(1)


def _check(places: Sequence[str], policy: str | None, way: str | None, *, is_alone: bool) -> None:
    """Raise `ConfigError` for arguments that exclude each other."""
    if way is not None and policy is not None:
        raise ConfigError(f"--for {way} has a policy of its own: leave out --policy")
    if any(map(is_store, places)) and not (is_alone and len(places) == 1):
        raise ConfigError("a store has what was sent: name it alone, and of the options only --json")


def _recorded() -> list[Path]:
    """Return the folders of coding agents' sessions that exist. Raises `NotFoundError` if there is none."""
    homes = (("CLAUDE_CONFIG_DIR", ".claude", "projects"), ("CODEX_HOME", ".codex", "sessions"))
    folders = [Path(os.environ.get(name) or Path.home() / home) / kind for name, home, kind in homes]
    there = [folder for folder in folders if folder.is_dir()]
    if not there:
        store = default_path()
        such = f", such as {quoted(str(store))}" if store.is_dir() else ""
        raise NotFoundError(
            f"no recorded sessions in {' or '.join(map(str, folders))}: name a FILE or a store{such}"
        )
    return there


def _policy(name: str) -> OffloadPolicy:
    return OffloadPolicy.load(name) if Path(name).suffix else OffloadPolicy.model_validate({"preset": name})


def _transcripts(report: _SavingsReport, files: list[Path]) -> Iterator[tuple[Path, Transcript]]:
    for file in progress(list(find(files)), "replaying"):
        with report.skipping(file):
            for transcript in load(file):
                report.note_left_out(file, transcript.left_out)
                yield file, transcript


# Figures


def _add(report: _SavingsReport, file: Path, found: Replay) -> None:
    """Add a conversation; its `units` are tokens at the price of uncached input."""
    transcript, result, recorded = found.transcript, found.result, found.dollars_recorded
    counts = found.counts
    about = {
        "transcript": transcript.name,
        "file": str(file),
        "format": transcript.format,
        "model": transcript.model,
        "prices": found.priced_as,
        "cache": found.cache.model_dump(),
        "dollars_recorded": recorded if recorded is None else round(recorded, 6),
        "counts": None if counts is None else _counts(counts),
    }
    figures: dict[str, Any] = {
        "requests": found.requests,
        "items": len(result.decisions),
        "offloaded": sum(decision.ref is not None for decision in result.decisions),
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
        "extra_requests": found.bill.reads,
        "quotes": found.bill.quotes,
        "quotes_gone": found.bill.quotes_gone,
        "units_plain": found.plain.cost,
        "units": found.bill.cost,
        "units_tools": found.bill.tools,
        "dollars_plain": found.dollars_plain,
        "dollars": found.dollars,
    }
    report.cards[found.priced_as] = found.card
    report.total.update(figures)
    report.rows.append({**about, **_with_ratios(figures), "dearer_because": found.dearer_because})
    if report.lists_items:
        titles = {info.ref: info.title for info in result.records}
        report.items.append([_item(d, titles.get(d.ref or "")) for d in result.decisions])
    for decision in result.decisions:
        report.tally.add(decision)
        if decision.ref is None and decision.item.tokens >= DEFAULT_MIN_TOKENS:
            kept = report.kept.setdefault(decision.reason.cause, Counter())
            kept.update(items=1, tokens=decision.item.tokens)


def _counts(found: CountCheck) -> dict[str, Any]:
    """Return the input, cached and written tokens that were predicted and counted, and why they differ."""
    names = {"input": "tokens", "cached": "read", "written": "written"}
    sides = {"predicted": found.predicted, "counted": found.counted, "explained": found.explained}
    return {
        "requests": found.requests,
        **{
            side: {kind: getattr(usage, name) for kind, name in names.items()}
            for side, usage in sides.items()
        },
        "causes": dict(found.causes),
    }


def _with_ratios(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures and what follows from them: tokens saved in the end, cost relative to no offloading."""
    units, plain = figures["units"], figures["units_plain"]
    return {
        **{name: round(value, 6) for name, value in figures.items()},
        "saved": round(1 - _ratio(figures["tokens_after"], figures["tokens_before"]), 4),
        "cost": _ratio(units, plain),
        "cost_without_tools": _ratio(units - figures["units_tools"], plain),
        "dollars_saved": round(figures["dollars_plain"] - figures["dollars"], 6),
        "share_saved": round(1 - _ratio(figures["dollars"], figures["dollars_plain"]), 4),
    }


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 1.0


def _item(decision: Decision, title: str | None) -> dict[str, Any]:
    item = decision.item
    return {
        "item": str(item.message) if item.block is None else f"{item.message}.{item.block}",
        "item_type": item.item_type,
        "tool": item.tool_name,
        "title": title,
        "tokens": item.tokens,
        "after": decision.tokens_after,
        "decision": f"{decision.action}: {decision.reason}",
    }


# Print


def _print_table(report: _SavingsReport, *, shows_all: bool) -> None:
    rows = sorted(report.rows, key=lambda row: abs(row["dollars_saved"]), reverse=True)
    listed = rows if shows_all else rows[:_SHOWN_ROWS]
    rest = f", {len(rows) - len(listed)} not listed (--all)" if len(listed) < len(rows) else ""
    total = {"transcript": f"total of {len(rows)}{rest}", **_with_ratios(report.total)}
    print_table([table_row(row, _COLUMNS) for row in [*listed, total]])
    out.print()


def _sentences(report: _SavingsReport, policy: str) -> Iterator[str]:
    """Yield the assumptions of the figures, and last their conclusion."""
    rows, total = report.rows, _with_ratios(report.total)
    recorded = [row["dollars_recorded"] for row in rows if row["dollars_recorded"] is not None]
    if recorded:
        number = count(len(recorded), "conversation")
        yield (
            f"The recorded usage of {number} costs {Dollars(sum(recorded))} of input, with the system "
            "prompts and tools that the files lack."
        )
        yield from _checked([row["counts"] for row in rows if row["counts"]])
    if len(recorded) < len(rows):
        number = count(len(rows) - len(recorded), "conversation")
        yield f"{number} recorded no usage: replayed without pauses and cache misses."
    if report.unpriced:
        number = count(report.unpriced, "conversation")
        yield f"{number} named no model: {DEFAULT_MODEL} is assumed; see --model and --prices."
    yield _assumed(report.cards)
    dearer = [row for row in rows if row["dearer_because"]]
    if dearer:
        more = Dollars(-sum(row["dollars_saved"] for row in dearer))
        reasons = Counter(row["dearer_because"] for row in dearer)
        why = "; ".join(f"{number:,} because {reason}" for reason, number in reasons.most_common())
        yield f"{count(len(dearer), 'conversation')} would cost {more} more: {why}."
    where = f"{count(len(rows), 'conversation')}, tools and read-backs included"
    yield conclusion((f"{policy} saves", f"{policy} costs"), total, where)


def _checked(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how the predicted tokens differ from what providers counted, and why."""
    if not checks:
        return
    gaps = {kind: [abs(_gap(check, kind)) for check in checks] for kind in ("input", "cached", "written")}
    shown = ", ".join(
        f"{median(each):.1%} of {kind} (at most {max(each):.1%})" for kind, each in gaps.items()
    )
    causes = sum((Counter(check["causes"]) for check in checks), Counter[str]())
    why = "".join(f"; {causes[cause]:,} {text}" for cause, text in _CAUSES.items() if causes[cause])
    requests = count(sum(check["requests"] for check in checks), "request")
    yield (
        f"{requests}, each predicted from the others: their counts differ in the median by {shown} tokens, "
        f"if the cache is as predicted{why}."
    )


def _gap(check: Mapping[str, Any], kind: str) -> float:
    whole = check["counted"][kind]
    return float(check["explained"][kind] / whole - 1) if whole else 0.0


def _assumed(cards: Mapping[str, PriceCard]) -> str:
    """Return which prices were used, in one line."""
    names = next(iter(cards)) if len(cards) == 1 else f"{len(cards)} models"
    days = sorted({str(card.as_of) for card in cards.values()})
    limited = sum(bool(card.limits) for card in cards.values())
    some = f"; {count(limited, 'price')} for some requests only" if limited else ""
    return f"Prices of {names}, as of {' to '.join({days[0]: 0, days[-1]: 0})}{some}: --prices lists them."


def _priced(cards: Mapping[str, PriceCard]) -> Iterator[str]:
    """Yield the prices of each model, and where they are from."""
    for name, card in cards.items():
        read, written = (Dollars(card.input * price) for price in (card.cache.read, card.cache.write))
        yield (
            f"Prices of {name} on {card.as_of}: {Dollars(card.input)} for a million input tokens, {read} if "
            f"cached, {written} if written to the cache{card.limits and ', '}{card.limits}"
            f"{card.source and ' '}{card.source}"
        )


def _print_items(report: _SavingsReport) -> None:
    kept = report.kept_large()
    if kept:
        out.print(f"\nKept although they have {DEFAULT_MIN_TOKENS:,} tokens or more:\n")
        print_table(kept)
    for row, items in zip(report.rows, report.items, strict=True):
        out.print(f"\n{one_line(row['transcript'])}\n")
        if items:
            print_table(items)

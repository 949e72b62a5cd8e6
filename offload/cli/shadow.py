"""`offload shadow`: whether offloading changed what a model did next, by the shadow requests of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offload.cli.options import JsonOption, StoreOption
from offload.cli.stores import existing_store, place_of
from offload.cli.tables import print_table
from offload.cli.terminal import count, one_line, out, print_json, say
from offload.replay import Agreement, HiddenItem, ShadowPair, ShadowReport, pairs_in

# Disagreements, and hidden items of each, that are printed.
_MOST_SHOWN, _MOST_HIDDEN = 20, 3


def shadow(
    session: Annotated[str | None, typer.Argument(metavar="SESSION")] = None,
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether offloading changed a model's next action, by the requests that a gateway sent again.

    `offload gateway --shadow` sends them. Each pair has the reply with offloading and two to the original
    request: the model disagrees with itself too. Without SESSION, show the pairs of all sessions.

    Example: offload shadow
    """
    opened = existing_store(store, session)
    report = ShadowReport([*pairs_in(opened, session)])
    if as_json:
        print_json({"store": opened.url, "session": session, **_document(report)})
        return
    if report.pairs:
        print_table([*_rows(report)])
    for number, pair in enumerate(report.disagreements[:_MOST_SHOWN], 1):
        for line in _lines(pair, f"{number} of {len(report.disagreements)}"):
            out.print(line, soft_wrap=True, markup=False, highlight=False)
    lost = "; ".join(f"{number:,} lost: {one_line(why)}" for why, number in report.lost.items())
    pairs = f"{count(len(report.pairs), 'pair')} in {place_of(opened, session)} for ${report.dollars:,.2f}"
    say("; ".join(filter(None, (report.verdict, pairs, lost))))


def _document(report: ShadowReport) -> dict[str, Any]:
    groups = {kind: {name: _plain(one) for name, one in some.items()} for kind, some in report.groups.items()}
    return {
        "verdict": report.verdict,
        "agreement": _plain(report.agreement),
        "groups": groups,
        "disagreements": [{**asdict(pair), "hidden": _hidden(pair)} for pair in report.disagreements],
        "lost": report.lost,
        "dollars": report.dollars,
    }


def _plain(found: Agreement) -> dict[str, Any]:
    return {**found._asdict(), "is_enough": found.is_enough}


def _hidden(pair: ShadowPair) -> list[dict[str, Any]]:
    return [item._asdict() for item in pair.hidden]


def _rows(report: ShadowReport) -> Iterator[dict[str, object]]:
    yield _row("all", report.agreement)
    for kind, some in report.groups.items():
        for name, found in some.items():
            yield _row(f"{kind}: {name}", found)


def _row(name: str, found: Agreement) -> dict[str, object]:
    return {
        "of": one_line(name),
        "pairs": found.pairs,
        "original agrees": f"{found.itself:.1%}",
        "offload agrees": f"{found.offload:.1%}",
        "difference": f"{found.difference:.1%}" if found.is_enough else "too few",
        "interval": f"{found.low:.1%} to {found.high:.1%}",
    }


def _lines(pair: ShadowPair, number: str) -> Iterator[str]:
    """Yield a disagreement: both actions, and what was out of view."""
    sent = datetime.fromtimestamp(pair.time, UTC)
    yield f"\nDisagreement {number}, {one_line(pair.model)}, {sent:%Y-%m-%d %H:%M} UTC"
    yield f"  with offload: {one_line(pair.offload)}"
    yield f"  original:     {one_line(pair.original)}"
    if pair.again != pair.original:
        yield f"  again:        {one_line(pair.again)}"
    youngest = sorted(pair.hidden, key=lambda item: item.age)
    shown = "; ".join(map(_item, youngest[:_MOST_HIDDEN]))
    more = len(youngest) - _MOST_HIDDEN
    yield f"  out of view:  {shown}{f'; and {more:,} more' if more > 0 else ''}"


def _item(item: HiddenItem) -> str:
    title = f" ({one_line(item.title)})" if item.title else ""
    when = f"{count(item.age, 'reply', 'replies')} ago" if item.age else "never seen in full"
    return f"{one_line(item.tool)}{title}, {item.chars:,} characters, {when}"

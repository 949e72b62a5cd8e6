"""`offload savings STORE`: what offloading saved in the sessions of a store, as their requests were sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from offload import NotFoundError, OffloadError, OffloadStore
from offload.cli.stores import existing_store, place_of
from offload.cli.tables import Dollars, print_table
from offload.cli.terminal import count, note, out, print_json, progress, say
from offload.reading.timeline.titles import JournalSummary, list_journals
from offload.records.index.objects import session_name
from offload.records.session.reader import SessionReader
from offload.replay import Account, replay_journal
from offload.storage.registry import is_root

_SUMS = ("requests", "kept_out", "dollars_plain", "dollars", "extra_requests", "quotes", "quotes_gone")
# The columns of what was saved, and the figures in them.
SAVED_COLUMNS = {
    "without": "dollars_plain",
    "with": "dollars",
    "saved": "dollars_saved",
    "share": "share_saved",
    "extra": "extra_requests",
    "gone": "quotes_gone",
}
_COLUMNS = {"session": "session", "requests": "requests", **SAVED_COLUMNS}


def is_store(text: str) -> bool:
    """Return whether an argument is a store: a URL, or a folder with its objects."""
    return "://" in text or is_root(Path(text))


def print_sent(url: str, *, as_json: bool) -> None:
    """Print the figures of each session of a store that keeps its requests, and their sum.

    Raises `NotFoundError` if there is none; exits with code 1 if none of them can be read.
    """
    store = existing_store(url)
    journals = [one for one in list_journals(store).values() if one.sent is not None]
    rows = [*_rows(store, journals)]
    if not rows and journals:
        raise typer.Exit(1)
    if not rows:
        raise NotFoundError(f"no session of {place_of(store)} keeps its requests; `offload wrap` keeps them")
    total = _with_share({name: sum(row[name] for row in rows) for name in _SUMS})
    if as_json:
        print_json({"store": store.url, "sessions": rows, "total": total})
        return
    listed = [*rows, {"session": f"total of {len(rows)}", **total}]
    print_table([table_row(row, _COLUMNS) for row in listed])
    out.print()
    for sentence in _sentences(rows, total):
        say(sentence)


def _rows(store: OffloadStore, journals: list[JournalSummary]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each session with requests, the newest first; note those that cannot be read."""
    journals.sort(key=lambda one: one.sent.at if one.sent else 0, reverse=True)
    for one in progress(journals, "sessions"):
        name = session_name(store, one.part)
        try:
            account = replay_journal(SessionReader(store, name))
        except OffloadError as error:
            note(f"{name}: not counted: {error}")
        else:
            yield _row(name, account)


def _row(session: str, account: Account) -> dict[str, Any]:
    """Return the figures of a session; without a known price, its input has cost nothing."""
    names = ("requests", "kept_out", "extra_requests", "quotes", "quotes_gone")
    priced = account.is_priced
    figures: dict[str, Any] = {name: getattr(account, name) for name in names}
    figures |= {name: getattr(account, name) if priced else 0.0 for name in ("dollars_plain", "dollars")}
    about = {"session": session, "prices": account.priced_as if priced else None}
    return {
        **about,
        "is_counted": account.is_counted,
        "is_assumed": account.is_assumed,
        **_with_share(figures),
    }


def _with_share(figures: dict[str, Any]) -> dict[str, Any]:
    plain = figures["dollars_plain"]
    saved = plain - figures["dollars"]
    return {**figures, "dollars_saved": saved, "share_saved": saved / plain if plain else 0.0}


def table_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of a row under the titles of a table."""
    return {
        title: Dollars(row[name]) if name.startswith("dollars") else row[name]
        for title, name in columns.items()
    }


def conclusion(verbs: tuple[str, str], total: Mapping[str, Any], where: str) -> str:
    """Return the sentence on a sum of figures.

    Args:
        verbs: who saves, and who costs more.
        total: the figures.
        where: in what, and what else is counted.
    """
    saved, plain = total["dollars_saved"], Dollars(total["dollars_plain"])
    effect = f"{verbs[0]} {Dollars(saved)} of" if saved >= 0 else f"{verbs[1]} {Dollars(-saved)} more than"
    return (
        f"{effect} {plain} of input ({abs(total['share_saved']):.1%}) in {where}: "
        f"{count(total['extra_requests'], 'extra request')}, {total['quotes_gone']:,} of "
        f"{count(total['quotes'], 'quote')} in edits gone."
    )


def _sentences(rows: Sequence[dict[str, Any]], total: dict[str, Any]) -> Iterator[str]:
    """Yield the assumptions of the figures, and last their conclusion."""
    for number, why in (
        (
            sum(row["prices"] is None for row in rows),
            "used a model of unknown price: the cost is not counted",
        ),
        (sum(row["is_assumed"] for row in rows), f"named no model: {rows[0]['prices']} is assumed"),
        (sum(not row["is_counted"] for row in rows), "recorded no usage: the cost is an estimate"),
    ):
        if number:
            yield f"{count(number, 'session')} {why}."
    yield conclusion(("Offloading saved", "Offloading cost"), total, count(len(rows), "session"))

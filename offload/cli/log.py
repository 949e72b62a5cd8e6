"""`offload log`: the requests of a session, and any of them as it was sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offload import ConfigError, OffloadError, OffloadStore
from offload.base.text import escape_controls
from offload.cli.options import BranchOption, JsonOption, LimitOption, StoreOption
from offload.cli.shell import quoted
from offload.cli.stores import existing_store, note_unfit, place_of
from offload.cli.tables import Dollars, print_report
from offload.cli.terminal import count, one_line, page, print_json
from offload.errors import InvalidKeyError
from offload.messages import to_json
from offload.messages.formats import role_or_none, scan_of
from offload.reading.timeline import Change, SentRequest, Timeline
from offload.reading.timeline.titles import list_journals, task_titles
from offload.records.index.objects import session_name
from offload.replay import RequestCost, costs_of

_PAIR = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
# Of each text of a changed message.
_MAX_CHARS = 200


def log(
    session: Annotated[str | None, typer.Argument(metavar="SESSION")] = None,
    *,
    at: Annotated[
        int | None, typer.Option("--at", min=1, metavar="N", help="Show the messages of request N.")
    ] = None,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="M:N", help="Show what differs between two requests.")
    ] = None,
    branch: BranchOption = None,
    branches: Annotated[
        bool, typer.Option("--branches", help="List the branches that rewinds left, newest first.")
    ] = False,
    limit: LimitOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the requests of a session, newest first, or show one of them as it was sent.

    Without SESSION, list the sessions of the store that keep their requests.

    Example: offload log research-42
    """
    if session is None and not (at is None and diff is None and branch is None and not branches):
        raise ConfigError("--at, --diff, --branch and --branches need a SESSION; `offload log` lists them")
    if sum([at is not None, diff is not None, branches]) > 1:
        raise ConfigError("--at, --diff and --branches exclude each other; give one of them")
    if limit is not None and (at is not None or diff is not None or branches):
        raise ConfigError(
            "--limit is for the list of requests or sessions: leave out --at, --diff, --branches"
        )
    numbers = None if diff is None else _numbers(diff)
    opened = existing_store(store, session)
    if session is None:
        _log_sessions(opened, limit, as_json=as_json)
        return
    timeline, place = Timeline(opened, session, branch=branch), {"store": opened.url, "session": session}
    if branches:
        _log_branches(timeline, opened, session, as_json=as_json)
    elif at is not None:
        messages = timeline.at(at)
        facts = {**place, "request": at, "messages": list(map(to_json, messages))}
        _print(facts, _shown(messages), as_json=as_json)
    elif numbers is not None:
        changes = timeline.changes(numbers[1], since=numbers[0])
        facts = {**place, "request": numbers[1], "since": numbers[0], "changes": list(map(_plain, changes))}
        _print(facts, _compared(changes), as_json=as_json)
    else:
        _log_requests(timeline, opened, session, limit, as_json=as_json)


def _log_sessions(store: OffloadStore, limit: int | None, *, as_json: bool) -> None:
    rows = sorted(_journals(store), key=lambda row: str(row["sent_at"] or ""), reverse=True)
    note = "" if rows else "; a session keeps them with Offloader(journal=True)"
    listed = rows[:limit]
    document = {"store": store.url, "sessions": listed, "is_more": len(listed) < len(rows)}
    summary = f"{count(len(listed), 'session')} with requests in {place_of(store)}{_rest(rows, listed)}{note}"
    print_report(listed, summary, as_json=as_json, document=document)


def _rest(rows: Sequence[object], listed: Sequence[object]) -> str:
    return f"; {len(rows) - len(listed):,} not listed" if len(listed) < len(rows) else ""


def _log_requests(
    timeline: Timeline, store: OffloadStore, session: str, limit: int | None, *, as_json: bool
) -> None:
    found = [_row(request, cost) for request, cost in zip(timeline, costs_of(timeline), strict=True)][::-1]
    rows = found[:limit]
    note = "" if rows else "; its journal has them if it keeps one, see Offloader(journal=True)"
    if timeline.branches:
        note = f"; {count(len(timeline.branches), 'branch', 'branches')} left by a rewind, see --branches"
    differing = sum(row["because"] is not None for row in rows)
    if differing:
        note += f"; {differing:,} counted otherwise than predicted"
    # A table has no column without a value.
    known = {name for row in rows for name, value in row.items() if value is not None}
    shown = [{name: value for name, value in row.items() if name in known} for row in rows]
    summary = f"{count(len(rows), 'request')} in {place_of(store, session)}{_rest(found, rows)}{note}"
    place = {"store": store.url, "session": session}
    document = {**place, "requests": rows, "is_more": len(rows) < len(found)}
    print_report(shown, summary, as_json=as_json, document=document)


def _log_branches(timeline: Timeline, store: OffloadStore, session: str, *, as_json: bool) -> None:
    rows = [_branch_row(name, requests) for name, requests in timeline.branches.items()]
    note = f"; to continue one: offload fork NAME --session {quoted(session)} --branch ID" if rows else ""
    summary = f"{count(len(rows), 'branch', 'branches')} of {place_of(store, session)}{note}"
    document = {"store": store.url, "session": session, "branches": rows}
    print_report(rows, summary, as_json=as_json, document=document)


def _branch_row(name: str, requests: Sequence[SentRequest]) -> dict[str, Any]:
    first, last = requests[0], requests[-1]
    return {
        "branch": name,
        "first": first.number,
        "last": last.number,
        "sent_at": last.time,
        "messages": last.messages,
        "tokens": last.tokens,
        "model": last.model,
    }


def _journals(store: OffloadStore) -> Iterator[dict[str, Any]]:
    journals = list_journals(store)
    titles, unfit = task_titles(store, journals)
    note_unfit([*unfit.values()])
    for part, one in journals.items():
        with suppress(InvalidKeyError):
            name = session_name(store, part)
            about = {"session": name, "title": titles.get(part)}
            # A fork has the requests of its parent too.
            if one.first.parent is not None and (figures := _figures(store, name)):
                yield {**about, **figures}
                continue
            yield {
                **about,
                "requests": one.requests,
                "sent_at": one.sent and datetime.fromtimestamp(one.sent.at / 1000, UTC),
                "tokens": one.sent and one.sent.tokens,
                "offloaded": one.sent and one.sent.tokens_offloaded,
                "model": one.model,
            }


def _figures(store: OffloadStore, fork: str) -> dict[str, Any] | None:
    """Return the figures of a fork; None if it has no request, or those of its parent cannot be read."""
    try:
        timeline = Timeline(store, fork)
    except OffloadError:
        return None
    if not timeline:
        return None
    last = timeline[-1]
    return {
        "requests": len(timeline),
        "sent_at": last.time,
        "tokens": last.tokens,
        "offloaded": last.tokens_offloaded,
        "model": last.model,
    }


def _numbers(text: str) -> tuple[int, int]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise ConfigError(f"--diff takes two numbers of requests, such as 36:37, got {text!r:.40}")
    first, second = int(match[1]), int(match[2])
    if second < first:
        raise ConfigError(f"--diff takes the earlier request first: {second}:{first}, got {text!r:.40}")
    return first, second


def _row(request: SentRequest, cost: RequestCost) -> dict[str, Any]:
    usage, expected = request.usage, cost.predicted
    differing = expected.usage if expected and expected.cause else None
    return {
        "request": request.number,
        "sent_at": request.time,
        "messages": request.messages,
        "tokens": request.tokens,
        "offloaded": request.tokens_offloaded,
        "records": request.records,
        "reads": request.read_backs,
        "is_compacted": request.is_compacted,
        "model": request.model,
        "input": usage and usage.tokens,
        "cached": usage and usage.read,
        "predicted": differing and differing.tokens,
        "predicted_cached": differing and differing.read,
        "because": expected and expected.cause,
        "cold": cost.cold,
        "cost": None if cost.dollars is None else Dollars(cost.dollars),
    }


def _print(facts: Mapping[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        page("\n".join(lines))


def _plain(change: Change) -> dict[str, object]:
    return {field.name: to_json(getattr(change, field.name)) for field in fields(change)}


def _shown(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        names = ", ".join(one_line(call.name) for _, call in scan_of(message).calls)
        yield f"--- {index}: {role_or_none(message) or 'unknown'}{', calls ' * bool(names)}{names}"
        yield from _texts(message)


def _compared(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        yield f"--- {change.index}: {change.kind}"
        for sign, message in (("-", change.before), ("+", change.after)):
            yield from (f"{sign} {text}" for text in _texts(message, _MAX_CHARS))
    if not changes:
        yield "no message differs"


def _texts(message: Any, most: int | None = None) -> list[str]:
    """Return the texts of a message, cut to a number of characters; none if there is no message."""
    texts = [] if message is None else scan_of(message).all_texts
    return [
        escape_controls(text if most is None or len(text) <= most else f"{text[:most]}…") for text in texts
    ]

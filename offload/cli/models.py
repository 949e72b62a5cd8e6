"""`offload models`: the table of models, with their thinking, windows, prices and prompt caches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offload.cli.options import JsonOption
from offload.cli.tables import Dollars, print_table
from offload.cli.terminal import PROBLEMS, count, note, out, print_json
from offload.engine.policy.models import facts, known_model, names_of_models
from offload.errors import NotFoundError


def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    *,
    days: Annotated[
        int | None,
        typer.Option("--older-than", min=0, metavar="DAYS", help="List the pages that were read earlier."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is known of models: of all, or by any name that a provider, a cloud or a router gives them.

    `thinking` is the provider's answer to a change before it: "binds" refuses what is behind the change,
    "free" accepts all, "required" refuses tool calls without their thinking. Prices are dollars for a million
    input tokens today; what is empty is not known.

    Example: offload models anthropic/claude-opus-5.5 us.anthropic.claude-opus-4-5-20251101-v1:0
    """
    if days is not None:
        _print_old(days, as_json=as_json)
        return
    rows = [_row(name) for name in names or names_of_models()]
    if as_json:
        print_json({"models": rows})
    else:
        print_table([{**row, "kept": _duration(row["kept"]), **_dollars(row)} for row in rows])


_PRICES = ("input", "cached", "written")


def _row(name: str) -> dict[str, Any]:
    known = known_model(name)
    if known is None:
        raise NotFoundError(f"nothing is known of a model {name!r}")
    price = known.price()
    return {
        "model": known.name or name,
        "thinking": known.thinking,
        "window": known.window,
        "input": price and price.input,
        "cached": price and price.read,
        "written": price and price.write,
        "kept": known.cache and known.cache.ttl,
        "as_of": known.as_of.isoformat(),
    }


def _dollars(row: dict[str, Any]) -> dict[str, Dollars | None]:
    return {name: None if row[name] is None else Dollars(row[name]) for name in _PRICES}


def _duration(seconds: int | None) -> str | None:
    """Return how long the provider keeps a prompt in its cache, as "5 min" or "24 h"."""
    if seconds is None or seconds % 60:
        return None if seconds is None else f"{seconds} s"
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"


def _print_old(days: int, *, as_json: bool) -> None:
    """Print the facts that are older than some days, and exit with the code of problems if there are any."""
    today = datetime.now(UTC).date()
    old = [fact._asdict() for fact in facts() if (today - fact.as_of).days > days]
    if as_json:
        print_json({"old": old})
    else:
        for fact in old:
            out.print(
                f"{fact['as_of']}  {fact['about']} of {fact['models']}: {fact['source']}", soft_wrap=True
            )
        note(f"{count(len(old), 'page')} read more than {count(days, 'day')} ago")
    raise typer.Exit(PROBLEMS if old else 0)

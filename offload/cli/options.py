"""Options and arguments that several commands have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.errors import ConfigError

if TYPE_CHECKING:
    from offload.gateway import ShadowPlan

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-S",
        metavar="URL",
        help="Store path or URL, also as an argument [default: from settings].",
    ),
]
# An argument after a command to run belongs to that command.
CommandStoreOption = Annotated[
    str | None,
    typer.Option("--store", "-S", metavar="URL", help="Store path or URL [default: from settings]."),
]
SessionOption = Annotated[
    str | None, typer.Option("--session", "-s", metavar="NAME", help="Session name [default: all sessions].")
]
ToolOption = Annotated[
    str | None,
    typer.Option("--tool", metavar="GLOB", help="Only records of these tools, as Bash or 'mcp__*'."),
]
OneSessionOption = Annotated[
    str | None,
    typer.Option(
        "--session", "-s", metavar="NAME", help="Session name [default: from settings, else the only one]."
    ),
]
FolderSessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        "-s",
        metavar="NAME",
        help="Session name [default: from settings, else one for this folder].",
    ),
]
SessionName = Annotated[str, typer.Option("--session", "-s", metavar="NAME", help="Session name.")]
BranchOption = Annotated[
    str | None,
    typer.Option("--branch", metavar="ID", help="A branch that a rewind left, see `offload log --branches`."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="List at most N [default: all].")
]
IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id or its beginning, `last`, placeholder, or path of a context file."),
]
NoJournalOption = Annotated[
    bool, typer.Option("--without-journal", help="Keep no timeline of the conversations.")
]
ShadowOption = Annotated[
    float | None,
    typer.Option("--shadow", metavar="SHARE", help="Share of changed requests to send twice more unchanged."),
]
ShadowBudgetOption = Annotated[
    str | None,
    typer.Option("--shadow-budget", metavar="USD", help="Most dollars that these may cost, such as 5USD."),
]
ShadowStopOption = Annotated[
    str | None,
    typer.Option("--shadow-stop", metavar="PERCENT", help="Harm at which requests pass unchanged, as 5%."),
]
_ROOTED = re.compile(r"(?:\.{0,2}|~|[a-z]:)[/\\]", re.IGNORECASE)
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def shadow_plan(share: float | None, budget: str | None, stop: str | None) -> ShadowPlan | None:
    """Return the plan of the options; None without any. Raises `ConfigError`."""
    if share is None:
        if budget is None and stop is None:
            return None
        raise ConfigError("--shadow-budget and --shadow-stop have no effect without --shadow SHARE, as 0.02")
    if budget is None:
        raise ConfigError("--shadow sends requests that cost money: name the most with --shadow-budget 5USD")
    from offload.gateway import ShadowPlan  # noqa: PLC0415 # an extra, and slow to load

    dollars = _number("--shadow-budget", budget, r"\$?({})\s*(?:USD)?", "5USD")
    percent = None if stop is None else _number("--shadow-stop", stop, "({})%", "5%") / 100
    return ShadowPlan(share, dollars, percent)


def shadow_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a gateway sent again, in a line; nothing without a plan."""
    if (facts := status.get("shadow")) is not None:
        lost = "".join(f", {number:,} lost: {why}" for why, number in facts["lost"].items())
        spent = f"${facts['dollars']:,.2f} of ${facts['budget']:,.2f}"
        yield f"shadow requests: {facts['pairs']:,} pairs for {spent}{lost}. See them: offload shadow"


def _number(option: str, text: str, form: str, example: str) -> float:
    match = re.fullmatch(form.format(r"\d+(?:\.\d+)?"), text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{option} must be like {example}, got {text!r:.40}")
    return float(match[1])


def is_place(text: str) -> bool:
    """Return whether an argument is the URL or the folder of a store, and no name."""
    is_path = text in (".", "..") or not {"/", "\\"}.isdisjoint(text)
    return "://" in text or (is_path and Path(text).is_dir())


def is_place_or_missing(text: str) -> bool:
    """Return whether an argument is a place, or a path that begins as one: a session has no such name."""
    return is_place(text) or _ROOTED.match(text) is not None

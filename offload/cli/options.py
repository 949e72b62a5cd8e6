"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-S",
        metavar="URL",
        help="Store path or URL, also as an argument [default: from settings].",
    ),
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
IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id or its beginning, `last`, placeholder, or path of a context file."),
]
NoJournalOption = Annotated[
    bool, typer.Option("--without-journal", help="Keep no timeline of the conversations.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def is_place(text: str) -> bool:
    """Return whether an argument is the URL or the folder of a store, and no name."""
    is_path = text in (".", "..") or not {"/", "\\"}.isdisjoint(text)
    return "://" in text or (is_path and Path(text).is_dir())

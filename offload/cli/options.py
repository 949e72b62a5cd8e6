"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

_URL_HELP = "Store path or URL [default: from settings]."
StoreOption = Annotated[str | None, typer.Option("--store", "-S", metavar="URL", help=_URL_HELP)]
UrlArgument = Annotated[str | None, typer.Argument(metavar="URL", help=_URL_HELP)]
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

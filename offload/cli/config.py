"""`offload config`: the settings in effect, and where each comes from."""

from __future__ import annotations

from dataclasses import asdict

import typer

from offload.cli.terminal import JsonOption, print_json, print_table
from offload.config import load_config

app = typer.Typer(help="The settings in effect.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keep `show` a command of its own."""


@app.command(epilog="Example: OFFLOAD_STORE=./context offload config show")
def show(*, as_json: JsonOption = False) -> None:
    """Show each setting, its value and what gave it; what may be a secret is hidden.

    From the weakest to the strongest: offload.toml (or .yaml, .json) in this folder and [tool.offload] in the
    nearest pyproject.toml, neither of which may say where data goes; the user's own file; OFFLOAD_...
    variables; a command's options. --config or OFFLOAD_CONFIG names the one file to read. What was refused
    has no effect.
    """
    found = load_config()
    rows = [asdict(value) for value in found.values()]
    refused = [asdict(value) for value in found.refused()]
    if as_json:
        print_json([*rows, *({**row, "refused": True} for row in refused)])
    else:
        rows += [{**row, "origin": f"{row['origin']} (refused)"} for row in refused]
        print_table([{**row, "value": repr(row["value"])} for row in rows], whole="path")

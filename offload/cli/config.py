"""`offload config`: the settings in effect and their sources."""

from __future__ import annotations

from dataclasses import asdict

from offload.cli.help import HelpfulCommand, group
from offload.cli.options import JsonOption
from offload.cli.tables import print_table
from offload.cli.terminal import print_json
from offload.engine.settings.loader import load_config

app = group("Show the settings in effect.")


@app.callback()
def _group() -> None:
    """Make `show` a subcommand."""


@app.command(cls=HelpfulCommand)
def show(*, as_json: JsonOption = False) -> None:
    """Show each setting, its value and its source. Secrets are hidden.

    Later sources win: offload.toml (or .yaml, .json) in this folder and [tool.offload] in the nearest
    pyproject.toml, neither of which may choose the store; the user's settings file; OFFLOAD_... variables;
    command options. With --config or OFFLOAD_CONFIG only that file is read. Refused settings have no effect.

    Example: OFFLOAD_STORE=./context offload config show
    """
    config = load_config()
    rows = [asdict(value) for value in config.values()]
    refused = [asdict(value) for value in config.refused()]
    if as_json:
        listed = [(row, False) for row in rows] + [(row, True) for row in refused]
        print_json({"settings": [{**row, "is_refused": is_refused} for row, is_refused in listed]})
    else:
        rows += [{**row, "origin": f"{row['origin']} (refused)"} for row in refused]
        print_table([{**row, "value": repr(row["value"])} for row in rows])

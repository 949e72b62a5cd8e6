"""The command `offload`: its commands, and how a failure looks."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offload import ConfigError, OffloadError, __version__
from offload.cli import demo, doctor, reindex, retention, savings, sessions, transfer
from offload.cli.terminal import err, one_line

app = typer.Typer(
    name="offload",
    help="Large parts of an agent's context, taken out to a store and read back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(savings.savings)
app.command("ls")(sessions.list_)
app.command()(sessions.show)
app.command()(sessions.grep)
app.command()(sessions.cat)
app.command()(sessions.stats)
app.command()(sessions.verify)
app.command()(reindex.reindex)
app.command()(retention.gc)
app.command()(retention.du)
app.command()(retention.rm)
app.command()(retention.pin)
app.command()(retention.unpin)
app.command()(doctor.doctor)
app.command()(transfer.copy)
app.command()(transfer.fork)
app.command()(transfer.export)
app.command("import")(transfer.import_)
app.command()(transfer.share)
app.command()(transfer.revoke)


def run() -> None:
    """Run the command that `sys.argv` asks for and exit.

    A failure of ours is one line on stderr: with code 2 if the call was wrong, else with 1.
    """
    try:
        app()
    except OffloadError as error:
        err.print(f"offload: {one_line(error)}", soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass

"""The command `offload`: its subcommands, help texts and exit codes."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from offload import ConfigError, OffloadError, __version__
from offload.cli import (
    config,
    demo,
    doctor,
    mcp,
    retention,
    savings,
    serve,
    sessions,
    transfer,
)
from offload.cli.terminal import err, one_line
from offload.config import FILE_VARIABLE

app = typer.Typer(
    name="offload",
    help="Move large tool results out of an agent's context, and read them back on demand.",
    epilog=(
        "Exit codes: 0 success; 1 failure or not found; 2 invalid arguments or settings; "
        "3 problems found (damaged records, failed checks)."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Markup drops text in brackets, and its panels truncate option names on a narrow terminal.
    rich_markup_mode=None,
)


# Each command and an example call.
for _name, _function, _example in (
    ("demo", demo.demo, "offload demo"),
    ("savings", savings.savings, "offload savings ~/.claude/projects --simulate"),
    ("ls", sessions.list_, "offload ls --store s3://bucket/prefix --session research-42"),
    ("show", sessions.show, "offload show kqzmwpxhva --offset 8192"),
    ("tail", sessions.tail, "offload tail kqzmwpxhva -n 50"),
    ("grep", sessions.grep, "offload grep 'timed? out' --regex --session research-42"),
    ("cat", sessions.cat, "offload cat kqzmwpxhva > output.txt"),
    ("stats", sessions.stats, "offload stats --session research-42 --json"),
    ("verify", sessions.verify, "offload verify --store s3://bucket/prefix"),
    ("du", retention.du, "offload du"),
    ("gc", retention.gc, "offload gc --dry-run --store-bytes 20000000000"),
    ("rm", retention.rm, "offload rm kqzmwpxhva --session research-42"),
    ("pin", retention.pin, "offload pin --session research-42"),
    ("unpin", retention.unpin, "offload unpin --session research-42"),
    ("copy", transfer.copy, "offload copy ./context s3://bucket/prefix --session research-42"),
    ("fork", transfer.fork, "offload fork research-43 --session research-42"),
    ("export", transfer.export, "offload export session.tar --session research-42"),
    ("import", transfer.import_, "offload import session.tar --as research-43"),
    ("share", transfer.share, "offload share kqzmwpxhva --session research-42 --to review-7"),
    ("revoke", transfer.revoke, "offload revoke kqzmwpxhva --session research-42 --to review-7"),
    ("reindex", sessions.reindex, "offload reindex"),
    ("doctor", doctor.doctor, "offload doctor s3://bucket/prefix"),
    ("serve", serve.serve, "offload serve ./context"),
    ("mcp", mcp.mcp, "offload mcp ./context --session research-42"),
    ("mcp-proxy", mcp.mcp_proxy, "offload mcp-proxy --min-tokens 1000 -- npx -y some-mcp-server"),
):
    app.command(
        _name,
        # The first line, which typer would truncate.
        short_help=str(_function.__doc__).partition("\n")[0],
        epilog=f"Example: {_example}",
        context_settings=mcp.PASSES_ON if _name == "mcp-proxy" else None,
    )(_function)
app.add_typer(config.app, name="config")


def run() -> None:
    """Run the command in `sys.argv` and exit with one of the codes of the help's epilog.

    An `OffloadError` or `OSError` is printed to stderr as one line.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding lacks are printed as escape codes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (OffloadError, OSError) as error:
        err.print(f"offload: {one_line(error)}", soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    config_file: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="PATH", help="Read settings from this file only; it may set the store."
        ),
    ] = None,
) -> None:
    if config_file is not None:
        os.environ[FILE_VARIABLE] = config_file

"""The command `offload`: its subcommands, help texts and exit codes."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from offload import ConfigError, OffloadError, __version__


class Command(NamedTuple):
    """A subcommand: its function or app, the first line of its help, and an example call."""

    module: str
    name: str
    summary: str
    example: str = ""


# By name. A module is loaded when its command is run: the list of commands takes its texts from here.
COMMANDS = {
    "demo": Command(
        "demo",
        "demo",
        "Run a demo: offload real tool outputs from this machine, read parts back, restore everything.",
        "offload demo",
    ),
    "savings": Command(
        "savings",
        "savings",
        "Show what a policy would save of the input cost of recorded conversations.",
        "offload savings ~/.claude/projects --model claude-opus-5-5",
    ),
    "ls": Command(
        "listing",
        "list_",
        "List the sessions of a store, or the records of one session.",
        "offload ls --store s3://bucket/prefix --session research-42",
    ),
    "show": Command(
        "sessions",
        "show",
        "Show a part of a record as a model reads it.",
        "offload show kqzmwpxhva --offset 8192",
    ),
    "tail": Command(
        "sessions",
        "tail",
        "Show the last lines of a record as a model reads them.",
        "offload tail kqzmwpxhva -n 50",
    ),
    "grep": Command(
        "sessions",
        "grep",
        "Search the records of a session, or of all sessions, as a model does.",
        "offload grep 'timed? out' --regex --session research-42",
    ),
    "diff": Command(
        "sessions",
        "diff",
        "Show the lines in which two records of a session differ.",
        "offload diff kqzmwpxhva ejwntwgzte",
    ),
    "query": Command(
        "sessions",
        "query",
        "Run one SQL select over records, as a model does.",
        "offload query 'select level, count(*) from t group by 1' kqzmwpxhva",
    ),
    "cat": Command(
        "sessions",
        "cat",
        "Write a record's content to stdout, byte for byte when redirected.",
        "offload cat kqzmwpxhva > output.txt",
    ),
    "stats": Command(
        "sessions",
        "stats",
        "Count the records of a session by type and by tool.",
        "offload stats --session research-42 --json",
    ),
    "verify": Command(
        "listing",
        "verify",
        "Check every record and list damaged ones; exit with 3 if there are any.",
        "offload verify --store s3://bucket/prefix",
    ),
    "du": Command("retention", "du", "Show storage use per session and in total.", "offload du"),
    "gc": Command(
        "retention",
        "gc",
        "Delete records past their TTL or over a quota, in one session or the whole store.",
        "offload gc --dry-run --store-bytes 20000000000",
    ),
    "rm": Command(
        "retention",
        "rm",
        "Delete a session's records (all, if no ID is given). A later `gc` frees the space.",
        "offload rm kqzmwpxhva --session research-42",
    ),
    "pin": Command(
        "retention",
        "pin",
        "Protect a record from `gc`, or the whole session if ID is omitted.",
        "offload pin --session research-42",
    ),
    "unpin": Command(
        "retention",
        "unpin",
        "Unpin a record, or the whole session if ID is omitted.",
        "offload unpin --session research-42",
    ),
    "copy": Command(
        "transfer",
        "copy",
        "Copy a session to another store, skipping records that are already there.",
        "offload copy ./context s3://bucket/prefix --session research-42",
    ),
    "fork": Command(
        "transfer",
        "fork",
        "Copy a session to a new name in the same store. Existing messages restore from both.",
        "offload fork research-43 --session research-42",
    ),
    "export": Command(
        "transfer",
        "export",
        "Write a session to a new tar file.",
        "offload export session.tar --session research-42",
    ),
    "import": Command(
        "transfer",
        "import_",
        "Copy the session of an exported file into a store, after verifying each record.",
        "offload import session.tar --as research-43",
    ),
    "share": Command(
        "transfer",
        "share",
        "Let another session of the store read a record.",
        "offload share kqzmwpxhva --session research-42 --to review-7",
    ),
    "revoke": Command(
        "transfer",
        "revoke",
        "Revoke access granted with `share`.",
        "offload revoke kqzmwpxhva --session research-42 --to review-7",
    ),
    "reindex": Command(
        "listing",
        "reindex",
        "Rebuild the index of one session, or of all sessions, from their records.",
        "offload reindex",
    ),
    "doctor": Command(
        "doctor",
        "doctor",
        "Test a store's guarantees and speed and suggest fixes; exit with 3 if a check fails.",
        "offload doctor s3://bucket/prefix",
    ),
    "serve": Command(
        "serve",
        "serve",
        "Browse a store in a web page, read-only and reachable from this machine only.",
        "offload serve ./context",
    ),
    "mcp": Command(
        "mcp",
        "mcp",
        "Serve one session to an MCP client: five retrieval tools, its records as resources.",
        "offload mcp ./context --session research-42",
    ),
    "mcp-proxy": Command(
        "mcp",
        "mcp_proxy",
        "Run the MCP server COMMAND behind a proxy that offloads its large results.",
        "offload mcp-proxy --min-tokens 1000 -- npx -y some-mcp-server",
    ),
    "config": Command("config", "app", "Show the settings in effect."),
}
# Options after the wrapped command belong to that command.
_PASSES_ON = {"allow_interspersed_args": False}


class _Commands(TyperGroup):
    """The subcommands, each loaded when it is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # typer takes the names from here, also those that resemble a mistyped one.
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        return typer.main.get_command(_app_of(name)) if name in COMMANDS else None

    def format_commands(self, _context: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


def _app_of(name: str) -> typer.Typer:
    command = COMMANDS[name]
    loaded = getattr(import_module(f"offload.cli.{command.module}"), command.name)
    if isinstance(loaded, typer.Typer):
        return loaded
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(
        name,
        short_help=command.summary,
        epilog=f"Example: {command.example}",
        context_settings=_PASSES_ON if name == "mcp-proxy" else None,
    )(loaded)
    return alone


app = typer.Typer(
    name="offload",
    cls=_Commands,
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
        from offload.cli.terminal import err, one_line  # noqa: PLC0415 # help needs no table

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
        from offload.config import FILE_VARIABLE  # noqa: PLC0415 # most commands are called without it

        os.environ[FILE_VARIABLE] = config_file

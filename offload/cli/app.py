"""The command `offload`: its subcommands, help texts and exit codes."""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from offload import ConfigError, OffloadError, __version__
from offload.cli.help import CONTEXT, HelpfulCommand


class Command(NamedTuple):
    """A subcommand: its function or app, and its line in the list of commands.

    If it `wraps` a command, options after that command's name belong to it.
    """

    module: str
    name: str
    summary: str
    wraps: bool = False


# By section of the list, and by name. A module is loaded when its command is run. A summary fits on one line
# of a terminal.
GROUPS = {
    "See the effect": {
        "demo": Command("demo", "demo", "Offload real output of this machine, read it back"),
        "savings": Command("savings", "savings", "Show what offloading saves on recorded sessions"),
        "shadow": Command("shadow", "shadow", "Show whether offloading changes a model's next action"),
        "models": Command("models", "models", "Show windows, prices and thinking of models"),
    },
    "Read": {
        "ls": Command("listing", "list_", "List sessions, or the records of one"),
        "show": Command("sessions", "show", "Show a record as a model reads it"),
        "grep": Command("grep", "grep", "Search one session, or all of them"),
        "search": Command("search", "search", "Find passages by words, the best first"),
        "evidence": Command("evidence", "evidence", "Check the values of a text against a session"),
        "diff": Command("sessions", "diff", "Compare two records"),
        "query": Command("sessions", "query", "Run one SQL select over records"),
        "log": Command("log", "log", "List the requests of a session, or show one"),
        "cat": Command("sessions", "cat", "Write the content of a record, byte for byte"),
        "serve": Command("serve", "serve", "Browse a store in web pages"),
    },
    "Serve agents": {
        "wrap": Command("wrap", "wrap", "Run a client of a model behind a gateway", wraps=True),
        "gateway": Command("gateway", "gateway", "Offload old results between a client and a model"),
        "exec": Command("exec", "exec_", "Run a command; print its output or a preview", wraps=True),
        "mcp": Command("mcp", "mcp", "Serve a session to an MCP client"),
        "mcp-proxy": Command("mcp", "mcp_proxy", "Offload the large results of an MCP server", wraps=True),
    },
    "Move and share": {
        "copy": Command("transfer", "copy", "Copy a session to another store"),
        "fork": Command("transfer", "fork", "Continue from a request in a new session"),
        "rewind": Command("transfer", "rewind", "Continue a session from an earlier request"),
        "export": Command("transfer", "export", "Write a session to a tar file"),
        "catalog": Command("catalog", "app", "Export the catalog of a store to Parquet files"),
        "import": Command("transfer", "import_", "Read a session from a tar file"),
        "share": Command("transfer", "share", "Let another session read a record"),
        "revoke": Command("transfer", "revoke", "Undo `share`"),
    },
    "Clean up": {
        "du": Command("retention", "du", "Show storage use per session, or of one by type and tool"),
        "gc": Command("retention", "gc", "Delete what is expired or over a quota"),
        "rm": Command("retention", "rm", "Delete records, or a whole session"),
        "undelete": Command("retention", "undelete", "Undo `rm` before `gc` frees the space"),
        "pin": Command("retention", "pin", "Protect a record or a session from `gc`"),
        "unpin": Command("retention", "unpin", "Undo `pin`"),
    },
    "Check and repair": {
        "doctor": Command("doctor", "doctor", "Test a store's guarantees and speed, or rebuild its index"),
        "verify": Command("listing", "verify", "Check every record for damage"),
        "config": Command("config", "app", "Show the settings in effect"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
# Names that people try, of commands in other programs too.
_ALSO_CALLED = {
    "cat": "open",
    "copy": "cp sync push pull",
    "doctor": "test",
    "doctor --reindex": "reindex",
    "du": "size usage",
    "du SESSION": "stats",
    "exec": "run",
    "fork": "branch",
    "gc": "clean cleanup prune",
    "grep": "find",
    "log": "history timeline",
    "ls": "list",
    "query": "sql select",
    "rewind": "reset revert rollback checkout",
    "rm": "delete remove del",
    "--install-completion": "completion completions",
    "savings": "cost costs",
    "serve": "web ui browse",
    "show": "read view get print",
    "show --tail": "tail",
    "undelete": "restore undo",
    "verify": "check fsck",
}
_MEANT = {other: name for name, others in _ALSO_CALLED.items() for other in others.split()}
# As a shell reports a program that SIGPIPE ended: the reader of its output, such as `head`, read no further.
_PIPE_CLOSED = 141


class _Commands(TyperGroup):
    """The subcommands, each loaded when it is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # typer takes the names from here, also those that resemble a mistyped one.
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, _context: Any, name: str) -> Any:
        return typer.main.get_command(_app_of(name)) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of `args`; the error of one that is called otherwise elsewhere names ours.

        `help NAME` is the command NAME with the option -h.
        """
        if {*args} == {"help"}:
            typer.echo(ctx.get_help())
            ctx.exit()
        if args[0] == "help":
            args = [*args[1:], "-h"]
        meant = _MEANT.get(args[0])
        if meant is not None:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{meant}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, _context: Any, formatter: Any) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])


def _app_of(name: str) -> typer.Typer:
    command = COMMANDS[name]
    loaded = getattr(import_module(f"offload.cli.{command.module}"), command.name)
    if isinstance(loaded, typer.Typer):
        return loaded
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(
        name,
        cls=HelpfulCommand,
        context_settings=CONTEXT | {"allow_interspersed_args": not command.wraps},
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
    context_settings=CONTEXT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Markup drops text in brackets, and its panels truncate option names on a narrow terminal.
    rich_markup_mode=None,
)


def _open_closed_streams() -> None:
    """Open streams that the caller closed: a file of a store would take their place, and get their output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 # open until the end


def run() -> None:
    """Run the command in `sys.argv` and exit with one of the codes of the help's epilog.

    An `OffloadError` or `OSError` is printed to stderr as one line. If the reader of stdout has closed
    it, the exit is silent, with 141.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding lacks are printed as escape codes.
        sys.stdout.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # of every warning that no handler takes
        logging.lastResort.setFormatter(logging.Formatter("offload: %(message)s"))
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(_PIPE_CLOSED)
        raise
    except (OffloadError, OSError) as error:
        from offload.cli.terminal import err, one_line  # noqa: PLC0415 # help needs no table

        err.print(f"offload: {one_line(_text_of(error))}", style="red", soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _text_of(error: Exception) -> str:
    """Return the text of an error; that of the system without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


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
        from offload.engine.settings.loader import FILE_VARIABLE  # noqa: PLC0415 # most commands are called without it

        os.environ[FILE_VARIABLE] = config_file

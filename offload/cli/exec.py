"""`offload exec`: run a command for an agent with a shell, and print its output or a preview of it."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, Annotated

import typer

from offload import Offloader, OffloadError
from offload.cli.child import run_child, unlogged, warn
from offload.cli.options import CommandStoreOption, FolderSessionOption
from offload.cli.shell import quoted
from offload.cli.stores import check_lasting, check_writable
from offload.engine.placeholder import DefaultRenderer, PlaceholderFacts
from offload.engine.settings.loader import load_config
from offload.integrations._sessions import at_append, folder_session

_STDIN = "-"
_CHUNK = 64 * 1024
_LINES = 80
# The name that coding agents give the tool which runs commands; policies know it.
_TOOL = "Bash"


class _ShellRenderer(DefaultRenderer):
    """Placeholders that name commands in place of tools.

    Args:
        where: the options that name the store and the session, if the command line did.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        # A program that is not on the path is called again as it was called.
        is_file = Path(sys.argv[0]).stem == "offload" and shutil.which("offload") is None
        self._program = quoted(sys.argv[0]) if is_file else "offload"

    def render(self, facts: PlaceholderFacts) -> str:
        shown, _, _ = super().render(facts).rpartition("\n")
        head = facts.preview.head_chars
        start = facts.ends.count("\n", 0, head) + 1
        part = f"--lines {start}:{start + _LINES - 1}" if start < facts.lines else f"--offset {head}"
        return (
            f"{shown}\n[This is a part; do not guess the rest. Read more with the commands: "
            f"{self._program} grep PATTERN {facts.ref}{self._where} or "
            f"{self._program} show {facts.ref} {part}{self._where}]"
        )


def exec_(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND")],
    *,
    store: CommandStoreOption = None,
    session: FolderSessionOption = None,
) -> None:
    """Run COMMAND; print its output, or store it and print a preview if it is large.

    COMMAND `-` reads the output of another command from a pipe. The output is stdout and stderr in their
    order, printed to stdout when the command has ended; colors are kept. The exit code is that of the
    command. If the store fails, the whole output is printed. Options after COMMAND belong to COMMAND.

    Example: offload exec -- ls -lR
    """
    off = _offloader(store, session)
    with tempfile.TemporaryFile() as output:
        if command == [_STDIN]:
            code, title = 0, None
            shutil.copyfileobj(sys.stdin.buffer, output, _CHUNK)
        else:
            code, title = run_child(command, output=output), shlex.join(command)
        _print(off, output, title)
    raise typer.Exit(code)


def _offloader(store: str | None, session: str | None) -> Offloader:
    """Return the offloader of the outputs. Raises `ConfigError`, before anything is run."""
    settings = load_config(arguments={"store": store, "session": session}).settings
    named = {"--store": store, "--session": session}
    where = "".join(f" {name} {shlex.quote(value)}" for name, value in named.items() if value)
    opened = settings.open_store()
    check_lasting(opened)
    arguments = settings.arguments() | {"policy": at_append(settings.policy), "on_error": "raise"}
    arguments["session"] = settings.session or folder_session()
    off = Offloader(opened, **arguments | {"placeholder": _ShellRenderer(where)})
    check_writable(off.store, off.session)
    return off


def _print(off: Offloader, output: IO[bytes], title: str | None) -> None:
    """Print a whole output, or the placeholder of its record."""
    stored = None
    try:
        stored = _stored(off, output, title)
    except OffloadError as error:
        warn(f"the whole output follows, since it could not be stored: {error}")
    except KeyboardInterrupt:
        warn("the whole output follows, since storing it was interrupted")
    if stored is None:
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer, _CHUNK)
    else:
        sys.stdout.buffer.write(f"{stored}\n".encode("utf-8", "backslashreplace"))
    sys.stdout.flush()


def _stored(off: Offloader, output: IO[bytes], title: str | None) -> str | None:
    """Return the placeholder of an output; None if it is to be printed. Raises `OffloadError`."""
    output.seek(0)
    with unlogged(), off.open_sink(tool_name=_TOOL, title=title) as sink:
        while chunk := output.read(_CHUNK):
            sink.write(chunk)
    return None if sink.info is None else sink.placeholder

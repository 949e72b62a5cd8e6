"""`offload mcp` and `offload mcp-proxy`: stored context for any client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import signal
from pathlib import Path
from typing import Annotated

import typer

from offload import ConfigError
from offload.cli.stores import existing, holding, offloader, opened
from offload.cli.terminal import StoreOption
from offload.config import load_config

# What follows the first word of the wrapped command is that command's own.
PASSES_ON = {"allow_interspersed_args": False}
TOKEN_VARIABLE = "OFFLOAD_MCP_TOKEN"  # noqa: S105 # the name of a variable


def mcp(
    url: Annotated[str, typer.Argument(metavar="URL", help="The store: a path or URL.", show_default=False)],
    *,
    session: Annotated[
        str, typer.Option("--session", metavar="NAME", help="The session.", show_default=False)
    ],
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve over HTTP there, not over stdio.")
    ] = None,
) -> None:
    """Serve one session to an MCP client: four tools to read it, its records as resources.

    Over HTTP it is at http://HOST:PORT/mcp. OFFLOAD_MCP_TOKEN in the environment is the bearer token that
    clients send; an address that other machines reach needs one.
    """
    _set_up()
    from offload.integrations.mcp import serve_http, serve_stdio  # noqa: PLC0415 # an extra, and slow to load

    address = None if http is None else _address(http)
    held = offloader(holding(existing(url), session), session)
    if address is None:
        # The thread that waits for a line of stdin could not be stopped in any other way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(serve_stdio(held))
    else:
        serve_http(held, *address, os.environ.get(TOKEN_VARIABLE))


def mcp_proxy(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", show_default=False)],
    *,
    store: StoreOption = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="By default that of the settings, or one for this folder."),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="From how many tokens on a part of a result leaves.")
    ] = 1500,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="A tool whose results stay; may be repeated.")
    ] = None,
    has_images: Annotated[
        bool, typer.Option("--images", help="Images and audio leave too; the model cannot see them then.")
    ] = False,
    hides_schemas: Annotated[
        bool,
        typer.Option("--hide-schemas", help="Declare no output schemas: large results are texts alone."),
    ] = False,
) -> None:
    """Start an MCP server by COMMAND and pass it on, with large results offloaded.

    The client gets the server's tools, and four more that read what left. What follows COMMAND is its own.
    """
    _set_up()
    from offload.integrations.mcp import ResultOffloader, wrap  # noqa: PLC0415 # the same

    results = ResultOffloader(
        opened(store),
        load_config(arguments={"session": session}).settings.session or _folder_session(),
        min_tokens=min_tokens,
        exclude=exclude or (),
        has_images=has_images,
        hides_schemas=hides_schemas,
    )
    asyncio.run(wrap(command, results))


def _set_up() -> None:
    """Send what is logged to stderr: on stdout is the protocol alone."""
    logging.basicConfig(format="offload: %(message)s")


def _folder_session() -> str:
    """Return the same name in the same folder: a conversation that is resumed there finds what it cites."""
    folder = Path.cwd()
    readable = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower())[:40]
    return f"mcp-{readable}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not host:
        raise ConfigError(f"--http is HOST:PORT, such as 127.0.0.1:8765, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)

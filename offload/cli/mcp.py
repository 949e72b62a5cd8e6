"""`offload mcp` and `offload mcp-proxy`: stored items for clients of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Annotated

import typer

from offload import ConfigError
from offload.cli.options import CommandStoreOption, FolderSessionOption, StoreOption
from offload.cli.shell import quoted, words_of
from offload.cli.stores import check_writable, open_session, store_at
from offload.engine.settings.loader import load_config
from offload.integrations._sessions import folder_session

# Logs go to stderr: stdout carries the protocol.
_LOG_FORMAT = "offload: %(message)s"
TOKEN_VARIABLE = "OFFLOAD_MCP_TOKEN"  # noqa: S105 # the name of a variable
_HEADER = re.compile(r"([\w!#$%&'*+.^`|~-]+)(?:=|:)(.*)", re.ASCII | re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}", re.ASCII)
HttpOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve over HTTP at this address, not over stdio.")
]
NameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="DOMAIN",
        help="With --http: another host name that clients use, such as that of a balancer; may be repeated.",
    ),
]


def mcp(
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session name.")],
    http: HttpOption = None,
    name: NameOption = None,
    store: StoreOption = None,
) -> None:
    """Serve one session to an MCP client: five retrieval tools, its records as resources.

    The HTTP endpoint is http://HOST:PORT/mcp. Clients send the value of OFFLOAD_MCP_TOKEN as bearer token;
    an address that other machines can reach requires one.

    Example: offload mcp ./context --session research-42
    """
    logging.basicConfig(format=_LOG_FORMAT)
    if http is None:
        # Python cannot interrupt the thread that waits for a line of stdin.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _check_names(http, name)
    _serve(store, session, http, name or ())


def _check_names(http: str | None, names: list[str] | None) -> None:
    if names and http is None:
        raise ConfigError("--name needs --http: over stdio there is one client")


def _serve(store: str | None, session: str, http: str | None, names: Sequence[str]) -> None:
    from offload.integrations.mcp import serve_http, serve_stdio  # noqa: PLC0415 # an extra, and slow to load

    address = None if http is None else _address(http)
    with open_session(store, session) as off:
        if address is None:
            asyncio.run(serve_stdio(off))
        else:
            serve_http(off, *address, os.environ.get(TOKEN_VARIABLE), names=names)


def mcp_proxy(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND")] = None,
    *,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Wrap the server at this URL, over streamable HTTP.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Send this header to --url, with variables in its value replaced; may be repeated.",
        ),
    ] = None,
    http: HttpOption = None,
    name: NameOption = None,
    store: CommandStoreOption = None,
    session: FolderSessionOption = None,
    min_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Offload result parts of at least N tokens [default: the policy of the settings, or 1500].",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Keep the results of this tool; may be repeated.")
    ] = None,
    has_images: Annotated[
        bool, typer.Option("--images", help="Offload images and audio too; the model then cannot see them.")
    ] = False,
    hides_schemas: Annotated[
        bool,
        typer.Option("--hide-schemas", help="Declare no output schemas: large results become text only."),
    ] = False,
) -> None:
    """Run the MCP server COMMAND, or the one at --url, behind a proxy that offloads its large results.

    The client gets the server's tools and five retrieval tools. Options after COMMAND belong to COMMAND; `--`
    may precede it. With --http, clients use http://HOST:PORT/mcp as for `offload mcp`.

    Example: offload mcp-proxy --min-tokens 1000 -- npx -y some-mcp-server
    """
    logging.basicConfig(format=_LOG_FORMAT)
    from offload.integrations import mcp as proxies  # noqa: PLC0415 # an extra, and slow to load

    if url is None:
        upstream = proxies.command_upstream(_program(command or [], header))
    else:
        _check_alone(command or [])
        upstream = proxies.url_upstream(url, dict(map(_header, header or ())))
    settings = load_config(arguments={"session": session}).settings
    opened, session = store_at(store), settings.session or folder_session()
    check_writable(opened, session)
    results = proxies.ResultOffloader(
        opened,
        session,
        min_tokens=min_tokens,
        exclude=exclude or (),
        has_images=has_images,
        hides_schemas=hides_schemas,
        policy=settings.policy,
        codec=settings.codec,
        tools=settings.tools,
        max_answer_chars=settings.max_answer_chars,
    )
    _check_names(http, name)
    if http is None:
        asyncio.run(proxies.wrap(upstream, results))
    else:
        token = os.environ.get(TOKEN_VARIABLE)
        proxies.serve_proxy(upstream, results, *_address(http), token, names=name or ())


def _program(command: list[str], headers: list[str] | None) -> list[str]:
    """Return the program and its arguments. Raises `ConfigError` without a program, or with headers.

    Clients and the tools that write their configuration add, double and drop `--`, and some pass a whole
    command line as one argument.
    """
    words = [*dropwhile("--".__eq__, command)]
    if len(words) == 1 and shutil.which(words[0]) is None:
        with suppress(ValueError):  # an unfinished quotation: the error of the start names it
            words = words_of(words[0])
    if not words or words[0].startswith("-"):
        first = quoted(words[0]) if words else "none"
        raise ConfigError(
            f"COMMAND must be the program of an MCP server, got {first}; write "
            "offload mcp-proxy [OPTIONS] -- COMMAND [ARGUMENTS], or --url URL"
        )
    if headers:
        raise ConfigError("--header needs --url; a program gets environment variables")
    return words


def _check_alone(command: list[str]) -> None:
    if {*command} - {"--"}:
        raise ConfigError(f"give COMMAND or --url, not both; got COMMAND {command[0]}")


def _header(text: str) -> tuple[str, str]:
    """Return the name and the value of a header, with variables of the environment in the value."""
    match = _HEADER.fullmatch(text)
    # The value may be a secret: no error shows it.
    if match is None:
        raise ConfigError("--header must be NAME=VALUE, such as 'Authorization=Bearer ${TOKEN}'")
    name, value = match[1], _VARIABLE.sub(lambda each: _variable(each[1], match[1]), match[2]).strip()
    if not value.isascii() or not value.isprintable():
        raise ConfigError(f"--header {name}: the value must be one line of ASCII characters")
    return name, value


def _variable(variable: str, header: str) -> str:
    if variable not in os.environ:
        raise ConfigError(f"--header {header}: the variable {variable} is not set")
    return os.environ[variable]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not host:
        raise ConfigError(f"--http must be HOST:PORT, such as 127.0.0.1:8765, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)

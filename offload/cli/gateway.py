"""`offload gateway`: a proxy that replaces old large results in a client's requests to a model."""

from __future__ import annotations

import ipaddress
import logging
from enum import StrEnum
from typing import Annotated

import typer

from offload.cli.options import (
    NoJournalOption,
    ShadowBudgetOption,
    ShadowOption,
    ShadowStopOption,
    StoreOption,
    shadow_lines,
    shadow_plan,
)
from offload.cli.stores import check_writable, place_of, store_at
from offload.cli.terminal import out, say
from offload.engine.settings.loader import load_config
from offload.errors import ConfigError

# One session for all conversations: clients fork and clear them, and cite the ids of those before.
DEFAULT_SESSION = "gateway"
_LOG_FORMAT = "offload: %(message)s"


class ToolsOf(StrEnum):
    """The side that answers the model's calls of the retrieval tools."""

    gateway = "gateway"
    client = "client"
    none = "none"


def gateway(
    *,
    upstream: Annotated[
        str, typer.Option(metavar="URL", help="URL of the provider, without the path of a request.")
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 is a free one.")] = 8790,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="DOMAIN",
            help="Another host name that clients use, such as that of a balancer; may be repeated.",
        ),
    ] = None,
    store: StoreOption = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="NAME", help='Session of all records [default: from settings, else "gateway"].'),
    ] = None,
    tools: Annotated[
        ToolsOf, typer.Option(metavar="gateway|client|none", help="Side that answers the retrieval tools.")
    ] = ToolsOf.gateway,
    max_wait: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Longest wait for a slow store to say what was sent before a restart; then status 503.",
        ),
    ] = 30.0,
    keeps_no_journal: NoJournalOption = False,
    shadow: ShadowOption = None,
    shadow_budget: ShadowBudgetOption = None,
    shadow_stop: ShadowStopOption = None,
    is_verbose: Annotated[bool, typer.Option("--verbose", help="Log a line per request.")] = False,
) -> None:
    """Replace old large tool results in the requests of a client to the API of a model.

    Set the base URL of the client to the gateway. The gateway adds retrieval tools to the requests and
    answers their calls, unless the client has such tools, for example from `offload mcp` with the same store
    and session.

    Example: offload gateway --upstream https://api.anthropic.com
    """
    logging.basicConfig(format=_LOG_FORMAT)
    logging.getLogger("offload.gateway").setLevel(logging.INFO if is_verbose else logging.WARNING)
    from offload import Offloader  # noqa: PLC0415 # slow to load
    from offload.gateway import serve  # noqa: PLC0415 # an extra, and slow to load

    plan = shadow_plan(shadow, shadow_budget, shadow_stop)
    session = load_config(arguments={"session": session}).settings.session or DEFAULT_SESSION
    off = Offloader.from_config(store=store_at(store), session=session, journal=not keeps_no_journal)
    check_writable(off.store, session)
    if off.store.url.startswith("memory://") and tools is ToolsOf.client:
        raise ConfigError(
            f"the tools of the client run in another process, which cannot read {off.store.url}; name a "
            "folder or the URL of a store with --store or OFFLOAD_STORE"
        )
    if not _is_loopback(host):
        say(f"Warning: other machines can reach {host} and send requests through this gateway, unencrypted.")

    def announce(address: str) -> None:
        out.print(f"Gateway at {address} for {upstream}", soft_wrap=True)
        say(f"Results go to {place_of(off.store)}, session {session}. Press Ctrl-C to stop.")

    status = serve(
        upstream,
        off,
        host=host,
        port=port,
        tools=tools.value,
        names=name or (),
        max_wait=max_wait,
        shadow=plan,
        announce=announce,
    )
    for line in shadow_lines(status):
        say(line)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""`offload serve`: a store as web pages."""

from __future__ import annotations

import threading
import webbrowser
from typing import Annotated

import typer

from offload.cli.options import StoreOption
from offload.cli.stores import existing_store, place_of
from offload.cli.terminal import out, say


def serve(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port; 0 is a free one [default: one for each store]."
        ),
    ] = None,
    allows_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Allow visitors to pin, unpin and delete records.")
    ] = False,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    store: StoreOption = None,
) -> None:
    """Browse a store in a web page, read-only and reachable from this machine only.

    It prints a URL that works once, in one browser. After a restart, a page that was open asks for the
    new one.

    Example: offload serve ./context
    """
    from offload.web import serve as serve_pages  # noqa: PLC0415 # an extra, and slow to load

    opened = existing_store(store)

    def announce(address: str) -> None:
        out.print(f"Open {address}", soft_wrap=True)
        say(f"The URL works once, in one browser, and shows {place_of(opened)}. Press Ctrl-C to stop.")
        if opens:
            # A browser of the terminal returns when the user closes it.
            threading.Thread(target=_open, args=[address], daemon=True).start()

    serve_pages(opened, port=port, allows_changes=allows_changes, announce=announce)


def _open(address: str) -> None:
    if not webbrowser.open(address):
        say("No browser could be started: open the URL yourself.", "yellow")

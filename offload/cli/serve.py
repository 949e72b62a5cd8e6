"""`offload serve`: a page in the browser that shows what a store holds."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.stores import existing, place_of
from offload.cli.terminal import out, say


def serve(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="A path or URL; the default is that of the settings."),
    ] = None,
    *,
    port: Annotated[
        int | None,
        typer.Option(min=1024, max=65535, metavar="N", help="The port; a free one without it."),
    ] = None,
    allows_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Records can be pinned, unpinned and deleted.")
    ] = False,
) -> None:
    """Show a store in the browser: on this machine alone, to be read only.

    The address that is printed opens the page once, in the browser that shows it from then on.
    """
    from offload.web import serve as serve_pages  # noqa: PLC0415 # an extra, and slow to load

    store = existing(url)

    def tell(address: str) -> None:
        out.print(f"Open {address}", soft_wrap=True)
        say(f"It works once, in one browser, and shows {place_of(store)}. Ctrl-C ends it.")

    serve_pages(store, port=port or 0, allows_changes=allows_changes, tell=tell)

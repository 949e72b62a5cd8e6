"""The option that reads an inventory of a bucket instead of listings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from offload import ConfigError, OffloadStore
from offload.cli.terminal import age, err

InventoryOption = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        metavar="MANIFEST",
        help="Read the inventory of the bucket with this manifest, a file or URL, in place of listings.",
    ),
]


def listed_by(store: OffloadStore, inventory: str | None, *, has_workers: bool = False) -> OffloadStore:
    """Return a store as an inventory lists it, and print its age; without an inventory, the store itself."""
    if inventory is None:
        return store
    if has_workers:
        raise ConfigError("--workers and --on list the store: omit them with --inventory")
    from offload.catalog import open_inventory  # noqa: PLC0415 # slow to load

    opened = open_inventory(store, inventory)
    taken = datetime.fromtimestamp(opened.taken_at, UTC)
    text = f"from an inventory of {taken:%Y-%m-%d %H:%M} UTC, {age(taken)}: what changed since is not in it"
    err.print(text, soft_wrap=True, highlight=False)
    return opened

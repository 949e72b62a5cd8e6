"""`offload bench`: how quick a store is, beside plain fsspec on the same place."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from statistics import median
from typing import Annotated, Any

import typer

from offload import OffloadError, OffloadStore
from offload.cli.stores import opened
from offload.cli.terminal import JsonOption, print_json, print_table, working
from offload.config import load_config
from offload.registry import GROUP, leaving_no_folder

_ROUNDS = 9
_SMALL, _LARGE, _RANGE = 10_000, 1_000_000, 8_192

_Call = Callable[[OffloadStore, int], object]


def bench(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A path or URL; the default is that of the settings.", show_default=False
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Time puts, gets, ranges and listings of a store beside plain fsspec, and leave nothing behind.

    It moves about 60 MB. Plain fsspec does not promise that a put is whole, or survives a power cut.
    """
    with working("timing the store"):
        store = opened(url)
        options = load_config(arguments={"store": url}).settings.storage_options
        with leaving_no_folder(store):
            rows = measured(store, plain_store(store.url, options))
    if as_json:
        print_json(rows)
    else:
        print_table([_shown(row) for row in rows], whole="operation")


def measured(store: OffloadStore, plain: OffloadStore | None) -> list[dict[str, Any]]:
    """Return for each operation the median seconds of `store` and of `plain`, which take turns.

    Objects are written under a random prefix of their own and removed in the end, whatever happens.

    Args:
        store: the store.
        plain: another way to the same objects, None if there is none.

    Raises:
        StoreError: one of them failed.
    """
    with _scratch(store) as prefix:
        calls = _calls(prefix)
        return [{"operation": name, **_timed(call, store, plain)} for name, call in calls.items()]


def plain_store(url: str, storage_options: dict[str, Any]) -> OffloadStore | None:
    """Return the store at `url` as fsspec alone serves it; None where it cannot, or nothing is shared.

    A store in memory is of its own instance: fsspec would not see what it holds.
    """
    found = entry_points(group=GROUP, name="fsspec")
    if url.startswith("memory:") or not found:
        return None
    is_local = "://" not in url or url.startswith("file:")
    store: OffloadStore = next(iter(found)).load()(url, storage_options=None if is_local else storage_options)
    return store


def _calls(prefix: str) -> dict[str, _Call]:
    """Return what is timed, by name; each is called with a store and a number that is new to it."""
    small, large = os.urandom(_SMALL), os.urandom(_LARGE)

    def put(data: bytes) -> _Call:
        # Another way to the same objects need not know creates; every key is new.
        return lambda store, number: store.put(f"{prefix}{len(data)}-{number}", data, overwrite=True)

    def get(size: int, end: int | None = None) -> _Call:
        return lambda store, number: store.get(f"{prefix}{size}-{number}", end=end)

    def listing(store: OffloadStore, _: int) -> object:
        return list(store.keys(f"{prefix}{_SMALL}-"))

    return {
        "put 10 KB": put(small),
        "get 10 KB": get(_SMALL),
        "put 1 MB": put(large),
        "get 1 MB": get(_LARGE),
        "get 8 KB of 1 MB": get(_LARGE, _RANGE),
        "list the small ones": listing,
    }


def _timed(call: _Call, store: OffloadStore, plain: OffloadStore | None) -> dict[str, float | None]:
    """Time a call on both stores in turn; the first of each is not counted."""
    ours, others = [], []
    for number in range(_ROUNDS + 1):
        ours.append(_seconds(call, store, number))
        if plain is not None:
            others.append(_seconds(call, plain, _ROUNDS + 1 + number))
    return {"seconds": median(ours[1:]), "plain_seconds": median(others[1:]) if others else None}


def _seconds(call: _Call, store: OffloadStore, number: int) -> float:
    start = time.perf_counter()
    call(store, number)
    return time.perf_counter() - start


@contextmanager
def _scratch(store: OffloadStore) -> Iterator[str]:
    """Give a prefix of keys that are removed at the end of the block; no folder, so that none is left."""
    prefix = f"bench-{secrets.token_hex(8)}-"
    try:
        yield prefix
    finally:
        # What failed before has its own error to tell.
        with suppress(OffloadError):
            for found in list(store.keys(prefix)):
                store.delete(found.key)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    ours, other = row["seconds"], row["plain_seconds"]
    return {
        "operation": row["operation"],
        "median": f"{ours * 1000:.2f} ms",
        "plain fsspec": "" if other is None else f"{other * 1000:.2f} ms",
        "ratio": "" if other is None else f"{ours / other:.2f} x",
    }

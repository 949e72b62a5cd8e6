"""The options that share the work of a command among threads, processes or machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from offload import ConfigError, OffloadError, OffloadStore, StoreError

if TYPE_CHECKING:
    from concurrent.futures import Executor

# The number of sessions that an error names.
_SHOWN = 5
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="Work with N threads, or N processes if the store is local [default: 16 threads, 1 if local].",
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="URL",
        help="Work on a Dask scheduler (tcp://host:8786) or a Ray cluster (ray://host:10001).",
    ),
]


def check_shared(session: str | None, workers: int | None, on: str | None) -> None:
    """Raise `ConfigError` if the work on one session is to be shared."""
    if session is not None and (workers or on):
        raise ConfigError("--workers and --on share the sessions of a store among workers: omit --session")


@contextmanager
def executor_of(
    stores: Sequence[OffloadStore], workers: int | None, on: str | None
) -> Iterator[Executor | None]:
    """Yield the executor that the options ask for, None for the default. Raises `ConfigError` for both."""
    if workers is not None and on is not None:
        raise ConfigError("--workers and --on exclude each other: a cluster sets its own number of workers")
    if on is None and workers is None:
        yield None
        return
    from offload.maintenance.jobs.executors import executor_of_workers, executor_on  # noqa: PLC0415 # slow to load

    with executor_on(on) if on is not None else executor_of_workers(stores, workers or 1) as executor:
        yield executor


def check_failures(work: str, failures: Sequence[tuple[str, OffloadError]]) -> None:
    """Raise `StoreError` with the names of the sessions whose work failed, if there are any."""
    if not failures:
        return
    names = ", ".join(f"{name!r:.80}" for name, _ in failures[:_SHOWN])
    more = f" and {len(failures) - _SHOWN:,} more" if len(failures) > _SHOWN else ""
    raise StoreError(f"{work} of {names}{more} failed, so run it again: {failures[0][1]}")

"""The indexes of all sessions of a store, rebuilt by many workers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from offload.errors import OffloadError
from offload.maintenance.jobs.each import run_each
from offload.records import index
from offload.records.index.objects import session_name, session_parts
from offload.storage.layout import decode_part
from offload.storage.store import OffloadStore


def reindex(
    store: OffloadStore,
    *,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, int | OffloadError]]:
    """Rebuild the index of each session; yield its name with the number of its records, or with its error.

    Args:
        store: the store.
        executor: any executor of `concurrent.futures`, whose workers take one session each; by default
            threads do if the store is on another machine, else this thread.
        storage_options: for workers in other processes, which open the store by its URL and have the
            credentials of their own environment otherwise.

    Raises:
        ConfigError: workers in other processes cannot open the store by its URL.
        StoreError: the sessions cannot be listed.
    """
    options: dict[str, Any] = {"executor": executor, "storage_options": [storage_options]}
    for part, found in run_each(_reindex, session_parts(store), [store], **options):
        yield (decode_part(part), found) if isinstance(found, OffloadError) else found


def _reindex(store: OffloadStore, part: str) -> tuple[str, int]:
    name = session_name(store, part)
    return name, index.reindex(store, name, part=part)

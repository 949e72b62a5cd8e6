"""The store's clock, which all gc processes share."""

from __future__ import annotations

import secrets

from offload.errors import ConfigError
from offload.index import SessionObjects
from offload.layout import CLOCK
from offload.store import OffloadStore

_ABANDONED_SECONDS = 3600


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, in seconds since the epoch, from a fresh object.

    Raises:
        ConfigError: the store reports no modification times.
        StoreError: the store cannot be written.
    """
    key = CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {stored.key: stored.modified for stored in store.keys(CLOCK.prefix())}
    now = probes.get(key, 0.0)
    # Probes of killed processes are deleted too.
    for probe, at in probes.items():
        if probe == key or at < now - _ABANDONED_SECONDS:
            store.delete(probe)
    _check_time(store, now)
    return now


def check_times(store: OffloadStore, objects: SessionObjects) -> None:
    """Raise `ConfigError` if an object of a session has no modification time."""
    for info in (*objects.records, *objects.torn):
        _check_time(store, info.created_at)
    for deleted in objects.deleted:
        _check_time(store, deleted.marked_at)


def _check_time(store: OffloadStore, modified: float) -> None:
    if modified <= 0:
        raise ConfigError(f"{store.url} reports no modification times of its objects, so gc cannot run on it")

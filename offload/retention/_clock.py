"""The one clock that all who collect a store have in common."""

from __future__ import annotations

import secrets

from offload.errors import ConfigError
from offload.layout import CLOCK
from offload.store import OffloadStore

_ABANDONED_SECONDS = 3600


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, in seconds since the epoch, as a fresh object shows it.

    Raises:
        ConfigError: the store tells no times.
        StoreError: nothing can be written.
    """
    key = CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {found.key: found.modified for found in store.keys(CLOCK.prefix())}
    now = probes.get(key, 0.0)
    # Those of collectors that were killed go too.
    for probe, at in probes.items():
        if probe == key or at < now - _ABANDONED_SECONDS:
            store.delete(probe)
    return check_time(store, now)


def check_time(store: OffloadStore, modified: float) -> float:
    """Return `modified` if it is a time. Raises `ConfigError`: without times nothing is collected."""
    if modified <= 0:
        raise ConfigError(f"{store.url} tells no times of its objects: nothing in it can be collected")
    return modified

"""The speed of a store, on small objects and on large ones."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial

from offload.maintenance.doctor._trial import CheckResult, Trial, require, seconds
from offload.storage.store import OffloadStore

_SMALL, _LARGE = 1024, 8 * 1024**2
_ROUNDS = 5
# Limits of a slow store: seconds per call on 1 KiB, by `is_shared`; bytes per second for large objects.
_LIMITS = {
    True: {"put": 0.3, "get": 0.15, "listing": 0.3},
    False: {"put": 0.05, "get": 0.01, "listing": 0.02},
}
_MIN_RATE = 5e6
_FASTER = {
    True: "use a region or server closer to this machine; a CachingStore saves repeated reads",
    False: "use a local disk instead of a network, encrypted or busy one",
}


def speed(trial: Trial) -> CheckResult:
    """Measure the time of calls on small objects."""
    store, keys = trial.store, [trial.key(f"speed-{n}") for n in range(_ROUNDS)]
    calls: dict[str, Callable[[str], object]] = {
        "put": partial(store.put, data=secrets.token_bytes(_SMALL)),
        "get": store.get,
        "listing": lambda _: list(store.keys(f"{trial.prefix}speed-")),
    }
    limits = _LIMITS[store.is_shared]
    medians = {name: statistics.median(seconds(call, key) for key in keys) for name, call in calls.items()}
    are_good = {name: medians[name] <= limit for name, limit in limits.items()}
    parts = [
        f"{name} {medians[name] * 1000:,.2f} ms ({_verdict(are_good[name])}: up to {limit * 1000:.0f})"
        for name, limit in limits.items()
    ]
    return _timed(store, f"1 KiB: {', '.join(parts)}", is_slow=not all(are_good.values()))


def throughput(trial: Trial) -> CheckResult:
    """Measure the rate at which a large object is written and read."""
    store, key, data = trial.store, trial.key("large"), secrets.token_bytes(_LARGE)
    put = _LARGE / seconds(store.put, key, data)
    start = time.perf_counter()
    part = store.get(key, start=_LARGE // 4, end=_LARGE)
    get = len(part) / (time.perf_counter() - start)
    require(part == data[_LARGE // 4 :], "get returned wrong bytes for a range of 6 MiB")
    parts = [
        f"{name} {rate / 1e6:,.0f} MB/s ({_verdict(rate >= _MIN_RATE)}: from {_MIN_RATE / 1e6:.0f})"
        for name, rate in (("put of 8 MiB", put), ("get of 6 MiB", get))
    ]
    return _timed(store, ", ".join(parts), is_slow=min(put, get) < _MIN_RATE)


def _verdict(is_good: bool) -> str:
    return "good" if is_good else "slow; good"


def _timed(store: OffloadStore, details: str, *, is_slow: bool) -> CheckResult:
    return CheckResult(details, _FASTER[store.is_shared], "slow") if is_slow else CheckResult(details)

"""Checks of the promises of the store contract, by what a store does with objects."""

from __future__ import annotations

import secrets
import time

from offload import errors
from offload.maintenance.doctor._facts import access
from offload.maintenance.doctor._trial import BrokenError, CheckResult, Trial, require
from offload.storage import store as stores

_MAX_SKEW_SECONDS = 60
_SIZE = 1024


def write(trial: Trial) -> CheckResult:
    """Check that objects and ranges of them are read as they were put."""
    data, key = secrets.token_bytes(_SIZE), trial.key("read")
    try:
        trial.store.put(key, data)
    except errors.StorePermissionError as error:
        trial.used.clear()
        reads = f"the store {access(trial.store)}, which is enough for reading"
        raise errors.StorePermissionError(f"cannot write: {error}; {reads}") from error
    require(trial.store.get(key) == data, "get returned wrong bytes")
    for start, end in ((1, 9), (_SIZE - 1, None), (_SIZE // 2, 2 * _SIZE), (-8, None)):
        part = trial.store.get(key, start=start, end=end)
        require(part == data[start:end], f"get returned wrong bytes for the range from {start} to {end}")
    return CheckResult("objects and ranges are read byte for byte")


def listing(trial: Trial) -> CheckResult:
    """Check that new objects are listed at once and in order."""
    sizes = {trial.key(f"list-{n}"): n for n in (2, 0, 1)}
    for key, size in sizes.items():
        trial.store.put(key, bytes(size))
    listed = [(entry.key, entry.size) for entry in trial.store.keys(f"{trial.prefix}list-")]
    require(dict(listed) == sizes, f"of {len(sizes)} new objects the listing showed {len(listed)} correctly")
    require(listed == sorted(listed), "the listing is not in key order")
    return CheckResult("new objects are listed at once, in order, with their sizes")


def create(trial: Trial) -> CheckResult:
    """Check that a second create of a key is refused."""
    key = trial.key("create")
    trial.store.put(key, b"first")
    try:
        trial.store.put(key, b"second")
    except errors.ExistsError:
        pass
    else:
        raise BrokenError("a second create of one key was accepted")
    require(trial.store.get(key) == b"first", "a refused create changed the object")
    if trial.store.has_atomic_create:
        return CheckResult("a second create is refused; the store declares this atomic")
    details = "a second create is refused; of two simultaneous writers the last may win"
    fix = "give each session one writer, or use a local path or a bucket whose server honors conditions"
    return CheckResult(details, fix, "warning")


def overwrite(trial: Trial) -> CheckResult:
    """Check that an object is replaced completely."""
    key = trial.key("overwrite")
    trial.store.put(key, b"longer than the replacement")
    trial.store.put(key, b"new", overwrite=True)
    require(trial.store.get(key) == b"new", "get returned wrong bytes after an overwrite")
    return CheckResult("objects are replaced completely")


def delete(trial: Trial) -> CheckResult:
    """Check that a deleted object cannot be read."""
    key = trial.key("delete")
    trial.store.delete(key)
    trial.store.put(key, b"x")
    trial.store.delete(key)
    try:
        trial.store.get(key)
    except errors.NotFoundError:
        return CheckResult("deleted objects are gone")
    raise BrokenError("an object was read after its deletion")


def clock(trial: Trial) -> CheckResult:
    """Compare the store's clock with that of this machine."""
    key = trial.key("clock")
    before = time.time()
    trial.store.put(key, b"x")
    after = time.time()
    modified = next((entry.modified for entry in trial.store.keys(key)), None)
    if not modified:
        return CheckResult(
            "listings have no times", "gc needs times: delete old sessions yourself", "warning"
        )
    skew = modified - min(max(modified, before), after)
    details = f"the store's clock is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > _MAX_SKEW_SECONDS:
        return CheckResult(details, "correct the clock of this machine or of the store's server", "warning")
    return CheckResult(details)


def bulk(trial: Trial) -> CheckResult:
    """Check that many objects are written, read and deleted in one call."""
    store, items = trial.store, [(trial.key(f"bulk-{n}"), b"%d" % n) for n in range(3)]
    keys = [key for key, _ in items]
    outcomes = [*stores.put_many(store, items), *stores.get_many(store, keys)]
    for error in outcomes:
        if isinstance(error, errors.OffloadError):
            raise error
    require(outcomes == [None] * 3 + [data for _, data in items], "get_many returned wrong bytes")
    stores.delete_many(store, keys)
    require(not any(store.keys(f"{trial.prefix}bulk-")), "delete_many did not delete all objects")
    way = "many at once" if isinstance(store, stores.SupportsBulk) else "one by one"
    return CheckResult(f"objects are transferred {way}")


def streams(trial: Trial) -> CheckResult:
    """Check that an object is written in pieces."""
    store, key, pieces = trial.store, trial.key("stream"), [bytes([n]) * _SIZE for n in range(3)]
    stores.put_stream(store, key, pieces, 3 * _SIZE)
    require(store.get(key) == b"".join(pieces), "get returned wrong bytes of a streamed object")
    way = "in pieces, in constant memory" if isinstance(store, stores.SupportsStreams) else "from memory"
    return CheckResult(f"large objects are written {way}")

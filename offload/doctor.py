"""Checks of a store: every guarantee of the store contract, and its speed, tested on the store.

The checks write under random keys and delete these objects afterwards.
"""

from __future__ import annotations

import os
import re
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from offload import errors
from offload import store as stores
from offload.layout import CHECK
from offload.registry import folder_of, leaving_no_folder
from offload.system import HAS_USERS, is_own

CheckOutcome = Literal["ok", "slow", "warning", "failed"]

_CONTRACT_BROKEN = (
    "the store breaks its contract; for details run: "
    "pytest -p offload.testing.plugin --pyargs offload.testing.test_store"
)
_MAX_SKEW_SECONDS = 60
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
_OTHERS_MODE = 0o077
_USER = re.compile(r"(?<=://)[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, in a word or two.
        outcome: "ok"; "slow": it works, above a stated limit; "warning": it works, with a limitation;
            "failed": it does not work.
        details: the observed behavior.
        fix: the suggested fix; empty if none is needed.
    """

    check: str
    outcome: CheckOutcome
    details: str
    fix: str = ""


class _CheckResult(NamedTuple):
    details: str
    fix: str = ""
    outcome: CheckOutcome = "ok"


@dataclass(frozen=True, slots=True)
class _Trial:
    """A store and the keys that the checks have used; they contain no folder, so none is created."""

    store: stores.OffloadStore
    prefix: str = field(default_factory=lambda: f"{CHECK.prefix()}{secrets.token_hex(8)}-")
    used: set[str] = field(default_factory=set)

    def key(self, name: str) -> str:
        """Return the key of the trial object `name` and note it for deletion."""
        key = self.prefix + name
        self.used.add(key)
        return key


_Check = Callable[[_Trial], _CheckResult]


class _BrokenError(Exception):
    """The store violated its contract; the message says how."""


def diagnose(store: stores.OffloadStore) -> list[Finding]:
    """Test the guarantees of `store` and return one finding per check, in the order of the checks.

    A failed check does not prevent the next one. The diagnosis ends early only if the store is
    unreachable, missing or not writable, because every further check would fail too. About 15 MB are
    transferred.

    Store errors become findings; user names and passwords of URLs are removed.
    """
    trial = _Trial(store)
    findings: list[Finding] = []
    with leaving_no_folder(store):
        try:
            for name, check in _CHECKS.items():
                finding, error = _run(name, check, trial)
                findings.append(finding)
                # Every further check would raise the same error.
                is_read_only = check is _write and isinstance(error, errors.StorePermissionError)
                if is_read_only or isinstance(error, _HOPELESS):
                    findings.append(Finding("other checks", "warning", "skipped", "fix this first"))
                    break
        finally:
            if trial.used:
                findings.append(_run("clean-up", _clean_up, trial)[0])
    return findings


def _run(name: str, check: _Check, trial: _Trial) -> tuple[Finding, Exception | None]:
    error: Exception | None = None
    try:
        result = check(trial)
    except Exception as caught:  # noqa: BLE001  # a foreign store may raise anything; it is the finding
        raised = _foreign_in(caught)
        # The text of a foreign error may contain anything, a password included.
        has_safe_text = isinstance(raised, errors.OffloadError | _BrokenError)
        foreign = f"raised {type(raised).__name__}, which is not an OffloadError"
        fix = next(fix for kind, fix in _FIXES if isinstance(raised, kind))
        result, error = _CheckResult(str(raised) if has_safe_text else foreign, fix, "failed"), raised
    return Finding(name, result.outcome, _USER.sub("", result.details), _USER.sub("", result.fix)), error


def _foreign_in(error: Exception) -> Exception:
    """Return the exception that an error of no kind of its own wraps, else the error."""
    cause = error.__cause__
    return cause if type(error) is errors.OffloadError and isinstance(cause, Exception) else error


_HOPELESS = (errors.StoreUnavailableError, errors.StoreMissingError, errors.MissingExtraError)
# The first match counts.
_FIXES: tuple[tuple[type[Exception], str], ...] = (
    (errors.StoreUnavailableError, "check address, network and credentials, then try again"),
    (errors.StoreMissingError, "create the bucket or folder, or correct the URL"),
    (errors.StorePermissionError, "grant this user, or these credentials, the permission"),
    (errors.NotFoundError, _CONTRACT_BROKEN),
    (errors.OffloadError, "see the message"),
    (Exception, _CONTRACT_BROKEN),
)


def _require(is_met: bool, violation: str) -> None:
    if not is_met:
        raise _BrokenError(violation)


# Properties that the store declares


_DURABILITY: dict[stores.Durability, _CheckResult] = {
    "power": _CheckResult("the store declares that objects survive a power cut"),
    "process": _CheckResult(
        "objects survive the death of the process, but perhaps not a power cut",
        'set the storage option durability="fsync"; a folder on Windows offers no more',
        "warning",
    ),
    "memory": _CheckResult(
        "objects are lost when this process ends", "for durable sessions use a path or s3://", "warning"
    ),
    "unknown": _CheckResult(
        "the store does not declare whether objects survive a power cut or a crash, nor whether a put is "
        "atomic",
        "damaged records are detected and never returned; for guaranteed durability use a path or s3://",
        "warning",
    ),
}
_SHARING = {
    True: _CheckResult("every machine that opens the URL sees the same objects"),
    False: _CheckResult("no other machine sees these objects", "to share sessions use s3://bucket/prefix"),
}


def _folder(trial: _Trial) -> _CheckResult:
    path = folder_of(trial.store)
    if path is None:
        return _CheckResult("not a local folder")
    try:
        info = path.stat()
    except FileNotFoundError:
        return _CheckResult(f"{path} does not exist yet: the first put creates it, private to its owner")
    except OSError as error:
        raise errors.StoreError(f"{path}: {error.strerror}") from error
    if not HAS_USERS:
        return _CheckResult(
            f"{path}: the folder's access list, which is not checked, decides who can read it"
        )
    mode = f"{path} has mode {info.st_mode & 0o777:04o} and owner {info.st_uid}"
    if not is_own(info):
        fix = f"you are user {os.geteuid()}: its owner can read and change all records; use your own folder"
        return _CheckResult(mode, fix, "warning")
    if info.st_mode & _OTHERS_MODE:
        return _CheckResult(mode, "other users of this machine can list the records: chmod 700", "warning")
    return _CheckResult(mode)


# Behaviour that the checks observe


def _access(store: stores.OffloadStore) -> str:
    """Return which reads work, as the predicate of a sentence, or raise."""
    first = next(iter(store.keys()), None)
    if first is None:
        return "responds and lists no objects"
    try:
        store.get(first.key, end=1)
    except errors.NotFoundError:
        return "responds and lists objects"  # another process deleted this one in the meantime
    return "responds, lists objects and reads them"


def _write(trial: _Trial) -> _CheckResult:
    data, key = secrets.token_bytes(_SMALL), trial.key("read")
    try:
        trial.store.put(key, data)
    except errors.StorePermissionError as error:
        trial.used.clear()
        access = f"the store {_access(trial.store)}, which is enough for reading"
        raise errors.StorePermissionError(f"cannot write: {error}; {access}") from error
    _require(trial.store.get(key) == data, "get returned other bytes than were put")
    for start, end in ((1, 9), (_SMALL - 1, None), (_SMALL // 2, 2 * _SMALL), (-8, None)):
        part = trial.store.get(key, start=start, end=end)
        _require(part == data[start:end], f"get returned wrong bytes for the range from {start} to {end}")
    return _CheckResult("objects and ranges are read byte for byte")


def _list(trial: _Trial) -> _CheckResult:
    sizes = {trial.key(f"list-{n}"): n for n in (2, 0, 1)}
    for key, size in sizes.items():
        trial.store.put(key, bytes(size))
    listed = [(entry.key, entry.size) for entry in trial.store.keys(f"{trial.prefix}list-")]
    _require(dict(listed) == sizes, f"of {len(sizes)} new objects the listing showed {len(listed)} correctly")
    _require(listed == sorted(listed), "the listing is not in key order")
    return _CheckResult("new objects are listed at once, in order, with their sizes")


def _create(trial: _Trial) -> _CheckResult:
    key = trial.key("create")
    trial.store.put(key, b"first")
    try:
        trial.store.put(key, b"second")
    except errors.ExistsError:
        pass
    else:
        raise _BrokenError("a second create of one key was accepted")
    _require(trial.store.get(key) == b"first", "a refused create changed the object")
    if trial.store.has_atomic_create:
        return _CheckResult("a second create is refused; the store declares this atomic")
    details = "a second create is refused; of two simultaneous writers the last may win"
    fix = "give each session one writer, or use a local path or a bucket whose server honors conditions"
    return _CheckResult(details, fix, "warning")


def _overwrite(trial: _Trial) -> _CheckResult:
    key = trial.key("overwrite")
    trial.store.put(key, b"longer than the replacement")
    trial.store.put(key, b"new", overwrite=True)
    _require(trial.store.get(key) == b"new", "get returned other bytes than an overwrite put")
    return _CheckResult("objects are replaced completely")


def _delete(trial: _Trial) -> _CheckResult:
    key = trial.key("delete")
    trial.store.delete(key)
    trial.store.put(key, b"x")
    trial.store.delete(key)
    try:
        trial.store.get(key)
    except errors.NotFoundError:
        return _CheckResult("deleted objects are gone")
    raise _BrokenError("an object was read after its deletion")


def _clock(trial: _Trial) -> _CheckResult:
    key = trial.key("clock")
    before = time.time()
    trial.store.put(key, b"x")
    after = time.time()
    modified = next((entry.modified for entry in trial.store.keys(key)), None)
    if not modified:
        return _CheckResult(
            "listings have no times", "gc needs times: delete old sessions yourself", "warning"
        )
    skew = modified - min(max(modified, before), after)
    details = f"the store's clock is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > _MAX_SKEW_SECONDS:
        return _CheckResult(details, "correct the clock of this machine or of the store's server", "warning")
    return _CheckResult(details)


def _speed(trial: _Trial) -> _CheckResult:
    store, keys = trial.store, [trial.key(f"speed-{n}") for n in range(_ROUNDS)]
    calls: dict[str, Callable[[str], object]] = {
        "put": partial(store.put, data=secrets.token_bytes(_SMALL)),
        "get": store.get,
        "listing": lambda _: list(store.keys(f"{trial.prefix}speed-")),
    }
    limits = _LIMITS[store.is_shared]
    medians = {name: statistics.median(_seconds(call, key) for key in keys) for name, call in calls.items()}
    are_good = {name: medians[name] <= limit for name, limit in limits.items()}
    parts = [
        f"{name} {medians[name] * 1000:,.2f} ms ({_verdict(are_good[name])}: up to {limit * 1000:.0f})"
        for name, limit in limits.items()
    ]
    return _timed(store, f"1 KiB: {', '.join(parts)}", is_slow=not all(are_good.values()))


def _throughput(trial: _Trial) -> _CheckResult:
    store, key, data = trial.store, trial.key("large"), secrets.token_bytes(_LARGE)
    put = _LARGE / _seconds(store.put, key, data)
    start = time.perf_counter()
    part = store.get(key, start=_LARGE // 4, end=_LARGE)
    get = len(part) / (time.perf_counter() - start)
    _require(part == data[_LARGE // 4 :], "get returned wrong bytes for a range of 6 MiB")
    parts = [
        f"{name} {rate / 1e6:,.0f} MB/s ({_verdict(rate >= _MIN_RATE)}: from {_MIN_RATE / 1e6:.0f})"
        for name, rate in (("put of 8 MiB", put), ("get of 6 MiB", get))
    ]
    return _timed(store, ", ".join(parts), is_slow=min(put, get) < _MIN_RATE)


def _verdict(is_good: bool) -> str:
    return "good" if is_good else "slow; good"


def _timed(store: stores.OffloadStore, details: str, *, is_slow: bool) -> _CheckResult:
    return _CheckResult(details, _FASTER[store.is_shared], "slow") if is_slow else _CheckResult(details)


def _bulk(trial: _Trial) -> _CheckResult:
    store, items = trial.store, [(trial.key(f"bulk-{n}"), b"%d" % n) for n in range(3)]
    keys = [key for key, _ in items]
    outcomes = [*stores.put_many(store, items), *stores.get_many(store, keys)]
    for error in outcomes:
        if isinstance(error, errors.OffloadError):
            raise error
    _require(outcomes == [None] * 3 + [data for _, data in items], "get_many returned wrong bytes")
    stores.delete_many(store, keys)
    _require(not any(store.keys(f"{trial.prefix}bulk-")), "delete_many did not delete all objects")
    way = "many at once" if isinstance(store, stores.SupportsBulk) else "one by one"
    return _CheckResult(f"objects are transferred {way}")


def _streams(trial: _Trial) -> _CheckResult:
    store, key, pieces = trial.store, trial.key("stream"), [bytes([n]) * _SMALL for n in range(3)]
    stores.put_stream(store, key, pieces, 3 * _SMALL)
    _require(store.get(key) == b"".join(pieces), "get returned other bytes than were streamed")
    way = "in pieces, in constant memory" if isinstance(store, stores.SupportsStreams) else "from memory"
    return _CheckResult(f"large objects are written {way}")


def _clean_up(trial: _Trial) -> _CheckResult:
    try:
        for key in sorted(trial.used):
            trial.store.delete(key)
        _require(not any(trial.store.keys(trial.prefix)), "objects are listed after their deletion")
    except (errors.OffloadError, _BrokenError) as error:
        fix = f"delete the objects whose keys start with {trial.prefix!r}"
        return _CheckResult(f"some trial objects could not be deleted: {error}", fix, "failed")
    return _CheckResult("all trial objects were deleted")


_CHECKS: dict[str, _Check] = {
    "durability": lambda trial: _DURABILITY[trial.store.durability],
    "sharing": lambda trial: _SHARING[trial.store.is_shared],
    "folder": _folder,
    "access": lambda trial: _CheckResult(f"{trial.store.url} {_access(trial.store)}"),
    "write and read": _write,
    "listing": _list,
    "creates": _create,
    "overwrite": _overwrite,
    "delete": _delete,
    "clock": _clock,
    "speed": _speed,
    "large objects": _throughput,
    "bulk": _bulk,
    "streams": _streams,
}


def _seconds(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return max(time.perf_counter() - start, 1e-6)

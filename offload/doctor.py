"""What is well with a store and what is not: every promise of the contract, tried on the store itself.

    for finding in diagnose(open_store("s3://bucket/prefix")):
        print(finding.check, finding.outcome, finding.seen, finding.advice)

It writes under random keys of its own and removes them again.
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
from typing import Literal

from offload.errors import (
    ExistsError,
    MissingExtraError,
    NotFoundError,
    OffloadError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.registry import folder_of, leaving_no_folder
from offload.store import Durability, OffloadStore, SupportsBulk, SupportsStreams

Outcome = Literal["ok", "warning", "failed"]

_PROOF = "the store breaks its contract; for the whole proof: pytest --pyargs offload.testing.test_store"
_PATIENCE_SECONDS = 60
_SMALL, _LARGE = 1024, 8 * 1024**2
_TIMES = 5
_OTHERS_MODE = 0o077
_USER = re.compile(r"(?<=://)[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: what was checked, in a word or two.
        outcome: "ok"; "warning": it works, with a limit that one should know; "failed": it does not work.
        seen: what the store did or said.
        advice: what to do about it; empty where nothing needs to be done.
    """

    check: str
    outcome: Outcome
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A finding that does not know yet which check it belongs to."""

    seen: str
    advice: str = ""
    outcome: Outcome = "ok"


@dataclass(frozen=True, slots=True)
class _Bench:
    """A store and the keys in it that are ours; no folder, so that none is left behind."""

    store: OffloadStore
    prefix: str = field(default_factory=lambda: f"doctor-{secrets.token_hex(8)}-")
    used: set[str] = field(default_factory=set)

    def key(self, name: str) -> str:
        """Return the key of our object `name`, to be removed in the end."""
        key = self.prefix + name
        self.used.add(key)
        return key


class _BrokenError(Exception):
    """The store did what its contract excludes; the message says what."""


def diagnose(store: OffloadStore) -> list[Finding]:
    """Try what `store` promises and return one finding per check, in the order of the checks.

    A check that fails does not keep the next from being tried. Only a store that does not answer, is not
    there or lets nobody write ends the diagnosis, since each further check would meet the same. About
    15 MB are moved.

    Args:
        store: the store, as `open_store` or a wrapper gives it.

    Returns:
        The findings. No error of the store is raised, and no text holds a user or password of a URL.
    """
    bench = _Bench(store)
    findings: list[Finding] = []
    with leaving_no_folder(store):
        try:
            for name, check in _CHECKS.items():
                finding, error = _attempt(name, check, bench)
                findings.append(finding)
                if _is_hopeless(check, error):
                    findings.append(Finding("other checks", "warning", "not tried", "mend this first"))
                    break
        finally:
            if bench.used:
                findings.append(_attempt("clean-up", _clean_up, bench)[0])
    return findings


def _is_hopeless(check: Callable[[_Bench], _Verdict], error: Exception | None) -> bool:
    """Tell whether every further check would meet the same error."""
    is_read_only = check is _write and isinstance(error, StorePermissionError)
    return is_read_only or isinstance(error, StoreUnavailableError | StoreMissingError | MissingExtraError)


def _attempt(
    name: str, check: Callable[[_Bench], _Verdict], bench: _Bench
) -> tuple[Finding, Exception | None]:
    try:
        verdict, error = check(bench), None
    except Exception as raised:  # noqa: BLE001  # a foreign store may raise anything; it is the finding
        verdict, error = _failure(raised), raised
    seen, advice = (_USER.sub("", text) for text in (verdict.seen, verdict.advice))
    return Finding(name, verdict.outcome, seen, advice), error


def _failure(error: Exception) -> _Verdict:
    if isinstance(error, _BrokenError):
        return _Verdict(str(error), _PROOF, "failed")
    if not isinstance(error, OffloadError):
        # Its text is not ours and may hold anything, a password included.
        return _Verdict(f"raised {type(error).__name__}, which is no OffloadError", _PROOF, "failed")
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "see the message")
    return _Verdict(str(error), advice, "failed")


_ADVICE: dict[type[OffloadError], str] = {
    StoreUnavailableError: "look at address, network and credentials, then try again",
    StoreMissingError: "make the bucket or folder, or correct the URL",
    StorePermissionError: "give this user, or these credentials, the right to do it",
    NotFoundError: _PROOF,
}


def _require(is_kept: bool, otherwise: str) -> None:
    if not is_kept:
        raise _BrokenError(otherwise)


# What the store says of itself


_LASTING: dict[Durability, _Verdict] = {
    "power": _Verdict("what is stored survives a power cut, as the store says"),
    "process": _Verdict(
        "what is stored survives the death of the process, perhaps no power cut",
        'give the storage option durability="fsync"',
        "warning",
    ),
    "memory": _Verdict(
        "what is stored ends with this process", "for sessions that last give a path or s3://", "warning"
    ),
    "unknown": _Verdict(
        "the store does not say whether objects survive a power cut or a crash, nor whether a reader may "
        "meet half of one",
        "a damaged record is found, never read; for the promise itself give a path or s3://",
        "warning",
    ),
}


def _durability(bench: _Bench) -> _Verdict:
    return _LASTING[bench.store.durability]


def _sharing(bench: _Bench) -> _Verdict:
    if bench.store.is_shared:
        return _Verdict("every machine that opens the URL sees the same objects")
    return _Verdict("no other machine sees these objects", "to share sessions give s3://bucket/prefix")


def _folder(bench: _Bench) -> _Verdict:
    path = folder_of(bench.store)
    if path is None:
        return _Verdict("not a local folder")
    try:
        info = path.stat()
    except FileNotFoundError:
        return _Verdict(f"{path} is not there yet: the first put makes it, for its owner alone")
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    mode = f"{path} has mode {info.st_mode & 0o777:04o} and owner {info.st_uid}"
    if info.st_uid != os.geteuid():
        advice = f"you are {os.geteuid()}: its owner can read and change all; take a folder of your own"
        return _Verdict(mode, advice, "warning")
    if info.st_mode & _OTHERS_MODE:
        return _Verdict(mode, "others of this machine see which records there are: chmod 700", "warning")
    return _Verdict(mode)


# What it does


def _answer(bench: _Bench) -> _Verdict:
    began = time.perf_counter()
    said = _look(bench.store)
    return _Verdict(f"{bench.store.url} {said}, in {_milliseconds(time.perf_counter() - began)}")


def _look(store: OffloadStore) -> str:
    """Say what can be done without writing, or raise."""
    found = next(iter(store.keys()), None)
    if found is None:
        return "answers and lists no object"
    try:
        store.get(found.key, end=1)
    except NotFoundError:
        return "answers and lists objects"  # somebody deleted this one meanwhile
    return "answers, lists objects and reads them"


def _write(bench: _Bench) -> _Verdict:
    data, key = secrets.token_bytes(_SMALL), bench.key("read")
    try:
        bench.store.put(key, data)
    except StorePermissionError as error:
        bench.used.clear()
        able = f"the store {_look(bench.store)}, which is enough to read back"
        raise StorePermissionError(f"cannot write: {error}; {able}") from error
    _require(bench.store.get(key) == data, "an object came back with other bytes than were put")
    for start, end in ((1, 9), (_SMALL - 1, None), (_SMALL // 2, 2 * _SMALL), (-8, None)):
        part = bench.store.get(key, start=start, end=end)
        _require(part == data[start:end], f"the range from {start} to {end} came back wrong")
    return _Verdict("an object and its ranges come back byte for byte")


def _list(bench: _Bench) -> _Verdict:
    ours = {bench.key(f"list-{n}"): n for n in (2, 0, 1)}
    for key, size in ours.items():
        bench.store.put(key, bytes(size))
    listed = [(found.key, found.size) for found in bench.store.keys(f"{bench.prefix}list-")]
    _require(dict(listed) == ours, f"of {len(ours)} new objects the listing showed {len(listed)} as they are")
    _require(listed == sorted(listed), "the listing is not in key order")
    return _Verdict("new objects are listed at once, in order, with their sizes")


def _create(bench: _Bench) -> _Verdict:
    key = bench.key("create")
    bench.store.put(key, b"first")
    try:
        bench.store.put(key, b"second")
    except ExistsError:
        pass
    else:
        raise _BrokenError("a second create of one key was accepted")
    _require(bench.store.get(key) == b"first", "a create that was refused changed the object")
    if bench.store.has_atomic_create:
        return _Verdict("a key is given once, also to writers of the same moment, as the store says")
    seen = "a key is given once; of two writers in the same moment the last may win"
    advice = "let each session have one writer, or use a local path or an S3 that honours If-None-Match"
    return _Verdict(seen, advice, "warning")


def _overwrite(bench: _Bench) -> _Verdict:
    key = bench.key("overwrite")
    bench.store.put(key, b"longer than what follows")
    bench.store.put(key, b"new", overwrite=True)
    _require(bench.store.get(key) == b"new", "an object that was overwritten came back with other bytes")
    return _Verdict("an object is replaced whole")


def _delete(bench: _Bench) -> _Verdict:
    key = bench.key("delete")
    bench.store.delete(key)
    bench.store.put(key, b"x")
    bench.store.delete(key)
    try:
        bench.store.get(key)
    except NotFoundError:
        return _Verdict("a deleted object is gone")
    raise _BrokenError("an object was read after its deletion")


def _clock(bench: _Bench) -> _Verdict:
    key = bench.key("clock")
    before = time.time()
    bench.store.put(key, b"x")
    after = time.time()
    told = next((found.modified for found in bench.store.keys(key)), None)
    if not told:
        advice = "no record can expire by age here; remove old sessions yourself"
        return _Verdict("listings tell no time", advice, "warning")
    skew = told - min(max(told, before), after)
    way = "ahead of" if skew > 0 else "behind"
    seen = f"the store's clock is {abs(skew):,.0f} s {way} this machine's"
    if abs(skew) > _PATIENCE_SECONDS:
        return _Verdict(seen, "set this machine's clock, or that of the store's server", "warning")
    return _Verdict(seen)


def _small_speed(bench: _Bench) -> _Verdict:
    keys = [bench.key(f"small-{n}") for n in range(_TIMES)]
    put = partial(bench.store.put, data=secrets.token_bytes(_SMALL))
    puts, gets = (statistics.median(_seconds(verb, key) for key in keys) for verb in (put, bench.store.get))
    return _Verdict(f"1 KiB: put {_milliseconds(puts)}, get {_milliseconds(gets)} (median of {_TIMES})")


def _large_speed(bench: _Bench) -> _Verdict:
    key, data = bench.key("large"), secrets.token_bytes(_LARGE)
    put = _seconds(bench.store.put, key, data)
    began = time.perf_counter()
    part = bench.store.get(key, start=_LARGE // 4, end=_LARGE)
    get = time.perf_counter() - began
    _require(part == data[_LARGE // 4 :], "a range of 6 MiB came back with other bytes than were put")
    return _Verdict(f"put of 8 MiB {_rate(_LARGE, put)}, ranged get of 6 MiB {_rate(len(part), get)}")


def _bulk(bench: _Bench) -> _Verdict:
    store = bench.store
    if not isinstance(store, SupportsBulk):
        return _Verdict("objects move one after another: the store has no bulk verbs")
    items = [(bench.key(f"bulk-{n}"), b"%d" % n) for n in range(3)]
    keys = [key for key, _ in items]
    outcomes = [*store.put_many(items), *store.get_many(keys)]
    for error in outcomes:
        if isinstance(error, OffloadError):
            raise error
    _require(outcomes == [None] * 3 + [data for _, data in items], "several objects came back wrong")
    store.delete_many(keys)
    _require(not any(store.keys(f"{bench.prefix}bulk-")), "several objects were not deleted")
    return _Verdict("many objects move at once")


def _streams(bench: _Bench) -> _Verdict:
    store = bench.store
    if not isinstance(store, SupportsStreams):
        return _Verdict("objects are written in one piece: a large one is held in memory while it is put")
    key, pieces = bench.key("stream"), [bytes([n]) * _SMALL for n in range(3)]
    store.put_stream(key, pieces, 3 * _SMALL)
    _require(store.get(key) == b"".join(pieces), "an object written in pieces came back wrong")
    return _Verdict("large objects are written in pieces, in constant memory")


def _clean_up(bench: _Bench) -> _Verdict:
    try:
        for key in sorted(bench.used):
            bench.store.delete(key)
        _require(not any(bench.store.keys(bench.prefix)), "objects are listed after their deletion")
    except (OffloadError, _BrokenError) as error:
        advice = f"delete the objects whose keys start with {bench.prefix!r}"
        return _Verdict(f"not all of the doctor's objects could be removed: {error}", advice, "failed")
    return _Verdict("nothing of the doctor is left")


_CHECKS: dict[str, Callable[[_Bench], _Verdict]] = {
    "durability": _durability,
    "sharing": _sharing,
    "folder": _folder,
    "answers": _answer,
    "write and read": _write,
    "listing": _list,
    "creates": _create,
    "overwrite": _overwrite,
    "delete": _delete,
    "clock": _clock,
    "small objects": _small_speed,
    "large objects": _large_speed,
    "bulk": _bulk,
    "streams": _streams,
}


def _seconds(verb: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    verb(*arguments)
    return time.perf_counter() - began


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _rate(size: int, seconds: float) -> str:
    return f"{size / max(seconds, 1e-6) / 1e6:,.0f} MB/s"

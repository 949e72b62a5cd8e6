"""Every fault that S3 and the way to it know, on every operation: the right data or the right error.

The operations go through a proxy that fails; what is right is asked past it. The clock of the retries is
a virtual one, so that a wait takes no time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import s3fs
from clock import Clock, end_calls_after_a_second, virtual
from pairs import each_in_turn
from relay import (
    Fault,
    Proxy,
    break_off,
    drip,
    flip_at,
    flip_the_upload,
    hang,
    lose_the_answer,
    lose_the_request,
    reset_in_the_body,
    reset_the_request,
    send_in_crumbs,
    serving,
    shorten,
)
from servers import Bucket, new_bucket

from offload import (
    CorruptError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Rule,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload_backends._bucket import client as bucket_client
from offload_backends.s3 import S3Store

POLICY = OffloadPolicy(types={"user_message": Rule(min_chars=1, preview_chars=40)}, min_saving=0)
# They hardly compress, so that a flipped bit stays one and does not end as nonsense by itself.
TEXTS = [
    f"needle {item}\n" + "".join(sha256(b"%d %d" % (item, n)).hexdigest() + "\n" for n in range(30))
    for item in range(3)
]
OBJECT, LISTING = "/r/", "list-type=2"


@dataclass
class Bench:
    """A bucket with one stored session, reached through a proxy and past it."""

    bucket: Bucket
    proxy: Proxy
    store: S3Store
    direct: S3Store
    sent: list[Any] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def through(self, session: str = "stored") -> Offloader:
        return Offloader(self.store, session=session, policy=POLICY)

    def past(self, session: str = "stored") -> Offloader:
        return Offloader(self.direct, session=session, policy=POLICY)


def conversation(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in TEXTS[:count]]


@pytest.fixture(scope="module")
def whole_bench(s3_endpoint: str) -> Iterator[Bench]:
    bucket = new_bucket(s3_endpoint)
    with serving(Proxy(s3_endpoint)) as proxy:
        through = {**bucket.storage_options, "endpoint_url": proxy.url}
        bench = Bench(
            bucket,
            proxy,
            S3Store(bucket.url, storage_options=through),
            S3Store(bucket.url, storage_options=bucket.storage_options),
        )
        bench.sent = bench.past().offload(conversation(3)).messages
        # Whatever a client asks once in its life, it has asked now.
        bench.store.put("first", b"")
        yield bench


@pytest.fixture
def bench(whole_bench: Bench) -> Iterator[Bench]:
    proxy = whole_bench.proxy
    proxy.requests.clear()
    yield whole_bench
    proxy.released.set()
    proxy.faults, proxy.last_fault_stays, proxy.aim = [], False, ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = virtual(monkeypatch)
    # s3fs waits a while after some errors, also after its only try.
    patient = {**vars(asyncio), "sleep": clock.sleep}
    monkeypatch.setattr(s3fs.core, "asyncio", SimpleNamespace(**patient))
    return clock


# Operations: each returns having checked that its outcome is the right one, or raises the store's error.


class Operation(NamedTuple):
    """An operation, its requests that are to fail, and the number of requests if none fails."""

    run: Callable[[Bench], None]
    aim: str
    requests: int


def offload(count: int, bench: Bench) -> None:
    session, messages = f"case-{next(bench.numbers)}", conversation(count)
    off = bench.through(session)
    out = off.offload(messages)

    kept = [new is old for new, old in zip(out.messages, messages, strict=True)]
    assert messages == conversation(count)
    assert bench.past(session).restore(out.messages) == messages
    assert len(out.records) == kept.count(False)
    assert len(out.errors) == int(any(kept))
    for record in out.records:
        assert len(bench.bucket.read(record.key)) == record.stored_bytes
    if out.errors:
        requests = bench.proxy.requests.copy()
        bench.proxy.faults = []
        again = off.offload(messages)
        bench.proxy.requests[:] = requests
        assert (len(again.records), again.errors) == (count, [])
        raise out.errors[0]


def ask(question: Callable[[Offloader, str], Any], bench: Bench) -> None:
    ref = bench.past().records()[1].ref
    right = question(bench.past(), ref)
    assert question(bench.through(), ref) == right


def restore(bench: Bench) -> None:
    assert bench.through().restore(bench.sent) == conversation(3)


def delete(bench: Bench) -> None:
    key = f"d/{next(bench.numbers)}"
    bench.bucket.write(key, b"x")
    bench.store.delete(key)
    assert key not in [found.key for found in bench.direct.keys("d/")]


OPERATIONS = {
    "offload": Operation(partial(offload, 1), OBJECT, 1),
    "offload a batch": Operation(partial(offload, 3), OBJECT, 3),
    "find": Operation(partial(ask, lambda off, ref: off.tools.read(ref)), LISTING, 2),
    "read": Operation(partial(ask, lambda off, ref: off.tools.read(ref)), OBJECT, 2),
    "grep": Operation(partial(ask, lambda off, ref: off.tools.grep("needle 1", ref)), OBJECT, 2),
    # The titles of three records too.
    "list": Operation(partial(ask, lambda off, _: off.tools.list()), LISTING, 4),
    "restore": Operation(restore, OBJECT, 4),
    "delete": Operation(delete, "/d/", 1),
}
READS = ["read", "grep", "restore"]
ANSWERED_WITH_A_BODY = [*READS, "find", "list"]

on_every_operation = pytest.mark.parametrize("name", OPERATIONS)


def said(fault: object) -> str:
    return fault[1] if isinstance(fault, tuple) else getattr(fault, "__name__", str(fault))


def let_fail(bench: Bench, name: str, *faults: Fault, stays: bool = False) -> Operation:
    operation = OPERATIONS[name]
    bench.proxy.released.clear()
    bench.proxy.aim = operation.aim
    bench.proxy.faults, bench.proxy.last_fault_stays = list(faults), stays
    return operation


PASSING: list[Fault] = [
    (500, "InternalError"),
    (502, "BadGateway"),
    (503, "SlowDown"),
    (503, "ServiceUnavailable"),
    (504, "GatewayTimeout"),
    (429, "TooManyRequests"),
    (408, "Timeout"),
    (400, "RequestTimeout"),
    (409, "ConditionalRequestConflict"),
    lose_the_request,
    reset_the_request,
    lose_the_answer,
    send_in_crumbs,
    flip_the_upload,
]


@pytest.mark.parametrize(("name", "fault"), each_in_turn([*OPERATIONS], PASSING))
def test_a_fault_that_passes_is_never_noticed(bench: Bench, clock: Clock, name: str, fault: Fault) -> None:
    operation = let_fail(bench, name, fault, fault)

    operation.run(bench)

    # Each fault costs a retry; a create whose answer was lost also reads back what stands there.
    assert len(bench.proxy.requests) <= operation.requests + 2 * 2
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.parametrize("name", ANSWERED_WITH_A_BODY)
@pytest.mark.parametrize("fault", [break_off, reset_in_the_body], ids=said)
def test_an_answer_that_breaks_off_is_asked_for_again(
    bench: Bench, clock: Clock, name: str, fault: Fault
) -> None:
    operation = let_fail(bench, name, fault, fault)

    operation.run(bench)

    assert len(bench.proxy.requests) == operation.requests + 2
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.parametrize(
    ("name", "fault"),
    each_in_turn(
        [*OPERATIONS],
        [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests"), reset_the_request],
    ),
)
def test_a_fault_that_stays_ends_within_the_deadline(
    bench: Bench, clock: Clock, name: str, fault: Fault
) -> None:
    operation = let_fail(bench, name, fault, stays=True)

    with pytest.raises(StoreUnavailableError):
        operation.run(bench)

    assert 5 < len(bench.proxy.requests) < 60 * operation.requests
    # One of several calls may begin after the clock has jumped for another.
    assert clock.passed < bucket_client.DEADLINE * (1 if operation.requests == 1 else 2)


REFUSALS: list[tuple[Fault, type[StoreError]]] = [
    ((403, "AccessDenied"), StorePermissionError),
    ((403, "SignatureDoesNotMatch"), StorePermissionError),
    ((400, "ExpiredToken"), StorePermissionError),
    ((404, "NoSuchBucket"), StoreMissingError),
    ((400, "InvalidRequest"), StoreError),
]


@on_every_operation
@pytest.mark.parametrize(("fault", "error"), REFUSALS, ids=said)
def test_what_no_retry_changes_is_told_at_once(
    bench: Bench, clock: Clock, name: str, fault: Fault, error: type[StoreError]
) -> None:
    operation = let_fail(bench, name, fault, stays=True)

    with pytest.raises(StoreError) as caught:
        operation.run(bench)

    assert type(caught.value) is error
    assert len(bench.proxy.requests) <= operation.requests
    assert clock.slept == 0


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("place", [0, 0.01, 0.25, 0.5, 0.75, 0.99, 1])
@pytest.mark.parametrize("stays", [False, True], ids=["once", "always"])
def test_a_flipped_bit_is_told_or_undone(bench: Bench, name: str, place: float, *, stays: bool) -> None:
    operation = let_fail(bench, name, flip_at(place), stays=stays)

    right_or_corrupt(operation, bench)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("stays", [False, True], ids=["once", "always"])
def test_half_an_object_that_passes_for_the_whole_is_told(bench: Bench, name: str, *, stays: bool) -> None:
    operation = let_fail(bench, name, shorten, stays=stays)

    right_or_corrupt(operation, bench)


def right_or_corrupt(operation: Operation, bench: Bench) -> None:
    try:
        operation.run(bench)
    except OffloadError as error:
        assert type(error) is CorruptError  # noqa: PT017  # either outcome is right
    assert len(bench.proxy.requests) <= 2 * operation.requests


@pytest.mark.parametrize("name", ["find", "list"])
def test_half_a_listing_is_asked_for_again(bench: Bench, clock: Clock, name: str) -> None:
    operation = let_fail(bench, name, shorten)

    operation.run(bench)

    assert len(bench.proxy.requests) == operation.requests + 1
    assert clock.passed < bucket_client.DEADLINE


def mostly_slow(names: Iterable[str], *quick: str) -> list[Any]:
    """Return `names` as parameters of a test that waits: all but `quick` are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    end_calls_after_a_second(monkeypatch)


@pytest.mark.parametrize("name", mostly_slow(OPERATIONS, "offload", "read"))
@pytest.mark.usefixtures("one_second")
def test_a_server_that_says_nothing_is_waited_for_until_the_deadline(bench: Bench, name: str) -> None:
    operation = let_fail(bench, name, hang, stays=True)

    with pytest.raises(StoreUnavailableError, match="no answer in time"):
        operation.run(bench)

    assert len(bench.proxy.requests) <= operation.requests


@pytest.mark.parametrize("name", mostly_slow(ANSWERED_WITH_A_BODY, "read"))
@pytest.mark.usefixtures("one_second")
def test_an_answer_that_drips_is_waited_for_until_the_deadline(bench: Bench, name: str) -> None:
    operation = let_fail(bench, name, drip, stays=True)

    with pytest.raises(StoreUnavailableError, match="no answer in time"):
        operation.run(bench)

    assert len(bench.proxy.requests) <= operation.requests

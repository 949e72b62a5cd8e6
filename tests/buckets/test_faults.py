"""Every fault that S3, Google, Azure and the way to them know, on every operation: the right data or error.

The operations go through a proxy that fails; what is right is asked past it. The clock of the retries is
a virtual one, so that a wait takes no time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
import s3fs
from buckets.answers import refuse
from buckets.conftest import SERVERS
from clock import Clock, end_calls_after_a_second, virtual
from cloud_servers import Container
from pairs import each_in_turn
from relay import (
    Fault,
    Proxy,
    Relay,
    break_off,
    drip,
    flip_at,
    flip_the_upload,
    flipped,
    hang,
    lose_the_answer,
    lose_the_request,
    reset_in_the_body,
    reset_the_request,
    send_in_crumbs,
    serving,
    shorten,
)

from offload import (
    CorruptError,
    ExistsError,
    NotFoundError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Rule,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
    open_store,
)
from offload.storage.store import OffloadStore, put_many
from offload_backends._bucket import client as bucket_client
from offload_backends._bucket.store import BucketStore

POLICY = OffloadPolicy(types={"user_message": Rule(min_chars=1, preview_chars=40)}, min_saving=0)
# They hardly compress, so that a flipped bit stays one and does not end as nonsense by itself.
TEXTS = [
    f"needle {item}\n" + "".join(sha256(b"%d %d" % (item, n)).hexdigest() + "\n" for n in range(30))
    for item in range(3)
]
DATA = bytes(range(256)) * 40
LARGE = DATA * 1800
IS_S3 = SERVERS == ["s3_endpoint"]
LISTING, OBJECT = True, False
# In the addresses of S3, Azure and Google.
_LISTINGS = ("list-type=2", "comp=list", "maxResults=")


class Aimed(Proxy):
    """A proxy that fails in listings only, or in all other requests."""

    aim_at: bool | None = None

    def next_fault(self, path: str) -> Fault | None:
        is_meant = self.aim_at in {None, any(mark in path for mark in _LISTINGS)}
        return super().next_fault(path) if is_meant else None


@dataclass
class Bench:
    """A container with one stored session, reached through a proxy and past it."""

    container: Container
    proxy: Aimed
    store: BucketStore
    direct: OffloadStore
    sent: list[Any] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    # The requests of an operation without a fault, by its name.
    requests: dict[str, int] = field(default_factory=dict)

    def through(self, session: str = "stored") -> Offloader:
        return Offloader(self.store, session=session, policy=POLICY)

    def past(self, session: str = "stored") -> Offloader:
        return Offloader(self.direct, session=session, policy=POLICY)

    def new_key(self) -> str:
        return f"new/{next(self.numbers)}"


def conversation(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in TEXTS[:count]]


@pytest.fixture(scope="module", params=SERVERS)
def whole_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    container: Container = request.getfixturevalue("new_container_on")(request.param)
    with serving(Aimed(container.endpoint)) as proxy:
        assert isinstance(proxy, Aimed)
        through = replace(container, endpoint=proxy.url).storage_options
        store = open_store(container.url, storage_options=through)
        assert isinstance(store, BucketStore)
        direct = open_store(container.url, storage_options=container.storage_options)
        bench = Bench(container, proxy, store, direct)
        bench.sent = bench.past().offload(conversation(3)).messages
        # Whatever a client asks once in its life, it has asked now.
        bench.store.put("here", DATA)
        yield bench


@pytest.fixture
def bench(whole_bench: Bench) -> Iterator[Bench]:
    proxy = whole_bench.proxy
    proxy.released.clear()
    proxy.requests.clear()
    yield whole_bench
    proxy.released.set()
    proxy.faults, proxy.last_fault_stays, proxy.aim_at = [], False, None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = virtual(monkeypatch)
    # s3fs waits a while after some errors, also after its only try.
    patient = {**vars(asyncio), "sleep": clock.sleep}
    monkeypatch.setattr(s3fs.core, "asyncio", SimpleNamespace(**patient))
    return clock


@pytest.fixture
def one_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    end_calls_after_a_second(monkeypatch)
    monkeypatch.setattr(bench.store._client, "patience", 0.0)


# Operations: each returns having checked that its outcome is the right one, or raises the store's error.


def put(bench: Bench, data: bytes = DATA) -> str:
    key = bench.new_key()
    bench.store.put(key, data)
    assert bench.container.read(key) == data
    return key


def get(bench: Bench) -> None:
    assert bench.store.get("here") == DATA


def get_range(bench: Bench) -> None:
    assert bench.store.get("here", start=100, end=300) == DATA[100:300]


def keys(bench: Bench) -> None:
    assert [entry.key for entry in bench.store.keys("h")] == ["here"]


def delete(bench: Bench) -> None:
    key = bench.new_key()
    bench.container.write(key, b"x")
    bench.store.delete(key)
    assert key not in bench.container.keys()


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
        assert len(bench.container.read(record.key)) == record.stored_bytes
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


VERBS: dict[str, Callable[[Bench], Any]] = {
    "put": put,
    "get": get,
    "get a range": get_range,
    "keys": keys,
    "delete": delete,
}
OPERATIONS: dict[str, tuple[Callable[[Bench], Any], bool]] = {
    **{name: (verb, LISTING if name == "keys" else OBJECT) for name, verb in VERBS.items()},
    "offload": (partial(offload, 1), OBJECT),
    "offload a batch": (partial(offload, 3), OBJECT),
    "find": (partial(ask, lambda off, ref: off.tools.read(ref)), LISTING),
    "read": (partial(ask, lambda off, ref: off.tools.read(ref)), OBJECT),
    "grep": (partial(ask, lambda off, ref: off.tools.grep("needle 1", ref)), OBJECT),
    "list": (partial(ask, lambda off, _: off.tools.list()), LISTING),
    "restore": (restore, OBJECT),
}
READS = ["read", "grep", "restore"]
ANSWERED_WITH_A_BODY = ["get", "get a range", "keys", *READS, "find", "list"]

on_every_verb = pytest.mark.parametrize("name", VERBS)


def said(fault: object) -> str:
    return fault[1] if isinstance(fault, tuple) else getattr(fault, "__name__", str(fault))


def let_fail(bench: Bench, name: str, *faults: Fault, stays: bool = False) -> tuple[Callable[[], Any], int]:
    """Return the operation, and the number of its requests if none fails."""
    run, is_listing = OPERATIONS[name]
    if name not in bench.requests:
        run(bench)
        bench.requests[name] = len(bench.proxy.requests)
        bench.proxy.requests.clear()
    bench.proxy.aim_at = is_listing
    fail(bench, *faults, stays=stays)
    return partial(run, bench), bench.requests[name]


def fail(bench: Bench, *faults: Fault, stays: bool = False) -> None:
    bench.proxy.faults = [partial(refuse, *each) if isinstance(each, tuple) else each for each in faults]
    bench.proxy.last_fault_stays = stays


# Requests


@on_every_verb
def test_a_verb_is_one_request(bench: Bench, name: str) -> None:
    VERBS[name](bench)

    assert len(bench.proxy.requests) == 1


def test_pages_are_asked_for_when_they_are_needed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_backends._bucket.listing.PAGE", 10)
    names = [f"many/{number:02}" for number in range(25)]
    put_many(bench.direct, [(name, b"") for name in names])

    listing = bench.store.keys("many/", after="many/02")
    assert bench.proxy.requests == []
    assert next(listing).key == "many/03"
    assert len(bench.proxy.requests) == 1
    assert [found.key for found in listing] == names[4:]
    assert len(bench.proxy.requests) == 3


@pytest.mark.slow
def test_a_large_object_is_a_request_per_part_and_few_around_them(bench: Bench) -> None:
    put(bench, LARGE)

    # Google: a look for the object, the begin. Azure: two looks, the end. S3: also the begin and a claim.
    around = {"gs": 2, "az": 3, "s3": 6}[bench.container.scheme]
    assert len(bench.proxy.requests) == 3 + around


# Faults that pass

PASSING: list[Fault] = [
    (500, "InternalError"),
    (502, "BadGateway"),
    (503, "SlowDown"),
    (504, "GatewayTimeout"),
    (429, "rateLimitExceeded"),
    (408, "RequestTimeout"),
    lose_the_request,
    reset_the_request,
    lose_the_answer,
    send_in_crumbs,
]
if IS_S3:
    PASSING += [(400, "RequestTimeout"), (409, "ConditionalRequestConflict"), flip_the_upload]


@pytest.mark.parametrize(("name", "fault"), each_in_turn([*OPERATIONS], PASSING))
def test_a_fault_that_passes_is_never_noticed(bench: Bench, clock: Clock, name: str, fault: Fault) -> None:
    run, requests = let_fail(bench, name, fault, fault)

    run()

    # Each fault costs a retry; a create whose answer was lost also reads back what stands there.
    assert len(bench.proxy.requests) <= requests + 2 * 2
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.parametrize(
    ("name", "fault"), each_in_turn(ANSWERED_WITH_A_BODY, [break_off, reset_in_the_body])
)
def test_an_answer_that_breaks_off_is_asked_for_again(
    bench: Bench, clock: Clock, name: str, fault: Fault
) -> None:
    run, requests = let_fail(bench, name, fault, fault)

    run()

    # Azure is asked for the size first, by a request whose answer has no body.
    assert requests < len(bench.proxy.requests) <= requests + 2
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.skipif(not IS_S3, reason="half a listing of the others is no answer")
@pytest.mark.parametrize("name", ["keys", "find", "list"])
def test_half_a_listing_is_asked_for_again(bench: Bench, clock: Clock, name: str) -> None:
    run, requests = let_fail(bench, name, shorten)

    run()

    assert len(bench.proxy.requests) == requests + 1
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.parametrize("data", [DATA, b"", pytest.param(LARGE, marks=pytest.mark.slow)], ids=len)
def test_a_create_whose_answer_was_lost_is_a_success(bench: Bench, clock: Clock, data: bytes) -> None:
    lost: list[Relay] = []

    def lose_the_last(relay: Relay) -> None:
        status, headers, body = relay.passed_on()
        if not lost and is_the_last(bench, relay, data):
            lost.append(relay)
            relay.close_connection = True
        else:
            relay.answer(status, headers, body)

    fail(bench, lose_the_last, stays=True)

    put(bench, data)

    assert lost
    assert clock.passed < bucket_client.DEADLINE


def is_the_last(bench: Bench, relay: Relay, data: bytes) -> bool:
    """Return whether a request makes the object visible."""
    if len(data) < len(LARGE):
        return relay.command in {"PUT", "POST"}
    if bench.container.scheme == "gs":
        return relay.headers.get("Content-Range", "").endswith(f"/{len(data)}")
    return "comp=blocklist" in relay.path or (relay.command == "POST" and "uploadId=" in relay.path)


@pytest.mark.parametrize("more", [b"", b" and more"])
def test_a_create_that_another_writer_won_while_its_answer_was_lost_is_refused(
    bench: Bench, clock: Clock, more: bytes
) -> None:
    key = bench.new_key()

    def another_wins(relay: Relay) -> None:
        bench.container.write(key, DATA[::-1] if not more else DATA + more)
        relay.close_connection = True

    fail(bench, another_wins)

    with pytest.raises(ExistsError):
        bench.store.put(key, DATA)
    assert bench.container.read(key) == (DATA + more if more else DATA[::-1])
    # Of the object of the other, no more is read than one byte beyond the own one.
    headers = bench.proxy.requests[-1][2]
    assert f"bytes=0-{len(DATA)}" in headers.values()


# Faults that stay


@pytest.mark.parametrize(
    ("name", "fault"),
    each_in_turn(
        [*OPERATIONS],
        [(503, "SlowDown"), (500, "InternalError"), (429, "rateLimitExceeded"), reset_the_request],
    ),
)
def test_a_fault_that_stays_ends_within_the_deadline(
    bench: Bench, clock: Clock, name: str, fault: Fault
) -> None:
    run, requests = let_fail(bench, name, fault, stays=True)

    with pytest.raises(StoreUnavailableError):
        run()

    assert 5 < len(bench.proxy.requests) < 60 * requests
    # One of several calls may begin after the clock has jumped for another.
    assert clock.passed < bucket_client.DEADLINE * (1 if requests == 1 else 2)


REFUSALS: list[tuple[Fault, type[StoreError]]] = [
    ((401, "InvalidAuthenticationInfo"), StorePermissionError),
    ((403, "AccessDenied"), StorePermissionError),
    ((400, "InvalidRequest"), StoreError),
]
if IS_S3:
    REFUSALS += [
        ((403, "SignatureDoesNotMatch"), StorePermissionError),
        ((400, "ExpiredToken"), StorePermissionError),
        ((404, "NoSuchBucket"), StoreMissingError),
    ]


@pytest.mark.parametrize(("name", "refusal"), each_in_turn([*OPERATIONS], REFUSALS))
def test_what_no_retry_changes_is_told_at_once(
    bench: Bench, clock: Clock, name: str, refusal: tuple[Fault, type[StoreError]]
) -> None:
    fault, error = refusal
    run, requests = let_fail(bench, name, fault, stays=True)

    with pytest.raises(StoreError) as caught:
        run()

    assert type(caught.value) is error
    assert len(bench.proxy.requests) <= requests
    assert clock.slept == 0


TAKEN = {
    "s3": [(412, "PreconditionFailed")],
    "gs": [(412, "conditionNotMet")],
    "az": [(409, "BlobAlreadyExists"), (412, "ConditionNotMet")],
}


@pytest.mark.parametrize("place", [0, 1])
def test_a_refused_condition_means_a_taken_key(bench: Bench, clock: Clock, place: int) -> None:
    answers = TAKEN[bench.container.scheme]
    fail(bench, answers[place % len(answers)], stays=True)

    with pytest.raises(ExistsError):
        bench.store.put(bench.new_key(), DATA)

    assert len(bench.proxy.requests) == 1
    assert clock.slept == 0


@pytest.mark.parametrize("code", ["conflict", "OperationTimedOut", "LeaseIdMissing"])
def test_a_conflict_that_says_nothing_of_the_key_is_no_taken_key(
    bench: Bench, clock: Clock, code: str
) -> None:
    key = bench.new_key()
    fail(bench, (409, code), stays=True)

    with pytest.raises(StoreError) as caught:
        bench.store.put(key, DATA)

    assert not isinstance(caught.value, ExistsError)
    assert key not in bench.container.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_a_bucket_that_is_not_there_is_told_from_an_object_that_is_not_there(bench: Bench, verb: str) -> None:
    elsewhere = replace(bench.container, name="nowhere-at-all")
    store = open_store(elsewhere.url, storage_options=elsewhere.storage_options)
    assert isinstance(store, BucketStore)

    with pytest.raises(StoreMissingError, match=r"nowhere-at-all.*[^.]; the (bucket|container) must exist"):
        VERBS[verb](replace(bench, store=store))
    with pytest.raises(NotFoundError):
        bench.store.get("none")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("offload", hang),
        ("read", hang),
        ("get", drip),
        *(
            pytest.param(name, hang, marks=pytest.mark.slow)
            for name in sorted({*OPERATIONS} - {"offload", "read"})
        ),
        *(pytest.param(name, drip, marks=pytest.mark.slow) for name in ANSWERED_WITH_A_BODY[1:]),
    ],
    ids=said,
)
@pytest.mark.usefixtures("one_second")
def test_a_server_that_says_nothing_or_drips_is_waited_for_until_the_deadline(
    bench: Bench, name: str, fault: Fault
) -> None:
    run, requests = let_fail(bench, name, fault, stays=True)

    with pytest.raises(StoreUnavailableError, match="no answer in time"):
        run()

    assert len(bench.proxy.requests) <= requests


# Bytes that changed on the way


@pytest.mark.skipif(IS_S3, reason="moto compares no checksums")
@pytest.mark.parametrize("data", [DATA, pytest.param(LARGE, marks=pytest.mark.slow)], ids=len)
def test_bytes_that_were_damaged_on_the_way_in_are_not_stored_in_silence(
    bench: Bench, clock: Clock, data: bytes
) -> None:
    key = bench.new_key()

    def flip(relay: Relay) -> None:
        relay.body = flipped(relay.body, 0.5) if len(relay.body) > 1000 else relay.body
        relay.answer(*relay.passed_on())

    fail(bench, flip, stays=True)

    with pytest.raises(StoreError):
        bench.store.put(key, data)

    bench.proxy.faults = []
    assert key not in bench.container.keys()
    put(bench, data)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("fault", [*map(flip_at, [0, 0.01, 0.25, 0.5, 0.75, 0.99, 1]), shorten])
@pytest.mark.parametrize("stays", [False, True], ids=["once", "always"])
def test_a_flipped_bit_or_half_an_object_is_told_or_undone(
    bench: Bench, name: str, fault: Fault, *, stays: bool
) -> None:
    run, requests = let_fail(bench, name, fault, stays=stays)

    try:
        run()
    except OffloadError as error:
        assert type(error) is CorruptError  # noqa: PT017  # either outcome is right
    assert len(bench.proxy.requests) <= 2 * requests


def test_a_range_past_the_end_is_empty(bench: Bench) -> None:
    fail(bench, (416, "InvalidRange"))

    assert bench.store.get("here", start=len(DATA) + 5, end=len(DATA) + 9) == b""

"""Every fault that Google, Azure and the way to them know, on every verb: the right data or the right error.

The verbs go through a proxy that fails; what is right is asked past it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
from clock import Clock, end_calls_after_a_second, virtual
from cloud_servers import Container
from relay import (
    Fault,
    Proxy,
    Relay,
    break_off,
    drip,
    flipped,
    hang,
    lose_the_answer,
    lose_the_request,
    reset_in_the_body,
    reset_the_request,
    send_in_crumbs,
    serving,
)

from offload import NotFoundError, Offloader, OffloadPolicy, Rule, open_store
from offload.errors import (
    ExistsError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.store import OffloadStore, delete_many, put_many
from offload_backends._bucket import client as bucket_client

pytest.importorskip("gcsfs", reason="make test-clouds runs it")

DATA = bytes(range(256)) * 40
LARGE = DATA * 1800
KEPT = {"here", "offload.json"}
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=40)}, min_saving=0)


@dataclass
class Bench:
    """A container, and a store that reaches it through a proxy."""

    container: Container
    proxy: Proxy
    store: OffloadStore

    @property
    def is_google(self) -> bool:
        return self.container.scheme == "gs"


@pytest.fixture(scope="module", params=["google_server", "azure_server"])
def whole_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    container = request.getfixturevalue("new_container_on")(request.param)
    with serving(Proxy(container.endpoint)) as proxy:
        through = replace(container, endpoint=proxy.url)
        store = open_store(container.url, storage_options=through.storage_options)
        # Whatever a client asks once in its life, it has asked now.
        store.put("here", DATA)
        yield Bench(container, proxy, store)


@pytest.fixture
def bench(whole_bench: Bench) -> Iterator[Bench]:
    proxy = whole_bench.proxy
    proxy.released.clear()
    yield whole_bench
    proxy.released.set()
    proxy.faults, proxy.last_fault_stays = [], False
    delete_many(whole_bench.store, [key for key in whole_bench.container.keys() if key not in KEPT])
    proxy.requests.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return virtual(monkeypatch)


# Verbs: each returns having checked that its outcome is the right one, or raises the store's error.


def put(bench: Bench, data: bytes = DATA) -> None:
    bench.store.put("new", data)
    assert bench.container.read("new") == data


def get(bench: Bench) -> None:
    assert bench.store.get("here") == DATA


def get_range(bench: Bench) -> None:
    assert bench.store.get("here", start=100, end=300) == DATA[100:300]


def keys(bench: Bench) -> None:
    assert [entry.key for entry in bench.store.keys("h")] == ["here"]


def delete(bench: Bench) -> None:
    bench.container.write("old", b"x")
    bench.store.delete("old")
    assert "old" not in bench.container.keys()


VERBS: dict[str, Callable[[Bench], None]] = {
    "put": put,
    "get": get,
    "get a range": get_range,
    "keys": keys,
    "delete": delete,
}
on_every_verb = pytest.mark.parametrize("verb", VERBS)


def said(fault: object) -> str:
    return " ".join(map(str, fault)) if isinstance(fault, tuple) else getattr(fault, "__name__", str(fault))


def answer_with(status: int, code: str, relay: Relay) -> None:
    """Answer with an error as both services write it."""
    error = {"code": status, "message": code, "errors": [{"domain": "global", "reason": code}]}
    if relay.path.startswith("/devstoreaccount1"):
        told = [
            ("Content-Type", "application/xml"),
            ("x-ms-error-code", code),
            ("x-ms-version", "2026-10-06"),
        ]
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said</Message></Error>"
    else:
        told = [("Content-Type", "application/json; charset=UTF-8")]
        text = json.dumps({"error": error})
    relay.answer(status, told, b"" if relay.command == "HEAD" else text.encode())


def fail(bench: Bench, *faults: Fault, stays: bool = False) -> None:
    bench.proxy.requests.clear()
    bench.proxy.faults = [partial(answer_with, *f) if isinstance(f, tuple) else f for f in faults]
    bench.proxy.last_fault_stays = stays


@on_every_verb
def test_a_verb_is_one_request(bench: Bench, verb: str) -> None:
    bench.proxy.requests.clear()

    VERBS[verb](bench)

    assert len(bench.proxy.requests) == 1


def test_a_listing_is_one_request_per_page(bench: Bench) -> None:
    put_many(bench.store, [(f"many/{number:04}", b"") for number in range(1, 1002)])
    bench.proxy.requests.clear()

    assert len(list(bench.store.keys("many/"))) == 1001
    assert len(bench.proxy.requests) == 2


@pytest.mark.slow
def test_a_large_object_is_a_request_per_part_and_few_around_them(bench: Bench) -> None:
    bench.proxy.requests.clear()

    put(bench, LARGE)

    # Google: a look for the object, the begin. Azure: two looks, the end.
    assert len(bench.proxy.requests) == 3 + (2 if bench.is_google else 3)


PASSING: list[Fault] = [
    (500, "InternalError"),
    (502, "BadGateway"),
    (503, "ServerBusy"),
    (504, "GatewayTimeout"),
    (429, "rateLimitExceeded"),
    (408, "RequestTimeout"),
    lose_the_request,
    reset_the_request,
    lose_the_answer,
    send_in_crumbs,
]


@on_every_verb
@pytest.mark.parametrize("fault", PASSING, ids=said)
def test_a_fault_that_passes_is_never_noticed(bench: Bench, clock: Clock, verb: str, fault: Fault) -> None:
    fail(bench, fault, fault)

    VERBS[verb](bench)

    # Each fault costs a retry; a create whose answer was lost also reads back what is there.
    assert len(bench.proxy.requests) <= 1 + 2 * 2
    assert clock.passed < bucket_client.DEADLINE


@pytest.mark.parametrize("verb", ["get", "get a range", "keys"])
@pytest.mark.parametrize("fault", [break_off, reset_in_the_body], ids=said)
def test_an_answer_that_breaks_off_is_asked_for_again(
    bench: Bench, clock: Clock, verb: str, fault: Fault
) -> None:
    fail(bench, fault, fault)

    VERBS[verb](bench)

    assert len(bench.proxy.requests) == 3
    assert clock.passed < bucket_client.DEADLINE


@on_every_verb
@pytest.mark.parametrize(
    "fault", [(503, "ServerBusy"), (429, "rateLimitExceeded"), reset_the_request], ids=said
)
def test_a_fault_that_stays_ends_within_the_deadline(
    bench: Bench, clock: Clock, verb: str, fault: Fault
) -> None:
    fail(bench, fault, stays=True)

    with pytest.raises(StoreUnavailableError):
        VERBS[verb](bench)

    assert 5 < len(bench.proxy.requests) < 60
    assert clock.passed < bucket_client.DEADLINE


REFUSALS: list[tuple[Fault, type[StoreError]]] = [
    ((401, "InvalidAuthenticationInfo"), StorePermissionError),
    ((403, "AuthorizationFailure"), StorePermissionError),
    ((400, "InvalidInput"), StoreError),
]


@on_every_verb
@pytest.mark.parametrize(("fault", "error"), REFUSALS, ids=said)
def test_what_no_retry_changes_is_told_at_once(
    bench: Bench, clock: Clock, verb: str, fault: Fault, error: type[StoreError]
) -> None:
    fail(bench, fault, stays=True)

    with pytest.raises(StoreError) as caught:
        VERBS[verb](bench)

    assert type(caught.value) is error
    assert len(bench.proxy.requests) == 1
    assert clock.slept == 0


TAKEN = {"gs": [(412, "conditionNotMet")], "az": [(409, "BlobAlreadyExists"), (412, "ConditionNotMet")]}


@pytest.mark.parametrize("place", [0, 1])
def test_a_refused_condition_means_a_taken_key(bench: Bench, clock: Clock, place: int) -> None:
    answers = TAKEN[bench.container.scheme]
    fail(bench, answers[place % len(answers)], stays=True)

    with pytest.raises(ExistsError):
        bench.store.put("new", DATA)

    assert len(bench.proxy.requests) == 1
    assert clock.slept == 0


@pytest.mark.parametrize("code", ["conflict", "OperationTimedOut", "LeaseIdMissing"])
def test_a_conflict_that_says_nothing_of_the_key_is_no_taken_key(
    bench: Bench, clock: Clock, code: str
) -> None:
    fail(bench, (409, code), stays=True)

    with pytest.raises(StoreError) as caught:
        bench.store.put("new", DATA)

    assert not isinstance(caught.value, ExistsError)
    assert "new" not in bench.container.keys()


@pytest.mark.parametrize("data", [DATA, b"", pytest.param(LARGE, marks=pytest.mark.slow)], ids=len)
def test_a_create_whose_answer_was_lost_is_a_success(bench: Bench, clock: Clock, data: bytes) -> None:
    def lose_the_last(relay: Relay) -> None:
        status, headers, body = relay.passed_on()
        if is_the_last(bench, relay, data):
            relay.close_connection = True
        else:
            relay.answer(status, headers, body)

    fail(bench, lose_the_last, stays=True)
    bench.proxy.faults = [once(lose_the_last)]

    put(bench, data)

    assert clock.passed < bucket_client.DEADLINE


def is_the_last(bench: Bench, relay: Relay, data: bytes) -> bool:
    """Return whether a request makes the object visible."""
    if len(data) < len(LARGE):
        return relay.command in {"PUT", "POST"}
    if bench.is_google:
        return relay.headers.get("Content-Range", "").endswith(f"/{len(data)}")
    return "comp=blocklist" in relay.path


def once(fault: Callable[[Relay], None]) -> Callable[[Relay], None]:
    """Return a fault that passes everything on, once `fault` has ended a connection."""
    lost: list[Relay] = []

    def act(relay: Relay) -> None:
        if lost:
            relay.answer(*relay.passed_on())
            return
        fault(relay)
        if relay.close_connection:
            lost.append(relay)

    return act


def test_a_create_that_another_writer_won_while_its_answer_was_lost_is_refused(
    bench: Bench, clock: Clock
) -> None:
    def another_wins(relay: Relay) -> None:
        bench.container.write("new", DATA[::-1])
        relay.close_connection = True

    fail(bench, another_wins)

    with pytest.raises(ExistsError):
        bench.store.put("new", DATA)

    assert bench.container.read("new") == DATA[::-1]


@pytest.mark.parametrize("data", [DATA, pytest.param(LARGE, marks=pytest.mark.slow)], ids=len)
def test_bytes_that_were_damaged_on_the_way_in_are_not_stored_in_silence(
    bench: Bench, clock: Clock, data: bytes
) -> None:
    def flip(relay: Relay) -> None:
        relay.body = flipped(relay.body, 0.5) if len(relay.body) > 1000 else relay.body
        relay.answer(*relay.passed_on())

    fail(bench, flip, stays=True)

    with pytest.raises(StoreError):
        bench.store.put("new", data)

    bench.proxy.faults = []
    assert "new" not in bench.container.keys()
    put(bench, data)


def test_a_range_past_the_end_is_empty(bench: Bench) -> None:
    fail(bench, (416, "requestedRangeNotSatisfiable" if bench.is_google else "InvalidRange"))

    assert bench.store.get("here", start=len(DATA) + 5, end=len(DATA) + 9) == b""


@pytest.mark.parametrize("verb", ["put", "get", "keys", "delete"])
def test_a_bucket_that_is_not_there_is_told_from_an_object_that_is_not_there(bench: Bench, verb: str) -> None:
    elsewhere = replace(bench.container, name="nowhere-at-all")
    store = open_store(elsewhere.url, storage_options=elsewhere.storage_options)
    act: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("new", b"x"),
        "get": lambda: store.get("here"),
        "keys": lambda: list(store.keys()),
        "delete": lambda: store.delete("here"),
    }

    with pytest.raises(StoreMissingError, match=r"nowhere-at-all.*[^.]; the (bucket|container) must exist"):
        act[verb]()
    with pytest.raises(NotFoundError):
        bench.store.get("none")


@pytest.mark.parametrize(
    "verb", ["put", "get", *(pytest.param(v, marks=pytest.mark.slow) for v in ("keys", "delete"))]
)
def test_a_server_that_says_nothing_is_waited_for_until_the_deadline(
    bench: Bench, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_calls_after_a_second(monkeypatch)
    fail(bench, hang, stays=True)

    with pytest.raises(StoreUnavailableError, match="no answer in time"):
        VERBS[verb](bench)

    assert len(bench.proxy.requests) == 1


@pytest.mark.parametrize("verb", ["get", pytest.param("keys", marks=pytest.mark.slow)])
def test_an_answer_that_drips_is_waited_for_until_the_deadline(
    bench: Bench, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_calls_after_a_second(monkeypatch)
    fail(bench, drip, stays=True)

    with pytest.raises(StoreUnavailableError, match="no answer in time"):
        VERBS[verb](bench)

    assert len(bench.proxy.requests) == 1


def test_an_item_that_could_not_be_stored_stays_in_its_message(bench: Bench, clock: Clock) -> None:
    messages = [{"role": "tool", "tool_call_id": "c", "content": "a line of output\n" * 300}]
    off = Offloader(bench.store, session="s", policy=POLICY)
    fail(bench, (503, "ServerBusy"), stays=True)
    out = off.offload(messages)
    assert out.messages == messages
    assert len(out.errors) == 1

    fail(bench)
    out = off.offload(messages)
    assert out.messages != messages
    assert off.restore(out.messages) == messages

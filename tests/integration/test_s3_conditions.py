"""Stores on servers that enforce, ignore or refuse `If-None-Match`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from offload.errors import ExistsError, OffloadError, StorePermissionError, StoreUnavailableError
from offload_backends._bucket import client as bucket_client, store as bucket_store
from offload_backends._descriptor import FORMAT, Creates, Descriptor, decode
from offload_backends._shared import Shared
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket
    from relay import Proxy, Relay

LARGE = bytes(range(256)) * (17 * 512)
pytestmark = pytest.mark.usefixtures("small_parts")


def ignore_the_condition(relay: Relay) -> None:
    del relay.headers["If-None-Match"]
    relay.answer(*relay.passed_on())


def refuse_the_condition(relay: Relay) -> None:
    if "If-None-Match" not in relay.headers:
        relay.answer(*relay.passed_on())
    else:
        relay.answer(501, [], b"<Error><Code>NotImplemented</Code><Message>no conditions</Message></Error>")


def ignore_it_on_completion(relay: Relay) -> None:
    if relay.command == "POST":
        del relay.headers["If-None-Match"]
    relay.answer(*relay.passed_on())


def always(proxy: Proxy, fault: Any) -> None:
    proxy.faults, proxy.last_fault_stays = [fault], True


def told(proxy: Proxy) -> list[tuple[str, str, bool]]:
    """Return each request: method, first part of the key's name, whether it had the condition."""
    return [
        (method, path.partition("/prefix/")[2].partition("-")[0], "If-None-Match" in headers)
        for method, path, headers in proxy.requests
    ]


def objects(bucket: Bucket) -> list[str]:
    listed = bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", [])
    return [item["Key"].removeprefix("prefix/") for item in listed]


@pytest.fixture
def opened(bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return how to open a store as another process would."""
    options = {**bucket.storage_options, "endpoint_url": proxy.url}

    def open_elsewhere() -> S3Store:
        monkeypatch.setattr(bucket_store, "_BUCKETS", Shared())
        return S3Store(bucket.url, storage_options=options)

    return open_elsewhere


PROBE = [
    ("GET", "offload.json", False),
    ("PUT", ".probe", False),
    ("PUT", ".probe", False),
    ("PUT", ".probe", True),
    ("GET", "", False),
    ("DELETE", ".probe", False),
    ("DELETE", ".probe", False),
]


def test_the_first_create_of_a_bucket_probes_the_server_and_keeps_the_answer(
    opened: Any, bucket: Bucket, proxy: Proxy
) -> None:
    store = opened()
    store.put("k", b"x")
    store.put("l", b"x")

    assert told(proxy) == [*PROBE, ("PUT", "offload.json", True), ("PUT", "k", True), ("PUT", "l", True)]
    assert objects(bucket) == ["k", "l", "offload.json"]
    assert json.loads(bucket.read("offload.json")) == {"format": 1, "create": "enforced", "sorted": True}
    assert [found.key for found in store.keys()] == ["k", "l"]
    assert store.has_atomic_create


def test_the_next_process_reads_what_was_kept(opened: Any, proxy: Proxy) -> None:
    opened().put("k", b"x")
    proxy.requests.clear()

    opened().put("l", b"x")

    assert told(proxy) == [("GET", "offload.json", False), ("PUT", "l", True)]


def test_an_overwriting_put_asks_nothing(opened: Any, proxy: Proxy) -> None:
    opened().put("k", b"x", overwrite=True)

    assert told(proxy) == [("PUT", "k", False)]


@pytest.mark.parametrize(
    ("server", "verdict"), [(ignore_the_condition, "ignored"), (refuse_the_condition, "unsupported")]
)
def test_where_the_server_checks_nothing_a_create_looks_before_it_writes(
    opened: Any, bucket: Bucket, proxy: Proxy, server: Any, verdict: str
) -> None:
    always(proxy, server)
    store = opened()

    store.put("k", b"mine")
    assert told(proxy) == [
        *PROBE,
        ("PUT", "offload.json", False),
        ("HEAD", "k", False),
        ("PUT", "k", False),
    ]
    assert json.loads(bucket.read("offload.json"))["create"] == verdict
    assert not store.has_atomic_create

    with pytest.raises(ExistsError, match="'k' is taken"):
        store.put("k", b"theirs")
    with pytest.raises(ExistsError):
        store.put("k", LARGE)
    assert bucket.read("k") == b"mine"
    store.put("large", LARGE)
    assert bucket.read("large") == LARGE


def test_a_server_that_checks_puts_and_no_completions_replaces_nothing(
    opened: Any, bucket: Bucket, proxy: Proxy
) -> None:
    bucket.write("k", b"mine")
    always(proxy, ignore_it_on_completion)

    with pytest.raises(ExistsError):
        opened().put("k", LARGE)
    assert bucket.read("k") == b"mine"
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)


def test_creates_of_one_moment_share_one_probe(opened: Any, proxy: Proxy) -> None:
    store = opened()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.put, [f"t{n}" for n in range(4)], [b"x"] * 4))
    assert store.put_many([(f"b{n}", b"x") for n in range(20)]) == [None] * 20

    assert [request[:2] for request in told(proxy)].count(("GET", "offload.json")) == 1
    assert [request[:2] for request in told(proxy)].count(("PUT", ".probe")) == 3


def test_a_batch_whose_probe_fails_is_told_so_by_one_probe(opened: Any, proxy: Proxy) -> None:
    always(proxy, (403, "AccessDenied"))

    errors = opened().put_many([(f"b{n}", b"x") for n in range(20)])

    assert [type(error) for error in errors] == [StorePermissionError] * 20
    assert told(proxy) == PROBE[:2]


def pass_on(relay: Relay) -> None:
    relay.answer(*relay.passed_on())


@pytest.fixture
def _no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_client, "LAST_START", 0.0)


@pytest.mark.usefixtures("_no_second_try")
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ([(503, "SlowDown")], StoreUnavailableError),
        ([pass_on, (503, "SlowDown")], StoreUnavailableError),
        ([pass_on, (403, "AccessDenied")], StorePermissionError),
        ([pass_on, pass_on, (503, "SlowDown")], StoreUnavailableError),
        ([pass_on, pass_on, (403, "AccessDenied")], StorePermissionError),
        ([pass_on, pass_on, pass_on, (403, "AccessDenied")], StorePermissionError),
        ([pass_on, pass_on, pass_on, pass_on, (503, "SlowDown")], StoreUnavailableError),
    ],
)
def test_a_probe_that_fails_fails_the_put_and_is_tried_again(
    opened: Any, bucket: Bucket, proxy: Proxy, faults: Any, error: type[OffloadError]
) -> None:
    store = opened()
    proxy.faults = faults

    with pytest.raises(error):
        store.put("k", b"x")
    assert objects(bucket) == []

    store.put("k", b"x")
    assert objects(bucket) == ["k", "offload.json"]


def test_a_descriptor_that_cannot_be_written_stops_nothing(opened: Any, bucket: Bucket, proxy: Proxy) -> None:
    def refuse_the_descriptor(relay: Relay) -> None:
        if relay.command == "PUT" and relay.path.endswith("offload.json"):
            relay.answer(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        else:
            relay.answer(*relay.passed_on())

    always(proxy, refuse_the_descriptor)
    opened().put("k", b"x")

    assert objects(bucket) == ["k"]


def test_a_descriptor_that_may_not_be_read_is_as_good_as_none(
    opened: Any, bucket: Bucket, proxy: Proxy
) -> None:
    proxy.faults = [(403, "AccessDenied")]

    opened().put("k", b"x")

    assert told(proxy) == [*PROBE, ("PUT", "k", True)]


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[" * 5000, b'{"format": 2, "create": "ignored"}', b"x" * 9999]
)
def test_a_descriptor_that_cannot_be_understood_is_left_alone(
    opened: Any, bucket: Bucket, proxy: Proxy, damaged: bytes
) -> None:
    bucket.write("offload.json", damaged)

    opened().put("k", b"x")

    assert told(proxy) == [*PROBE, ("PUT", "k", True)]
    assert proxy.requests[0][2]["Range"] == "bytes=0-4095"
    assert bucket.read("offload.json") == damaged


def test_who_may_not_list_may_create_and_says_that_the_order_is_not_known(
    opened: Any, bucket: Bucket, proxy: Proxy
) -> None:
    def refuse_to_list(relay: Relay) -> None:
        if "list-type" in relay.path:
            relay.refuse(403, "AccessDenied")
        else:
            relay.answer(*relay.passed_on())

    always(proxy, refuse_to_list)
    opened().put("k", b"x")

    assert objects(bucket) == ["k", "offload.json"]
    assert json.loads(bucket.read("offload.json")) == {"format": 1, "create": "enforced", "sorted": False}


@pytest.mark.parametrize("creates", ["enforced", "ignored", "unsupported"])
@pytest.mark.parametrize("is_sorted", [True, False, None])
def test_a_descriptor_says_what_was_written_into_it(creates: Creates, is_sorted: bool | None) -> None:
    descriptor = Descriptor(FORMAT, creates, is_sorted)

    assert decode(descriptor.encode()) == descriptor


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"[]",
        b"7",
        b'{"create": "enforced"}',
        b'{"format": 1}',
        b'{"format": 1, "create": ["ignored"]}',
    ],
)
def test_what_is_no_descriptor_says_nothing(data: bytes) -> None:
    assert decode(data) is None


def test_at_aws_a_first_create_is_one_put(bucket: Bucket, proxy: Proxy) -> None:
    # The requests for AWS go to the test server, as through a company's proxy.
    options = {
        "key": "key",
        "secret": "secret",
        "use_ssl": False,
        "config_kwargs": {"proxies": {"http": proxy.url}, "s3": {"addressing_style": "path"}},
    }
    store = S3Store(bucket.url, storage_options=options)

    store.put("k", b"x")
    store.put("large", LARGE)

    assert told(proxy)[0] == ("PUT", "k", True)
    assert proxy.requests[0][2]["Host"].endswith("amazonaws.com")
    assert proxy.methods[1:] == ["POST", "PUT", "PUT", "PUT", "POST"]
    assert told(proxy)[-1][2]
    assert isinstance(store.put_many([("k", b"y")])[0], OffloadError)
    assert store.has_atomic_create

"""Large objects: their requests, the state after a failure, and their memory."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from relay import lose_the_answer

from offload.errors import (
    ConfigError,
    ExistsError,
    OffloadError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.storage.store import blocks_of
from offload_backends._bucket import client as bucket_client
from offload_backends._bucket.uploads import part_size
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket
    from relay import Fault, Proxy, Relay

MIB = 1024**2
DATA = b"".join(hashlib.sha256(b"%d" % n).digest() * 32 for n in range(17 * 128))


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    s3_bucket.write("offload.json", b'{"format": 1, "create": "enforced"}')
    return s3_bucket


@pytest.fixture
def store(whole: S3Store, small_parts: None) -> S3Store:
    """A store whose objects above 2 MiB are uploaded in parts of 1 MiB."""
    return whole


@pytest.fixture
def whole(bucket: Bucket, proxy: Proxy) -> S3Store:
    """A store whose objects above 16 MiB are uploaded in parts of 8 MiB."""
    return S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": proxy.url})


def steps(proxy: Proxy) -> list[str]:
    """Return what each request for an object was: method, whether of a claim, step of the upload."""

    def step(method: str, path: str) -> str:
        name, _, query = path.partition("?")
        names = {part.partition("=")[0] for part in query.split("&") if part}
        of_claim = ["claim"] if "/.claim-" in name else []
        return " ".join([method, *of_claim, *sorted(names & {"uploads", "partNumber", "uploadId"})])

    return [step(method, path) for method, path, _ in proxy.requests if "offload.json" not in path]


BEGIN, PART, COMPLETE, ABORT = (
    "POST uploads",
    "PUT partNumber uploadId",
    "POST uploadId",
    "DELETE uploadId",
)
CLAIM, WITHDRAW = "PUT claim", "DELETE claim"

SLOW_DOWN, INTERNAL_ERROR = (503, "SlowDown"), (500, "InternalError")


def assert_nothing_is_left(bucket: Bucket, *keys: str) -> None:
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)
    listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert [item["Key"].removeprefix("prefix/") for item in listed] == [*keys, "offload.json"]


# Requests


def test_16_mib_are_one_put_and_one_byte_more_goes_in_parts_of_8_mib_and_one_completion(
    whole: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    data = bytes(16 * MIB)
    whole.put_stream("at", [data], len(data))
    assert steps(proxy) == ["PUT"]

    whole.put_stream("above", [data, b"x"], len(data) + 1)

    # The server is not AWS: the key is looked at before the upload, claimed, and looked at again.
    assert steps(proxy)[1:] == ["HEAD", BEGIN, *[PART] * 3, CLAIM, "HEAD", COMPLETE, WITHDRAW]
    assert bucket.read("above") == data + b"x"
    parts = [headers for _, path, headers in proxy.requests if "partNumber" in path]
    assert sorted(int(headers["Content-Length"]) for headers in parts) == [1, 8 * MIB, 8 * MIB]
    assert all("Content-MD5" in headers for headers in parts)
    assert [headers.get("If-None-Match") for _, _, headers in proxy.requests[-4:]] == ["*", None, "*", None]


def test_overwriting_with_a_large_object_is_without_condition(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    bucket.write("k", b"old")
    store.put("k", DATA, overwrite=True)

    assert steps(proxy) == [BEGIN, *[PART] * 3, COMPLETE]
    assert "If-None-Match" not in proxy.requests[-1][2]
    assert bucket.read("k") == DATA


def test_a_stream_may_be_read_from_the_same_store(store: S3Store, bucket: Bucket) -> None:
    bucket.write("source", DATA)
    ranges = (store.get("source", start=n, end=n + MIB // 4) for n in range(0, len(DATA), MIB // 4))

    store.put_stream("copy", ranges, len(DATA))

    assert bucket.read("copy") == DATA


def test_a_batch_stores_its_large_objects_too_and_reports_in_order(store: S3Store, bucket: Bucket) -> None:
    bucket.write("taken", b"x")

    errors = store.put_many([("a", b"1"), ("taken", DATA), ("large", DATA), ("taken", b"2"), ("b", b"3")])

    assert [type(error) for error in errors] == [
        type(None),
        ExistsError,
        type(None),
        ExistsError,
        type(None),
    ]
    assert [bucket.read(key) for key in ("a", "taken", "large", "b")] == [b"1", b"x", DATA, b"3"]


# Cutting


@pytest.mark.parametrize("length", [1, 1000, 3 * MIB, 8 * MIB + 1])
def test_pieces_of_any_length_become_parts_of_one(length: int) -> None:
    data = DATA * 8 if length > 1 else DATA[:5000]
    pieces = [data[n : n + length] for n in range(0, len(data), length)]

    parts = list(blocks_of(itertools.chain([b""], pieces), part_size(len(data))))

    assert b"".join(parts) == data
    assert [len(part) for part in parts[:-1]] == [8 * MIB] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= 8 * MIB


@pytest.mark.parametrize("size", [0, 1, 16 * MIB, 10_000 * 8 * MIB, 10_000 * 8 * MIB + 1, 5 * 1024**4])
def test_no_size_needs_more_than_10_000_parts(size: int) -> None:
    length = part_size(size)

    assert -(-size // length) <= 10_000
    assert length == 8 * MIB or -(-size // (length - MIB)) > 10_000


def test_an_object_beyond_5_tib_is_refused_before_anything_is_sent(store: S3Store, proxy: Proxy) -> None:
    with pytest.raises(StoreError, match=str(5 * 1024**4)):
        store.put_stream("k", iter([b"x"]), 5 * 1024**4 + 1)
    assert proxy.requests == []


# Failures


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1, 3, 0, -1])
def test_pieces_of_another_size_store_nothing(store: S3Store, bucket: Bucket, size: int) -> None:
    with pytest.raises(ConfigError, match="total of all pieces"):
        store.put_stream("k", [DATA], size)
    assert_nothing_is_left(bucket)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGINT, also in a job of the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_parts_are_under_way_leaves_nothing(
    store: S3Store, bucket: Bucket, proxy: Proxy, interruptible: None
) -> None:
    released = threading.Event()

    def interrupt(relay: Relay) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        released.wait()
        relay.close_connection = True

    proxy.aim = "partNumber"
    proxy.faults = [interrupt]

    with pytest.raises(KeyboardInterrupt):
        store.put("k", DATA)
    released.set()
    assert ABORT in steps(proxy)
    assert_nothing_is_left(bucket)


def test_pieces_without_end_are_not_taken_to_the_end(store: S3Store, bucket: Bucket) -> None:
    for size in (5, len(DATA)):
        with pytest.raises(ConfigError, match="or more"):
            store.put_stream("k", itertools.repeat(DATA[:MIB]), size)
    assert_nothing_is_left(bucket)


class Torn(Exception):  # noqa: N818  # represents any exception
    pass


@pytest.mark.parametrize("error", [Torn, KeyboardInterrupt, GeneratorExit])
def test_an_iterator_that_fails_leaves_nothing(
    store: S3Store, bucket: Bucket, error: type[BaseException]
) -> None:
    def pieces() -> Iterator[bytes]:
        yield DATA
        raise error

    with pytest.raises(error):
        store.put_stream("k", pieces(), 2 * len(DATA))
    assert_nothing_is_left(bucket)


def passed_on(relay: Relay) -> None:
    relay.answer(*relay.passed_on())


def assert_a_claim_is_left(bucket: Bucket) -> None:
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)
    listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert [item["Key"].partition("-")[0] for item in listed] == ["prefix/.claim", "prefix/offload.json"]


REQUESTS = {"begin": 1, "part 1": 2, "part 2": 3, "part 3": 4, "claim": 5, "complete": 7}


@pytest.mark.parametrize("failing", [name for name in REQUESTS if name != "complete"])
def test_a_refused_request_leaves_nothing(store: S3Store, bucket: Bucket, proxy: Proxy, failing: str) -> None:
    proxy.aim = "/prefix/"
    # The descriptor is read first.
    proxy.faults = [*[passed_on] * (1 + REQUESTS[failing]), (403, "AccessDenied")]

    with pytest.raises(StorePermissionError):
        store.put("k", DATA)
    assert_nothing_is_left(bucket)


def test_a_refused_completion_leaves_a_dead_claim_until_the_next_create(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    proxy.aim = "/prefix/"
    proxy.faults = [*[passed_on] * (1 + REQUESTS["complete"]), (403, "AccessDenied")]

    with pytest.raises(StorePermissionError):
        store.put("k", DATA)
    assert_a_claim_is_left(bucket)

    store.put("k", DATA[::-1])
    assert bucket.read("k") == DATA[::-1]
    assert_nothing_is_left(bucket, "k")


def test_an_upload_with_a_completion_of_unknown_end_is_left_to_the_next_create(
    store: S3Store, bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_client, "LAST_START", 0.0)
    happen_to_completions(proxy, lambda relay: relay.refuse(500, "InternalError"))

    with pytest.raises(StoreUnavailableError):
        store.put("k", DATA)
    assert ABORT not in steps(proxy)

    with pytest.raises(ExistsError):
        store.put("k", DATA[::-1])
    assert bucket.read("k") == DATA
    assert_nothing_is_left(bucket, "k")


@pytest.mark.parametrize(
    ("failing", "fault"),
    [
        ("begin", SLOW_DOWN),
        ("part 1", INTERNAL_ERROR),
        ("part 3", SLOW_DOWN),
        ("claim", SLOW_DOWN),
        ("complete", INTERNAL_ERROR),
    ],
)
def test_a_passing_fault_costs_one_request(
    store: S3Store, bucket: Bucket, proxy: Proxy, fault: Fault, failing: str
) -> None:
    proxy.aim = "/prefix/"
    proxy.faults = [*[passed_on] * (1 + REQUESTS[failing]), fault]

    store.put("k", DATA)

    assert bucket.read("k") == DATA
    assert len(steps(proxy)) == 10
    assert_nothing_is_left(bucket, "k")


def test_a_taken_key_keeps_its_bytes_and_nothing_is_sent(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    bucket.write("k", b"theirs")

    with pytest.raises(ExistsError):
        store.put("k", DATA)
    assert bucket.read("k") == b"theirs"
    assert steps(proxy) == ["HEAD"]


def the_upload_is_gone(relay: Relay) -> None:
    relay.answer(404, [], b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")


def the_key_is_taken(relay: Relay) -> None:
    relay.answer(412, [], b"<Error><Code>PreconditionFailed</Code><Message>taken</Message></Error>")


def happen_to_completions(proxy: Proxy, *faults: Callable[[Relay], None]) -> None:
    """Let `faults` happen to the first completions, one each, and to no other request."""
    left = list(faults)

    def pass_on(relay: Relay) -> None:
        if relay.command == "POST" and "uploadId" in relay.path and left:
            left.pop(0)(relay)
        else:
            relay.answer(*relay.passed_on())

    proxy.faults, proxy.last_fault_stays = [pass_on], True


@pytest.mark.parametrize(
    ("overwrite", "then"),
    [(False, the_key_is_taken), (False, the_upload_is_gone), (True, the_upload_is_gone)],
)
def test_a_completion_whose_answer_was_lost_is_success(
    store: S3Store, bucket: Bucket, proxy: Proxy, then: Callable[[Relay], None], *, overwrite: bool
) -> None:
    happen_to_completions(proxy, lose_the_answer, then)

    store.put("k", DATA, overwrite=overwrite)

    assert bucket.read("k") == DATA
    asked = [
        headers["Range"] for method, path, headers in proxy.requests if "Range" in headers and "/k" in path
    ]
    assert asked == ["bytes=0-1048575", "bytes=1048576-2097151", "bytes=2097152-3145727"]


@pytest.mark.parametrize("theirs", [b"theirs", DATA[:-1] + b"?"], ids=["another size", "the same size"])
def test_a_completion_that_is_tried_again_and_meets_another_object_is_refused(
    store: S3Store, bucket: Bucket, proxy: Proxy, theirs: bytes
) -> None:
    def let_another_writer_win(relay: Relay) -> None:
        bucket.write("k", theirs)
        relay.close_connection = True

    happen_to_completions(proxy, let_another_writer_win)

    with pytest.raises(ExistsError):
        store.put("k", DATA)
    assert bucket.read("k") == theirs
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)


def test_an_upload_that_somebody_ended_is_told_as_worth_another_try(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    happen_to_completions(proxy, the_upload_is_gone)

    with pytest.raises(StoreUnavailableError, match="NoSuchUpload"):
        store.put("k", DATA)
    store.put("k", DATA)
    assert bucket.read("k") == DATA


def test_a_store_that_fails_for_good_is_left_soon_after_the_deadline(
    store: S3Store, bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_on_parts(relay: Relay) -> None:
        if "partNumber" in relay.path:
            relay.answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
        else:
            relay.answer(*relay.passed_on())

    monkeypatch.setattr(bucket_client, "LAST_START", 0.5)
    proxy.faults, proxy.last_fault_stays = [fail_on_parts], True

    with pytest.raises(OffloadError, match="SlowDown"):
        store.put("k", DATA)
    # A cancelled part may reach the server later; it finds no upload then.
    assert ABORT in steps(proxy)
    assert_nothing_is_left(bucket)


# Memory

STREAMING = """
import os, sys
from offload_backends.s3 import S3Store
def of_this_process(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) // 1024
url, endpoint = sys.argv[1:]
store = S3Store(url, storage_options={"key": "key", "secret": "secret", "endpoint_url": endpoint})
store.put("first", b"x")
before = of_this_process("VmRSS")
piece = os.urandom(1 << 20)
store.put_stream("k", (piece for _ in range(96)), 96 << 20)
print(of_this_process("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stream_takes_the_memory_of_a_few_parts(bucket: Bucket, s3_endpoint: str) -> None:
    program = [sys.executable, "-c", STREAMING, bucket.url, s3_endpoint]
    grown = subprocess.run(program, check=True, capture_output=True, text=True, timeout=100)

    assert int(grown.stdout) < 60
    head = bucket.client.head_object(Bucket=bucket.name, Key="prefix/k")
    assert head["ContentLength"] == 96 * MIB

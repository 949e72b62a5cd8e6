"""Several writers of one large object on S3: one wins, also if a writer dies at any step."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import prepared
import pytest
from relay import Proxy, Relay, hang, serving
from servers import new_bucket

from offload.errors import ExistsError, StoreUnavailableError
from offload_backends._bucket import store as store_module, uploads
from offload_backends.s3 import S3Store, _claims

if TYPE_CHECKING:
    from servers import Bucket

WRITER = """
import json, sys
from offload_backends._bucket import store, uploads
from offload_backends.s3 import S3Store
url, options, part, size = sys.argv[1:]
uploads._PART, store._ONE_PUT = int(part), 2 * int(part)
S3Store(url, storage_options=json.loads(options)).put("k", b"d" * int(size))
"""


@pytest.fixture(
    params=["s3_endpoint", pytest.param("seaweedfs_server", marks=pytest.mark.slow)],
    ids=["moto", "seaweedfs"],
)
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, small_parts: None) -> Bucket:
    """A bucket, and parts of the smallest size that its server takes."""
    server = request.getfixturevalue(request.param)
    if request.param == "seaweedfs_server":
        monkeypatch.setattr(uploads, "_PART", 5 * 2**20)
        monkeypatch.setattr(store_module, "_ONE_PUT", 10 * 2**20)
    return new_bucket(getattr(server, "endpoint", server))


@pytest.fixture
def line(bucket: Bucket) -> Iterator[Proxy]:
    with serving(Proxy(bucket.storage_options["endpoint_url"])) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claims, "_SHOWN_WITHIN_SECONDS", 0.2)


def store(bucket: Bucket, proxy: Proxy | None = None) -> S3Store:
    options = bucket.storage_options
    return S3Store(bucket.url, storage_options={**options, "endpoint_url": proxy.url} if proxy else options)


def size() -> int:
    """Return the size of an object of two parts and a bit."""
    return 2 * uploads._PART + 2**17


def outcome(store: S3Store, letter: str) -> str:
    """Return "stored" or "taken": what came of a put of size() times `letter`."""
    try:
        store.put("k", letter.encode() * size())
    except ExistsError:
        return "taken"
    return "stored"


def put_at_once(bucket: Bucket, letters: str) -> dict[str, str]:
    """Return the outcome of each writer."""
    together = threading.Barrier(len(letters))
    stores = [store(bucket) for _ in letters]

    def write(store: S3Store, letter: str) -> str:
        together.wait()
        return outcome(store, letter)

    with ThreadPoolExecutor(len(letters)) as pool:
        return dict(zip(letters, pool.map(write, stores, letters), strict=True))


def letter_of(bucket: Bucket) -> str:
    """Return the letter that the stored object consists of, after a look at every byte."""
    data = bucket.read("k")
    assert data == data[:1] * size()
    return data[:1].decode()


def assert_one_object_is_left(bucket: Bucket) -> None:
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)
    listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert [item["Key"].removeprefix("prefix/") for item in listed] == ["k", "offload.json"]


def claims(bucket: Bucket) -> list[str]:
    found = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="prefix/.claim-").get("Contents", [])
    return [item["Key"].removeprefix("prefix/") for item in found]


def is_claim(relay: Relay) -> bool:
    return relay.command == "PUT" and "/.claim-" in relay.path


def is_completion(relay: Relay) -> bool:
    return relay.command == "POST" and "uploadId" in relay.path


def let(proxy: Proxy, fault: Callable[[Relay], None], happen_to: Callable[[Relay], bool]) -> threading.Event:
    """Let `fault` happen to the first matching request; return the event of its arrival."""
    arrived = threading.Event()

    def relay(relay: Relay) -> None:
        if happen_to(relay) and not arrived.is_set():
            arrived.set()
            fault(relay)
        else:
            relay.answer(*relay.passed_on())

    proxy.faults, proxy.last_fault_stays = [relay], True
    return arrived


def pass_on_and_hang(relay: Relay) -> None:
    relay.passed_on()
    hang(relay)


def kill_a_writer(
    bucket: Bucket, line: Proxy, fault: Callable[[Relay], None], at: Callable[[Relay], bool]
) -> None:
    """Kill a writer of the letter "d" while it waits for the answer to its claim or completion."""
    arrived = let(line, fault, at)
    options = json.dumps({**bucket.storage_options, "endpoint_url": line.url})
    with prepared.start(WRITER, bucket.url, options, uploads._PART, size()):
        assert arrived.wait(60)


def test_of_three_writers_one_wins_and_the_others_are_told(bucket: Bucket) -> None:
    said = put_at_once(bucket, "abc")

    assert sorted(said.values()) == ["stored", "taken", "taken"]
    assert said[letter_of(bucket)] == "stored"
    assert_one_object_is_left(bucket)


@pytest.mark.slow
def test_the_upload_of_a_writer_that_was_killed_before_its_claim_counts_for_nothing(
    bucket: Bucket, line: Proxy
) -> None:
    kill_a_writer(bucket, line, hang, is_claim)

    assert outcome(store(bucket), "x") == "stored"
    assert letter_of(bucket) == "x"
    assert claims(bucket) == []


@pytest.mark.parametrize(
    ("fault", "at"), [pytest.param(pass_on_and_hang, is_claim, marks=pytest.mark.slow), (hang, is_completion)]
)
def test_the_upload_of_a_writer_that_was_killed_after_its_claim_is_completed_by_the_next_one(
    bucket: Bucket, line: Proxy, fault: Callable[[Relay], None], at: Callable[[Relay], bool]
) -> None:
    kill_a_writer(bucket, line, fault, at)
    assert len(claims(bucket)) == 1

    said = put_at_once(bucket, "xy")

    assert set(said.values()) == {"taken"}
    assert letter_of(bucket) == "d"
    assert_one_object_is_left(bucket)


@pytest.mark.slow
def test_the_claim_of_a_writer_that_was_killed_after_its_completion_stops_nobody(
    bucket: Bucket, line: Proxy
) -> None:
    kill_a_writer(bucket, line, pass_on_and_hang, is_completion)

    assert outcome(store(bucket), "x") == "taken"
    assert letter_of(bucket) == "d"

    store(bucket).delete("k")
    assert outcome(store(bucket), "x") == "stored"
    assert letter_of(bucket) == "x"
    assert_one_object_is_left(bucket)


@pytest.mark.slow
def test_after_a_lifecycle_rule_has_removed_the_parts_of_a_killed_writer_one_of_the_next_ones_wins(
    bucket: Bucket, line: Proxy
) -> None:
    kill_a_writer(bucket, line, hang, is_completion)
    [upload] = bucket.client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    bucket.client.abort_multipart_upload(Bucket=bucket.name, Key="prefix/k", UploadId=upload["UploadId"])

    said = put_at_once(bucket, "xyz")

    assert sorted(said.values()) == ["stored", "taken", "taken"]
    assert said[letter_of(bucket)] == "stored"
    assert_one_object_is_left(bucket)


def test_a_writer_whose_upload_another_one_completed_has_stored_its_object(
    bucket: Bucket, line: Proxy
) -> None:
    def be_overtaken(relay: Relay) -> None:
        assert outcome(store(bucket), "x") == "taken"
        relay.answer(*relay.passed_on())

    arrived = let(line, be_overtaken, is_completion)

    assert outcome(store(bucket, line), "s") == "stored"
    assert arrived.is_set()
    assert letter_of(bucket) == "s"
    assert_one_object_is_left(bucket)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"UploadId": "none", "MultipartUpload": {"Parts": []}}']
)
def test_a_claim_that_names_no_upload_stops_nobody(bucket: Bucket, line: Proxy, content: bytes) -> None:
    def put_another(relay: Relay) -> None:
        bucket.write(relay.path.partition("/prefix/")[2].partition("?")[0], content)
        relay.answer(*relay.passed_on())

    arrived = let(line, put_another, is_claim)

    assert outcome(store(bucket, line), "a") == "stored"
    assert arrived.is_set()
    assert letter_of(bucket) == "a"
    assert_one_object_is_left(bucket)


def test_a_server_that_refuses_every_claim_and_shows_none_is_not_asked_for_ever(
    bucket: Bucket, line: Proxy
) -> None:
    def refuse_creates(relay: Relay) -> None:
        if relay.command == "PUT":
            relay.refuse(412, "PreconditionFailed")
        else:
            relay.answer(*relay.passed_on())

    line.aim, line.faults, line.last_fault_stays = ".claim-", [refuse_creates], True

    with pytest.raises(StoreUnavailableError, match="claim"):
        store(bucket, line).put("k", b"a" * size())

    assert not list(store(bucket).keys())
    assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)

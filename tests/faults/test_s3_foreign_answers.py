"""Something that is no S3 service answers in its place: nothing is stored, taken, absent or read by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pairs import each_in_turn
from relay import Proxy, Relay, lose_the_request, serving
from servers import Bucket, new_bucket

from offload import Offloader, OffloadPolicy, Rule, StoreUnavailableError
from offload_backends.s3 import S3Store

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
LARGE = b"x" * (17 * 128 * 1024)
pytestmark = pytest.mark.usefixtures("small_parts")
PAGE = b"<!doctype html><html><head><title>Guest network</title></head><body>Log in<br></body></html>"
XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body>Log in</body></html>'
HTML = [("Content-Type", "text/html; charset=utf-8"), ("Server", "portal/1")]

Answers = Callable[[Relay], None]


def answering(status: int, page: bytes = PAGE, headers: list[tuple[str, str]] = HTML) -> Answers:
    def answer(relay: Relay) -> None:
        relay.answer(status, headers, b"" if relay.command == "HEAD" else page)

    return answer


def keep_the_etag(relay: Relay) -> None:
    """Pass everything on, but for the proof in the answers to a put."""
    status, headers, data = relay.passed_on()
    kept = [(n, v) for n, v in headers if relay.command != "PUT" or n.lower() != "etag"]
    relay.answer(status, kept, data)


@pytest.fixture(scope="module")
def bucket(s3_endpoint: str) -> Bucket:
    return new_bucket(s3_endpoint)


@pytest.fixture(scope="module")
def only_proxy(s3_endpoint: str) -> Iterator[Proxy]:
    with serving(Proxy(s3_endpoint)) as proxy:
        yield proxy


@pytest.fixture
def proxy(only_proxy: Proxy) -> Iterator[Proxy]:
    only_proxy.requests.clear()
    only_proxy.last_fault_stays = True
    yield only_proxy
    only_proxy.faults, only_proxy.aim = [], ""


@pytest.fixture(scope="module")
def only_store(bucket: Bucket, only_proxy: Proxy) -> S3Store:
    """A store that has asked whatever a client asks once in its life."""
    store = S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": only_proxy.url})
    store.put("here", b"bytes")
    return store


@pytest.fixture
def store(only_store: S3Store, bucket: Bucket) -> Iterator[S3Store]:
    yield only_store
    only_store.delete("new")
    bucket.write("here", b"bytes")


VERBS: dict[str, Callable[[S3Store], object]] = {
    "put": lambda store: store.put("new", b"data"),
    "put over": lambda store: store.put("here", b"data", overwrite=True),
    "put in parts": lambda store: store.put("new", LARGE),
    "get": lambda store: store.get("here"),
    "get of none": lambda store: store.get("none"),
    "get a range": lambda store: store.get("here", start=1, end=3),
    "keys": lambda store: list(store.keys("h")),
    "delete": lambda store: store.delete("here"),
}
PORTALS: dict[str, Answers] = {
    **{f"page {status}": answering(status) for status in (307, 400, 401, 403, 409, 416)},
    "xhtml 200": answering(200, XHTML),
    "xhtml 412": answering(412, XHTML),
    "page 200 with an etag": answering(200, headers=[*HTML, ("ETag", '"page"')]),
    "empty 200": answering(200, b"", []),
    "empty 404": answering(404, b"", []),
    "empty 412": answering(412, b"", []),
    "json 200": answering(200, b'{"ok": true}', [("Content-Type", "application/json")]),
    "xml 200": answering(200, b"<ok/>", [("Content-Type", "application/xml")]),
}


@pytest.mark.parametrize(("verb", "portal"), each_in_turn([*VERBS], [*PORTALS]))
def test_what_is_no_s3_service_is_told_at_once_and_changes_nothing(
    store: S3Store, bucket: Bucket, proxy: Proxy, verb: str, portal: str
) -> None:
    proxy.faults = [PORTALS[portal]]

    with pytest.raises(
        StoreUnavailableError, match=r"expected an answer of an S3 service, got HTTP \d\d\d \("
    ):
        VERBS[verb](store)

    assert len(proxy.requests) <= 2
    assert bucket.read("here") == b"bytes"


def test_the_error_says_what_answered(store: S3Store, proxy: Proxy) -> None:
    proxy.faults = [answering(403)]

    with pytest.raises(StoreUnavailableError) as caught:
        store.get("here")

    for told in ("'here'", "HTTP 403", "text/html", "portal/1", "'Guest network Log in'", "endpoint_url"):
        assert told in str(caught.value)


def test_a_page_without_end_is_not_read_to_its_end(store: S3Store, proxy: Proxy) -> None:
    proxy.faults = [answering(200, PAGE + b" " * 50_000_000, HTML)]

    with pytest.raises(StoreUnavailableError) as caught:
        store.get("here")

    assert len(str(caught.value)) < 500


def test_an_object_is_not_sent_on_to_where_a_redirect_points(store: S3Store, proxy: Proxy) -> None:
    with serving(Proxy(proxy.server)) as elsewhere:
        proxy.faults = [answering(307, headers=[*HTML, ("Location", f"{elsewhere.url}/login")])]

        with pytest.raises(StoreUnavailableError, match="HTTP 307"):
            store.put("new", b"data")

    assert elsewhere.requests == []


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_a_put_that_is_answered_without_an_etag_is_no_put(store: S3Store, proxy: Proxy, size: int) -> None:
    proxy.faults = [keep_the_etag]

    with pytest.raises(StoreUnavailableError, match="no ETag"):
        store.put("new", b"x" * size)


def test_of_many_puts_those_without_an_etag_are_errors(store: S3Store, proxy: Proxy) -> None:
    proxy.faults = [keep_the_etag]

    results = store.put_many([(f"new/{n}", b"data") for n in range(3)])

    assert all(isinstance(result, StoreUnavailableError) for result in results)


@pytest.mark.parametrize("portal", ["xhtml 200", "xhtml 412", "empty 200", "page 200 with an etag"])
def test_no_placeholder_stands_for_what_nothing_proves_stored(
    store: S3Store, proxy: Proxy, portal: str
) -> None:
    messages = [{"role": "tool", "tool_call_id": "call_1", "content": "a line of output\n" * 300}]
    off = Offloader(store, session=portal, policy=POLICY)
    proxy.faults = [PORTALS[portal]]
    for _ in range(3):
        out = off.offload(messages)
        assert out.messages == messages
        assert out.errors

    proxy.faults = []
    out = off.offload(messages)
    assert out.messages != messages
    assert off.restore(out.messages) == messages


def complete(relay: Relay, act: Answers) -> None:
    if relay.command == "POST" and "uploadId=" in relay.path:
        act(relay)
    else:
        relay.answer(*relay.passed_on())


ERROR = b'<?xml version="1.0"?>\n\n<Error><Code>InternalError</Code><Message>said</Message></Error>'


@pytest.mark.parametrize(
    "said",
    [ERROR, b"", b"  \n ", b"<CompleteMultipartUploadResult/>", PAGE],
    ids=lambda said: said[:20].decode(),
)
def test_an_upload_that_ends_in_a_200_without_proof_is_no_object(
    store: S3Store, bucket: Bucket, proxy: Proxy, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offload_backends._bucket.client.LAST_START", 0.5)
    proxy.faults = [partial(complete, act=answering(200, said, []))]

    with pytest.raises(StoreUnavailableError):
        store.put("new", LARGE)

    with pytest.raises(bucket.client.exceptions.NoSuchKey):
        bucket.read("new")


def test_an_upload_whose_200_with_an_error_passes_is_stored(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    proxy.aim = "uploadId="
    proxy.last_fault_stays = False
    to_the_end = partial(complete, act=answering(200, ERROR, []))
    proxy.faults = [to_the_end] * 4

    store.put("passes", LARGE)

    assert bucket.read("passes") == LARGE


def test_an_upload_that_was_done_and_answered_without_proof_is_read_back(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    def do_and_say_nothing(relay: Relay) -> None:
        relay.passed_on()
        relay.answer(200, [], b"")

    proxy.faults = [partial(complete, act=do_and_say_nothing)]

    store.put("done", LARGE)

    assert bucket.read("done") == LARGE


def test_a_portal_that_goes_away_leaves_no_trace(store: S3Store, proxy: Proxy) -> None:
    proxy.faults = [answering(302), lose_the_request]
    proxy.last_fault_stays = False
    with pytest.raises(StoreUnavailableError):
        store.get("here")

    assert store.get("here") == b"bytes"


@pytest.mark.parametrize("status", [200, 404, 412])
def test_a_portal_before_the_first_put_is_not_taken_for_the_servers_kind(
    bucket: Bucket, proxy: Proxy, status: int
) -> None:
    bucket = replace(bucket, prefix=f"first-{status}")
    options: dict[str, Any] = {**bucket.storage_options, "endpoint_url": proxy.url}
    store = S3Store(bucket.url, storage_options=options)
    proxy.faults = [answering(status)]
    with pytest.raises(StoreUnavailableError):
        store.put("new", b"data")

    proxy.faults = []
    store.put("new", b"data")

    assert store.has_atomic_create
    assert bucket.read("new") == b"data"

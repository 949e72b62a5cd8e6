"""Answers of something other than the service, and refusals: what a store says, and what it never shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from buckets.answers import refuse
from buckets.conftest import SERVERS
from cloud_servers import Container
from pairs import each_in_turn
from relay import Proxy

from offload.errors import (
    ExistsError,
    NotFoundError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.storage.store import OffloadStore

PAGE = b"<html><body>Log in to this network</body></html>"
HTML = [("Content-Type", "text/html; charset=UTF-8")]


VERBS: dict[str, Callable[[OffloadStore], object]] = {
    "put": lambda store: store.put("new", b"x"),
    "get": lambda store: store.get("here"),
    "get a range": lambda store: store.get("here", start=1, end=3),
    "keys": lambda store: list(store.keys("h")),
    "delete": lambda store: store.delete("here"),
}


@pytest.mark.parametrize(("status", "verb"), each_in_turn([200, 404, 412, 302, 308, 499], [*VERBS]))
def test_a_web_page_is_no_answer_of_the_service(
    store: OffloadStore, container: Container, proxy: Proxy, verb: str, status: int
) -> None:
    headers = [*HTML, ("Location", f"{container.endpoint}/elsewhere")]
    proxy.faults, proxy.last_fault_stays = [lambda relay: relay.answer(status, headers, PAGE)], True

    with pytest.raises(StoreUnavailableError):
        VERBS[verb](store)

    assert len(proxy.requests) == 1
    assert "new" not in container.keys()


@pytest.mark.skipif("google_server" not in SERVERS, reason="make test-clouds runs it")
def test_google_says_in_plain_text_that_an_object_is_absent(
    store: OffloadStore, container: Container, proxy: Proxy
) -> None:
    if container.scheme != "gs":
        pytest.skip("Azure answers in XML")
    headers = [*HTML, ("X-GUploader-UploadID", "ABC")]
    proxy.faults = [lambda relay: relay.answer(404, headers, b"No such object: bucket/none")]

    with pytest.raises(NotFoundError):
        store.get("none")


@pytest.mark.skipif("google_server" not in SERVERS, reason="make test-clouds runs it")
def test_google_says_with_the_status_of_a_refusal_that_a_rate_is_exceeded(
    store: OffloadStore, container: Container, proxy: Proxy
) -> None:
    if container.scheme != "gs":
        pytest.skip("Azure says so with status 503")
    proxy.faults = [partial(refuse, 403, "rateLimitExceeded")]

    assert store.get("here") == b"x" * 100


def test_a_page_that_says_try_later_is_asked_again(store: OffloadStore, proxy: Proxy) -> None:
    proxy.faults = [lambda relay: relay.answer(503, HTML, PAGE)]

    assert store.get("here") == b"x" * 100


# What a service says that a policy, a hold or a lock forbids: status, code or reason, text.
LOCKS = {
    "gs": [
        (403, "retentionPolicyNotMet", "Subject to a policy."),
        (403, "objectUnderActiveHold", "Held."),
        (403, "forbidden", "Object is under active Temporary hold."),
    ],
    "az": [(409, "BlobImmutableDueToPolicy", "no"), (409, "BlobImmutableDueToLegalHold", "no")],
    "s3": [
        (403, "AccessDenied", "Access Denied because object protected by object lock."),
        (409, "ObjectLockedByBucketPolicy", "The object is locked by the bucket policy."),
        (400, "InvalidRequest", "Object is WORM protected and cannot be overwritten"),
    ],
}


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_permissions_and_no_credential(
    store: OffloadStore, proxy: Proxy, status: int
) -> None:
    proxy.faults = [partial(refuse, status, "AuthorizationFailure")]

    with pytest.raises(
        StorePermissionError, match=r"storage\.objects\.create|Storage Blob Data|credentials in the bucket"
    ) as caught:
        store.put("new", b"x")

    assert "Eby8vdM02xNO" not in str(caught.value)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_a_retention_policy_forbids_is_no_matter_of_credentials(
    store: OffloadStore, container: Container, proxy: Proxy, place: int
) -> None:
    answers = LOCKS[container.scheme]
    status, code, text = answers[place % len(answers)]
    proxy.faults, proxy.last_fault_stays = [lambda relay: refuse(status, code, relay, text=text)], True

    changes: list[Callable[[], object]] = [
        lambda: store.delete("here"),
        lambda: store.put("here", b"new", overwrite=True),
    ]
    for change in changes:
        with pytest.raises(StoreError, match=r"[^.]; a retention policy, a hold or a lock forbids") as caught:
            change()
        assert type(caught.value) is StoreError
    # What may not be replaced is there.
    with pytest.raises(ExistsError):
        store.put("here", b"new")
    assert len(proxy.requests) == 3


def test_a_redirect_is_no_object_even_with_the_marks_of_the_service(
    store: OffloadStore, container: Container, proxy: Proxy
) -> None:
    marks = [("X-GUploader-UploadID", "ABC"), ("x-ms-request-id", "ABC"), ("Location", container.endpoint)]
    proxy.faults, proxy.last_fault_stays = [lambda relay: relay.answer(308, marks, b"moved")], True

    with pytest.raises(StoreUnavailableError):
        store.get("here")
    with pytest.raises(StoreUnavailableError):
        store.delete("here")

"""Encryption at rest by the server: what is asked of it, and what a wrong option says."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offload.errors import ConfigError, StoreError
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket
    from relay import Proxy, Relay

KEY = bytes(range(200, 232))
LARGE = bytes(range(256)) * (17 * 512)
pytestmark = pytest.mark.usefixtures("small_parts")
CUSTOMER = "x-amz-server-side-encryption-customer-"


@pytest.fixture
def opened(bucket: Bucket, proxy: Proxy) -> Any:
    """Return how to open a store with more options."""

    def open_store(**options: Any) -> S3Store:
        given = {**bucket.storage_options, "endpoint_url": proxy.url, **options}
        return S3Store(bucket.url, storage_options=given)

    return open_store


@pytest.mark.parametrize("data", [b"x", LARGE], ids=["one put", "parts"])
@pytest.mark.parametrize(
    "options",
    [{"sse": "AES256"}, {"sse": "aws:kms", "sse_kms_key_id": "key-1"}, {"sse": "aws:kms:dsse"}],
    ids=lambda options: options["sse"],
)
def test_objects_are_encrypted_as_asked(
    opened: Any, bucket: Bucket, options: dict[str, str], data: bytes
) -> None:
    store = opened(**options)
    store.put("k", data)

    for key in ("k", "offload.json"):
        head = bucket.client.head_object(Bucket=bucket.name, Key=f"prefix/{key}")
        assert head["ServerSideEncryption"] == options["sse"]
        assert head.get("SSEKMSKeyId") == options.get("sse_kms_key_id")
    assert store.get("k") == data


def needs_the_key(relay: Relay, keys: dict[str, str | None]) -> None:
    """Do as S3 does with customer keys, which the test server does not know."""
    name = relay.path.partition("?")[0]
    given = relay.headers.get(CUSTOMER + "key-MD5")
    if relay.command in {"PUT", "POST"} and "uploadId" not in relay.path:
        keys[name] = given
    if relay.command != "DELETE" and given != keys.get(name, given):
        relay.answer(400, [], b"<Error><Code>InvalidRequest</Code><Message>wrong key</Message></Error>")
    else:
        relay.answer(*relay.passed_on())


@pytest.mark.parametrize("key", [KEY, base64.b64encode(KEY).decode()], ids=["bytes", "base64"])
@pytest.mark.parametrize("data", [b"x", LARGE], ids=["one put", "parts"])
def test_what_was_stored_with_a_customer_key_is_read_with_it_alone(
    opened: Any, proxy: Proxy, key: bytes | str, data: bytes
) -> None:
    proxy.faults, proxy.last_fault_stays = [partial(needs_the_key, keys={})], True
    store = opened(sse_customer_key=key)
    store.put("k", data)

    assert store.get("k") == data
    assert store.get("k", start=-1) == data[-1:]
    for other in (opened(), opened(sse_customer_key=bytes(32))):
        with pytest.raises(StoreError, match="wrong key"):
            other.get("k")
    sent = [headers for method, path, headers in proxy.requests if method == "PUT" and "/k" in path]
    assert sent
    assert {headers[CUSTOMER + "key"] for headers in sent} == {base64.b64encode(KEY).decode()}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sse": "aws:kmz"}, "AES256.*aws:kmz"),
        ({"sse": "AES256", "sse_kms_key_id": "key-1"}, "sse_kms_key_id needs"),
        ({"sse_kms_key_id": "key-1"}, "sse_kms_key_id needs"),
        ({"sse_customer_key": KEY, "sse": "AES256"}, "cannot be combined with sse"),
        ({"sse_customer_key": KEY[:31]}, "32 bytes"),
        ({"sse_customer_key": "canary, no base64"}, "32 bytes"),
        ({"sse_customer_key": 32}, "32 bytes"),
    ],
)
def test_an_option_that_cannot_be_meant_is_told_before_anything_is_sent(
    opened: Any, proxy: Proxy, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        opened(**options).put("k", b"x")

    assert "canary" not in str(caught.value)
    assert proxy.requests == []


def test_the_customer_key_is_shown_nowhere(opened: Any, proxy: Proxy) -> None:
    store = opened(sse_customer_key=KEY)
    proxy.faults, proxy.last_fault_stays = [(403, "AccessDenied")], True
    with pytest.raises(StoreError) as caught:
        store.put("k", b"x")

    shown = f"{store!r} {store.url} {caught.value} {caught.value!r}"
    assert not any(form in shown for form in (repr(KEY), KEY.hex(), base64.b64encode(KEY).decode()))

"""Stores of one URL and equal options share their connections in a process."""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from relay import Proxy, serving

from offload import Offloader, OffloadPolicy, Rule
from offload.errors import StorePermissionError
from offload_backends._shared import Shared, key_of
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket

TEXT = "a line of a text that is long enough to be stored\n" * 100


def options(bucket: Bucket, proxy: Proxy, **others: Any) -> dict[str, Any]:
    return {**bucket.storage_options, "endpoint_url": proxy.url, **others}


def offloader(bucket: Bucket, proxy: Proxy, session: str) -> Offloader:
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, preview_chars=0)})
    return Offloader(bucket.url, session=session, policy=policy, storage_options=options(bucket, proxy))


def test_a_session_opened_by_url_sends_only_a_listing_of_its_floor_and_the_put_of_its_first_item(
    s3_bucket: Bucket, proxy: Proxy
) -> None:
    offloader(s3_bucket, proxy, "first").offload_text(TEXT)
    proxy.requests.clear()

    for number in range(5):
        assert offloader(s3_bucket, proxy, f"s{number}").offload_text(TEXT) != TEXT

    assert proxy.methods == ["GET", "PUT"] * 5


def test_sessions_in_many_threads_share_one_connection_pool(s3_bucket: Bucket, proxy: Proxy) -> None:
    stores = [S3Store(s3_bucket.url, storage_options=options(s3_bucket, proxy)) for _ in range(40)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda numbered: numbered[1].put(f"k{numbered[0]}", b"x"), enumerate(stores)))

    assert len({id(store._client.system) for store in stores}) == 1
    assert sum(path.endswith("offload.json") for _, path, _ in proxy.requests) <= 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the descriptors")
def test_descriptors_and_threads_stay_flat_over_many_sessions(s3_bucket: Bucket, proxy: Proxy) -> None:
    def use(session: str) -> tuple[int, int]:
        offloader(s3_bucket, proxy, session).offload_text(TEXT)
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = use("first")
    after = [use(f"s{number}") for number in range(50)][-1]

    # The connection to the proxy has an end in this process on both sides.
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 1


def test_other_options_have_connections_of_their_own(s3_bucket: Bucket, proxy: Proxy) -> None:
    one = S3Store(s3_bucket.url, storage_options=options(s3_bucket, proxy))
    other = S3Store(s3_bucket.url, storage_options=options(s3_bucket, proxy, key="another"))

    for store in (one, other):
        store.put(f"k{id(store)}", b"x")

    signers = [headers["Authorization"].partition("/")[0] for _, _, headers in proxy.requests]
    assert signers[0].endswith("Credential=key")
    assert signers[-1].endswith("Credential=another")
    assert one.identity() != other.identity()


def test_changed_variables_are_read_by_the_next_store(
    s3_bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    keys = []
    for key in ("one", "two"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        S3Store(s3_bucket.url, storage_options={"endpoint_url": proxy.url}).get_many(["absent"])
        keys.append(proxy.requests[-1][2]["Authorization"].partition("/")[0].rpartition("=")[2])

    assert keys == ["one", "two"]


def test_refused_credentials_are_looked_up_again_by_the_next_store(
    s3_bucket: Bucket, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def store_with(key: str) -> S3Store:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        return S3Store(s3_bucket.url, storage_options={"endpoint_url": proxy.url})

    proxy.faults = [(403, "ExpiredToken")]
    with pytest.raises(StorePermissionError):
        store_with("expired").get("k")
    store_with("renewed").get_many(["k"])

    assert "Credential=renewed/" in proxy.requests[-1][2]["Authorization"]


def test_two_prefixes_of_a_bucket_share_connections_and_name_themselves_in_errors(
    s3_bucket: Bucket, proxy: Proxy
) -> None:
    one, other = (
        S3Store(f"s3://{s3_bucket.name}/{prefix}", storage_options=options(s3_bucket, proxy))
        for prefix in ("one", "other")
    )
    proxy.faults, proxy.last_fault_stays = [(403, "AccessDenied")], True

    for store in (one, other):
        with pytest.raises(StorePermissionError, match=store.url):
            store.get("k")


def test_one_bucket_name_at_two_endpoints_is_two_stores(s3_bucket: Bucket, proxy: Proxy) -> None:
    with serving(Proxy(proxy.server)) as second:
        for each in (proxy, second):
            S3Store(s3_bucket.url, storage_options=options(s3_bucket, each)).get_many(["k"])

        assert [proxy.methods, second.methods] == [["GET"], ["GET"]]


class Connection:
    """Any object that a weak reference can name."""


def test_unused_connections_are_closed_after_others_were_opened() -> None:
    shared: Shared[Connection] = Shared()
    used = shared.get("used", Connection)
    for number in range(20):
        shared.get(number, Connection)
    gc.collect()

    assert shared.get("used", Connection) is used
    assert len(shared._opened) <= 10


def test_a_forked_child_opens_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Shared[Connection] = Shared()
    of_parent = shared.get("k", Connection)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    assert shared.get("k", Connection) is not of_parent


def test_options_are_equal_if_their_plain_values_are() -> None:
    assert key_of({"a": 1, "b": {"c": [1, None]}}) == key_of({"b": {"c": [1, None]}, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": True})
    assert key_of({"a": "1"}) != key_of({"a": 1})
    assert key_of({"hook": print}) != key_of({"hook": print})

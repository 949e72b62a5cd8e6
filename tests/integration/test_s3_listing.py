"""Listings on a server that sorts by the code points of keys, and on one that sorts by folders."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from relay import Proxy, serving
from servers import Bucket, new_bucket

from offload.errors import StoreError, StoreUnavailableError
from offload.records.index import sessions
from offload_backends._bucket import client as bucket_client, listing
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from relay import Relay
    from servers import Server

# "a" comes before "a-b", but what is in the folder "a" comes after what is in "a-b".
FOLDERS = ("r/a-b", "r/a", "r/a.c", "r/b")
KEYS = [f"{folder}/{n}" for folder in ("r/a-b", "r/a.c", "r/a", "r/b") for n in range(5)]
SORTED = b'{"format": 1, "create": "enforced", "sorted": true}'
NOT_SORTED = SORTED.replace(b"true", b"false")
OLD = b'{"format": 1, "create": "enforced"}'

Reader = Callable[[Bucket], S3Store]


@pytest.fixture(scope="module")
def seaweedfs(seaweedfs_server: Server) -> Bucket:
    """A bucket on a server that sorts by folders, with `KEYS` and no descriptor."""
    return filled(new_bucket(seaweedfs_server.endpoint))


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    """A bucket on a server that sorts by keys, with `KEYS` and no descriptor."""
    return filled(s3_bucket)


def filled(bucket: Bucket) -> Bucket:
    for key in KEYS:
        bucket.write(key, b"x")
    return bucket


@pytest.fixture
def seen() -> Iterator[Proxy]:
    """The proxy that the readers of a test go through."""
    with serving(Proxy("")) as proxy:
        yield proxy


@pytest.fixture
def reader(seen: Proxy) -> Reader:
    """Return how to open a store as a process that has written nothing."""

    def opened(bucket: Bucket) -> S3Store:
        seen.server = bucket.storage_options["endpoint_url"]
        return S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": seen.url})

    return opened


def keys_of(store: S3Store, prefix: str = "", after: str = "") -> list[str]:
    return [found.key for found in store.keys(prefix, after=after)]


def asked(proxy: Proxy) -> list[str]:
    """Return each request: a listing, or method and key."""
    return [
        "LIST" if "list-type" in path else f"{method} {path.rpartition('/prefix/')[2]}"
        for method, path, _ in proxy.requests
    ]


# Correct


@pytest.mark.parametrize("descriptor", [None, OLD, NOT_SORTED, b"damaged"])
def test_a_reader_sees_every_key_in_order_where_the_server_sorts_by_folders(
    seaweedfs: Bucket, reader: Reader, seen: Proxy, descriptor: bytes | None
) -> None:
    if descriptor is not None:
        seaweedfs.write("offload.json", descriptor)

    assert keys_of(reader(seaweedfs)) == KEYS
    assert keys_of(reader(seaweedfs), "r/a") == KEYS[:15]
    assert keys_of(reader(seaweedfs), after="r/a-b/2") == KEYS[3:]
    assert set(seen.methods) == {"GET"}
    seaweedfs.client.delete_object(Bucket=seaweedfs.name, Key="prefix/offload.json")


def test_every_session_is_found_where_the_server_sorts_by_folders(seaweedfs: Bucket, reader: Reader) -> None:
    assert list(sessions(reader(seaweedfs))) == ["a-b", "a.c", "a", "b"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_listings_are_what_sorting_and_comparing_text_gives(
    seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    drawn = random.Random(seed)  # noqa: S311  # no secret
    bucket = replace(seaweedfs, prefix=f"random-{seed}")
    names = ["".join(drawn.choices("a-.0", k=drawn.randint(1, 3))).lstrip(".") or "b" for _ in range(12)]
    keys = sorted({"/".join(drawn.choices(names, k=drawn.randint(1, 3))) for _ in range(25)})
    for key in keys:
        bucket.write(key, b"x")
    store = S3Store(bucket.url, storage_options=bucket.storage_options)
    begun = [key[: drawn.randint(1, len(key))] for key in drawn.sample(keys, 15)]

    for prefix, after in [
        ("", ""),
        *(("", text) for text in begun),
        *((text[:2], text) for text in begun),
        ("", "-a"),
    ]:
        expected = [key for key in keys if key.startswith(prefix) and key > after]
        assert keys_of(store, prefix, after) == expected, f"seed {seed}, {prefix!r} after {after!r}"


@pytest.mark.parametrize("prefix", ["/", "//", "r//", "/r/", "../", "r/../", "R/"])
def test_a_prefix_that_no_key_can_have_asks_for_nothing(
    bucket: Bucket, reader: Reader, seen: Proxy, prefix: str
) -> None:
    assert keys_of(reader(bucket), prefix) == []
    assert seen.requests == []


def test_a_server_that_lists_one_page_for_ever_is_told_of(
    bucket: Bucket, reader: Reader, seen: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn_back(relay: Relay) -> None:
        relay.path = relay.path.replace("continuation-token=", "ignored=")
        status, headers, data = relay.passed_on()
        relay.answer(status, headers, re.sub(b"(?<=<NextContinuationToken>)[^<]+", b"again", data))

    monkeypatch.setattr(listing, "PAGE", 2)
    seen.faults, seen.last_fault_stays = [turn_back], True

    with pytest.raises(StoreError, match="repeats the same page"):
        keys_of(reader(bucket), "r/a/")


def test_a_folder_may_have_the_name_of_the_descriptor(bucket: Bucket) -> None:
    for key in ("offload.json", "offload.json/k"):
        bucket.write(key, NOT_SORTED)
    store = S3Store(bucket.url, storage_options=bucket.storage_options)

    assert keys_of(store, "o") == ["offload.json/k"]


# Cost


@pytest.mark.parametrize("server", ["bucket", "seaweedfs"])
def test_a_listing_inside_one_folder_is_a_request_for_each_page_on_every_server(
    request: pytest.FixtureRequest,
    reader: Reader,
    seen: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)

    assert keys_of(reader(request.getfixturevalue(server)), "r/a/") == KEYS[10:15]
    assert asked(seen) == ["LIST"] * 3


def test_a_server_that_is_known_to_sort_by_keys_is_asked_for_pages_and_for_the_descriptor_once(
    bucket: Bucket, reader: Reader, seen: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 5)
    bucket.write("offload.json", SORTED)
    store = reader(bucket)

    assert keys_of(store, "r/") == KEYS
    assert asked(seen) == ["LIST", "GET offload.json", *["LIST"] * 3]
    seen.requests.clear()
    assert keys_of(store, "r/", after="r/a-b/4") == KEYS[5:]
    assert asked(seen) == ["LIST"] * 3


def test_a_listing_of_folders_asks_for_a_folder_when_its_turn_comes(
    seaweedfs: Bucket, reader: Reader, seen: Proxy
) -> None:
    listing = reader(seaweedfs).keys("r/")

    assert next(listing).key == KEYS[0]
    assert asked(seen) == ["LIST", "GET offload.json", "LIST", "LIST"]
    assert [found.key for found in listing] == KEYS[1:]
    assert asked(seen)[4:] == ["LIST"] * 3


def test_the_next_session_is_two_requests_away(seaweedfs: Bucket, reader: Reader, seen: Proxy) -> None:
    store = reader(seaweedfs)
    next(store.keys("r/", after="r/a-b0"))
    seen.requests.clear()
    seaweedfs.write("offload.json", NOT_SORTED)
    next(store.keys("r/", after="r/a-b0"))
    seen.requests.clear()

    assert next(store.keys("r/", after="r/a-b0")).key == "r/a.c/0"
    assert asked(seen) == ["LIST", "LIST"]
    seaweedfs.client.delete_object(Bucket=seaweedfs.name, Key="prefix/offload.json")


# The descriptor


def test_a_descriptor_that_cannot_be_reached_fails_the_listing_and_is_asked_for_again(
    bucket: Bucket, reader: Reader, seen: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_client, "LAST_START", 0.0)
    seen.aim, seen.faults = "offload.json", [(503, "SlowDown")]
    store = reader(bucket)

    with pytest.raises(StoreUnavailableError):
        keys_of(store)
    assert keys_of(store) == KEYS


def test_a_descriptor_that_may_not_be_read_leaves_the_listing_right(
    seaweedfs: Bucket, reader: Reader, seen: Proxy
) -> None:
    seen.aim, seen.faults, seen.last_fault_stays = "offload.json", [(403, "AccessDenied")], True

    assert keys_of(reader(seaweedfs)) == KEYS


def test_a_descriptor_that_came_later_is_found(bucket: Bucket, reader: Reader, seen: Proxy) -> None:
    store = reader(bucket)
    assert keys_of(store) == KEYS

    bucket.write("offload.json", SORTED)
    seen.requests.clear()
    assert keys_of(store) == KEYS
    assert asked(seen) == ["LIST", "GET offload.json"]


def test_the_probe_tells_the_two_kinds_of_server_apart(seaweedfs: Bucket, bucket: Bucket) -> None:
    for place, said in ((bucket, SORTED), (replace(seaweedfs, prefix="probed"), NOT_SORTED)):
        S3Store(place.url, storage_options=place.storage_options).put("k", b"x")

        assert place.read("offload.json").strip() == said

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import prepared
import pytest

from offload import Offloader, Retention
from offload.errors import (
    ConfigError,
    ExistsError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.maintenance.doctor import diagnose
from offload.maintenance.retention import collect, delete
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from conftest import Bucket
    from relay import Proxy, Relay


def ignore_the_range(relay: Relay) -> None:
    del relay.headers["Range"]
    relay.answer(*relay.passed_on())


@pytest.fixture
def store(bucket: Bucket, proxy: Proxy) -> S3Store:
    """A store that knows what its server does with conditions."""
    store = S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": proxy.url})
    store.put("first", b"")
    bucket.client.delete_object(Bucket=bucket.name, Key="prefix/first")
    proxy.requests.clear()
    return store


# Requests


def test_every_request_of_a_store_is_below_its_prefix(bucket: Bucket, proxy: Proxy) -> None:
    options = {**bucket.storage_options, "endpoint_url": proxy.url}
    url = f"s3://{bucket.name}/users/anna"
    off = Offloader(url, session="a", storage_options=options, journal=True)
    others = [f"users/{name}/x/check~others" for name in ("ann", "anna2", "anna.")]
    for other in others:
        bucket.client.put_object(Bucket=bucket.name, Key=other, Body=b"x")
    off.offload_text("a line\n" * 9000, tool_name="Bash")
    off.offload_text("".join(map(str, range(2_500_000))), tool_name="Read")
    off.search("line")
    off.fork("b")
    diagnose(off.store)
    delete(off.store, "a")
    collect(off.store, Retention(grace=0))

    wanted = f"/{bucket.name}/users/anna/"
    # A deletion of many keys has them in its body; those of others are there still.
    asked = [
        urlsplit(path) for method, path, _ in proxy.requests if (method, path[-7:]) != ("POST", "?delete")
    ]
    there = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="users/ann")["Contents"]
    assert {*others} <= {one["Key"] for one in there}
    listed = [parse_qs(one.query)["prefix"][0] for one in asked if one.path.strip("/") == bucket.name]
    assert all(one.path.startswith(wanted) or one.path.strip("/") == bucket.name for one in asked)
    assert all(prefix.startswith("users/anna/") for prefix in listed)
    assert {method for method, _, _ in proxy.requests} <= {"GET", "HEAD", "PUT", "POST", "DELETE"}


def test_a_put_is_one_request_that_carries_condition_and_checksum(store: S3Store, proxy: Proxy) -> None:
    data = bytes(range(256)) * 8000
    store.put("a/k", data)

    ((method, path, headers),) = proxy.requests
    assert (method, path.rpartition("/prefix/")[2]) == ("PUT", "a/k")
    assert headers["If-None-Match"] == "*"
    assert headers["Content-MD5"] == base64.b64encode(hashlib.md5(data).digest()).decode()  # noqa: S324  # S3's own
    assert "Expect" not in headers


def test_an_overwriting_put_is_one_request_without_condition(store: S3Store, proxy: Proxy) -> None:
    store.put("k", b"x", overwrite=True)

    ((method, _, headers),) = proxy.requests
    assert method == "PUT"
    assert "If-None-Match" not in headers


@pytest.mark.parametrize(
    ("asked", "header"),
    [((0, None), None), ((3, None), "bytes=3-"), ((2, 5), "bytes=2-4"), ((-4, None), "bytes=-4")],
)
def test_a_get_is_one_request_for_the_range(
    store: S3Store, bucket: Bucket, proxy: Proxy, asked: tuple[int, int | None], header: str | None
) -> None:
    start, end = asked
    bucket.write("k", b"0123456789")

    assert store.get("k", start=start, end=end) == b"0123456789"[start:end]
    ((method, _, headers),) = proxy.requests
    assert (method, headers.get("Range")) == ("GET", header)


def test_a_missing_key_a_delete_and_a_refused_create_are_one_request(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    bucket.write("taken", b"x")

    with pytest.raises(NotFoundError):
        store.get("k")
    store.delete("k")
    with pytest.raises(ExistsError):
        store.put("taken", b"x")

    assert proxy.methods == ["GET", "DELETE", "PUT"]


def keys_in(relay: Relay) -> list[str]:
    """Return the keys of a request that deletes many, below the prefix."""
    return [key.partition("/")[2] for key in re.findall(r"<Key>([^<]*)</Key>", relay.body.decode())]


def noting(seen: list[list[str]]) -> Callable[[Relay], None]:
    """Return a fault that only notes the keys of a request that deletes many."""

    def fault(relay: Relay) -> None:
        seen.append(keys_in(relay))
        relay.answer(*relay.passed_on())

    return fault


def put_all(bucket: Bucket, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: bucket.write(key, b"x"), keys))


def test_many_keys_are_deleted_by_one_request_for_each_1000(
    store: S3Store, bucket: Bucket, proxy: Proxy
) -> None:
    put_all(bucket, [*(f"k/{n}" for n in range(2, 2100, 210)), "kept"])
    seen = list[list[str]]()
    proxy.faults = [noting(seen)] * 3

    store.delete_many(f"k/{n}" for n in range(2100))

    assert [(method, path.partition("?")[2]) for method, path, _ in proxy.requests] == [
        ("POST", "delete")
    ] * 3
    assert sorted(map(len, seen)) == [100, 1000, 1000]
    assert all({"Content-MD5"} <= headers.keys() for _, _, headers in proxy.requests)
    assert [found.key for found in store.keys()] == ["kept"]


def test_no_key_is_no_request_and_one_is_its_own(store: S3Store, proxy: Proxy) -> None:
    store.delete_many([])
    store.delete_many(["k", "k"])

    assert proxy.methods == ["DELETE"]


def test_keys_below_a_prefix_with_odd_characters_are_deleted(bucket: Bucket, proxy: Proxy) -> None:
    options = {**bucket.storage_options, "endpoint_url": proxy.url}
    store = S3Store(f"s3://{bucket.name}/a&b <c> \"d\" 'ü'+%41", storage_options=options)
    other = S3Store(f"s3://{bucket.name}/a&b", storage_options=options)
    for each in (store, other):
        each.put("a=~.b/c", b"x")
        each.put("b", b"x")
    proxy.requests.clear()

    store.delete_many(["a=~.b/c", "b"])

    assert proxy.methods == ["POST"]
    assert [len([*each.keys()]) for each in (store, other)] == [0, 2]


def test_keys_below_a_prefix_that_no_document_can_name_are_deleted_one_by_one(
    bucket: Bucket, proxy: Proxy
) -> None:
    options = {**bucket.storage_options, "endpoint_url": proxy.url}
    store = S3Store(f"s3://{bucket.name}/a\x01\x1fb", storage_options=options)
    store.put_many([("a", b"x"), ("b", b"x")])
    proxy.requests.clear()

    store.delete_many(["a", "b"])

    assert proxy.methods == ["DELETE", "DELETE"]
    assert [*store.keys()] == []


def refusing(code: str, *keys: str) -> Callable[[Relay], None]:
    """Return a fault: the server deletes all but some keys, for which it answers with an error."""

    def fault(relay: Relay) -> None:
        named = [key for key in keys_in(relay) if key in keys]
        for key in named:
            relay.body = relay.body.replace(f"<Object><Key>prefix/{key}</Key></Object>".encode(), b"")
        relay.headers.replace_header("Content-Length", str(len(relay.body)))
        del relay.headers["Content-MD5"]
        relay.passed_on()
        refused = "".join(
            f"<Error><Key>prefix/{key}</Key><Code>{code}</Code><Message>no</Message></Error>" for key in named
        )
        document = f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{refused}</DeleteResult>'
        relay.answer(200, [("Content-Type", "application/xml")], document.encode())

    return fault


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", StorePermissionError),
        ("InvalidArgument", StoreError),
        ("Odd", StoreError),
    ],
)
def test_a_key_that_the_server_keeps_is_an_error_that_names_it_and_the_others_are_deleted(
    store: S3Store, bucket: Bucket, proxy: Proxy, code: str, kind: type[StoreError]
) -> None:
    put_all(bucket, ["a", "b", "c"])
    proxy.faults = [refusing(code, "b")]

    with pytest.raises(kind, match=f"'b': {code}: no") as caught:
        store.delete_many(["a", "b", "c"])
    assert type(caught.value) is kind
    assert [found.key for found in store.keys()] == ["b"]


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable", "OperationAborted"])
def test_a_key_that_may_be_deleted_later_is_asked_for_again_alone(
    store: S3Store, bucket: Bucket, proxy: Proxy, code: str
) -> None:
    put_all(bucket, ["a", "b", "c"])
    again = list[list[str]]()
    proxy.faults = [
        (503, "SlowDown"),
        refusing(code, "b"),
        noting(again),
    ]

    store.delete_many(["a", "b", "c"])

    assert proxy.methods == ["POST"] * 3
    assert again == [["b"]]
    assert list(store.keys()) == []


def test_an_absent_key_is_deleted_whatever_the_server_says_of_it(store: S3Store, proxy: Proxy) -> None:
    proxy.faults = [refusing("NoSuchKey", "b")]

    store.delete_many(["a", "b"])

    assert proxy.methods == ["POST"]


@pytest.mark.parametrize(
    "answer", [(501, "NotImplemented"), (400, "MalformedXML"), (405, "MethodNotAllowed"), (411, "Odd")]
)
def test_a_server_without_deletions_of_many_keys_is_asked_for_each_from_then_on(
    store: S3Store, bucket: Bucket, proxy: Proxy, answer: tuple[int, str]
) -> None:
    put_all(bucket, ["a", "b", "c", "d"])
    proxy.faults = [answer]

    store.delete_many(["a", "b"])
    store.delete_many(["c", "d"])

    assert proxy.methods == ["POST", *["DELETE"] * 4]
    assert list(store.keys()) == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [((403, "AccessDenied"), StorePermissionError), ((404, "NoSuchBucket"), StoreMissingError)],
)
def test_a_refused_deletion_of_many_keys_is_not_repeated_key_by_key(
    store: S3Store, proxy: Proxy, answer: tuple[int, str], kind: type[StoreError]
) -> None:
    proxy.faults, proxy.last_fault_stays = [answer], True

    with pytest.raises(kind):
        store.delete_many(["a", "b"])
    assert proxy.methods == ["POST"]


def test_a_page_in_place_of_the_answer_is_no_deletion(store: S3Store, bucket: Bucket, proxy: Proxy) -> None:
    put_all(bucket, ["a", "b"])
    proxy.faults = [lambda relay: relay.answer(200, [("Content-Type", "text/html")], b"<html>Sign in</html>")]

    with pytest.raises(StoreUnavailableError, match="expected an answer of an S3 service"):
        store.delete_many(["a", "b"])


# Faults


@pytest.mark.parametrize(("start", "end"), [(2, 5), (3, None), (-4, None), (20, None)])
def test_a_server_without_ranges_gives_the_same_bytes(
    store: S3Store, bucket: Bucket, proxy: Proxy, start: int, end: int | None
) -> None:
    bucket.write("k", b"0123456789")
    proxy.faults = [ignore_the_range]

    assert store.get("k", start=start, end=end) == b"0123456789"[start:end]


@pytest.mark.timeout(20)
def test_an_endpoint_that_nobody_serves_is_given_up_soon(bucket: Bucket) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = S3Store(bucket.url, storage_options={**bucket.storage_options, "endpoint_url": endpoint})

        with pytest.raises(StoreUnavailableError, match="endpoint_url"):
            store.put("k", b"x")


def test_missing_credentials_are_told_with_where_they_go(s3_endpoint: str) -> None:
    store = S3Store("s3://bucket", storage_options={"endpoint_url": s3_endpoint})

    with pytest.raises(StorePermissionError, match="AWS_ACCESS_KEY_ID"):
        store.get("k")
    with pytest.raises(StorePermissionError, match=r"^s3://bucket: NoCredentialsError"):
        list(store.keys())


def test_an_error_shows_no_credentials(bucket: Bucket, proxy: Proxy) -> None:
    options = {"key": "canary-key", "secret": "canary-secret", "endpoint_url": proxy.url}
    store = S3Store(bucket.url, storage_options=options)
    proxy.faults = [(403, "AccessDenied"), (400, "Odd")]

    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            store.get("k")
        assert "canary" not in str(caught.value)


def test_an_unknown_option_is_told_with_the_known_one_that_is_most_like_it(bucket: Bucket) -> None:
    store = S3Store(bucket.url, storage_options={**bucket.storage_options, "proflie": "one"})

    with pytest.raises(ConfigError, match=r"unknown storage option 'proflie'; did you mean 'profile'\?"):
        store.get("k")


# Configuration and processes


def test_two_threads_may_meet_at_the_first_use(bucket: Bucket) -> None:
    store = S3Store(bucket.url, storage_options=bucket.storage_options)
    start = threading.Barrier(2)

    def put(number: int) -> None:
        start.wait()
        store.put(f"k{number}", b"%d" % number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, range(2)))
    assert [bucket.read("k0"), bucket.read("k1")] == [b"0", b"1"]


def test_the_verbs_work_beside_a_running_loop(store: S3Store) -> None:
    async def use() -> bytes:
        store.put("k", b"x")
        return await asyncio.to_thread(store.get, "k")

    assert asyncio.run(use()) == b"x"
    assert asyncio.run(use_get(store)) == b"x"


async def use_get(store: S3Store) -> bytes:
    return store.get("k")


def test_loops_that_come_and_go_share_a_store(bucket: Bucket) -> None:
    store = S3Store(bucket.url, storage_options=bucket.storage_options)

    async def use(run: int) -> list[bytes]:
        await asyncio.gather(*(asyncio.to_thread(store.put, f"r{run}k{n}", b"%d" % n) for n in range(5)))
        return await asyncio.gather(*(asyncio.to_thread(store.get, f"r{run}k{n}") for n in range(5)))

    assert asyncio.run(use(0)) == asyncio.run(use(1)) == [b"%d" % n for n in range(5)]


def test_a_call_on_the_thread_that_would_serve_it_is_refused(store: S3Store) -> None:
    async def wait_for_itself() -> None:
        store.get("k")

    with pytest.raises(ConfigError, match="thread"):
        store._client.run(wait_for_itself)


def in_child(code: str, bucket: Bucket, options: dict[str, Any], **environment: str) -> None:
    preamble = (
        "import json, os, sys; from offload_backends.s3 import S3Store; "
        "store = S3Store(sys.argv[1], storage_options=json.loads(sys.argv[2]))\n"
    )
    done = prepared.run(
        preamble + code, bucket.url, json.dumps(options), environ={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr


def test_a_child_forked_while_a_put_is_under_way_uses_the_store(bucket: Bucket) -> None:
    forking = """
import threading
large = bytes(20 * 1024 * 1024)
store.put("before", b"1")
writer = threading.Thread(target=store.put, args=("large", large))
writer.start()
child = os.fork()
if child == 0:
    store.put("child", store.get("before"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.join()
"""
    in_child(forking, bucket, bucket.storage_options)

    assert (bucket.read("child"), bucket.read("large")) == (b"1", bytes(20 * 1024 * 1024))


def test_configuration_may_come_from_fsspec_variables(bucket: Bucket, s3_endpoint: str) -> None:
    variables = {
        "FSSPEC_S3_KEY": "key",
        "FSSPEC_S3_SECRET": "secret",
        "FSSPEC_S3_ENDPOINT_URL": s3_endpoint,
    }
    in_child("store.put('k', b'x')", bucket, {}, **variables)

    assert bucket.read("k") == b"x"


def checksums(proxy: Proxy) -> list[set[str]]:
    """Return the names of the headers of each request that hold a checksum."""
    return [
        {name.lower() for name in headers if name.lower().startswith(("x-amz-checksum", "x-amz-sdk-check"))}
        for _, _, headers in proxy.requests
    ]


def test_an_endpoint_of_the_configuration_file_is_sent_no_newer_checksums(
    bucket: Bucket, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "config"
    configuration.write_text(f"[default]\nendpoint_url = {proxy.url}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configuration))
    store = S3Store(bucket.url, storage_options={"key": "key", "secret": "secret"})

    store.put("k", b"x", overwrite=True)

    assert bucket.read("k") == b"x"
    assert checksums(proxy) == [set()]


def test_checksums_that_the_caller_chose_are_sent(bucket: Bucket, proxy: Proxy) -> None:
    chosen = {"request_checksum_calculation": "when_supported"}
    options = {**bucket.storage_options, "endpoint_url": proxy.url, "config_kwargs": chosen}
    store = S3Store(bucket.url, storage_options=options)

    store.put("k", b"x", overwrite=True)

    assert checksums(proxy) == [{"x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm"}]


@pytest.mark.parametrize(("chosen", "named"), [({}, "offload/"), ({"user_agent": "mine/1"}, "mine/1")])
def test_a_request_names_the_library_or_what_the_caller_chose(
    bucket: Bucket, proxy: Proxy, chosen: dict[str, str], named: str
) -> None:
    options = {**bucket.storage_options, "endpoint_url": proxy.url, "config_kwargs": chosen}

    S3Store(bucket.url, storage_options=options).put("k", b"x", overwrite=True)

    ((_, _, headers),) = proxy.requests
    assert headers["User-Agent"].startswith(named)


def test_a_batch_to_a_bucket_that_is_not_there_is_not_tried_item_by_item(
    bucket: Bucket, proxy: Proxy
) -> None:
    options = {**bucket.storage_options, "endpoint_url": proxy.url}
    store = S3Store("s3://not-there", storage_options=options)

    errors = store.put_many([(f"k{n:03}", b"x") for n in range(200)])

    assert all(isinstance(e, StoreMissingError) for e in errors)
    assert len(proxy.requests) <= 64


def options_through(bucket: Bucket, endpoint: str, key: str = "key") -> dict[str, Any]:
    return {**bucket.storage_options, "endpoint_url": endpoint, "key": key}


@pytest.mark.parametrize("differs", ["endpoint", "environment", "key"])
def test_two_services_under_one_url_have_two_identities(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    direct = {n: v for n, v in bucket.storage_options.items() if n != "endpoint_url"}
    first = S3Store(bucket.url, storage_options=bucket.storage_options)
    options = {
        "endpoint": options_through(bucket, proxy.url),
        "environment": direct,
        "key": options_through(bucket, proxy.url, "another"),
    }[differs]
    if differs == "key":
        first = S3Store(bucket.url, storage_options=options_through(bucket, proxy.url))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)

    assert first.identity() != S3Store(bucket.url, storage_options=options).identity()


def test_a_store_is_told_by_nothing_that_opens_it(bucket: Bucket, proxy: Proxy) -> None:
    options = {"key": "AKIAIDENTITY", "secret": "hunter2-canary", "endpoint_url": proxy.url}

    told = S3Store(bucket.url, storage_options=options).identity()

    assert told.startswith(bucket.url)
    assert not any(text in told for text in (*options.values(), proxy.url))
    assert S3Store(bucket.url, storage_options={**options, "secret": "other"}).identity() == told
    assert proxy.requests == []


def test_a_store_without_credentials_is_told_too(bucket: Bucket, proxy: Proxy) -> None:
    store = S3Store(bucket.url, storage_options={"anon": True, "endpoint_url": proxy.url})

    assert store.identity() != S3Store(bucket.url, storage_options=bucket.storage_options).identity()

"""One session on one S3 prefix: several processes, and what each step costs in requests."""

from __future__ import annotations

import json

import prepared
import pytest
from kit.conversation import results
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from offload import NotFoundError, Offloader, OffloadPolicy, Rule, StoreMissingError, StoreUnavailableError

LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))

READER = """
import json, sys
from offload import Offloader
url, session, options = sys.argv[1:4]
off = Offloader(url, session=session, storage_options=json.loads(options))
print(json.dumps(off.restore(json.load(sys.stdin))))
"""

WRITER = """
import json, sys
from offload import Offloader
url, session, options, name, count = sys.argv[1:6]
off = Offloader(url, session=session, storage_options=json.loads(options))
for n in range(int(count)):
    off.offload_text(f"{name} {n}\\n" * 3000, tool_use_id=f"{name}-{n}")
print("done")
"""


@pytest.fixture
def options(s3_bucket):
    return json.dumps(s3_bucket.storage_options)


@pytest.fixture
def counted(s3_bucket, proxy):
    """Return how to open an offloader whose requests are written down by the proxy.

    Another machine has written to the bucket before, and left there what the server does with conditions.
    """
    s3_bucket.write("offload.json", b'{"format": 1, "create": "enforced"}')
    options = {**s3_bucket.storage_options, "endpoint_url": proxy.url}
    return lambda **more: Offloader(s3_bucket.url, session="s", storage_options=options, **more)


def test_another_process_restores_from_the_url_and_the_session_alone(s3_bucket, options):
    messages = results(LOG, LOG[::-1], "small")
    off = Offloader(s3_bucket.url, session="s", storage_options=s3_bucket.storage_options)
    out = off.offload(messages)

    reader = prepared.start(READER, s3_bucket.url, "s", options)
    restored, _ = reader.communicate(json.dumps(out.messages))

    assert len(out.records) == 2
    assert out.messages != messages
    assert json.loads(restored) == messages


def test_what_several_processes_write_at_once_is_all_there_for_a_reader(s3_bucket, options):
    writers = [prepared.start(WRITER, s3_bucket.url, "s", options, name, "5") for name in ("a", "b", "c")]
    reader = Offloader(s3_bucket.url, session="s", storage_options=s3_bucket.storage_options)

    while any(w.poll() is None for w in writers):
        for record in reader.records():
            first_line = reader.tools.read(record.ref, start_line=1, end_line=1).split("\n")[1]
            assert first_line[:2] in ("a ", "b ", "c ")

    assert [w.communicate()[0] for w in writers] == ["done\n"] * 3
    listed = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name, Prefix="prefix/r/s/")["Contents"]
    assert len(listed) == 15
    assert {f"prefix/{r.key}" for r in reader.records()} == {item["Key"] for item in listed}


def test_a_second_writer_of_the_same_items_overwrites_nothing_and_says_the_same(s3_bucket):
    def written():
        listed = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name, Prefix="prefix/r/")["Contents"]
        return [(item["Key"], item["ETag"], item["LastModified"]) for item in listed]

    messages = results(LOG, LOG[::-1])
    first = Offloader(s3_bucket.url, session="s", storage_options=s3_bucket.storage_options).offload(messages)
    before = written()
    other = OffloadPolicy(types={"tool_result": Rule(preview_chars=200)})

    again = Offloader(
        s3_bucket.url, session="s", storage_options=s3_bucket.storage_options, policy=other
    ).offload(messages)

    assert again.messages == first.messages
    assert written() == before


def test_an_item_that_leaves_costs_one_put_once_the_server_is_known_and_a_turn_with_nothing_new_nothing(
    counted, proxy
):
    off = counted()

    off.offload(results(LOG))
    # The descriptor; a listing, since the call of the result is not in the list; the record.
    assert proxy.methods == ["GET", "GET", "PUT"]
    assert any(path.endswith("/prefix/offload.json") for _, path, _ in proxy.requests)
    proxy.requests.clear()

    off.offload(results(LOG))
    off.offload(results(LOG, "small"))
    assert proxy.methods == []

    off.offload(results(LOG, "small", LOG[::-1], LOG * 2, LOG * 3))
    assert proxy.methods == ["PUT"] * 3


def test_a_small_read_costs_one_get(counted, proxy):
    off = counted()
    [record] = off.offload(results(LOG)).records
    proxy.requests.clear()

    off.tools.read(record.ref, start_line=100, end_line=110)
    assert proxy.methods == ["GET"]

    proxy.requests.clear()
    counted().tools.tail(record.ref)
    assert [("LIST" if "list-type=2" in path else method) for method, path, _ in proxy.requests] == [
        "LIST",
        "GET",
    ]


def test_a_restore_costs_one_listing_and_a_get_for_each_record(counted, proxy):
    out = counted().offload(results(LOG, LOG[::-1], LOG * 2))
    proxy.requests.clear()

    counted().restore(out.messages)

    listings = [path for method, path, _ in proxy.requests if "list-type=2" in path]
    assert len(listings) == 1
    assert proxy.methods == ["GET"] * 4


def test_a_range_of_a_large_record_costs_two_gets_and_less_than_a_mebibyte(counted, proxy):
    lines = (f"{n} {n * 7919 % 1_000_003} {n * 104_729 % 999_983}\n" for n in range(400_000))
    text = "".join(lines)
    off = counted()
    [record] = off.offload(results(text)).records
    assert record.stored_bytes > 2_000_000

    for arguments in ({"offset": len(text) // 2}, {"start_line": 200_000, "end_line": 200_100}):
        proxy.requests.clear()
        proxy.bytes_sent = 0
        answer = off.tools.call("context_read", {"id": record.ref, **arguments})
        assert answer.split("\n")[1] in text
        assert 1 <= len(proxy.methods) <= 2
        assert proxy.bytes_sent < 1024 * 1024

    proxy.requests.clear()
    off.tools.tail(record.ref, lines=20)
    assert len(proxy.methods) <= 2


def test_the_next_page_of_a_record_costs_one_get_and_of_a_small_one_none(counted, proxy):
    off = counted()
    text = "".join(f"{n} {n * 7919 % 1_000_003}\n" for n in range(400_000))
    small, large = off.offload(results(LOG, text)).records
    for record in (small, large):
        off.tools.read(record.ref, offset=0, limit=100)
    proxy.requests.clear()

    off.tools.read(small.ref, offset=9000, limit=100)
    assert proxy.methods == []

    off.tools.read(large.ref, offset=len(text) // 2, limit=8000)
    assert proxy.methods == ["GET"]


def test_opening_a_session_costs_one_listing_per_thousand_records(counted, proxy, s3_bucket):
    # As requests they would take seconds: moto serves the bucket from the memory of this process.
    server = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for n in range(1100):
        name = "".join(chr(ord("a") + int(d)) for d in f"{n:010}")
        key = f"{s3_bucket.prefix}/r/s/{name}~tool_result~~10~3.zst"
        server.put_object(s3_bucket.name, key, b"x")

    assert len(counted().records()) == 1100

    assert len(proxy.methods) == 2


def test_an_unknown_ref_costs_one_listing_by_its_prefix_and_the_first_one_looks_for_a_parent(counted, proxy):
    off = counted()

    for _ in range(2):
        with pytest.raises(NotFoundError):
            off.tools.read("abcdefghij")

    assert proxy.methods == ["GET"] * 3
    assert all("list-type=2" in request[1] for request in proxy.requests)


def test_a_bucket_that_is_not_there_leaves_the_messages_and_says_so(s3_bucket):
    messages = results(LOG)
    off = Offloader("s3://not-there/prefix", storage_options=s3_bucket.storage_options)

    out = off.offload(messages)

    assert out.messages[0] is messages[0]
    [error] = out.errors
    assert isinstance(error, StoreMissingError)
    assert "not-there" in str(error)


def test_an_endpoint_that_nobody_serves_leaves_the_messages_and_is_waited_for_once(s3_bucket):
    messages = results(LOG, LOG * 2, LOG * 3)
    options = {**s3_bucket.storage_options, "endpoint_url": "http://127.0.0.1:9"}
    off = Offloader("s3://bucket/prefix", storage_options=options)

    out = off.offload(messages)

    assert all(a is b for a, b in zip(out.messages, messages, strict=True))
    [error] = out.errors
    assert isinstance(error, StoreUnavailableError)
    assert "secret" not in str(error).replace("secret=", "")

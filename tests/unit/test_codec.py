"""Damage is found, lies about sizes are refused, and a range costs what it is worth."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zstandard
from encoded import facts
from strength import some

from offload.errors import CorruptError
from offload.records.codec import get_codec
from offload.records.codec.base import StoredRecord
from offload.records.record import Header
from offload.records.record.header import Counts

MIB = 1024 * 1024


class CountingFetch:
    """Reads from bytes, and counts what it was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sizes: list[int] = []

    def __call__(self, *, start: int = 0, end: int | None = None) -> bytes:
        part = self.data[start:end]
        self.sizes.append(len(part))
        return part


def encode(text: str, ref: str = "abcdefghij", session: str = "s") -> bytes:
    return get_codec("zstd").encode(*facts(text, ref, session)).body


def reopen(body: bytes) -> StoredRecord:
    return get_codec("zstd").open(CountingFetch(body))


def skippable(magic: int, payload: bytes) -> bytes:
    return struct.pack("<II", magic, len(payload)) + payload


def build(
    text: str, frames: list[tuple[bytes, int]], *, head: dict[str, Any] | None = None, **tail: Any
) -> bytes:
    """Return a record put together by hand: `frames` are (stored bytes, claimed size)."""
    header, content = facts(text)
    head_map = msgspec.msgpack.decode(msgspec.msgpack.encode(header)) | (head or {})
    packed = msgspec.msgpack.encode(head_map)
    start = skippable(0x184D2A50, packed + struct.pack("<I", zlib.crc32(packed)))
    stored = start + b"".join(f for f, _ in frames)
    tail_map = {
        "ref": header.ref,
        "session": header.session,
        "counts": msgspec.msgpack.decode(msgspec.msgpack.encode(content.counts)),
        "chars": len(text).to_bytes(3, "little") * len(frames),
        "newlines": text.count("\n").to_bytes(3, "little") * len(frames),
        "stored_crc32": zlib.crc32(stored),
    }
    packed = msgspec.msgpack.encode(tail_map | tail)
    rows = [(len(start), 0), *((len(f), size) for f, size in frames), (len(packed) + 12, 0)]
    entries = b"".join(struct.pack("<II", *row) for row in rows)
    table = skippable(0x184D2A5E, entries + struct.pack("<IBI", len(rows), 0, 0x8F92EAB1))
    return stored + skippable(0x184D2A51, packed + struct.pack("<I", zlib.crc32(packed + table))) + table


def frame(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


@pytest.fixture(scope="module")
def small() -> bytes:
    rng = random.Random(1)  # noqa: S311 # reproducible
    body = encode("".join(f"{rng.random()} line {n} of a log\n" for n in range(90)))
    assert 1300 < len(body) < 1900
    return body


@pytest.fixture(scope="module")
def large_text() -> str:
    """Return 20 million characters in lines of 100 that compress to half."""
    rng = random.Random(2)  # noqa: S311 # reproducible
    digits = rng.randbytes(10_000_000).hex()
    return "\n".join(digits[i : i + 99] for i in range(0, len(digits), 99))


@pytest.fixture(scope="module")
def large(large_text: str) -> bytes:
    return encode(large_text)


# --- damage ---------------------------------------------------------------------------------------


def everything(body: bytes) -> tuple[bytes, Header, Counts]:
    record = reopen(body)
    return record.load(), record.header, record.counts


def changed_reads(body: bytes, damaged: Iterator[tuple[str, bytes]]) -> list[str]:
    """Return the damages after which `load`, or a range, gave anything but CorruptError or the truth."""
    truth = everything(body)
    text = truth[0].decode("utf-8", "surrogatepass")
    wrong = []
    for what, bad in damaged:
        try:
            everything(bad)
            wrong.append(f"{what}: load")
        except CorruptError:
            pass
        try:
            content = reopen(bad).content
            if content.text(0, len(text) + 1) != text:
                wrong.append(f"{what}: text")
        except CorruptError:
            pass
    return wrong


def flipped(body: bytes, bit: int) -> bytes:
    bad = bytearray(body)
    bad[bit // 8] ^= 1 << bit % 8
    return bytes(bad)


def test_every_missing_beginning_of_a_small_record_is_found(small: bytes) -> None:
    cuts = ((f"from {n}", small[n:]) for n in some(range(1, len(small)), 3))
    assert changed_reads(small, cuts) == []


def test_junk_before_or_after_a_record_is_found(small: bytes) -> None:
    junk = [b"\0", b"junk", small, frame(b"more"), b"\0" * 60_000]
    before = ((f"{len(j)} before", j + small) for j in junk)
    after = ((f"{len(j)} after", small + j) for j in junk if j != small)
    assert changed_reads(small, before) == []
    assert changed_reads(small, after) == []
    for alone in (b"", b"x", b"PK\x03\x04" * 50, b"\0" * 200, frame(b"plain zstd")):
        with pytest.raises(CorruptError):
            reopen(alone)


def test_junk_farther_before_a_record_than_is_looked_at_changes_nothing_that_is_read(small: bytes) -> None:
    assert everything(b"\0" * 70_000 + small) == everything(small)


def test_swapped_halves_of_two_records_are_found() -> None:
    one, other = encode("one " * 200, "aaaaaaaaaa"), encode("two " * 200, "bbbbbbbbbb")
    assert len(one) == len(other)
    mixtures = {one[:cut] + other[cut:] for cut in range(len(one))} - {one, other}
    assert len(mixtures) > 100
    for mixture in mixtures:
        with pytest.raises(CorruptError):
            everything(mixture)


def test_a_record_under_the_key_of_another_says_whose_it_is() -> None:
    # The session compares these with the key; a swap of whole objects is whole in itself.
    record = reopen(encode("text", "bbbbbbbbbb", "other"))
    assert (record.ref, record.session) == ("bbbbbbbbbb", "other")


def test_frames_in_another_order_are_found_by_load_and_at_the_end_of_a_stream() -> None:
    body = build("ab", [(frame(b"b"), 1), (frame(b"a"), 1)], chars=b"\1\0\0" * 2)
    with pytest.raises(CorruptError, match="SHA-256"):
        reopen(body).load()
    stream = reopen(body).stream()
    assert (next(stream), next(stream)) == (b"b", b"a")
    with pytest.raises(CorruptError, match="SHA-256"):
        next(stream)


def test_a_stream_gives_right_bytes_alone_before_it_finds_the_damage() -> None:
    rng = random.Random(5)  # noqa: S311 # reproducible
    text = rng.randbytes(600_000).hex()
    body, truth = encode(text), text.encode()
    for bit in (rng.randrange(8 * len(body)) for _ in some(range(200), 4)):
        given: list[bytes] = []
        with pytest.raises(CorruptError):
            given.extend(reopen(flipped(body, bit)).stream())
        assert truth.startswith(b"".join(given))


def test_stored_bytes_that_no_frame_checks_and_lines_that_are_claimed_are_checked_when_read() -> None:
    record = reopen(build("ab", [(frame(b"ab"), 2)], stored_crc32=7))
    with pytest.raises(CorruptError, match="CRC-32"):
        list(record.stream())
    record = reopen(build("a\nb", [(frame(b"a\nb"), 3)], newlines=b"\5\0\0"))
    with pytest.raises(CorruptError):
        record.content.line_start(4)


# --- lies -----------------------------------------------------------------------------------------


def test_the_hand_made_record_is_one() -> None:
    # Else the refusals below would prove nothing.
    record = reopen(build("hello\n", [(frame(b"hello\n"), 6)]))
    assert record.load() == b"hello\n"
    assert record.content.text(0, 9) == "hello\n"


def claims_64_gib() -> bytes:
    # Magic, single segment with an 8-byte size and a checksum, one empty last block, the checksum.
    return struct.pack("<IBQ", 0xFD2FB528, 0xE4, 64 * 1024 * MIB) + b"\x01\0\0" + b"\0\0\0\0"


@pytest.mark.parametrize(
    ("stored", "claimed"),
    [
        (claims_64_gib(), 5),
        (claims_64_gib(), 256 * 1024),
        (frame(bytes(512 * MIB)), 5),
        (frame(b"hello"), 2**32 - 1),
        (frame(b"hello"), 4),
        (frame(b"hello"), 0),
        (frame(b"hello") + frame(b"more"), 5),
        (skippable(0x184D2A52, b"hello"), 5),
        (zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(b"hello"), 5),
        (zstandard.ZstdCompressor(write_checksum=False).compress(b"hello"), 5),
        (b"", 5),
        (b"no frame", 5),
    ],
    ids=[
        "64GiB",
        "64GiB-chunk",
        "bomb",
        "row-4GiB",
        "row-less",
        "row-0",
        "two",
        "skip",
        "no-size",
        "no-sum",
        "none",
        "no-frame",
    ],
)
def test_a_frame_that_lies_about_its_size_is_refused_without_taking_memory(
    stored: bytes, claimed: int
) -> None:
    counts = msgspec.structs.replace(facts("hello")[1].counts, bytes=claimed)
    body = build("hello", [(stored, claimed)], counts=msgspec.to_builtins(counts, builtin_types=(bytes,)))
    tracemalloc.start()
    for read in (lambda: reopen(body).load(), lambda: reopen(body).content.text(0, 5)):
        with pytest.raises(CorruptError):
            read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MIB


def test_a_seek_table_that_lies_about_its_rows_or_the_tail_is_refused_without_taking_memory(
    small: bytes,
) -> None:
    rows = (0, 1, 4, 1000, 4 * MIB, 2**32 - 1)
    sizes = (0, 7, 5000, 31 * MIB, 2**32 - 1)
    lies = [small[:-9] + struct.pack("<IBI", number, 0, 0x8F92EAB1) for number in rows]
    lies += [small[:-17] + struct.pack("<I", size) + small[-13:] for size in sizes]
    tracemalloc.start()
    for body in lies:
        with pytest.raises(CorruptError):
            reopen(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


def test_a_frame_larger_than_a_chunk_can_make_it_is_refused_before_it_is_fetched() -> None:
    fetch = CountingFetch(build("hello", [(bytes(9 * MIB), 5)]))
    with pytest.raises(CorruptError, match="disagree"):
        get_codec("zstd").open(fetch)
    assert sum(fetch.sizes) < MIB


def test_sizes_and_counts_that_do_not_add_up_are_refused() -> None:
    hello = (frame(b"hello"), 5)
    for body in (
        build("hello", [hello, (frame(b"more"), 4)]),
        build("hello", [hello], chars=b""),
        build("hello", [hello], chars=b"\5\0\0" * 2),
    ):
        with pytest.raises(CorruptError, match="disagree"):
            reopen(body)


@pytest.mark.parametrize(
    "head",
    [{"ref": "zzzzzzzzzz"}, {"session": "t"}, {"sha256": b"0" * 32}, {"ref": 7}, {"placeholder": None}],
)
def test_a_head_that_is_not_of_its_tail_is_refused(head: dict[str, Any]) -> None:
    with pytest.raises(CorruptError):
        reopen(build("hello", [(frame(b"hello"), 5)], head=head)).load()


def test_fields_of_a_later_version_are_passed_over() -> None:
    body = build("hello", [(frame(b"hello"), 5)], head={"later": [1], "schema_version": 2}, later={"a": None})
    record = reopen(body)
    assert record.load() == b"hello"
    assert (record.header.tool_name, record.header.schema_version) == ("Bash", 2)


# --- cost -----------------------------------------------------------------------------------------


def test_eight_kilobytes_of_a_large_record_cost_two_fetches_and_under_a_megabyte(
    large: bytes, large_text: str
) -> None:
    rng = random.Random(4)  # noqa: S311 # reproducible
    starts = [c * 256 * 1024 + rng.randrange(240 * 1024) for c in rng.sample(range(70), 20)]
    across_two_chunks = 20 * 256 * 1024 - 4096
    for start in [0, len(large_text) - 8192, across_two_chunks, *starts]:
        fetch = CountingFetch(large)
        content = get_codec("zstd").open(fetch).content
        assert content.text(start, start + 8192) == large_text[start : start + 8192]
        assert len(fetch.sizes) <= 2
        assert sum(fetch.sizes) <= MIB


def test_the_last_lines_of_a_large_record_cost_two_fetches_and_its_header_no_content(
    large: bytes, large_text: str
) -> None:
    fetch = CountingFetch(large)
    record = get_codec("zstd").open(fetch)
    assert record.header.tool_name == "Bash"
    assert len(fetch.sizes) == 2
    assert sum(fetch.sizes) < 70_000
    fetch = CountingFetch(large)
    content = get_codec("zstd").open(fetch).content
    start = content.line_start(content.newlines + 1 - 19)
    assert content.text(start, content.chars).split("\n") == large_text.split("\n")[-20:]
    assert len(fetch.sizes) <= 2
    assert sum(fetch.sizes) <= MIB


def test_a_small_record_costs_one_fetch(small: bytes) -> None:
    fetch = CountingFetch(small)
    record = get_codec("zstd").open(fetch)
    record.load()
    record.content.text(0, 100)
    assert record.header.session == "s"
    assert fetch.sizes == [len(small)]


def test_a_seek_table_of_more_than_64_kib_costs_one_more_fetch_of_its_size() -> None:
    text, chunks = "a" * 256 * 1024, 5000
    size = len(text) * chunks
    counts = {"bytes": size, "chars": size, "lines": 1, "tokens": size // 4, "sha256": bytes(32)}
    body = build(text, [(frame(text.encode()), len(text))] * chunks, counts=counts)
    fetch = CountingFetch(body)
    assert get_codec("zstd").open(fetch).counts.bytes == size
    assert fetch.sizes[0] == 64 * 1024 < fetch.sizes[1] < 150_000 < len(body)
    assert len(fetch.sizes) == 2


def test_a_stream_of_a_large_record_fetches_every_byte_once_and_8_mib_at_a_time(
    large: bytes, large_text: str
) -> None:
    fetch = CountingFetch(large)
    assert b"".join(get_codec("zstd").open(fetch).stream()) == large_text.encode()
    assert sum(fetch.sizes) == len(large)
    assert max(fetch.sizes) <= 8 * MIB
    assert len(fetch.sizes) == 1 + -(-len(large) // (8 * MIB))


def test_content_that_was_read_is_let_go_of_at_once(large: bytes) -> None:
    record = reopen(large)
    content = record.content
    assert content.text(1000, 1010)
    is_alive = weakref.ref(content)
    gc.disable()
    try:
        del content
        assert is_alive() is None
    finally:
        gc.enable()


def test_a_walk_through_a_large_record_fetches_no_byte_twice(large: bytes, large_text: str) -> None:
    fetch = CountingFetch(large)
    _, chunks = get_codec("zstd").open(fetch).content.chunks_from(0)
    assert sum(len(c) for c in chunks) == len(large_text)
    assert sum(fetch.sizes) <= len(large)
    assert max(fetch.sizes) <= 8 * MIB

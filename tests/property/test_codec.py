"""Any text goes into a record and comes out of it, whole and by range."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, strategies as st
from kit.inner import fetch_from
from strength import examples

from offload.base.text import encode_text
from offload.records.codec import get_codec
from offload.records.codec.base import Encoded, StoredRecord
from offload.records.codec.content import TextContent
from offload.records.record import Header
from offload.records.record.header import Counts, draw_ref

many = examples(100)
# Texts of several chunks are slow to make, so there are fewer of them.
few = examples(25, suppress_health_check=[HealthCheck.too_slow])

CHUNK = 256 * 1024
any_char = st.characters(exclude_categories=())
short_texts = st.text(any_char) | st.text("a\r\n\0é\ud800\U0001f600", max_size=200)
pieces = [
    "a",
    "\n",
    "é\n",
    "€uro",
    "\U0001f600",
    "\ud800",
    "word\r\n",
    "\0",
    "x" * 99 + "\n",
    "é\U0001f600\ud800\n",
]
# The padding moves wide characters across the border of a chunk, byte by byte.
long_texts = st.builds(
    lambda pad, piece, size, end: "x" * pad + piece * (size // len(encode_text(piece))) + end,
    st.integers(0, 5),
    st.sampled_from(pieces),
    st.sampled_from([CHUNK - 4, CHUNK, CHUNK + 4, 2 * CHUNK + 2, 3 * CHUNK]),
    st.sampled_from(["", "\n", "end", "\U0001f600"]),
)
codecs = pytest.mark.parametrize("codec", ["zstd", "json", "raw"])


def encode(text: str, codec: str = "zstd") -> tuple[Header, Counts, Encoded]:
    content = TextContent.of(text, 7)
    counts = content.counts
    header = Header(
        ref=draw_ref("s", "tool_result", "toolu_1", counts.sha256),
        session="s",
        item_type="tool_result",
        tool_name="Bash",
        tool_use_id="toolu_1",
        created_at=1.5,
        sha256=counts.sha256,
        placeholder="[Offloaded]",
    )
    return header, counts, get_codec(codec).encode(header, content)


def reopen(text: str, codec: str = "zstd") -> StoredRecord:
    encoded = encode(text, codec)[2]
    sidecar = None if encoded.sidecar is None else fetch_from(encoded.sidecar)
    return get_codec(codec).open(fetch_from(encoded.body), sidecar)


def assert_round_trip(text: str, codec: str) -> None:
    header, counts, _ = encode(text, codec)
    record = reopen(text, codec)
    assert record.load() == text.encode("utf-8", "surrogatepass")
    chunks = list(record.stream())
    assert "".join(str(chunk, "utf-8", "surrogatepass") for chunk in chunks) == text
    assert all(0 < len(chunk) <= CHUNK for chunk in chunks)
    assert (record.header, record.counts) == (header, counts)
    assert (record.ref, record.session) == (header.ref, "s")


def is_pair_of_halves(text: str) -> bool:
    return any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in itertools.pairwise(text))


@codecs
@many
@given(text=short_texts.filter(lambda t: not is_pair_of_halves(t)))
def test_any_text_comes_back_byte_for_byte(codec: str, text: str) -> None:
    assert_round_trip(text, codec)


@pytest.mark.parametrize(
    "codec",
    [
        "zstd",
        pytest.param(
            "json",
        ),
        "raw",
    ],
)
def test_two_halves_of_a_character_stay_two(codec: str) -> None:
    assert_round_trip("\ud83d" + "\ude00", codec)


@codecs
@few
@given(text=long_texts)
def test_a_text_of_several_chunks_comes_back_byte_for_byte(codec: str, text: str) -> None:
    assert_round_trip(text, codec)


@few
@given(text=long_texts | short_texts, data=st.data())
def test_a_range_is_the_slice_of_the_text(text: str, data: st.DataObject) -> None:
    content = reopen(text).content
    assert (content.chars, content.newlines) == (len(text), text.count("\n"))
    near_border = st.integers(-3, 3).map(lambda d: CHUNK + d)
    places = st.integers(0, len(text) + 2) | near_border
    for _ in range(5):
        start, end = data.draw(places), data.draw(places)
        assert content.text(start, end) == (text[start:end] if start < end else "")


@few
@given(text=long_texts | short_texts, data=st.data())
def test_lines_start_and_hold_their_characters_where_the_text_has_them(
    text: str, data: st.DataObject
) -> None:
    content = reopen(text).content
    lines = text.split("\n")
    for _ in range(4):
        line = data.draw(st.integers(1, len(lines) + 1))
        start = len("\n".join(lines[: line - 1])) + (line > 1)
        assert content.line_start(line) == min(start, len(text))
        char = data.draw(st.integers(0, len(text)))
        assert content.line_at(char) == text.count("\n", 0, char) + 1


def assert_bytes_know_their_characters(text: str, data: st.DataObject) -> None:
    content = reopen(text).content
    for _ in range(4):
        char = data.draw(st.integers(0, len(text)))
        byte = len(text[:char].encode("utf-8", "surrogatepass"))
        width = len(text[char : char + 1].encode("utf-8", "surrogatepass"))
        assert content.char_at(byte + data.draw(st.integers(0, max(0, width - 1)))) == char


@few
@given(text=(long_texts | short_texts).filter(lambda t: "\ud800" not in t and encodes(t)), data=st.data())
def test_a_byte_belongs_to_the_character_that_it_is_part_of(text: str, data: st.DataObject) -> None:
    assert_bytes_know_their_characters(text, data)


def encodes(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def test_a_byte_after_a_lone_surrogate_belongs_to_its_character_too() -> None:
    content = reopen("\ud800abc\udfffd").content
    assert [content.char_at(b) for b in range(10)] == [0, 0, 0, 1, 2, 3, 4, 4, 4, 5]


@few
@given(text=long_texts | short_texts, byte=st.integers(0, 4 * CHUNK))
def test_the_chunks_from_a_byte_on_are_the_content_from_there_with_one_byte_before(
    text: str, byte: int
) -> None:
    content, raw = reopen(text).content, text.encode("utf-8", "surrogatepass")
    offset, chunks = content.chunks_from(byte)
    assert b"".join(chunks) == raw[offset:]
    if raw:
        assert offset <= max(0, min(byte, len(raw)) - 1) < offset + CHUNK


@few
@given(text=long_texts | short_texts)
def test_the_seekable_reader_of_another_library_reads_the_content(text: str) -> None:
    pyzstd = pytest.importorskip("pyzstd", reason="pyzstd is the oracle of the seekable format")
    raw = text.encode("utf-8", "surrogatepass")
    with pyzstd.SeekableZstdFile(io.BytesIO(encode(text)[2].body)) as file:
        file.seek(len(raw) // 2)
        assert file.read() == raw[len(raw) // 2 :]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not installed")
@examples(15)
@given(text=long_texts | short_texts)
def test_the_program_zstd_decompresses_a_record_to_its_content(text: str) -> None:
    body = encode(text)[2].body
    done = subprocess.run(["zstd", "-dc"], input=body, capture_output=True, check=True)  # noqa: S607 # the user's own
    assert done.stdout == text.encode("utf-8", "surrogatepass")

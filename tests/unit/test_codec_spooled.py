"""Content that arrives in parts makes the record that it would have made in one, and holds little of it."""

from __future__ import annotations

import itertools
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from encoded import header_of
from strength import thinned

from offload.errors import StoreError
from offload.records.codec import get_codec
from offload.records.codec.base import Encoded
from offload.records.codec.content import TextContent
from offload.records.codec.spooled import ContentWriter, SpooledContent
from offload.storage.store import SupportsStreams, put_stream
from offload_backends.local import LocalStore

MIB = 1024 * 1024
# The padding moves wide characters across the border of a chunk, byte by byte.
LONG_TEXTS = [
    "x" * 9 * MIB,
    "\n" * (8 * MIB + 1),
    *thinned(("x" * pad + "é\U0001f600\ud800\n" * 900_000 for pad in range(5)), 5),
    "0123456789\n" * 900_000 + "no newline at the end",
]


@pytest.fixture
def writer() -> Iterator[ContentWriter]:
    writer = ContentWriter(len)
    yield writer
    writer.close()


def add_in_parts(writer: ContentWriter, text: str, seed: int = 1) -> str | SpooledContent:
    rng, start = random.Random(seed), 0  # noqa: S311 # reproducible
    while start < len(text):
        size = rng.choice([0, 1, 7, 1000, 262_144, 262_145, 3_000_000])
        writer.add(text[start : start + size])
        start += size
    return writer.finish()


def add_noise(writer: ContentWriter, mebibytes: int) -> SpooledContent:
    """Add so much text that compresses to half."""
    rng = random.Random(2)  # noqa: S311 # reproducible
    for _ in range(mebibytes):
        writer.add(rng.randbytes(MIB // 2).hex())
    content = writer.finish()
    assert isinstance(content, SpooledContent)
    return content


def encode(content: TextContent | SpooledContent, codec: str = "zstd") -> Encoded:
    return get_codec(codec).encode(header_of(content), content)


@pytest.mark.parametrize("text", ["é" * (4 * MIB), ""], ids=["8 MiB", "none"])
def test_a_text_of_at_most_8_mib_comes_back_as_a_text(writer: ContentWriter, text: str) -> None:
    assert add_in_parts(writer, text) == text


@pytest.mark.parametrize("text", LONG_TEXTS, ids=lambda text: f"{text[:9]!r}")
def test_a_long_text_in_parts_makes_the_record_that_it_makes_in_one(writer: ContentWriter, text: str) -> None:
    spooled = add_in_parts(writer, text)
    assert isinstance(spooled, SpooledContent)
    whole = TextContent.of(text, tokens=len(text))
    assert spooled.counts == whole.counts
    for codec in ("zstd", "json", "raw"):
        ours, expected = encode(spooled, codec), encode(whole, codec)
        assert (ours.body, ours.sidecar) == (expected.body, expected.sidecar)
        assert ours.size == len(expected.body)


def test_a_long_text_can_be_looked_at_before_it_is_stored(writer: ContentWriter) -> None:
    text = "0123456789\n" * 900_000
    spooled = add_in_parts(writer, text)
    assert isinstance(spooled, SpooledContent)
    assert spooled.text.text(262_000, 263_000) == text[262_000:263_000]
    assert spooled.text.text(len(text) - 50, len(text)) == text[-50:]
    assert spooled.text.line_start(800_000) == 799_999 * 11


def test_the_pieces_of_a_record_can_be_iterated_again_and_at_the_same_time(writer: ContentWriter) -> None:
    encoded = encode(add_noise(writer, 20))
    body = encoded.body
    assert len(body) == encoded.size > 8 * MIB
    one, other = zip(*itertools.zip_longest(encoded, encoded, fillvalue=b""), strict=True)
    assert b"".join(one) == b"".join(other) == body
    assert max(map(len, one)) <= MIB


def test_a_large_record_goes_to_a_store_in_pieces_and_a_taken_key_keeps_its_bytes(
    writer: ContentWriter, tmp_path: Path
) -> None:
    store, encoded = LocalStore(str(tmp_path)), encode(add_noise(writer, 20))
    assert isinstance(store, SupportsStreams)
    assert encoded.is_large
    tracemalloc.start()
    put_stream(store, "a", encoded, encoded.size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MIB
    assert (tmp_path / "a").read_bytes() == encoded.body
    with pytest.raises(FileExistsError):
        put_stream(store, "a", encoded, encoded.size)


def test_long_content_holds_little_of_itself(writer: ContentWriter) -> None:
    tracemalloc.start()
    content = add_noise(writer, 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 8 MiB in hand until it is known to be long, and 8 MiB of frames until there is a file for them.
    assert peak < 20 * MIB
    assert content.spool.size > 20 * MIB


def test_the_temporary_file_has_no_name_and_is_an_error_of_the_store_if_it_cannot_be_made(
    writer: ContentWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    add_noise(writer, 20)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    other = ContentWriter(len)
    with pytest.raises(StoreError, match="TMPDIR"):
        add_noise(other, 20)
    other.close()


def test_content_that_no_reader_would_take_is_refused(
    writer: ContentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = add_noise(writer, 20)
    monkeypatch.setattr("offload.records.codec._seekable.MAX_TABLE_BYTES", 80 * 8)
    with pytest.raises(ValueError, match="1 TiB"):
        encode(content)

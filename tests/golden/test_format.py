"""Records of format version 1, read by the library and by the rules of FORMAT.md alone.

The records next to this file are never changed. If one cannot be read, the library is wrong.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

import offload
from offload.records.codec import CODECS, _seekable as seekable, find_codec
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import CHUNK_BYTES, TextContent
from offload.records.codec.quoting import QuotingRecord
from offload.records.record import Header

HERE = Path(__file__).parent
CONTENTS = {
    "text": "first line\nsecond line: é \U0001f600\r\nno newline at the end",
    "odd": "\ud800 lone surrogate\n\0nul\n",
    "chunks": "".join(f"{n:07} a line of a log\n" for n in range(12_000)),
}
REFS = {"text": "enuqpkzrgm", "odd": "adyqfcbloi", "chunks": "xkbgkrouai"}
FORM = '[[10,{"type":"text"}],null]'
# The parts of an answer that quotes the first record.
ANSWER = [f"[{REFS['text']}: characters 11-36]\n", (0, 11, 25), "\n\ud800 end"]
FILES = ["v1_text.zst", "v1_odd.zst", "v1_chunks.zst", "v1_text.json", "v1_odd.json", "v1_text.txt"]


def fetch(path: Path, *, start: int = 0, end: int | None = None) -> bytes:
    return path.read_bytes()[start:end]


def reopen(file: str) -> StoredRecord:
    codec = find_codec(file)
    sidecar = partial(fetch, HERE / f"{file}.header") if codec.has_sidecar else None
    return codec.open(partial(fetch, HERE / file), sidecar)


@pytest.mark.parametrize("file", FILES)
def test_a_record_of_version_1_is_read_for_ever(file: str) -> None:
    name = file.removeprefix("v1_").partition(".")[0]
    content = CONTENTS[name].encode("utf-8", "surrogatepass")
    record = reopen(file)
    assert record.load() == content
    assert record.content.text(0, record.content.chars) == CONTENTS[name]
    header, counts = record.header, record.counts
    assert (header.schema_version, header.ref, header.session) == (1, REFS[name], "golden")
    assert (header.item_type, header.tool_name, header.tool_use_id) == ("tool_result", "Bash", "toolu_1")
    assert (header.created_at, header.media_type) == (1767225600.25, "text/plain")
    assert header.placeholder == f"[Offloaded: result of Bash, id {REFS[name]}]\n"
    assert header.form == (FORM if name == "odd" else None)
    assert header.sha256 == counts.sha256 == hashlib.sha256(content).digest()
    assert (counts.bytes, counts.chars, counts.tokens) == (len(content), len(CONTENTS[name]), 9)


def test_there_is_a_golden_record_of_every_codec() -> None:
    assert {"." + f.rpartition(".")[2] for f in FILES} == {c.suffix for c in CODECS.values()}
    assert {p.name for p in HERE.glob("v1_*")} == {*FILES, "v1_text.txt.header", "v1_answer.part"}


def test_a_record_that_quotes_another_is_read_for_ever_and_by_the_rules_of_the_page_alone() -> None:
    data = (HERE / "v1_answer.part").read_bytes()
    record = find_codec("v1_answer.part").open(partial(fetch, HERE / "v1_answer.part"))
    assert isinstance(record, QuotingRecord)
    assert record.header.quotes == (REFS["text"],)
    record.find = {REFS["text"]: reopen("v1_text.zst")}.__getitem__
    text = f"[{REFS['text']}: characters 11-36]\n{CONTENTS['text'][11:36]}\n\ud800 end"
    content = text.encode("utf-8", "surrogatepass")
    assert record.load() == content
    assert (record.header.tool_name, record.header.session) == ("context_read", "golden")

    fields = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data))
    assert fields.keys() == {"header", "counts", "parts"}
    parts = [
        p.decode("utf-8", "surrogatepass") if isinstance(p, bytes) else tuple(p) for p in fields["parts"]
    ]
    assert parts == ANSWER
    assert fields["header"]["sha256"] == fields["counts"]["sha256"] == hashlib.sha256(content).digest()
    assert draw(fields["header"]) == fields["header"]["ref"] == record.ref


# --- FORMAT.md, rule by rule ----------------------------------------------------------------------


def skippable(frame: bytes, magic: int) -> bytes:
    assert struct.unpack_from("<II", frame) == (magic, len(frame) - 8)
    return frame[8:]


def unsealed(payload: bytes, also: bytes = b"") -> Any:
    packed, crc = payload[:-4], struct.unpack("<I", payload[-4:])[0]
    assert crc == zlib.crc32(packed + also)
    return msgspec.msgpack.decode(packed)


def parse(data: bytes) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """Return head, tail and contents of the frames of a record, as the page says they are found."""
    rows, descriptor, magic = struct.unpack("<IBI", data[-9:])
    assert (descriptor, magic) == (0, 0x8F92EAB1)
    table = data[-(8 + 8 * rows + 9) :]
    sizes = list(struct.iter_unpack("<II", skippable(table, 0x184D2A5E)[:-9]))
    assert len(sizes) == rows
    pieces, at = [], 0
    for stored, _ in sizes:
        pieces.append(data[at : at + stored])
        at += stored
    assert data[at:] == table
    head = unsealed(skippable(pieces[0], 0x184D2A50))
    tail = unsealed(skippable(pieces[-1], 0x184D2A51), table)
    assert sizes[0][1] == sizes[-1][1] == 0
    assert tail["stored_crc32"] == zlib.crc32(b"".join(pieces[:-1]))
    contents = [zstandard.ZstdDecompressor().decompress(p) for p in pieces[1:-1]]
    assert [len(c) for c in contents] == [size for _, size in sizes[1:-1]]
    return head, tail, contents


def numbers(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[i : i + 3], "little") for i in range(0, len(packed), 3)]


def draw(head: dict[str, Any]) -> str:
    data = b""
    for name in ("session", "item_type", "tool_use_id", "form"):
        field = b"" if head.get(name) is None else b"=" + head[name].encode()
        data += struct.pack("<Q", len(field)) + field
    number, letters = int.from_bytes(hashlib.sha256(data + head["sha256"]).digest(), "little"), ""
    while len(letters) < 10:
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters


@pytest.mark.parametrize("name", CONTENTS)
def test_a_record_is_read_by_the_rules_of_the_page_alone(name: str) -> None:
    head, tail, contents = parse((HERE / f"v1_{name}.zst").read_bytes())
    content = b"".join(contents)
    assert content == CONTENTS[name].encode("utf-8", "surrogatepass")
    assert all(len(c) <= 262_144 for c in contents)
    texts = [c.decode("utf-8", "surrogatepass") for c in contents]
    assert numbers(tail["chars"]) == [len(t) for t in texts]
    assert numbers(tail["newlines"]) == [t.count("\n") for t in texts]
    counts = tail["counts"]
    assert (counts["bytes"], counts["chars"]) == (len(content), len(CONTENTS[name]))
    assert counts["sha256"] == head["sha256"] == hashlib.sha256(content).digest()
    assert (head["ref"], head["session"]) == (tail["ref"], tail["session"]) == (REFS[name], "golden")
    assert draw(head) == head["ref"]
    assert "schema_version" not in head


def test_a_record_that_is_written_today_keeps_the_rules_of_the_page() -> None:
    old = reopen("v1_chunks.zst")
    written = CODECS["zstd"].encode(old.header, TextContent.of(CONTENTS["chunks"], old.counts.tokens)).body
    head, tail, contents = parse(written)
    golden_head, golden_tail, golden_contents = parse((HERE / "v1_chunks.zst").read_bytes())
    assert contents == golden_contents
    # The compressor may be another by now; what it made is all that may differ.
    assert {**head, **tail, "stored_crc32": 0} == {**golden_head, **golden_tail, "stored_crc32": 0}


def test_the_page_names_every_field_and_number_of_the_format() -> None:
    page = (Path(offload.__file__).parent / "FORMAT.md").read_text()
    head, tail, _ = parse((HERE / "v1_odd.zst").read_bytes())
    for field in [*head, *tail, *tail["counts"], *Header.__struct_fields__]:
        assert f"`{field}`" in page
    for magic in (seekable.HEAD_MAGIC, seekable.TAIL_MAGIC, seekable.TABLE_MAGIC, seekable.FOOTER_MAGIC):
        assert f"0x{magic:08X}" in page
    assert f"{CHUNK_BYTES:,}" in page

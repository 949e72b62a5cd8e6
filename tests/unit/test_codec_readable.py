"""The codecs whose records are read by hand, and how a codec is found."""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec
import pytest
from encoded import facts
from kit.inner import fetch_from

from offload.errors import ConfigError, CorruptError
from offload.records.codec import CODECS, find_codec, get_codec
from offload.records.codec.readable import parse_sidecar


def test_a_json_record_is_a_document_that_any_reader_takes() -> None:
    header, content = facts("é line\n\U0001f600")
    document = json.loads(get_codec("json").encode(header, content).body)
    assert document["schema_version"] == "1.0"
    assert document["item_id"] == "abcdefghij"
    assert document["item_type"] == "tool_result"
    assert document["metadata"] == {"tool_name": "Bash"}
    assert document["content"] == "é line\n\U0001f600"


def test_a_raw_record_is_the_content_alone_and_its_header_stands_beside_it() -> None:
    header, content = facts("é line\n")
    encoded = get_codec("raw").encode(header, content)
    assert encoded.body == "é line\n".encode()
    assert encoded.sidecar is not None
    assert json.loads(encoded.sidecar)["header"]["ref"] == "abcdefghij"
    assert parse_sidecar(encoded.sidecar) == header


@pytest.mark.parametrize("codec", ["json", "raw"])
def test_a_readable_record_whose_content_is_no_text_is_damaged(codec: str) -> None:
    data = b"\xff\xfe"
    header, content = facts("")
    digest = sha256(data).digest()
    header = msgspec.structs.replace(header, sha256=digest)
    content = msgspec.structs.replace(
        content, data=data, counts=msgspec.structs.replace(content.counts, sha256=digest)
    )
    encoded = get_codec(codec).encode(header, content)

    record = get_codec(codec).open(fetch_from(encoded.body), fetch_from(encoded.sidecar or b""))

    with pytest.raises(CorruptError, match="not UTF-8"):
        _ = record.content


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"header": 1}', b"null"])
@pytest.mark.parametrize("codec", ["json", "raw"])
def test_a_document_that_is_none_is_refused(codec: str, bad: bytes) -> None:
    with pytest.raises(CorruptError):
        get_codec(codec).open(fetch_from(bad), fetch_from(bad))


def test_a_raw_record_without_its_header_is_refused() -> None:
    with pytest.raises(CorruptError, match="next to it"):
        get_codec("raw").open(fetch_from(b"content"))


def test_a_codec_is_found_by_its_name_and_by_the_end_of_a_key() -> None:
    for name, codec in CODECS.items():
        assert get_codec(name) is codec
        assert find_codec(f"r/s/abcdefghij~tool_result~~1~1{codec.suffix}") is codec
    for key in ("r/s/readme.md", "r/s/zst"):
        with pytest.raises(CorruptError, match=key):
            find_codec(key)


def test_a_codec_that_is_none_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(ConfigError, match="codec must be one of zstd, json, raw, got 'gzip'"):
        get_codec("gzip")

"""The key grammar, and the hostile names that it is there for."""

from __future__ import annotations

import pytest

from offload.errors import InvalidKeyError
from offload.storage.layout import check_key, decode_part, encode_part


@pytest.mark.parametrize("name", ["a", "session_1", "mcp__github__search", "a.b", "0", "x-y.z", "a" * 120])
def test_a_short_lower_case_slug_reads_as_itself(name: str) -> None:
    assert encode_part(name) == name
    assert decode_part(name) == name


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "=="),
        ("Bash", "=42ash"),
        ("a/b", "a=2fb"),
        (".git", "=2egit"),
        ("end.", "end=2e"),
        ("nul.txt", "=6eul.txt"),
        ("é", "=c3=a9"),
        ("\ud800", "=ed=a0=80"),
        ("a" * 121, "a" * 40 + "==" + "5fqvgiasrtd2hvqhr2npavqddc"),
    ],
    ids=["empty", "capital", "slash", "dot", "enddot", "device", "wide", "surrogate", "long"],
)
def test_the_encoding_never_changes_between_versions(name: str, part: str) -> None:
    assert encode_part(name) == part


def test_what_is_read_back_of_a_hashed_name_is_its_beginning() -> None:
    assert decode_part(encode_part("plain" * 50)) == "plain" * 8 + "…"
    readable = decode_part(encode_part("é" * 200))
    assert readable == "é" * (len(readable) - 1) + "…"


@pytest.mark.parametrize(
    "key",
    [
        *("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.b", "A", "a b", "a\n", "é"),
        *("a\\b", "a*", "a:b", "a\x00", "a" * 241, "a/" * 256 + "a"),
    ],
)
def test_a_key_outside_the_grammar_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(InvalidKeyError, match=r"1 to (512|240) characters"):
        check_key(key)


@pytest.mark.parametrize("key", [None, 7, b"a", ["a"]])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(InvalidKeyError, match="key must be a str, got"):
        check_key(key)  # type: ignore[arg-type] # what a caller can get wrong


def test_a_key_of_the_greatest_length_is_a_key() -> None:
    key = "/".join(["a" * 170] * 3)
    assert len(key) == 512
    assert check_key(key) == key

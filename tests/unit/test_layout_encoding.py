"""The key grammar, and the hostile names that it is there for."""

from __future__ import annotations

import itertools
import unicodedata

import pytest

from offload.errors import InvalidKeyError
from offload.storage.layout import check_key, decode_part, encode_part

HOSTILE = [
    *("", " ", ".", "..", "...", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a.b"),
    *("a_b", "[...nextauth].ts", ".hidden", "trailing.", "trailing ", "-rf", "~"),
    *("~root", "$HOME", "`id`", "a\nb", "a\rb", "a\tb", "a\0b", "\x1b]52;c;x\x07", "con"),
    *("CON", "con.txt", "con.", "nul", "com1", "lpt9.log", "conx", "C:\\windows", "a:b"),
    *("a*b", "*", "?", "[a]", "k?versionId=zz", "s3://bucket/key", "memory://a::s3://b"),
    *("file:///etc", "a::b", "%2e%2e%2f", "=2e", "==", "=", "&lt;", "é"),
    *(unicodedata.normalize("NFD", "é"), "ﬁ", "ß", "SS", "ss", "İ", "\u0131", "Bash"),
    *("bash", "BASH", "\ud800", "\udfff", "\U0001f600", "\u202egpj.exe", "\ufeff"),
    *("a" * 120, "a" * 121, "a" * 4096, "a" * 4095 + "b", "A" * 4096, "é" * 4096),
    "\ud800" * 4096,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: ascii(n)[:30])
def test_a_hostile_name_becomes_a_part_that_every_store_takes(name: str) -> None:
    part = encode_part(name)
    assert check_key(part) == part
    assert len(part) <= 120
    assert part[0] != "."
    assert part[-1] not in ". "
    assert part.split(".")[0] not in {"con", "prn", "aux", "nul", "com1", "lpt9"}


def test_no_two_hostile_names_share_a_part_also_where_case_is_folded() -> None:
    parts = [encode_part(name).upper() for name in HOSTILE]
    shared = [
        pair
        for pair in itertools.combinations(zip(parts, HOSTILE, strict=True), 2)
        if pair[0][0] == pair[1][0]
    ]
    assert shared == []


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

"""Refs, measures, and texts as bytes."""

from __future__ import annotations

import hashlib
import itertools

import msgspec
import pytest

from offload.base.text import (
    chunks_without_colors,
    decode_text,
    encode_text,
    escape_surrogates,
    printed_bytes,
)
from offload.records.codec.content import TextContent
from offload.records.record import Header
from offload.records.record.header import draw_ref

DIGEST = hashlib.sha256(b"content").digest()


def header(**changes: object) -> Header:
    facts = {
        "ref": "abcdefghij",
        "session": "s",
        "item_type": "tool_result",
        "created_at": 1.0,
        "sha256": DIGEST,
    }
    return msgspec.convert({**facts, "placeholder": "p", **changes}, Header, builtin_types=(bytes,))


def test_a_ref_is_drawn_from_the_digest_of_what_the_item_is() -> None:
    # By the rule alone: length-prefixed fields, "=" before one that is given, then base 26.
    fields = [b"=s", b"=tool_result", b"=toolu_1", b""]
    data = b"".join(len(f).to_bytes(8, "little") + f for f in fields) + DIGEST
    number = int.from_bytes(hashlib.sha256(data).digest(), "little")
    expected = ""
    for _ in range(10):
        number, letter = divmod(number, 26)
        expected += "abcdefghijklmnopqrstuvwxyz"[letter]
    assert draw_ref("s", "tool_result", "toolu_1", DIGEST) == expected


def test_a_longer_ref_begins_with_the_shorter_one() -> None:
    refs = [draw_ref("s", "tool_result", None, DIGEST, draw=n) for n in range(11)]
    assert [len(r) for r in refs] == list(range(10, 21))
    assert all(long.startswith(short) for short, long in itertools.pairwise(refs))


def test_every_fact_of_an_item_takes_part_in_its_ref() -> None:
    other = hashlib.sha256(b"other").digest()
    drawn = [
        draw_ref("s", "tool_result", "t", DIGEST, "f"),
        draw_ref("S", "tool_result", "t", DIGEST, "f"),
        draw_ref("s", "user_message", "t", DIGEST, "f"),
        draw_ref("s", "tool_result", "T", DIGEST, "f"),
        draw_ref("s", "tool_result", "t", other, "f"),
        draw_ref("s", "tool_result", "t", DIGEST, "g"),
        draw_ref("s", "tool_result", "t", DIGEST, None),
        draw_ref("s", "tool_result", None, DIGEST, "f"),
        draw_ref("s", "tool_result", "", DIGEST, "f"),
        draw_ref("s", "tool_resultt", "", DIGEST, "f"),
    ]
    assert len(set(drawn)) == len(drawn)


def test_a_ref_is_the_same_in_every_version_of_the_library_and_names_with_lone_surrogates_have_one() -> None:
    assert draw_ref("session", "tool_result", "toolu_1", DIGEST) == "sxhcvodkvy"
    assert draw_ref("\ud800", "tool_result", "\udfff", DIGEST).isalpha()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ("a", 1),
        ("a\n", 1),
        ("\n", 1),
        ("a\nb", 2),
        ("a\r\nb\r\n", 2),
        ("a\rb\x0bc\u2028d", 1),
        ("\n\n", 2),
    ],
)
def test_lines_are_counted_by_their_newlines_and_an_open_last_line_counts(text: str, lines: int) -> None:
    assert TextContent.of(text, 0).counts.lines == lines


def test_measures_are_those_of_the_text_and_of_its_bytes() -> None:
    text = "é\U0001f600\ud800\n"
    counts = TextContent.of(text, 9).counts
    assert (counts.chars, counts.bytes, counts.tokens) == (4, 2 + 4 + 3 + 1, 9)
    assert counts.sha256 == hashlib.sha256("é\U0001f600".encode() + b"\xed\xa0\x80\n").digest()


def test_content_bytes_are_utf_8_with_surrogates_in_three_bytes_or_written_out() -> None:
    assert encode_text("é\ud83d\ude00") == b"\xc3\xa9\xed\xa0\xbd\xed\xb8\x80"
    assert decode_text(memoryview(b"\xc3\xa9\xed\xa0\xbd\xed\xb8\x80")) == "é\ud83d\ude00"
    assert escape_surrogates("a\ud800é\U0001f600") == "a\\ud800é\U0001f600"


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_bytes_of_a_program_are_those_that_it_printed_wherever_its_content_is_cut(size: int) -> None:
    printed = bytes(range(256)) + b"\xed\xb2\x80 \xed " + "é\u20ac\ud7ff😀".encode() + b"\xed\xb3"
    content = encode_text(printed.decode("utf-8", "surrogateescape"))
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    assert b"".join(printed_bytes(chunks)) == printed
    other = encode_text("\ud800\udc7f")
    assert b"".join(printed_bytes([other])) == other


def test_colors_are_left_out_wherever_a_chunk_ends_and_nothing_else() -> None:
    text = "\x1b[1;31m\x1b[Kred\x1b[m \x1b[2J \x1b]0;title\x07 \x1b[38:2:1:2:3mx\x1b[0"
    for end in range(len(text) + 1):
        shown = "".join(chunks_without_colors([text[:end], "", text[end:]]))
        assert shown == "red \x1b[2J \x1b]0;title\x07 x\x1b[0"


def test_a_text_after_the_beginning_of_a_color_does_not_wait_for_its_end() -> None:
    shown = [*chunks_without_colors(["\x1b[", *["1" * 1000] * 50])]
    assert "".join(shown) == "\x1b[" + "1" * 50_000
    assert max(map(len, shown)) < 1100


@pytest.mark.parametrize("field", ["session", "item_type", "tool_use_id", "form"])
def test_headers_that_differ_in_what_the_item_is_are_of_two_items(field: str) -> None:
    assert not header(**{field: "x"}).is_same_item(header(**{field: "y"}))
    assert not header().is_same_item(header(sha256=hashlib.sha256(b"other").digest()))


def test_who_wrote_an_item_and_when_makes_it_no_other_item() -> None:
    assert header().is_same_item(header(created_at=2.0, tool_name="Bash", placeholder="q", ref="qqqqqqqqqq"))

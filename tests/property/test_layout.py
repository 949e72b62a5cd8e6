"""Names from outside become key parts: always valid, never shared, and back again."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import example, given, strategies as st
from strength import examples

from offload.storage.layout import MAX_KEY_BYTES, MAX_PART_BYTES, check_key, decode_part, encode_part

many = examples(300)

# `text()` generates lone surrogates only on request.
any_char = st.characters(exclude_categories=())
names = st.text(any_char, max_size=60) | st.text("aA.=~-_/ \0", max_size=60) | st.text(any_char, min_size=60)
long_names = st.builds(
    lambda head, char, n: head + char * n, st.text(any_char), any_char, st.integers(0, 4096)
)

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

# Devices, with an extension too, and what Windows drops or reads as a drive.
NAMES_OF_WINDOWS = ("con", "NUL", "com1", "lpt0.txt", "aux.a.b", "conin$", "com\u00b9", "a.", "a ", "c:")


@many
@given(names | long_names)
@example("nul.tar.gz")
def test_every_name_becomes_a_valid_key_part_of_bounded_length(name: str) -> None:
    part = encode_part(name)
    assert check_key(part) == part
    assert len(part) <= MAX_PART_BYTES
    assert part == part.lower()


def test_hostile_names_become_valid_parts_of_which_no_two_are_one() -> None:
    parts = [encode_part(name) for name in HOSTILE]
    assert [*map(check_key, parts)] == parts
    assert max(map(len, parts)) <= MAX_PART_BYTES
    assert not any(re.search(r"^\.|[. ]$|^(con|prn|aux|nul|com1|lpt9)(\.|$)", part) for part in parts)
    assert len({*parts}) == len(HOSTILE)


@many
@given(names | st.sampled_from(NAMES_OF_WINDOWS))
def test_every_part_is_a_name_that_windows_takes_as_it_is(name: str) -> None:
    part = encode_part(name)

    assert not re.fullmatch(r"(con|prn|aux|nul|conin\$|conout\$|com\S|lpt\S)(\..*)?", part)
    assert not part.endswith((".", " "))
    assert not set(part) & set('<>:"/\\|?*')


@many
@given(names, names)
@example("", "==")
@example("", "=3d=3d")
@example("a.b", "a/b")
@example("con", "=63on")
@example("x" * 200, "x" * 201)
def test_two_names_never_share_a_part_also_where_case_is_folded(one: str, other: str) -> None:
    assert (encode_part(one).casefold() == encode_part(other).casefold()) == (one == other)


@many
@given(st.text(any_char, min_size=1, max_size=8), st.integers(0, 7))
def test_a_name_and_the_same_name_in_capitals_are_two(name: str, place: int) -> None:
    at = place % len(name)
    swapped = name[:at] + name[at].swapcase() + name[at + 1 :]
    assert (encode_part(name) == encode_part(swapped)) == (name == swapped)


@many
@given(names)
def test_a_name_that_was_not_hashed_is_read_back(name: str) -> None:
    part = encode_part(name)
    if name == "" or "==" not in part:
        assert decode_part(part) == name
    else:
        assert decode_part(part).endswith("…")


@many
@given(
    st.lists(st.sampled_from([encode_part("a" * 300), "r", encode_part("é" * 30)]), min_size=1, max_size=8)
)
def test_a_key_over_512_characters_is_refused_and_no_other_of_valid_parts(parts: list[str]) -> None:
    key = "/".join(parts)
    try:
        accepted = check_key(key) == key
    except ValueError:
        accepted = False
    assert accepted == (len(key.encode()) <= MAX_KEY_BYTES)

"""The reader of JSON by pieces agrees with `json.loads`: on whole texts and broken ones, in any chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from strength import examples

from offload.base.json_reader import BrokenJsonError, JsonReader, member_pointer

spaces = st.sampled_from(["", "", "", " ", "\r\n", "\n\t", " \r "])
pieces = st.sampled_from(
    [
        "a",
        "é",
        "\U0001f600",
        "\\n",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\ud800",
        '\\"',
        "\\\\",
        "\\/",
        "{",
        "]",
        ",",
    ]
)
strings = st.lists(pieces, max_size=4).map(lambda parts: f'"{"".join(parts)}"')
numbers = st.sampled_from(["0", "-0", "1e400", "-1E400", "-0.0", "0.1e-7", "1" * 400, "-12", "1E5", "NaN"])
scalars = strings | numbers | st.sampled_from(["true", "false", "null", "-Infinity"])


def between(marks: str, parts: list[tuple[str, str]]) -> str:
    """Return the text of a container: the space before each member stands behind its comma."""
    return marks[0] + ",".join(f"{space}{part}{space}" for space, part in parts) + marks[1]


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(strings, spaces, inner).map(lambda each: f"{each[0]}{each[1]}:{each[1]}{each[2]}")
    return st.lists(st.tuples(spaces, inner), max_size=4).map(lambda parts: between("[]", parts)) | st.lists(
        st.tuples(spaces, members), max_size=4
    ).map(lambda parts: between("{}", parts))


documents = st.tuples(spaces, st.recursive(scalars, containers, max_leaves=12), spaces).map("".join)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw a document that was cut, or that lacks a character or has one too many."""
    text = draw(documents)
    at = draw(st.integers(0, len(text)))
    rest = draw(st.sampled_from([text[at + 1 :], *(mark + text[at:] for mark in '{}[]",:\\ 1x\n\x00\ufeff')]))
    return text[:at] + draw(st.sampled_from(["", rest]))


def chunked(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


class Members(list[tuple[str, Any]]):
    """The members of an object, also those with one key."""


def expected(text: str, *, is_strict: bool) -> Any:
    """Return a document as Python reads it, `ValueError` if it is none."""
    options: dict[str, Any] = {} if is_strict else {"parse_constant": str}
    try:
        return json.loads(text, strict=is_strict, object_pairs_hook=Members, **options)
    except ValueError:
        return ValueError


def stepped(reader: JsonReader) -> Any:
    """Return the value here, read member by member."""
    kind = reader.kind()
    if kind == "object":
        return Members((str(key), stepped(reader)) for key in reader.members())
    return [stepped(reader) for _ in reader.members()] if kind == "array" else reader.value()


def document(reader: JsonReader) -> Any:
    try:
        value = stepped(reader)
    except BrokenJsonError:
        return ValueError
    return ValueError if reader.peek() else value


def same(one: Any, other: Any) -> bool:
    # Neither NaN nor the sign of a zero is seen by ==.
    return repr(one) == repr(other)


@examples(400)
@given(documents | damaged(), st.booleans(), st.none() | st.integers(1, 9))
def test_what_is_read_member_by_member_is_what_python_reads(
    text: str, is_strict: bool, size: int | None
) -> None:
    if not is_strict and text.startswith("\ufeff"):
        text = text[1:]
    reader = JsonReader(chunked(text, size) if size else text, is_strict=is_strict)
    assert same(document(reader), expected(text, is_strict=is_strict))


def spans(reader: JsonReader, pointer: str = "") -> dict[str, list[tuple[int, int]]]:
    """Return by pointer the places of all values, found by skipping them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name in reader.members():
        found.setdefault(member_pointer(pointer, name), []).append((reader.place, reader.skip()))
    return found


@examples(300)
@given(documents, st.none() | st.integers(1, 9), st.integers(0, 20))
def test_the_span_of_each_member_is_its_value(text: str, size: int | None, before: int) -> None:
    whole = expected(text, is_strict=False)
    members = whole if isinstance(whole, Members) else enumerate(whole) if isinstance(whole, list) else ()
    # The text is a part of a longer one.
    longer = "x" * before + text
    reader = JsonReader(chunked(longer, size) if size else longer, start=before)
    if not isinstance(whole, list):
        start = (reader.kind(), reader.place)[1]
        assert same(expected(longer[start : reader.skip()], is_strict=False), whole)
        return
    found = spans(reader)
    assert reader.peek() == ""
    values: dict[str, list[Any]] = {}
    for name, value in members:
        values.setdefault(member_pointer("", name), []).append(value)
    read = {
        pointer: [expected(longer[start:end], is_strict=False) for start, end in places]
        for pointer, places in found.items()
    }
    assert same(read, values)


@examples(200)
@given(st.lists(documents, min_size=1, max_size=5), st.data())
def test_an_array_is_read_on_behind_known_members(texts: list[str], data: st.DataObject) -> None:
    text = f"[{','.join(texts)}]"
    reader, ends, values = JsonReader(text, is_strict=True), list[int](), list[Any]()
    for _ in reader.members():
        values.append(reader.value())
        ends.append(reader.place)
    known = data.draw(st.integers(1, len(ends)))
    reader = JsonReader(text, is_strict=True)
    members = reader.members()
    next(members)
    reader.move(ends[known - 1])
    assert same([reader.value() for _ in members], values[known:])
    assert reader.place == len(text)


@examples(200)
@given(documents, st.integers(0, 300), st.none() | st.integers(1, 9))
def test_what_is_read_of_a_cut_document_is_its_beginning(text: str, cut: int, size: int | None) -> None:
    whole = expected(text, is_strict=False)
    names, values = list[Any](), list[Any]()
    text = text[: cut % (len(text) + 1)]
    reader = JsonReader(chunked(text, size) if size else text)
    try:
        for name in reader.members():
            names, value = [*names, name], stepped(reader)
            # A number at the end may be cut.
            values += [value] if reader.peek() in (",", "]", "}") else []
    except BrokenJsonError:
        pass
    members = whole if isinstance(whole, Members) else [*enumerate(whole if isinstance(whole, list) else ())]
    assert names == [name for name, _ in members][: len(names)]
    assert same(values, [value for _, value in members][: len(values)])


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 3_000 + "]" * 3_000, '{"a":' * 3_000 + "1" + "}" * 3_000]
)
def test_a_value_nested_too_deeply_is_not_read_and_can_be_skipped_if_it_has_an_end(text: str) -> None:
    with pytest.raises(RecursionError):
        JsonReader(text).value()
    if text[-1] != "[":
        assert JsonReader(text + " 1").skip() == len(text)
        assert JsonReader(chunked(text, 1000)).skip() == len(text)


@pytest.mark.parametrize("char", ["\n", "\t", "\x00", "\x7f"])
def test_a_control_character_in_a_string_is_json_to_a_lenient_reader_alone(char: str) -> None:
    text = f'{{"a{char}": "b{char}"}}'
    assert document(JsonReader(text)) == [(f"a{char}", f"b{char}")]
    assert document(JsonReader(text, is_strict=True)) == expected(text, is_strict=True)


def test_a_byte_order_mark_is_skipped_by_a_lenient_reader_alone() -> None:
    assert JsonReader("\ufeff[1]").value() == [1]
    assert JsonReader(["\ufeff", "[1]"]).value() == [1]
    with pytest.raises(BrokenJsonError):
        JsonReader("\ufeff[1]", is_strict=True).value()


def test_a_value_longer_than_what_is_read_as_one_is_refused_only_if_more_text_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offload.base.json_reader._MAX_VALUE_CHARS", 50)
    text = json.dumps(["x"] * 40)
    assert JsonReader(text).value() == ["x"] * 40
    with pytest.raises(BrokenJsonError, match="more than 50 characters"):
        JsonReader(chunked(text, 10)).value()

"""Records that quote others give their own text, or an error, whatever the texts and the stored bytes are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from answers import put, session
from hypothesis import given, strategies as st
from kit.store import steps

from offload.engine.quoting import quoting
from offload.errors import CorruptError, OffloadError
from offload.messages.base import Item
from offload.messages.calls import Call
from offload.records.codec import QUOTING
from offload.records.codec.content import Quote, TextContent
from offload.records.index.entries import record_key
from offload.records.record import Header
from offload.records.record.header import draw_ref
from offload.records.session import Draft, Session
from offload.records.session.drafts import OffloadedItem

texts = st.text(st.sampled_from("ab \n\u00e9\U0001f600\ud800["), max_size=60)
sources = st.lists(texts, min_size=1, max_size=3).map(lambda some: "|".join(text * 9 for text in some))


def stored(
    into: Session, text: str, refs: list[str], tool: str = "context_query"
) -> tuple[str, tuple[str, ...]]:
    """Store an answer to a call that names some records; return its ref, and those it quotes."""
    item = Item(None, "tool_result", text, tool, "r", call=Call(tool, {"ids": refs}))
    content, quotes = quoting(into, item, TextContent.of(text, 1), text)
    ref = into.ref_of(item.identity(content.counts.sha256))
    draft = Draft(item, content, ref, f"[{ref}]", lambda ref: f"[{ref}]", quotes=tuple(quotes))
    [outcome] = into.write([draft])
    assert isinstance(outcome, OffloadedItem)
    assert outcome.info.quotes == tuple(quotes)
    return outcome.info.ref, outcome.info.quotes


@given(st.lists(sources, min_size=1, max_size=3), st.data())
def test_an_answer_of_slices_and_other_texts_is_read_as_it_was(found: list[str], data: st.DataObject) -> None:
    into = session()
    refs = [put(into, source, call=f"t{n}") for n, source in enumerate(found)]
    answer = ""
    for _ in range(data.draw(st.integers(0, 5))):
        source = data.draw(st.sampled_from(found))
        start = data.draw(st.integers(0, len(source)))
        answer += data.draw(texts) + source[start : start + data.draw(st.integers(0, 400))]
    ref, _ = stored(into, answer, refs)
    record = session(into.store).read(ref)
    assert record.load().decode("utf-8", "surrogatepass") == answer
    assert record.content.text(0, record.counts.chars) == answer


@pytest.mark.parametrize("prefix", ["", "mcp__" + "x" * 100 + "__", "\u00c4" * 90])
def test_an_answer_that_quotes_many_records_is_stored_under_any_name_of_its_tool(prefix: str) -> None:
    into = session()
    sources = ["".join(f"{n}{m * 7919 % 1000:03}" for m in range(100)) for n in range(9)]
    refs = [put(into, source, call=f"t{n}") for n, source in enumerate(sources)]
    answer = "".join(source[100:200] for source in sources)
    ref, quotes = stored(into, answer, refs, f"{prefix}context_query")
    assert len(quotes) == (0 if prefix else 8)
    assert session(into.store).read(ref).load().decode() == answer


def test_parts_of_forty_characters_or_more_are_quoted_wherever_they_begin() -> None:
    into = session()
    source = "".join(f"{n * 7919 % 1000:03}" for n in range(1000))
    ref = put(into, source)
    for shift in range(40):
        answer = "x" * shift + source[100:200] + "-" * 20 + source[300 + shift : 500]
        _, quotes = stored(into, answer, [ref])
        assert quotes == (ref,)
        content, _ = quoting(
            into,
            Item(None, "tool_result", answer, "context_read", "r", call=Call("context_read", {"id": ref})),
            TextContent.of(answer, 1),
            answer,
        )
        assert [p for p in content.parts if isinstance(p, Quote)] == [
            Quote(0, 100, 100),
            Quote(0, 300 + shift, 200 - shift),
        ]


def test_each_damaged_byte_of_a_record_that_quotes_is_noticed() -> None:
    into = session()
    source = put(into, "a line of a log that is shown\n" * 40)
    ref, quotes = stored(into, f"[{source}]\n" + "a line of a log that is shown\n" * 30, [source])
    assert quotes
    key = into.find(ref).key
    whole = into.store.get(key)
    good = session(into.store).read(ref).load()
    for at in range(len(whole)):
        for bad in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            into.store.put(key, bad, overwrite=True)
            try:
                data = session(into.store).read(ref).load()
            except OffloadError:
                continue
            assert data == good


def forged(into: Session, quotes: tuple[str, ...], parts: tuple[Any, ...], claimed: int = 10) -> str:
    """Store an object with parts that no writer makes, for a text of `claimed` characters."""
    content = msgspec.structs.replace(TextContent.of("x" * claimed, 1), parts=parts)
    ref = draw_ref("s", "tool_result", "f", content.counts.sha256)
    header = Header(
        ref=ref,
        session="s",
        item_type="tool_result",
        tool_name="context_read",
        tool_use_id="f",
        created_at=1.0,
        sha256=content.counts.sha256,
        placeholder=f"[{ref}]",
        quotes=quotes,
    )
    into.store.put(record_key(header, content.counts, ".part"), QUOTING.encode(header, content).body)
    return ref


@pytest.mark.parametrize(
    "parts",
    [
        (Quote(1, 0, 10),),
        (Quote(-1, 0, 10),),
        (Quote(0, -5, 10),),
        (Quote(0, 0, 0), "x" * 10),
        (Quote(0, 0, 10**12),),
        (Quote(0, 0, 10), Quote(0, 0, 10)),
        ("y" * 10,),
        (Quote(0, 5, 10),),
    ],
)
def test_forged_parts_are_refused(parts: tuple[Any, ...]) -> None:
    into = session()
    source = put(into, "x" * 12)
    ref = forged(into, (source,), parts)
    with pytest.raises(CorruptError):
        session(into.store).read(ref).load()


def test_records_that_quote_themselves_or_each_other_are_refused() -> None:
    into = session()
    own = draw_ref("s", "tool_result", "f", TextContent.of("x" * 10, 1).counts.sha256)
    assert forged(into, (own,), (Quote(0, 0, 10),)) == own
    with pytest.raises(CorruptError, match="quotes a record that quotes others"):
        session(into.store).read(own).load()


def test_the_search_for_parts_takes_steps_by_the_size_of_the_texts_whatever_they_repeat() -> None:
    counted = []
    for source, answer in (
        ("a" * 200_000, ("a" * 39 + "b") * 200),
        ("ab" * 100_000, ("ab" * 19 + "aXb") * 200),
        ("x" * 199_980 + "needle in a haystack", "needle in a haystack." * 380),
        ("0123456789" * 20_000, "abcdefghij" * 800),
    ):
        into = session()
        ref = put(into, source)
        item = Item(None, "tool_result", answer, "context_read", "r", call=Call("context_read", {"id": ref}))
        counted.append(steps(quoting, into, item, TextContent.of(answer, 1), answer))
    assert max(counted) < 200_000

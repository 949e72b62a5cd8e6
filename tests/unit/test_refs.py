"""Refs of both styles: their draws, redraws and recognition, and the calls that accept them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from offload import ConfigError, CorruptError, Offloader
from offload.engine.placeholder import DefaultRenderer
from offload.reading.tools._grep import parse_cursor
from offload.records.codec.base import Encoded
from offload.records.record import Header
from offload.records.record.header import MAX_DRAWS, REF_FORMS, IdStyle, draw_ref
from offload.records.session.create import NewRecord, create_records
from offload.storage.layout import REF_PATTERN, is_ref
from offload_backends.memory import MemoryStore

DIGEST = hashlib.sha256(b"content").digest()
STYLES: tuple[IdStyle, ...] = ("letters", "short")


def drawn(style: IdStyle) -> list[str]:
    return [draw_ref("s", "tool_result", None, DIGEST, style=style, draw=n) for n in range(MAX_DRAWS)]


def test_a_short_ref_is_the_same_in_every_version_of_the_library() -> None:
    number = int.from_bytes(
        hashlib.sha256(
            b"".join(len(f).to_bytes(8, "little") + f for f in (b"=s", b"=tool_result", b"", b"")) + DIGEST
        ).digest(),
        "little",
    )
    expected = ""
    for _ in range(5):
        number, place = divmod(number, 36)
        expected += "0123456789abcdefghijklmnopqrstuvwxyz"[place]

    assert drawn("short")[0] == expected


def test_no_two_draws_for_an_item_are_the_same_and_the_length_of_a_ref_tells_its_style() -> None:
    for style in STYLES:
        refs = drawn(style)
        assert len(set(refs)) == MAX_DRAWS
        assert all(is_ref(ref) and re.fullmatch(REF_PATTERN, ref) for ref in refs)
        assert refs[1].startswith(refs[0])
    assert [len(ref) for ref in drawn("short")] == [5] + [6] * (MAX_DRAWS - 1)
    lengths = [range(form.shortest, form.longest + 1) for form in REF_FORMS.values()]
    assert not set(lengths[0]) & set(lengths[1])


@pytest.mark.parametrize("style", STYLES)
def test_a_ref_of_any_draw_is_that_of_its_item_and_any_other_is_not(style: IdStyle) -> None:
    facts: Any = {"session": "s", "item_type": "tool_result", "created_at": 1.0, "sha256": DIGEST}
    for ref in drawn(style):
        other = ("b" if ref[0] == "a" else "a") + ref[1:]
        headers = [Header(ref=each, placeholder="p", **facts) for each in (ref, other)]
        assert [header.is_drawn() for header in headers] == [True, False]


@pytest.mark.parametrize(
    "text",
    ["7b8k", "7b8k1p2", "abcdefghi", "a" * 21, "7b8k1p2abc", "7B8K1", "7b8k\n", "äbcde", "\uff17b8k1", None],
)
def test_what_has_not_the_form_of_a_ref_is_never_looked_up(text: object) -> None:
    assert not is_ref(text)


def test_an_offloader_with_short_refs_places_finds_searches_and_restores_by_them(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s", id_style="short")
    text = "a line with a needle in it\n" * 2000
    messages = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]}]

    out = off.offload(messages)

    ref = out.records[0].ref
    assert re.fullmatch("[0-9a-z]{5}", ref)
    assert off.restore(out.messages) == messages
    found = off.tools.call("context_grep", {"pattern": "needle", "max_matches": 1})
    cursor = re.findall(r'cursor="([^"]+)"', found)[0]
    assert parse_cursor(cursor).ref == ref
    assert off.fork("t").restore(out.messages) == messages
    assert DefaultRenderer().find_ref(off.offload_text(text, tool_use_id="d")) != ref
    off.pin(ref)
    assert off.verify() == []


def test_a_style_of_refs_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="letters"):
        Offloader(MemoryStore(), id_style="long")  # type: ignore[arg-type] # what a caller may write


def test_an_item_whose_ref_another_process_uses_for_another_item_gets_a_longer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("offload.records.session.session", "offload.records.record.header"):
        monkeypatch.setattr(f"{module}.draw_ref", lambda *_, draw=0, **__: "aaaaaaaaaa" + "b" * draw)
    store = MemoryStore()
    texts = ["a long text\n" * 4000, "another text of another length\n" * 4000]
    Offloader(store, session="s").offload_text(texts[0])
    other = Offloader(store, session="s")
    known = other.records()

    placeholder = other.offload_text(texts[1])

    assert [info.ref for info in known] == ["aaaaaaaaaa"]
    assert "aaaaaaaaaab" in placeholder
    assert [b"".join(other.content(info.ref)).decode() for info in other.records()] == texts


def test_a_record_whose_ref_is_no_draw_of_its_item_is_not_stored() -> None:
    other = MemoryStore()
    off = Offloader(MemoryStore(), session="s")
    off.offload_text("a long text\n" * 4000)
    [info] = off.records()
    header = next(iter(off._session.headers(info.ref)))  # what the record says
    records = [
        NewRecord(key=info.key, header=replace(header, **changed), encoded=Encoded.whole(b"text", None))
        for changed in ({"ref": "zzzzzzzzzz"}, {"session": "t"}, {"origin": "t"})
    ]

    outcomes = create_records(other, records, lambda *_: True)

    assert [type(outcome) for outcome in outcomes] == [CorruptError] * 3
    assert [*other.keys()] == []

"""Notices and placeholders of other forms: the engine knows them, keeps them in view and undoes them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import from_user, tool_turn
from kit.store import CountedStore

from offload import (
    CorruptError,
    ExpiredError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Rule,
)
from offload.agent.compaction import MessageArchive, Notice, SelectiveCompaction, TypeRule
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.engine.placeholder import TemplateRenderer
from offload.errors import MessageError
from offload.maintenance.retention import delete
from offload.messages.base import Item
from offload.messages.context import ContextIR, ItemType
from offload.records.codec.content import TextContent
from offload.records.session import Draft
from offload.records.session.drafts import OffloadedItem

LOG = "".join(f"line {n} of a result that is long\n" for n in range(400))
EAGER = OffloadPolicy(
    types={"user_message": Rule(min_chars=1), "tool_result": Rule(min_chars=1)}, min_saving=0
)
SUMMARY = "src/a_17.py:48 -> 0x9f3a, exit 1; " * 240


def said(text: str = "well") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def ran(text: str, call: str = "c1", name: str = "Bash") -> list[Any]:
    return tool_turn(call, text, name)


def talk(rounds: int) -> list[Any]:
    return [
        m for n in range(rounds) for m in (from_user(f"question {n} " + "please " * 150), said(f"answer {n}"))
    ]


def shortened(off: Offloader, messages: list[Any], removed: list[int], **parts: Any) -> list[Any]:
    """Return `messages` with a notice for those at the indices `removed`."""
    archive = MessageArchive(off)
    notice = replace(archive.notice(messages), messages=len(removed), **parts)
    _, message = archive.store(messages, removed, notice)
    out = [m for i, m in enumerate(messages) if i not in removed]
    return [*out[: removed[0]], message, *out[removed[0] :]]


def text_of(message: Any) -> str:
    content = message["content"]
    return str(content if isinstance(content, str) else content[0].get("content", content[0].get("text")))


def opened(kind: str, root: Path) -> Any:
    """Return an offloader or a preset."""
    if kind == "context_fs":
        return ContextFileSystem(root, "s")
    if kind == "context_refs":
        return ContextRefs(root, "s")
    return Offloader(root, session="s", policy=EAGER if kind == "eager" else None)


KINDS = ["default", "eager", "context_fs", "context_refs"]


# Notices stay


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_summary_is_never_offloaded_and_is_undone(tmp_path: Path, kind: str) -> None:
    messages = talk(80)
    system = opened(kind, tmp_path)
    off: Offloader = getattr(system, "offloader", system)
    strategy = SelectiveCompaction(
        off,
        lambda _: f"<summary>{SUMMARY}</summary>",
        threshold_tokens=16_000,
        rules=dict.fromkeys(ItemType, TypeRule(strategy="none")),
    )
    context = ContextIR()
    for message in messages:
        context.add_message(message)
    assert strategy.compact(context, current_total_tokens=20_000).is_compacted
    sent = [*context.lower(), said(), from_user("next")]
    assert off.options.count_tokens(text_of(sent[0])) > 2500

    for again in (system, opened(kind, tmp_path)):
        out = again.offload(sent)
        assert out.errors == []
        assert out.messages[0] == sent[0]
        assert again.restore(out.messages)[:-2] == messages


def test_the_notice_of_a_preset_with_short_ids_ends_with_a_line_of_its_own_and_stays(tmp_path: Path) -> None:
    refs = ContextRefs(tmp_path, "s")
    messages = [*talk(2), *ran(LOG), *talk(2)]

    sent = shortened(refs.offloader, messages, [0, 1, 2, 3, 4, 5])

    ref = Notice().find_ref(text_of(sent[0]))
    assert ref is not None
    assert text_of(sent[0]).splitlines()[-1].startswith(f"[Messages in context: {ref}] (")
    assert LOG.splitlines()[3] in refs.call("context_grep", {"pattern": "line 3 of"})
    assert refs.restore(sent) == messages
    out = refs.offload_history([*sent, said()])
    assert out.messages[0] == sent[0]
    assert refs.restore(out.messages)[:-1] == messages


def test_a_notice_costs_no_request_once_it_is_known() -> None:
    store = CountedStore()
    sent = shortened(Offloader(store, session="s"), talk(4), [0, 1, 2])
    off = Offloader(store, session="s")
    off.offload(sent)
    store.requests.clear()

    off.offload([*sent, said(), from_user("more")])

    assert store.requests == []


def test_the_notice_of_another_session_stays_in_view_and_restores_as_it_is(tmp_path: Path) -> None:
    sent = shortened(Offloader(tmp_path, session="s"), talk(60), list(range(90)), summary=SUMMARY)
    other = Offloader(tmp_path, session="other", policy=EAGER)

    with pytest.raises(NotFoundError, match="session 'other'"):
        other.restore(sent)
    kept = other.restore(sent, on_missing="keep")
    assert kept == sent
    assert [(m.message, m.ref) for m in kept.missing] == [(0, Notice().find_ref(text_of(sent[0])))]

    out = other.offload(sent)

    assert out.messages[0] == sent[0]
    assert Offloader(tmp_path, session="other", policy=EAGER).restore(out.messages) == sent


def test_a_text_above_the_ceiling_does_not_stay_because_it_looks_like_a_notice(tmp_path: Path) -> None:
    policy = OffloadPolicy(max_view_tokens=1000)
    off = Offloader(tmp_path, session="s", policy=policy)
    messages = [from_user("[Compacted 1: 3 earlier messages moved to storage, id abcdefghij]\n" + LOG)]

    out = off.offload(messages)

    assert len(text_of(out.messages[0])) < len(LOG) / 2
    assert off.restore(out.messages) == messages


# Notices that cannot be undone


@pytest.mark.parametrize(("how", "error"), [("deleted", ExpiredError), ("damaged", CorruptError)])
def test_a_lost_notice_is_told_and_never_a_short_list(tmp_path: Path, how: str, error: type) -> None:
    off = Offloader(tmp_path, session="s")
    first = shortened(off, talk(6), [0, 1, 2])
    sent = shortened(off, first, [2, 3, 4])
    ref = Notice().find_ref(text_of(sent[2])) or ""
    if how == "deleted":
        delete(off.store, "s", [ref])
    else:
        [path] = (tmp_path / "r" / "s").glob(f"{ref}*")
        path.write_bytes(path.read_bytes()[:-30])
    far = Offloader(tmp_path, session="s")

    with pytest.raises(error):
        far.restore(sent)
    with pytest.raises(error):
        MessageArchive(far).restore(sent)
    kept = far.restore(sent, on_missing="keep")

    assert [type(m.error) for m in kept.missing] == [error]
    assert kept[kept.missing[0].message] == sent[2]
    assert kept[:3] == talk(6)[:3]


def test_a_notice_beside_other_content_is_told_and_one_with_a_mark_of_the_provider_is_undone(
    tmp_path: Path,
) -> None:
    off = Offloader(tmp_path, session="s")
    notice, *rest = shortened(off, talk(4), [0, 1, 2])
    blocks = [{"type": "text", "text": text} for text in (text_of(notice), "and go on")]
    merged = [{"role": "user", "content": blocks}, *rest]

    assert off.offload(merged).messages == merged
    [missing] = off.restore(merged, on_missing="keep").missing
    assert isinstance(missing.error, MessageError)
    assert "shares its message with other content" in str(missing.error)
    marked = {**blocks[0], "cache_control": {"type": "ephemeral"}}
    assert off.restore([{"role": "user", "content": [marked]}, *rest]) == talk(4)


# In any order


def hidden(off: Offloader, text: str) -> dict[str, Any]:
    """Return a user message whose text is offloaded whatever it looks like, as release 0.1 did."""
    item, content = Item(None, "user_message", text), TextContent.of(text, 1)

    def render(ref: str) -> str:
        return f"[Offloaded: user message, 3 lines, id {ref}]\n[Read it]"

    ref = off._session.ref_of(item.identity(content.counts.sha256))
    [stored] = off._session.write([Draft(item, content, ref, render(ref), render)])
    assert isinstance(stored, OffloadedItem)
    return from_user(stored.placeholder)


def test_a_notice_in_an_offloaded_text_and_placeholders_in_its_rows_are_undone(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    messages = [*talk(3), *ran(LOG), *talk(2)]
    sent = shortened(off, messages, [1, 2, 6, 7])
    shown = [sent[0], hidden(off, text_of(sent[1])), *sent[2:]]

    assert Offloader(tmp_path, session="s").restore(shown) == messages


def test_of_two_notices_of_one_number_the_later_is_undone_first(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    messages = talk(6)
    first = shortened(off, messages, [2, 3, 4])
    assert text_of(first[2]).startswith("[Compacted 1: ")
    first[2] = hidden(off, text_of(first[2]))

    second = shortened(off, first, [0, 1])

    assert text_of(second[0]).startswith("[Compacted 1: ")
    assert off.restore(second) == messages


def test_a_look_alike_that_was_offloaded_is_just_text_when_it_comes_back(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    own = off.offload_text(LOG, tool_name="Bash", tool_use_id="c1")
    [record] = off.records()
    messages = [from_user(own), from_user(own.replace(record.ref, "abcdefghij"))]

    out = off.offload(messages)
    delete(off.store, "s", [record.ref])

    assert all(a != b for a, b in zip(out.messages, messages, strict=True))
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages


def test_a_restore_lists_once_and_reads_each_record_once() -> None:
    store = CountedStore()
    off = Offloader(store, session="s", policy=EAGER)
    messages = [*talk(3), *ran(LOG), *talk(3), *ran(LOG * 2, "c2"), *talk(2)]
    sent = shortened(off, messages, [0, 1, 2])
    sent = shortened(off, sent, [1, 2, 4, 5])
    sent = off.offload([*sent, *ran(LOG * 3, "c3")]).messages
    store.requests.clear()

    restored = Offloader(store, session="s", policy=EAGER).restore(sent)

    assert restored == [*messages, *ran(LOG * 3, "c3")]
    listings = [request for request in store.requests if request.startswith("keys ")]
    assert len(listings) == 1
    assert len(store.requests) - 1 == len(set(store.requests)) - 1 == len(off.records())


# Items of removed messages


def test_each_large_item_of_removed_messages_gets_its_own_record(tmp_path: Path) -> None:
    fs = ContextFileSystem(tmp_path, "s", ephemeral={"Peek": 1})
    small = "a short result that is longer than its placeholder would be\n" * 8
    messages = [from_user("go " + LOG), *ran(LOG), *ran(small, "c2", "Peek"), *ran("tiny", "c3"), *talk(2)]

    sent = shortened(fs.offloader, messages, list(range(7)))

    fs.reindex()
    documents = {d.tool_name or d.item_type: tmp_path / d.path for d in fs.history()}
    assert set(documents) == {"user_message", "Bash", "Peek", "conversation"}
    assert LOG in json.loads(documents["Bash"].read_text())["content"]
    rows = json.loads(documents["conversation"].read_text())["content"]
    assert str(documents["Bash"]) in rows
    assert "tiny" in rows
    assert "line 7 of a result" not in rows
    assert f"\nPath: {documents['conversation']}\nUse Read tool to view details." in text_of(sent[0])
    assert fs.restore(sent) == messages


def test_what_the_host_keeps_is_kept_in_the_rows(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s", should_offload=lambda item: item.tool_use_id != "c1")
    messages = [*ran(LOG), *ran(LOG * 2, "c2"), *talk(2)]

    sent = shortened(off, messages, [0, 1, 2, 3])

    assert sorted(info.tool_name or "" for info in off.records()) == ["Bash", "conversation"]
    [rows] = [info for info in off.records() if info.tool_name == "conversation"]
    assert len(LOG) < rows.chars < len(LOG) * 2
    assert off.restore(sent) == messages


def test_a_look_alike_among_removed_messages_comes_back_also_where_a_summary_is_longer_than_placeholders(
    tmp_path: Path,
) -> None:
    off = Offloader(tmp_path, session="s")
    fake = "[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\nsomething\n[Read it: x]"
    messages = [from_user(fake), *ran(LOG * 3), *talk(2)]

    for summary in ("", SUMMARY):
        sent = shortened(off, messages, [0, 1, 2], summary=summary)
        assert summary.strip() in text_of(sent[0])
        assert Offloader(tmp_path, session="s").restore(sent) == messages


def test_nothing_that_is_redacted_stands_in_a_notice(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s", redact=lambda text: text.replace("hunter2", "***"))
    parts = {"task": "log in with hunter2", "summary": "used hunter2", "ledger": "curl -u hunter2"}

    sent = shortened(off, talk(4), [0, 1, 2, 3], **parts)

    assert "hunter2" not in text_of(sent[0])
    assert "hunter2" not in "".join(map(str, off.content(Notice().find_ref(text_of(sent[0])) or "")))
    for part in ("log in with ***", "used ***", "curl -u ***"):
        assert part in text_of(sent[0])


def test_a_placeholder_in_a_row_is_not_redacted(tmp_path: Path) -> None:
    def redact(text: str) -> str:
        return re.sub(r"\b[a-z]{10}\b", "*" * 10, text)

    off = Offloader(tmp_path, session="s", redact=redact)
    [call, _] = ran(LOG)
    messages = [from_user("the word electronic " + "please " * 150), call, ran(LOG)[1], *talk(2)]
    earlier = off.offload(messages).messages

    for listed in (messages, earlier):
        restored = off.restore(shortened(off, listed, [0, 1, 2]))
        assert restored[1:] == messages[1:]
        assert text_of(restored[0]).startswith("the word ********** please")


def test_a_notice_has_task_summary_and_ledger_in_this_order_before_how_to_read() -> None:
    text = Notice(2, 7, summary="the summary", ledger="the ledger", task="the task").text()
    places = [
        text.index(word) for word in ("Compacted 2: 7", "the task", "the summary", "the ledger", "Read: ")
    ]

    assert places == sorted(places)


def test_numbers_that_a_user_invents_do_not_stop_a_compaction(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    fake = from_user("[Compacted 999999999: 3 earlier messages moved to storage, id abcdefghij]\nplease")
    messages = [fake, *talk(4)]

    sent = shortened(off, messages, [1, 2, 3])

    assert text_of(sent[1]).startswith("[Compacted 1: ")
    assert off.restore(off.offload(sent).messages) == messages


# Other forms


def placeholder_of(kind: str, root: Path) -> tuple[Any, list[Any], list[Any]]:
    """Offload by a preset; return its store, the messages and what it made of them."""
    system = opened(kind, root)
    off: Offloader = getattr(system, "offloader", system)
    messages = [*ran(LOG * 2), said("I see"), from_user("go on")]
    out = system.offload(messages)
    assert out.messages[1] != messages[1]
    return off.store, messages, out.messages


@pytest.mark.parametrize("kind", ["default", "context_fs", "context_refs"])
@pytest.mark.parametrize("renderer", [None, TemplateRenderer("<{tool} {ref}>")])
def test_an_offloader_knows_what_other_renderers_of_its_session_wrote(
    tmp_path: Path, kind: str, renderer: Any
) -> None:
    store, messages, sent = placeholder_of(kind, tmp_path)
    off = Offloader(store, session="s", policy=EAGER, placeholder=renderer)

    out = off.offload(sent)

    assert out.messages[1] == sent[1]
    assert off.restore(sent) == messages


@pytest.mark.parametrize("kind", ["context_fs", "context_refs"])
def test_the_form_of_another_renderer_is_text_without_a_record_and_told_with_a_deleted_one(
    tmp_path: Path, kind: str
) -> None:
    store, _, sent = placeholder_of(kind, tmp_path / "a")
    off = Offloader(tmp_path / "b", session="s")

    assert off.offload(sent).messages == sent
    assert off.records() == []
    assert off.restore(sent) == sent
    owner = Offloader(store, session="s")
    delete(store, "s", [owner.records()[0].ref])
    with pytest.raises(ExpiredError):
        owner.restore(sent)


def test_a_line_that_tool_output_returned_restores_in_a_message_with_a_call_id(tmp_path: Path) -> None:
    refs = ContextRefs(tmp_path, "s")
    line = refs.tool_output(LOG, tool_name="Bash")
    formats = [
        {"role": "tool", "tool_call_id": "c1", "content": line},
        ran(line)[1],
        {"type": "function_call_output", "call_id": "c1", "output": line},
    ]

    for message in formats:
        [restored] = ContextRefs(tmp_path, "s").restore([message])
        assert LOG in str(restored).replace("\\n", "\n")

"""Guarantees of `Offloader` on the embedded stores; tests read the files of a store directly."""

from __future__ import annotations

import asyncio
import collections
import copy
import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from encoded import facts
from kit.conversation import from_model, from_user, tool_result, tool_use

from offload import (
    ConfigError,
    CorruptError,
    MessageError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    OffloadResult,
    ReasonKind,
    Rule,
    StoreError,
    StoreMissingError,
    explain,
)
from offload.engine.placeholder import DefaultRenderer, Notice
from offload.engine.policy.cost import LEFT_ALONE, RESULT_LEFT_ALONE
from offload.records.codec import CODECS

LOG = "".join(f"{n:05} ERROR worker-{n % 7} could not reach 10.0.{n % 255}.1\n" for n in range(400))
OTHER = "".join(f"{n},{n * n},row of a table\n" for n in range(800))
EVERYTHING = OffloadPolicy(types={"tool_result": Rule(min_tokens=1)}, min_saving=0)


def call(name="Bash", call_id="call_0"):
    return from_model([tool_use(call_id, name, {"command": "x"})])


def result(content=LOG, call_id="call_0", **fields):
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}
    return {"role": "user", "content": [block]}


def conversation(content=LOG, name="Bash", **fields):
    return [{"role": "user", "content": "Why does it fail?"}, call(name), result(content, **fields)]


def shown(out: OffloadResult, index=-1):
    return out.messages[index]["content"][0]["content"]


def stored_files(root: Path):
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name != "offload.json")


def stored_text(path: Path):
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as r,
    ):
        return r.read().decode()


def test_a_large_result_is_replaced_and_all_else_is_the_same_object(tmp_path):
    messages = conversation()

    out = Offloader(tmp_path).offload(messages)

    assert out.messages[0] is messages[0]
    assert out.messages[1] is messages[1]
    assert len(shown(out)) < len(LOG) / 5
    assert out.errors == []


def test_the_store_holds_the_text_before_the_placeholder_is_shown(tmp_path):
    Offloader(tmp_path, session="s").offload(conversation())

    [path] = stored_files(tmp_path)
    assert stored_text(path) == LOG


def test_the_input_is_never_changed(tmp_path):
    messages = conversation([{"type": "text", "text": LOG}, {"type": "text", "text": OTHER}])
    before = copy.deepcopy(messages)

    Offloader(tmp_path).offload(messages)

    assert messages == before


def test_the_figures_add_up_and_are_those_of_any_process(tmp_path):
    out = Offloader(tmp_path, session="s").offload([call(), result(LOG), call(), result(OTHER)])

    record, decision = out.records[0], out.decisions[1]
    assert (record.chars, record.lines, record.bytes) == (len(LOG), 400, len(LOG.encode()))
    assert out.chars_freed == len(LOG) + len(OTHER) - len(shown(out, 1)) - len(shown(out, 3))
    freed = sum(d.item.tokens - d.tokens_after for d in out.decisions if d.ref)
    assert out.tokens_before - out.tokens_after == freed
    assert decision.ref == record.ref
    other = Offloader(tmp_path, session="s")
    assert {r.ref for r in other.records()} == {r.ref for r in out.records}
    stats = other.stats()
    assert (stats.records, stats.chars) == (2, len(LOG) + len(OTHER))
    assert stats.by_tool == {"Bash": 2}
    assert stats.stored_bytes == sum(p.stat().st_size for p in stored_files(tmp_path))


def test_nothing_new_means_the_same_answer_and_no_new_file_whatever_was_done_to_the_last_one(tmp_path):
    off = Offloader(tmp_path)
    messages = collections.deque(conversation())
    first = off.offload(messages)
    files = stored_files(tmp_path)
    sent = copy.deepcopy(first.messages)
    assert off.offload(messages) == first
    first.messages[2]["content"][0]["cache_control"] = {"type": "ephemeral"}

    again = off.offload(messages)

    assert again.messages == sent
    assert stored_files(tmp_path) == files
    assert off.restore(tuple(sent)) == list(messages)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_answer_that_is_handed_back_is_left_alone_also_after_a_restart(tmp_path, is_restarted):
    off = Offloader(tmp_path, session="s", policy=EVERYTHING)
    history = off.offload(conversation()).messages
    if is_restarted:
        off = Offloader(tmp_path, session="s", policy=EVERYTHING)

    out = off.offload([*history, call(call_id="call_1"), result(OTHER, "call_1")])

    assert out.messages[2] == history[2]
    assert ReasonKind.PLACEHOLDER in [decision.reason.kind for decision in out.decisions]
    assert [r.chars for r in out.records] == [len(OTHER)]
    assert len(stored_files(tmp_path)) == 2


def test_what_was_replaced_keeps_its_text_when_the_policy_changes_and_the_process_restarts(tmp_path):
    messages = conversation()
    first = Offloader(tmp_path, session="s").offload(messages)
    other = OffloadPolicy(types={"tool_result": Rule(min_tokens=100, preview_chars=300)})

    again = Offloader(tmp_path, session="s", policy=other).offload(messages)

    assert again.messages == first.messages


def test_a_call_id_that_two_sessions_share_or_that_comes_twice_gives_each_its_own_content(tmp_path):
    sessions = {
        "a": conversation(),
        "b": conversation(OTHER),
        "c": [call(), result(LOG), call(), result(OTHER)],
    }
    for name, messages in sessions.items():
        off = Offloader(tmp_path, session=name)
        out = off.offload(messages)
        assert off.restore(out.messages) == messages
    assert len({r.ref for r in out.records}) == 2


def test_a_copy_of_a_placeholder_in_another_result_is_not_restored(tmp_path):
    off = Offloader(tmp_path)
    out = off.offload(conversation())
    forged = [*out.messages, call("WebFetch", "call_9"), result(shown(out), "call_9")]

    with pytest.raises(NotFoundError, match="is of another item or tool call") as raised:
        off.restore(forged)

    assert raised.value.messages[2] == result(LOG)
    assert raised.value.messages[4] is forged[4]
    assert [missing.message for missing in raised.value.missing] == [4]
    assert off.restore(off.offload(forged).messages)[4] == forged[4]


def test_a_text_that_only_looks_like_a_placeholder_is_kept_if_that_is_asked_for(tmp_path):
    off = Offloader(tmp_path)
    out = off.offload(conversation())
    altered = shown(out).replace("ERROR", "error")
    messages = [call(), result(altered), call(), result(shown(out).replace(out.records[0].ref, "a" * 10))]

    restored = off.restore(messages, on_missing="keep")

    assert restored == messages
    assert [(m.message, type(m.error)) for m in restored.missing] == [(1, NotFoundError), (3, NotFoundError)]


def test_a_key_that_is_taken_by_another_item_makes_the_ref_longer(tmp_path):
    Offloader(tmp_path / "a", session="s").offload(conversation())
    Offloader(tmp_path / "b", session="t").offload(conversation(OTHER))
    [wanted], [other] = stored_files(tmp_path / "a"), stored_files(tmp_path / "b")
    planted = other.read_bytes()
    wanted.write_bytes(planted)

    off = Offloader(tmp_path / "a", session="s")
    out = off.offload(conversation())

    assert wanted.read_bytes() == planted
    assert len(out.records[0].ref) == 11
    assert out.records[0].ref.startswith(wanted.name[:10])
    assert off.restore(out.messages) == conversation()


@pytest.fixture
def broken(tmp_path):
    """Return a root that is a file, so no record can be stored, and a function that repairs it."""
    root = tmp_path / "root"
    root.write_text("in the way")
    return root


def test_a_store_that_fails_leaves_the_messages_with_one_error_and_is_tried_again(broken, caplog):
    messages = [call(), result(LOG), call(), result(OTHER)]
    off = Offloader(broken)
    with caplog.at_level(logging.WARNING, "offload"):
        out = off.offload(messages)

    assert all(a is b for a, b in zip(out.messages, messages, strict=True))
    assert [type(e) for e in out.errors] == [StoreMissingError]
    assert str(broken) in str(out.errors[0])
    assert len(caplog.records) == 1
    assert "ERROR worker" not in caplog.text

    broken.unlink()
    again = off.offload(messages)

    assert again.errors == []
    assert again.messages != messages
    assert off.restore(again.messages) == messages


def test_what_cannot_be_stored_is_cut_if_that_is_asked_for_and_the_text_of_a_tool_stays(broken):
    off = Offloader(broken, on_error="truncate")
    out = off.offload(conversation())

    assert shown(out).startswith(LOG[:100])
    assert "the rest was not stored" in shown(out)
    assert len(shown(out)) < 1500
    assert [isinstance(e, StoreError) for e in out.errors] == [True]
    kept = off.with_options(on_error="keep")
    assert kept.offload_text(LOG, tool_name="Bash") is LOG
    assert "keep: not stored: " in kept.explain(LOG)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("text", 'messages[1]: a message must have a string "role", got str without it'),
        ({"role": "user", "content": [{"no": "type"}]}, "messages[1].content[0]: a content block must have"),
        (
            {"role": "tool", "content": "x"},
            'messages[1]: a message of role tool must have a string "tool_call_id"',
        ),
    ],
)
def test_a_malformed_message_stays_and_the_error_says_where_and_what(message, said, tmp_path):
    off = Offloader(tmp_path)
    messages = [{"role": "user", "content": "hi"}, message, *conversation()]

    out = off.offload(messages)

    [error] = out.errors
    assert isinstance(error, MessageError)
    assert said in str(error)
    assert out.messages[1] is message
    assert len(out.records) == 1
    assert off.restore(out.messages) == messages


@pytest.mark.parametrize("messages", ["text", b"bytes", None, {"role": "user"}])
def test_what_is_no_list_of_messages_is_refused(messages, tmp_path):
    with pytest.raises(MessageError, match="expected a list of messages"):
        Offloader(tmp_path).offload(messages)


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"is_error": True}, ReasonKind.TOOL_ERROR), ({"name": "context_list"}, ReasonKind.RETRIEVAL)],
)
def test_errors_of_tools_and_lists_of_items_stay_in_view(tmp_path, given, kind):
    out = Offloader(tmp_path).offload(conversation(**given))

    assert out.decisions[-1].reason.kind is kind
    assert out.records == []


@pytest.mark.parametrize(
    ("messages", "item_type", "action", "replies"),
    [
        (conversation(name="Read"), "tool_result", "wait", LEFT_ALONE),
        (conversation(is_error=True), "tool_result", "keep", RESULT_LEFT_ALONE),
        ([{"role": "user", "content": LOG}], "user_message", "wait", LEFT_ALONE),
    ],
)
def test_a_file_an_error_and_a_text_of_the_user_stay_while_they_are_new_and_go_when_that_pays(
    tmp_path, messages, item_type, action, replies
):
    off = Offloader(tmp_path)
    given = [*messages]

    for _ in range(replies):
        out = off.offload(given)
        assert out.messages == given
        [decision] = [
            each for each in out.decisions if each.item.item_type == item_type and each.item.chars > 99
        ]
        assert decision.action == action
        given += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "Go on."}]
    then = off.offload(given)

    assert [r.item_type for r in then.records] == [item_type]
    assert off.restore(then.messages) == given


def test_a_placeholder_is_never_longer_than_what_it_replaces(tmp_path):
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
    texts = ["x" * n for n in (1, 50, 120, 200, 260, 400, 1500)]
    messages = [m for i, t in enumerate(texts) for m in (call(call_id=f"c{i}"), result(t, f"c{i}"))]

    out = Offloader(tmp_path, policy=policy).offload(messages)

    sizes = [len(m["content"][0]["content"]) for m in out.messages if m["role"] == "user"]
    assert all(after <= len(t) for after, t in zip(sizes, texts, strict=True))
    assert sizes[-1] < 1500
    first = next(d for d in out.decisions if d.item.item_type == "tool_result")
    assert first.reason.kind is ReasonKind.LITTLE_SAVED


def test_the_texts_of_one_result_become_one_placeholder_and_its_image_stays(tmp_path):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    texts = [{"type": "text", "text": LOG}, {"type": "text", "text": OTHER, "cache_control": {"type": "x"}}]
    messages = conversation([texts[0], image, texts[1]])
    off = Offloader(tmp_path, session="s")

    out = off.offload(messages)

    [placeholder, kept] = shown(out)
    assert placeholder["type"] == "text"
    assert kept == image
    assert out.records[0].chars == len(LOG) + 1 + len(OTHER)
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages


def test_one_text_that_came_in_two_shapes_is_restored_in_both(tmp_path):
    split = [{"type": "text", "text": LOG}, {"type": "text", "text": OTHER}]
    messages = [call(), result(split), call(), result(f"{LOG}\n{OTHER}")]
    off = Offloader(tmp_path)

    assert off.restore(off.offload(messages).messages) == messages


def test_blocks_of_unknown_kinds_pass_untouched(tmp_path):
    messages = [{"role": "user", "content": [{"type": "hologram", "data": LOG}]}]

    out = Offloader(tmp_path).offload(messages)

    assert out.messages[0] is messages[0]
    assert out.errors == []


def test_a_mark_or_a_block_that_the_caller_adds_in_place_is_seen(tmp_path):
    off = Offloader(tmp_path)
    messages = conversation()
    first = off.offload(messages)
    messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}

    out = off.offload(messages)

    assert out.messages[-1]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert shown(out) == shown(first)
    assert off.restore(out.messages) == messages
    messages[-1]["content"].append(result(OTHER, "call_1")["content"][0])
    assert [r.tool_use_id for r in off.offload(messages).records] == ["call_0", "call_1"]


def test_a_conversation_that_is_rolled_back_and_goes_on_differently_is_followed(tmp_path):
    off = Offloader(tmp_path)
    start = conversation()
    off.offload([*start, call(call_id="c1"), result(OTHER, "c1")])
    other_way = [*start, call(call_id="c2"), result(OTHER + "!", "c2")]

    out = off.offload(other_way)

    assert [r.tool_use_id for r in out.records] == ["call_0", "c2"]
    assert out.tokens_before == Offloader("memory://").offload(other_way).tokens_before
    assert off.restore(out.messages) == other_way


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_every_codec_restores_in_another_offloader_of_any_codec(codec, tmp_path):
    messages = [call(), result(LOG + "\ud800 \x00 é 漢字 🙂"), call(), result(OTHER)]
    out = Offloader(tmp_path, session="s", codec=codec).offload(messages)

    assert len(out.records) == 2
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages


def test_a_raw_record_is_a_file_with_the_content_alone_and_a_header_without_it_is_taken_over(tmp_path):
    first = Offloader(tmp_path, session="s", codec="raw").offload(conversation())
    [body] = [p for p in tmp_path.rglob("*.txt") if p.relative_to(tmp_path).parts[0] == "r"]
    assert body.read_text() == LOG
    body.unlink()
    other = OffloadPolicy(types={"tool_result": Rule(preview_chars=200)})
    off = Offloader(tmp_path, session="s", codec="raw", policy=other)

    out = off.offload(conversation())

    assert out.messages == first.messages
    assert off.restore(out.messages) == conversation()


def test_a_text_goes_out_as_the_tool_returns_it_and_comes_back_in_its_result(tmp_path):
    off = Offloader(tmp_path)
    placeholder = off.offload_text(LOG, tool_name="Bash", tool_use_id="call_0")

    assert off.restore(conversation(placeholder)) == conversation(LOG)
    assert off.offload_text("short", tool_name="Bash") == "short"
    assert off.offload(conversation(placeholder)).decisions[-1].reason.kind is ReasonKind.PLACEHOLDER


@pytest.mark.parametrize("tool", ["fetch", "read_rows", "Read", "mcp__fs__read_text"])
def test_a_text_of_a_reader_goes_at_once_unless_its_messages_are_offloaded_later(tool, tmp_path):
    off = Offloader(tmp_path)

    assert off.offload_text(LOG, tool_name=tool) != LOG
    assert off.offload_text(LOG, tool_name=tool, tool_use_id="other", file_readers="keep") is LOG
    with off.open_sink(tool_name=tool) as sink:
        sink.write(OTHER)
    assert sink.info is not None
    with off.open_sink(tool_name=tool, tool_use_id="other", file_readers="keep") as sink:
        sink.write(OTHER)
    assert (sink.info, sink.placeholder) == (None, OTHER)
    for take in (partial(off.offload_text, LOG), off.open_sink):
        with pytest.raises(ConfigError, match="readers must be one of"):
            take(file_readers="never")  # type: ignore[arg-type]


def test_rules_that_a_caller_gave_hold_for_a_single_text_too(tmp_path):
    seen_once = OffloadPolicy(tools={"fetch": Rule(after_replies=1)})

    for policy in (seen_once, OffloadPolicy(exclude_tools=("fe*",))):
        assert Offloader(tmp_path, policy=policy).offload_text(LOG, tool_name="fetch") is LOG


def test_a_text_that_stays_says_why(tmp_path, caplog):
    off = Offloader(tmp_path, should_offload=lambda facts: facts.tool_name != "mine")
    reasons = {
        "a": (off.offload_text("short", tool_name="a"), "1 tokens, fewer than 1500"),
        "read": (
            off.offload_text(LOG, tool_name="read", file_readers="keep"),
            f"offloaded after {LEFT_ALONE} more replies of the model",
        ),
        "mine": (off.offload_text(LOG + "x", tool_name="mine"), "kept by should_offload"),
    }
    placeholder = off.offload_text(OTHER, tool_name="b", tool_use_id="call_1")

    for name, (text, reason) in reasons.items():
        assert reason in off.explain(text).splitlines()[1]
        assert f" {name} " in off.explain(text)
    assert "offload: " in off.explain(OTHER)
    assert off.explain() == off.explain(OTHER)
    with pytest.raises(ConfigError, match="text must be a str or None, got list"):
        off.explain([])  # type: ignore[arg-type]
    assert "not among the last" in off.explain(placeholder)


def test_the_last_call_is_explained_item_by_item_and_of_single_texts_the_latest(tmp_path):
    off = Offloader(tmp_path)
    assert len(off.explain().splitlines()) == 1

    out = off.offload(conversation())
    assert off.explain() == explain(out.decisions)
    texts = [f"text {n}" for n in range(300)]
    for text in texts:
        off.offload_text(text)
    assert [t for t in texts if "fewer than" in off.explain(t)] == texts[-256:]


def test_the_async_twins_do_the_same(tmp_path):
    off = Offloader(tmp_path, session="s")

    async def run():
        out = await off.aoffload(conversation())
        return out, await off.arestore(out.messages)

    out, restored = asyncio.run(run())

    assert out.messages == Offloader(tmp_path, session="s").offload(conversation()).messages
    assert restored == conversation()


def test_a_damaged_record_is_refused_and_the_others_are_read(tmp_path):
    off = Offloader(tmp_path, session="s")
    out = off.offload([call(), result(LOG), call(), result(OTHER)])
    path = tmp_path / out.records[0].key
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)

    answer = Offloader(tmp_path, session="s").tools.call("context_read", {"id": out.records[0].ref})
    other = Offloader(tmp_path, session="s").tools.call("context_read", {"id": out.records[1].ref})

    assert answer.startswith("Error:")
    assert OTHER[:500] in other


def test_verify_reports_each_damaged_record_and_no_other(tmp_path):
    off = Offloader(tmp_path, session="s")
    out = off.offload([m for n in range(4) for m in (call(), result(f"{n}\n{LOG}"))])
    flipped, cut = (tmp_path / out.records[n].key for n in (1, 3))
    assert off.verify() == []

    data = bytearray(flipped.read_bytes())
    data[-200] ^= 4
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])

    damaged = Offloader(tmp_path, session="s").verify()
    assert {d.info.ref for d in damaged} == {out.records[1].ref, out.records[3].ref}
    assert all(isinstance(d.error, CorruptError) and d.info.key in str(d.error) for d in damaged)


def test_a_session_without_a_name_gets_one_by_time_and_chance(tmp_path):
    name = Offloader(tmp_path).session

    assert re.fullmatch(r"session_\d{8}_\d{6}_[a-z0-9]{6}", name)
    assert name != Offloader(tmp_path).session


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"store": "nope://x"}, "nope"),
        ({"session": ""}, "session name must be a str"),
        ({"session": "\ud800"}, "valid Unicode"),
        ({"codec": "gzip"}, "zstd, json, raw"),
        ({"on_error": "ignore"}, "on_error must be one of"),
        ({"policy": {"min_saving": 1}}, "policy must be an OffloadPolicy or the name of one, got dict"),
        ({"policy": "ballanced"}, "did you mean 'balanced'?"),
        ({"token_counter": 5}, "token_counter"),
        ({"placeholder": 5}, "placeholder"),
        ({"max_answer_chars": "8192"}, "max_answer_chars must be an integer of at least"),
        ({"tools": 5}, "tools must be among context_list"),
        ({"tools": "context_read"}, "tools must be among context_list"),
        ({"storage_options": 5}, "storage_options must be a dict, got int"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_by_name(arguments, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        Offloader(**{"store": "memory://", **arguments})


def test_any_function_counts_tokens_in_any_number(tmp_path):
    out = Offloader(tmp_path / "a", token_counter=len).offload(conversation("x" * 2500))
    assert out.decisions[-1].item.tokens == 2500
    assert len(out.records) == 1

    off = Offloader(tmp_path, session="s", token_counter=lambda text: len(text) / 4)  # type: ignore[arg-type] # a float
    out = off.offload(conversation())
    assert out.errors == []
    assert Offloader(tmp_path, session="s").restore(out.messages) == conversation()
    assert [r.tokens for r in off.records()] == [round(len(LOG) / 4)]


class Careless:
    """Hooks of a host that raise unusual errors."""

    url, is_shared, has_atomic_create, durability = "careless://", False, True, "unknown"

    def __call__(self, *_, **__):
        raise RuntimeError("the disk is on fire")

    put = get = keys = delete = render = find_ref = __call__


@pytest.mark.parametrize("part", ["store", "token_counter", "placeholder"])
def test_whatever_a_part_of_the_callers_own_raises_leaves_the_messages(part, caplog):
    arguments: dict[str, Any] = {"store": "memory://", part: Careless()}
    off = Offloader(**arguments)
    messages = conversation()

    out = off.offload(messages)

    assert all(a is b for a, b in zip(out.messages, messages, strict=True))
    assert len(out.errors) == 1
    assert str(out.errors[0]).endswith("RuntimeError: the disk is on fire")
    assert isinstance(out.errors[0].__cause__, RuntimeError)
    assert off.offload_text(LOG) is LOG
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("is_known", [True, False])
def test_a_renderer_of_ones_own_is_used_if_it_knows_its_own(tmp_path, is_known):
    class Terse:
        def render(self, facts):
            return f"<gone {facts.ref}>"

        def find_ref(self, text):
            return text[6:-1] if is_known and text.startswith("<gone ") else None

    off = Offloader(tmp_path, placeholder=Terse())
    out = off.offload(conversation())

    assert off.restore(out.messages) == conversation()
    if is_known:
        assert shown(out) == f"<gone {out.records[0].ref}>"
        return
    assert out.messages == conversation()
    assert "find_ref() must return" in str(out.errors[0])
    assert stored_files(tmp_path) == []


def test_a_new_item_is_rendered_once_and_with_its_own_ref(tmp_path):
    rendered = []

    class Noting(DefaultRenderer):
        def render(self, facts):
            rendered.append(facts.ref)
            return super().render(facts)

    off = Offloader(tmp_path, placeholder=Noting())
    out = off.offload(conversation())
    off.offload_text(OTHER)
    off.offload_text(OTHER)

    assert rendered[0] == out.records[0].ref
    assert {*rendered} == {info.ref for info in off.records()}
    assert len(rendered) == 2


# What a caller may do to its messages


class Frozen:
    """A message that takes no other content."""

    def __init__(self, text):
        object.__setattr__(self, "role", "user")
        object.__setattr__(self, "content", text)

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} is frozen")


@pytest.mark.parametrize(
    "odd",
    [
        Frozen(LOG),
        {"role": "function", "name": "f", "tool_call_id": 5, "content": LOG},
        from_user([tool_result("c", LOG, x=Frozen(""))]),
    ],
    ids=["frozen", "id", "inside"],
)
def test_one_odd_message_costs_no_other_its_placeholder(odd, tmp_path):
    off = Offloader(tmp_path, policy=OffloadPolicy(types={"user_message": Rule(after_replies=1)}))
    messages = [*conversation(), odd, {"role": "assistant", "content": "I see."}]

    out = off.offload(messages)
    again = off.offload(messages)

    assert out.messages[2] != messages[2]
    assert again.messages[2] == out.messages[2]
    assert off.restore(out.messages)[2] == messages[2]
    if isinstance(odd, Frozen):
        assert out.messages[3] is odd
        assert len(out.records) == 1
        assert "messages[3]" in str(out.errors[0])


@pytest.mark.parametrize("wait", [True, False])
def test_a_block_that_is_put_before_an_item_in_place_does_not_lose_its_text(wait, tmp_path):
    broken = tmp_path / "root"
    if not wait:
        broken.write_text("in the way")
    off = Offloader(broken, session="s", policy=OffloadPolicy(tools={"Read": Rule(after_replies=1)}))
    messages = [call("Read" if wait else "Bash"), result(LOG), {"role": "user", "content": "go"}]
    off.offload(messages)
    if not wait:
        broken.unlink()

    messages[1]["content"].insert(0, {"type": "text", "text": "IMPORTANT"})
    messages.append({"role": "assistant", "content": "ok"})
    out = off.offload(messages)

    assert out.messages[1]["content"][0]["text"] == "IMPORTANT"
    assert len(out.records) == 1
    assert off.restore(out.messages) == messages


def test_an_edit_in_place_is_seen_also_after_a_turn_that_raised(broken):
    off = Offloader(broken, on_error="raise")
    messages = conversation()
    with pytest.raises(StoreMissingError):
        off.offload(messages)
    broken.unlink()
    messages[2]["content"].insert(0, {"type": "text", "text": "IMPORTANT"})

    out = off.offload(messages)

    assert out.messages[2]["content"][0]["text"] == "IMPORTANT"
    assert off.restore(out.messages) == messages


# One item, written by two who differ


def test_each_writers_placeholder_is_known_where_two_keys_stand_for_one_ref(tmp_path):
    a = Offloader(tmp_path, session="s", token_counter=len)
    shorter = OffloadPolicy(types={"tool_result": Rule(min_tokens=1, preview_chars=200)}, min_saving=0)
    b = Offloader(tmp_path, session="s", policy=shorter)
    sent_a = a.offload(conversation()).messages
    sent_b = conversation(b.offload_text(LOG, tool_name="Bash", tool_use_id="call_0"))
    assert sent_a != sent_b
    assert len(stored_files(tmp_path)) == 2

    for off in (a, b, Offloader(tmp_path, session="s")):
        assert off.restore(sent_a) == conversation()
        assert off.restore(sent_b) == conversation()
        assert len(off.records()) == 1
    for sent in (sent_a, sent_b):
        kept = Offloader(tmp_path, session="s", policy=shorter).offload(sent)
        assert kept.decisions[-1].reason.kind is ReasonKind.PLACEHOLDER
    assert a.tools.grep("00007 ERROR").count("line 8,") == 1


# Records that are not where or what they should be


def test_a_record_that_was_moved_under_another_ref_is_refused(tmp_path):
    off = Offloader(tmp_path, session="s")
    out = off.offload([call(), result(LOG), call(), result(LOG[::-1])])
    first, second = (tmp_path / r.key for r in out.records)
    first.write_bytes(second.read_bytes())

    other = Offloader(tmp_path, session="s")
    with pytest.raises(CorruptError, match=out.records[1].ref):
        other.tools.read(out.records[0].ref)
    assert [d.info.ref for d in other.verify()] == [out.records[0].ref]
    assert "could not be searched" in other.tools.grep("00007 ERROR")


def test_a_record_of_another_session_under_a_key_of_this_one_is_refused(tmp_path):
    [a] = Offloader(tmp_path, session="a").offload(conversation()).records
    moved = tmp_path / a.key.replace("r/a/", "r/b/")
    moved.parent.mkdir()
    moved.write_bytes((tmp_path / a.key).read_bytes())

    with pytest.raises(CorruptError):
        Offloader(tmp_path, session="b").tools.read(a.ref)


def test_a_record_whose_ref_is_not_drawn_from_its_content_is_refused(tmp_path):
    off = Offloader(tmp_path, session="s")
    body = CODECS["zstd"].encode(*facts(LOG)).body
    off.store.put(f"r/s/abcdefghij~tool_result~=42ash~{len(LOG)}~5.zst", body)

    assert [type(d.error) for d in off.verify()] == [CorruptError]


def test_a_placeholder_stands_only_for_an_item_of_its_own_type(tmp_path):
    off = Offloader(tmp_path)
    text = off.offload_text(LOG)

    messages = [{"role": "user", "content": text}]

    assert off.restore(messages, on_missing="keep") == messages
    assert off.restore(off.offload(messages).messages) == messages


@pytest.mark.parametrize(
    "removed", [None, [], "01", 0, [-1], [2], [0, 0], [1, 0], [0, 5], [True], [1.0], {0, 1}], ids=repr
)
def test_indices_that_are_none_of_the_messages_remove_nothing(removed: Any) -> None:
    messages = [from_user("please " * 300), from_model("well " * 300)]
    off = Offloader("memory://", session="s")

    with pytest.raises(ConfigError, match=f"of the 2 messages in order, got {re.escape(repr(removed))}"):
        off.store_removed(messages, removed, Notice(messages=1))

    assert off.records() == []


@pytest.mark.parametrize("start", [-1, 3, "0", 0.0, [0, 0], [1, 0], [2], [0.0], None], ids=repr)
def test_thinking_is_removed_from_messages_that_there_are(start: Any) -> None:
    with pytest.raises(ConfigError, match="start must be an index of the 2 messages"):
        Offloader("memory://").remove_thinking([from_user("hi"), from_model("yes")], start)


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("store_removed", ([from_user("hi")], [0], None), "notice must be a Notice, got NoneType"),
        ("remembered", (None,), "infos must be an Iterable, got NoneType"),
        ("remembered", (["ref"],), "each of infos must be a RecordInfo, got str"),
        ("remember", (None,), "remembered must be a Remembered, got NoneType"),
        ("binding", (7,), "model must be a str or None, got int"),
    ],
)
def test_an_argument_of_another_type_is_named(method: str, arguments: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}$"):
        getattr(Offloader("memory://"), method)(*arguments)

"""The record of removed thinking: in each codec, under redaction and failure, in listings and copies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from binding import MODEL
from kit.conversation import from_model, from_user

from offload import ConfigError, Offloader, OffloadPolicy, OffloadStore, open_store
from offload.maintenance.transfer import copy_session
from offload.testing import FaultyStore


@pytest.fixture
def store() -> OffloadStore:
    return open_store("memory://")


SIGNATURES = [f"signature-{n}-secret" for n in range(4)]


def conversation() -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for n, signature in enumerate(SIGNATURES):
        thinking = {"type": "thinking", "thinking": f"the password is hunter{n}", "signature": signature}
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "Bash", "input": {"command": f"run {n}"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": f"{n}: value\n" * 900}
        messages += [from_model([thinking, call]), from_user([result])]
    return messages


def sent_without_thinking(off: Offloader, messages: list[Any]) -> list[Any]:
    """Offload a conversation request by request, and once more after all its thinking is removed."""
    for end in range(1, len(messages) + 1, 2):
        off.offload(messages[:end])
    assert off.remove_thinking(messages) == len(SIGNATURES)
    sent: list[Any] = off.offload(messages).messages
    assert "signature" not in json.dumps(sent)
    return sent


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
@pytest.mark.parametrize("refs", ["letters", "short"])
def test_another_process_restores_it_from_a_record_of_any_form(store: Any, codec: Any, refs: Any) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model=MODEL, codec=codec, id_style=refs)
    sent = sent_without_thinking(off, messages)
    assert off.restore(sent) == messages
    other = Offloader(store, session="s", model=MODEL, codec=codec, id_style=refs)
    assert other.restore(sent) == messages
    assert other.offload(messages).messages == sent
    assert off.verify() == []


@pytest.mark.parametrize("one", ["[REDACTED]", "REDACTED_SIGNATURE", "null"])
def test_thinking_with_the_one_signature_of_a_log_that_blacks_them_out_is_restored(
    store: Any, one: str
) -> None:
    text = json.dumps(conversation())
    for signature in SIGNATURES:
        text = text.replace(signature, one)
    messages = json.loads(text)
    off = Offloader(store, session="s", model=MODEL)
    off.offload(messages[:5])
    assert off.remove_thinking(messages[:5]) == 2
    assert json.dumps(off.offload(messages).messages).count(one) == 2
    assert off.remove_thinking(messages) == 2
    sent = off.offload(messages).messages
    assert one not in json.dumps(sent)
    assert Offloader(store, session="s", model=MODEL).restore(sent) == messages


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "", "signature": "[REDACTED]"},
        {"type": "redacted_thinking", "data": "REDACTED"},
    ],
)
def test_thinking_that_a_log_blacked_out_whole_is_kept_since_none_can_be_told_from_others(
    store: Any, block: Any
) -> None:
    messages = conversation()
    for message in messages[1::2]:
        message["content"][0] = block
    off = Offloader(store, session="s", model=MODEL)
    assert off.remove_thinking(messages[:5]) == 0
    assert off.restore(off.offload(messages).messages) == messages


def test_redaction_changes_its_text_and_no_signature(store: Any) -> None:
    messages = conversation()
    off = Offloader(
        store,
        session="s",
        model=MODEL,
        redact=lambda text: text.replace("hunter", "***").replace("secret", "***"),
    )
    sent = sent_without_thinking(off, messages)
    for reader in (off, Offloader(store, session="s", model=MODEL)):
        restored = reader.restore(sent)
        blocks = [m["content"][0] for m in restored if m["role"] == "assistant"]
        assert [block["signature"] for block in blocks] == SIGNATURES
    assert [block["thinking"] for block in blocks] == [f"the password is ***{n}" for n in range(4)]


def test_its_tokens_are_counted_before_and_not_after_in_each_turn_and_process(store: Any) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model=MODEL, policy=OffloadPolicy(history="append_only"))
    whole = off.offload(messages)
    bare = [{**m, "content": m["content"][1:]} if m["role"] == "assistant" else m for m in messages]
    without = Offloader("memory://", policy=OffloadPolicy(history="append_only")).offload(bare)
    assert off.remove_thinking(messages) == len(SIGNATURES)

    for process in (
        off,
        off,
        Offloader(store, session="s", model=MODEL, policy=OffloadPolicy(history="append_only")),
    ):
        out = process.offload(messages)
        assert out.tokens_before == whole.tokens_before > without.tokens_before
        assert out.tokens_after == whole.tokens_after - (whole.tokens_before - without.tokens_before)


@pytest.mark.parametrize("is_new_process", [False, True])
def test_it_is_restored_to_messages_that_were_edited_after_it_was_removed_also_to_equal_ones(
    store: Any, is_new_process: bool
) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model=MODEL)
    off.offload(messages)
    off.remove_thinking(messages)
    editing = Offloader(store, session="s", model=MODEL) if is_new_process else off
    edited = messages
    for at in (3, 5):
        edited = json.loads(json.dumps(edited))
        edited[at]["content"][1:] = [{"type": "text", "text": "I look."}]
        sent = editing.offload(edited).messages

    assert "signature" not in json.dumps(sent)
    for process in (editing, Offloader(store, session="s", model=MODEL)):
        assert process.restore(sent) == edited
        assert process.restore(off.offload(messages).messages) == messages


def test_it_is_restored_to_no_equal_message_that_has_thinking_of_its_own(store: OffloadStore) -> None:
    off = Offloader(store, session="s", model=MODEL)
    sent_without_thinking(off, conversation())
    of_another_agent = json.loads(json.dumps(conversation()).replace('"signature-', '"another-'))

    assert off.restore(off.offload(of_another_agent).messages) == of_another_agent


def test_nothing_is_removed_while_the_store_fails_and_the_next_turn_tries_again() -> None:
    memory = open_store("memory://")
    messages = conversation()
    off = Offloader(memory, session="s", model=MODEL)
    for end in range(1, len(messages) + 1, 2):
        off.offload(messages[:end])
    changed = json.loads(json.dumps(messages))
    changed[2]["content"][0]["content"] = "shorter"
    faulty = FaultyStore(memory, verb="put", is_lasting=True)
    broken = Offloader(faulty, session="s", model=MODEL)
    broken.offload(messages)
    out = broken.offload(changed)
    assert out.errors
    assert out.history.thinking_removed == 0
    assert json.dumps(out.messages).count("signature-") == len(SIGNATURES)
    faulty.heal()
    again = broken.offload(changed)
    assert again.errors == []
    assert json.dumps(again.messages).count("signature-") == 1
    assert Offloader(memory, session="s", model=MODEL).restore(again.messages) == changed


@pytest.mark.parametrize("passes_originals", [True, False])
def test_each_process_sends_thinking_by_the_last_refusal(store: OffloadStore, passes_originals: bool) -> None:
    def opened() -> Offloader:
        off = Offloader(store, session="s", model="house-model")
        off.offload(messages)
        return off

    messages = [*conversation(), {"role": "user", "content": "and now?"}]
    assert opened().return_thinking(messages) is None
    bare = sent_without_thinking(opened(), messages)
    assert opened().binding("house-model").removes

    assert opened().return_thinking(messages if passes_originals else bare) is not None
    assert opened().return_thinking(messages) is None
    assert json.dumps(opened().offload(messages).messages).count('"signature"') == len(SIGNATURES)
    assert opened().binding("house-model").is_required
    assert opened().binding("claude-opus-5-5").removes

    assert opened().remove_thinking(messages) == len(SIGNATURES)
    assert opened().offload(messages).messages == bare
    assert opened().binding("house-model").removes


def test_listings_show_it_as_one_record_that_copies_forks_and_collections_keep(store: Any) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model=MODEL)
    sent = sent_without_thinking(off, messages)
    [record] = [each for each in off.records() if each.tool_name == "thinking"]
    assert record.item_type == "assistant_message"
    assert record.title == "thinking of 4 messages"
    assert record.ref in off.tools.call("context_list", {})

    elsewhere = open_store("memory://")
    copy_session(store, elsewhere, "s")
    assert Offloader(elsewhere, session="s").restore(sent) == messages
    assert off.fork("t").offload(sent).messages == sent
    off.gc()
    for session in ("s", "t"):
        assert Offloader(store, session=session).restore(sent) == messages


@pytest.mark.parametrize("start", [None, "0", 1.5, -1, 99, [99], ["0"]])
def test_thinking_is_removed_from_messages_of_the_list_alone(store: OffloadStore, start: Any) -> None:
    with pytest.raises(ConfigError, match="start must be an index of the 9 messages, got"):
        Offloader(store, session="s", model=MODEL).remove_thinking(conversation(), start)


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "house-model", None])
def test_thinking_that_the_host_removes_for_a_change_of_its_own_is_no_refusal(
    store: OffloadStore, model: str | None
) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model=model)
    off.offload(messages)
    assert off.remove_thinking(messages, 3, cause="messages[2] changed") == len(SIGNATURES) - 1

    for process in (off, Offloader(store, session="s", model=model)):
        sent = process.offload(messages).messages
        assert json.dumps(sent).count('"signature"') == 1
        assert process.restore(sent) == messages
        assert process.binding(model) == Offloader("memory://").binding(model)


def test_a_model_that_requires_its_thinking_loses_it_by_a_refusal_alone(store: OffloadStore) -> None:
    messages = conversation()
    off = Offloader(store, session="s", model="deepseek-v4")
    assert off.remove_thinking(messages, 3, cause="messages[2] changed") == 0
    assert json.dumps(off.offload(messages).messages).count('"signature"') == len(SIGNATURES)

    assert off.remove_thinking(messages) == len(SIGNATURES)
    assert "signature" not in json.dumps(off.offload(messages).messages)

"""Conversations whose thinking is bound to what was sent before it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from binding import MODEL, Binding, BoundError
from kit.conversation import from_model, from_user, tool_result, tool_use
from kit.store import CountedStore
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from offload import Offloader, OffloadPolicy, ReasonKind, Rule, open_store
from offload.base.events import ContextEvent, EventType
from offload.storage.layout import JOURNAL
from offload.testing import FaultyStore

POLICIES = {
    "default": None,
    "economy": OffloadPolicy.preset("economy"),
    "archive": OffloadPolicy.preset("archive"),
    "late": OffloadPolicy(types={"tool_result": Rule(min_tokens=500, after_replies=2)}),
}
TOOLS = ("Read", "Bash", "Grep", "mcp__fs__read_text")


def text(number: int, chars: int) -> str:
    return "\n".join(f"{n}: value_{number}_{n} = {n * 7}" for n in range(chars // 20))


def result(number: int, chars: int) -> dict[str, Any]:
    return from_user([tool_result(f"toolu_{number}", text(number, chars))])


def reply(number: int, signatures: list[str]) -> dict[str, Any]:
    thinking = [{"type": "thinking", "thinking": f"so {s[:12]}", "signature": s} for s in signatures]
    name = TOOLS[number % len(TOOLS)]
    return from_model([*thinking, tool_use(f"toolu_{number}", name, {"path": f"/src/{number}.py"})])


def run(
    policy: OffloadPolicy | None, provider: Binding, turns: int = 25, *, restarts: bool = False
) -> tuple[Offloader, list[Any], list[Any]]:
    """Return the offloader, the messages and what was sent last, of a conversation that no check refused."""
    off = Offloader("memory://", session="s", model=MODEL, policy=policy)
    messages: list[Any] = [{"role": "user", "content": "the task\n" + text(-1, 9000)}]
    for turn in range(turns):
        if restarts:
            off = Offloader(off.store, session="s", model=MODEL, policy=policy)
        sent = off.offload(messages).messages
        provider.check(sent)
        signatures = provider.sign(sent) if turn % 3 != 1 else []
        messages += [reply(turn, signatures), result(turn, (300, 4000, 9000, 40_000)[turn % 4])]
    return off, messages, sent


def without(name: str, value: Any) -> Any:
    """Return messages without the fields `name`."""
    if isinstance(value, dict):
        return {key: without(name, part) for key, part in value.items() if key != name}
    return [without(name, part) for part in value] if isinstance(value, list) else value


class Result(BaseModel):
    """A message as an object of an SDK."""

    role: str
    content: list[dict[str, Any]]


def as_is(message: dict[str, Any]) -> Any:
    return message


def as_object(message: dict[str, Any]) -> Any:
    return Result(**message) if message["content"][0]["type"] == "tool_result" else message


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("made", [as_is, as_object])
def test_thinking_stays_if_the_host_keeps_the_placeholders_that_it_received(
    restarts: bool, is_stripped: bool, made: Any
) -> None:
    provider, off = Binding(), Offloader("memory://", session="s", model=MODEL)
    messages: list[Any] = [{"role": "user", "content": "the task"}]
    for turn in range(12):
        if restarts:
            off = Offloader(off.store, session="s", model=MODEL)
        if is_stripped and turn == 6:  # what came before is left out from here on
            off.remove_thinking(messages)
        messages = off.offload(messages).messages
        provider.check(messages)
        signatures = provider.sign(messages)
        messages += [reply(turn, signatures), made(result(turn, (300, 40_000)[turn % 2]))]
    assert len(provider.signatures(messages)) == (6 if is_stripped else 12)
    assert "[Offloaded:" in str(messages)


def test_a_policy_that_may_edit_is_refused_by_such_a_provider() -> None:
    once_seen = {"tool_result": Rule(min_tokens=500, after_replies=1)}
    with pytest.raises(BoundError):
        run(OffloadPolicy(history="editable", types=once_seen), Binding())


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (None, "model_unnamed"),
        ("claude-opus-5-5", "signed"),
        ("eu.anthropic.claude-sonnet-5-5", "signed"),
        ("somebody's model", "model_unknown"),
        ("fallback:claude-opus-5-5,us.anthropic.claude-sonnet-4-5", "model_unknown"),
        ("claude-opus-5", "model_allows"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "model_allows"),
        ("anthropic/claude-haiku-4.5", "model_allows"),
        ("gemini-3.1-pro-preview", "model_allows"),
    ],
)
def test_the_model_decides_whether_history_may_change(model: str | None, kind: str) -> None:
    messages = [{"role": "user", "content": "go"}, reply(0, ["s"]), result(0, 9000)]
    rule = "editable" if kind == "model_allows" else "append_only"
    assert Offloader("memory://", model=model).offload(messages).history.rule == rule
    out = Offloader("memory://").offload(messages, model=model)
    reason = out.history.reason
    assert (out.history.rule, reason.kind, reason.message, reason.name) == (rule, kind, 1, model or "")
    unsigned = [messages[0], reply(0, [""]), messages[2]]
    assert Offloader("memory://", model=model).offload(unsigned).history.rule == "editable"


def test_a_conversation_without_its_signed_thinking_may_be_edited_again() -> None:
    off = Offloader("memory://", session="s", model=MODEL)
    task, later = {"role": "user", "content": "the task"}, {"role": "user", "content": "go on"}
    thought = from_model([{"type": "thinking", "thinking": "so", "signature": "s" * 40}])
    for messages, mode in [
        ([task, thought, later], "append_only"),
        ([task], "editable"),
        ([task, from_model([{"type": "text", "text": "done"}]), later], "editable"),
        ([later], "editable"),
    ]:
        out = off.offload(messages)
        assert (out.history.rule, out.errors) == (mode, [])


def test_marks_of_the_cache_that_are_blocks_may_move() -> None:
    off, messages = Offloader("memory://", session="s", model=MODEL), list[dict[str, Any]]()
    mark = {"cachePoint": {"type": "default"}}
    for turn in range(4):
        result = {"toolUseId": f"c{turn - 1}", "content": [{"text": "row\n" * (3, 9000)[turn % 2]}]}
        asked = [{"toolResult": result} if turn else {"text": "the task"}]
        out = off.offload([*messages, {"role": "user", "content": [*asked, mark]}])
        assert out.history.thinking_removed == 0
        thought = {"reasoningText": {"text": "I look.", "signature": f"c2lnbmVk{turn:08}"}}
        use = {"toolUse": {"toolUseId": f"c{turn}", "name": "Bash", "input": {}}}
        reply = {"role": "assistant", "content": [{"reasoningContent": thought}, use]}
        last = out.messages[-1]
        messages = [*out.messages[:-1], {**last, "content": last["content"][:-1]}, reply]
    assert "[Offloaded:" in str(messages)


MODELS = ("claude-opus-5-5", "claude-opus-4-1")


@pytest.mark.parametrize("models", [MODELS, MODELS[::-1]])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chars", [1500, 9000])
def test_after_a_change_of_the_model_a_new_process_sends_what_the_running_one_does(
    policy: str, models: tuple[str, str], chars: int
) -> None:
    store, copied = open_store("memory://"), open_store("memory://")
    off = Offloader(store, session="s", model=MODEL, policy=POLICIES[policy])
    messages: list[Any] = [{"role": "user", "content": "the task\n" + text(-1, 9000)}]
    for turn in range(20):
        off.offload(messages, model=models[0])
        messages += [reply(turn, [f"signature-{turn}-{'x' * 40}"]), result(turn, chars)]
    for stored in store.keys():  # a store is no mapping
        copied.put(stored.key, store.get(stored.key))

    new = Offloader(copied, session="s", model=MODEL, policy=POLICIES[policy]).offload(
        messages, model=models[1]
    )

    assert off.offload(messages, model=models[1]).messages == new.messages


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", ["cache_control", "prompt_cache_breakpoint"])
def test_a_mark_that_moves_through_results_of_several_blocks_changes_nothing_that_was_sent(
    name: str, restarts: bool
) -> None:
    provider = Binding()
    off = Offloader("memory://", session="s", model=MODEL)
    messages: list[Any] = [{"role": "user", "content": "the task"}]
    for turn in range(8):
        if restarts:
            off = Offloader(off.store, session="s", model=MODEL)
        marked = copy.deepcopy(messages)
        if turn:
            marked[-1]["content"][0]["content"][turn % 3][name] = {"type": "ephemeral"}
        out = off.offload(marked)
        provider.check(without(name, out.messages))
        assert out.history.thinking_removed == 0
        assert off.restore(out.messages) == marked, "the marks are where the client put them"
        assert str(out.messages).count(name) == (turn > 0)
        blocks = [{"type": "text", "text": text(3 * turn + n, 4000)} for n in range(3)]
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": blocks}
        messages += [reply(turn, provider.sign(without(name, out.messages)))]
        messages += [{"role": "user", "content": [result]}]
    assert len(out.records) == len(off.records()) == 7


@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("copied", [copy.deepcopy, as_is])
def test_a_change_by_the_host_removes_the_thinking_behind_it_and_restore_returns_it(
    copied: Any, at: int
) -> None:
    provider = Binding()
    off, messages, _ = run(None, provider, 8)
    marked = copied(messages)
    marked[at]["content"][0]["cache_control"] = {"type": "ephemeral"}
    out = off.offload(marked)
    provider.check(out.messages)
    assert out.history.thinking_removed == 0, "a mark of the cache may move"
    edited = copied(messages)
    edited[at]["content"][0]["content"] = "a shorter result"
    out = off.offload(edited)
    provider.check(out.messages)
    assert out.history.thinking_removed > 0
    kept = [
        m for m in out.messages[:at] if m["role"] == "assistant" and m["content"][0]["type"] == "thinking"
    ]
    assert kept, "the thinking before the change stays"
    assert off.restore(out.messages) == edited
    again = Offloader(off.store, session="s", model=MODEL)
    assert again.offload(edited).messages == out.messages
    assert Offloader(off.store, session="s", model=MODEL).restore(out.messages) == edited


def test_what_was_sent_above_the_ceiling_leaves_at_the_end_of_the_models_turn() -> None:
    provider = Binding()
    task = {"role": "user", "content": "go"}
    huge = result(0, 300_000)
    messages = [task, reply(0, provider.sign([task])), huge, reply(1, [])]
    messages[3]["content"].insert(
        0, {"type": "thinking", "thinking": "", "signature": provider.sign(messages[:3])[0]}
    )
    messages.append(result(1, 300))
    off = Offloader("memory://", session="s", model=MODEL)
    within = off.offload(messages)
    provider.check(within.messages)
    assert within.messages[2] == huge
    assert [type(error).__name__ for error in within.errors] == ["AboveCeilingError"]

    messages += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "and now?"}]
    out = off.offload(messages)
    provider.check(out.messages)
    assert [record.tool_use_id for record in out.records] == ["toolu_0"]
    assert out.history.thinking_removed == 1
    assert out.messages[1] == messages[1], "thinking before the change stays"
    assert Offloader(off.store, session="s", model=MODEL).offload(messages).messages == out.messages
    assert Offloader(off.store, session="s", model=MODEL).restore(out.messages) == messages


def conversation_above_the_ceiling(provider: Binding) -> list[Any]:
    """Return messages of an ended turn; the first result is too large, and thinking comes after it."""
    messages = [{"role": "user", "content": "go"}, reply(0, []), result(0, 300_000)]
    for number in (1, 2):
        messages += [reply(number, provider.sign(messages)), result(number, 300)]
    return [*messages, {"role": "assistant", "content": "done"}, {"role": "user", "content": "and now?"}]


def test_what_was_sent_stays_while_the_thinking_behind_it_cannot_be_stored() -> None:
    messages = conversation_above_the_ceiling(Binding())
    store = FaultyStore(open_store("memory://"), verb="put")
    off = Offloader(store, session="s", model=MODEL)

    out = off.offload(messages)
    assert store.failures == 1
    assert out.messages == messages
    assert out.history.thinking_removed == 0
    [decision] = [d for d in out.decisions if d.item.chars > 200_000]
    assert decision.reason.kind is ReasonKind.FAILED

    again = off.offload(messages)
    assert again.history.thinking_removed == 2
    assert [record.tool_use_id for record in again.records] == ["toolu_0"]
    assert off.restore(again.messages) == messages


@pytest.mark.parametrize("edited", [None, 3, 4])
def test_the_event_of_removed_thinking_names_the_first_message_that_changed(edited: int | None) -> None:
    messages = conversation_above_the_ceiling(Binding())
    heard: list[ContextEvent] = []
    off = Offloader("memory://", session="s", model=MODEL)
    off.offload(messages[:5])
    if edited is not None:
        messages[edited]["content"][-1]["input"] = {"path": "/another"}
    off.events.subscribe(heard.append)
    assert off.offload(messages).history.thinking_removed == 2
    [event] = [event for event in heard if event.event_type is EventType.THINKING_REMOVED]
    assert "since messages[2] changed" in event.detail


def test_thinking_of_the_message_that_changes_stays_and_that_of_later_ones_is_removed() -> None:
    provider = Binding()
    policy = OffloadPolicy(history="rewrite", types={"tool_call": Rule(min_tokens=500, after_replies=1)})
    off = Offloader("memory://", session="s", model=MODEL, policy=policy)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for turn in range(3):
        messages += [reply(turn, provider.sign(off.offload(messages).messages)), result(turn, 300)]
        messages[-2]["content"][-1]["input"] = {"content": text(turn, 9000 if turn == 0 else 100)}
    out = off.offload(messages)

    provider.check(out.messages)
    assert out.messages[1] != messages[1]
    assert [message["content"][0]["type"] for message in out.messages[1::2]] == [
        "thinking",
        "tool_use",
        "thinking",
    ]


def test_a_fork_sends_what_its_origin_sent() -> None:
    provider = Binding()
    off, messages, sent = run(None, provider, 6)
    other = off.fork("other")
    out = other.offload(messages)
    provider.check(out.messages)
    assert out.messages[: len(sent)] == sent
    again = Offloader(off.store, session="other").offload(messages)
    assert again.messages == out.messages
    assert again.errors == []
    assert other.restore(out.messages) == messages


@pytest.mark.parametrize("made", [as_is, as_object])
def test_thinking_stays_if_the_host_passes_the_originals_of_the_placeholders_that_it_kept(made: Any) -> None:
    provider, off = Binding(), Offloader("memory://", session="s", model=MODEL)
    originals: list[Any] = [{"role": "user", "content": "the task"}]
    messages = originals
    for turn in range(4):
        messages = off.offload(messages).messages
        new = [reply(turn, provider.sign(messages)), made(result(turn, 40_000))]
        messages, originals = [*messages, *new], [*originals, *new]
    sent = off.offload(originals).messages
    provider.check(sent)
    assert len(provider.signatures(sent)) == 4
    assert off.restore(sent) == originals


def test_thinking_stays_behind_message_objects_that_a_checkpoint_returned_with_all_fields_set() -> None:
    off = Offloader("memory://", session="s", model=MODEL)
    messages: list[Any] = [HumanMessage("the task")]
    for turn in range(8):
        assert off.offload(messages).history.thinking_removed == 0
        messages = [type(message)(**message.model_dump()) for message in messages]
        thinking = {"type": "thinking", "thinking": "so", "signature": f"signature-{turn}-{'x' * 40}"}
        messages += [AIMessage([thinking]), HumanMessage("Go on.")]


@pytest.mark.parametrize("chars", [400, 34_000])
def test_texts_that_are_equal_are_sent_alike_in_each_process(chars: int) -> None:
    provider, off = Binding(), Offloader("memory://", session="s", model=MODEL)
    pasted, other, twice = ({"role": "user", "content": text(n, 34_000)} for n in range(3))
    messages: list[Any] = [{"role": "user", "content": text(0, chars)}]
    for added in ([pasted], [pasted, other], [twice, twice], []):
        sent = off.offload(messages).messages
        provider.check(sent)
        thinking = {"type": "thinking", "thinking": "so", "signature": provider.sign(sent)[0]}
        messages += [from_model([thinking]), *added, from_user("go on")]

    for process in (off, Offloader(off.store, session="s", model=MODEL)):
        sent = process.offload(messages).messages
        provider.check(sent)
        assert sent[0] == messages[0]
        assert sent[2] == sent[5] == pasted
        assert sent[6] != other
        assert sent[9] == sent[10] != twice


def test_a_process_that_was_idle_keeps_thinking_that_came_after_the_changes_of_another() -> None:
    provider = Binding()
    policy = OffloadPolicy(history="rewrite", tools={"*": Rule(min_tokens=500, after_replies=1)})
    idle = Offloader("memory://", session="s", model=MODEL, policy=policy)
    busy = Offloader(idle.store, session="s", model=MODEL, policy=policy)
    messages: list[Any] = [{"role": "user", "content": "the task"}, reply(0, []), result(0, 40_000)]
    for turn, off in enumerate((idle, busy, busy, idle), 1):
        sent = off.offload(messages).messages
        provider.check(sent)
        messages += [reply(turn, provider.sign(sent)), result(turn, 300)]
    assert [len(provider.signatures([message])) for message in sent] == [0, 0, 0, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("restarts", [False, True])
def test_thinking_behind_a_text_is_removed_if_an_equal_one_takes_it_out(restarts: bool) -> None:
    provider = Binding()
    policy = OffloadPolicy(history="rewrite", max_view_tokens=2500)
    off, pasted = Offloader("memory://", session="s", model=MODEL, policy=policy), text(0, 3000)
    messages: list[Any] = []
    # Alone it is below the ceiling of a turn.
    for turn, added in enumerate(([pasted], [text(1, 300)], [pasted, text(2, 2000)], [text(3, 300)])):
        if restarts:
            off = Offloader(off.store, session="s", model=MODEL, policy=policy)
        messages += [{"role": "user", "content": content} for content in added]
        out = off.offload(messages)
        provider.check(out.messages)
        assert off.restore(out.messages) == messages
        thinking = {"type": "thinking", "thinking": "so", "signature": provider.sign(out.messages)[0]}
        messages.append({"role": "assistant", "content": [thinking, {"type": "text", "text": str(turn)}]})
    assert out.messages[0]["content"].startswith("[Offloaded:")


def test_a_process_that_compares_with_its_journal_lists_it_once_and_reads_no_more_records() -> None:
    provider, store = Binding(), CountedStore()
    off = Offloader(store, session="s", model=MODEL, journal=True)
    messages: list[Any] = [{"role": "user", "content": "the task"}]
    for turn in range(12):
        messages += [reply(turn, provider.sign(off.offload(messages).messages)), result(turn, 40_000)]
    off.offload(messages)
    reads = []
    for journal in (False, True):
        store.requests.clear()
        out = Offloader(store, session="s", model=MODEL, journal=journal).offload(messages)
        provider.check(out.messages)
        reads.append([request for request in store.requests if request.startswith("get r/")])
        listed = store.requests.count(f"keys {JOURNAL.prefix('s')}")

    assert len(out.records) == 12
    assert len(reads[1]) == len(reads[0])
    assert listed == 1


def trimmed(messages: list[Any]) -> None:
    del messages[:2]


def edited(messages: list[Any]) -> None:
    messages[2]["content"][0]["content"] = "a shorter result"


def edited_large(messages: list[Any]) -> None:
    messages[6]["content"][0]["content"] += "one more line"


def left_out(messages: list[Any]) -> None:
    del messages[3:5]


def as_they_were(messages: list[Any]) -> None:
    messages[2]["content"][0]["cache_control"] = {"type": "ephemeral"}


@pytest.mark.parametrize("redact", [None, lambda text: text.replace("value", "***")])
@pytest.mark.parametrize("change", [trimmed, edited, edited_large, left_out, as_they_were])
@pytest.mark.parametrize("has_reply", [False, True])
def test_a_change_by_the_host_between_two_processes_removes_the_thinking_behind_it(
    change: Any, redact: Any, has_reply: bool
) -> None:
    provider = Binding()
    off = Offloader("memory://", session="s", model=MODEL, journal=True, redact=redact)
    messages: list[Any] = [{"role": "user", "content": "the task"}]
    for turn in range(8):
        sent = off.offload(messages).messages
        provider.check(sent)
        messages += [reply(turn, provider.sign(sent)), result(turn, (300, 4000, 40_000)[turn % 3])]
    messages = copy.deepcopy(messages if has_reply else messages[:-2])
    change(messages)
    new = Offloader(off.store, session="s", model=MODEL, journal=True, redact=redact)
    out = new.offload(messages)

    provider.check(out.messages)
    assert (out.history.thinking_removed > 0) == (change is not as_they_were)
    if redact is None:
        assert new.restore(out.messages) == messages
    assert Offloader(off.store, session="s", model=MODEL, journal=True, redact=redact).offload(
        messages
    ).messages == (out.messages)


@pytest.mark.parametrize("thinking_in", [(1, 2), (2,), (0, 2, 3)])
def test_thinking_of_equal_replies_is_restored_onto_those_that_had_it(thinking_in: tuple[int, ...]) -> None:
    off = Offloader("memory://", session="s", model=MODEL)
    messages: list[Any] = []
    for turn in range(4):
        thinking = [{"type": "thinking", "thinking": "so", "signature": f"signature-{turn}-{'x' * 40}"}]
        content = [*(thinking if turn in thinking_in else []), {"type": "text", "text": "Done."}]
        messages += [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": content}]
    assert off.remove_thinking(messages) == len(thinking_in)
    sent = off.offload(messages).messages

    assert "signature" not in str(sent)
    for process in (off, Offloader(off.store, session="s", model=MODEL)):
        assert process.restore(sent) == messages

"""Compaction by rounds in every message format, and at the edges of its plans."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compactions import context_of
from formats import FORMATS, exchange, user
from provider_rules import check_converse

from offload import AgentConfig, ConfigError, ContextFullError, ContextManager, MessageError, Offloader
from offload.agent.compaction import RoundCompactor, RoundConfig, RoundStrategy, SelectiveCompaction, TypeRule
from offload.messages.context.tokens import MessageCounter
from offload.messages.stored import as_data
from offload.records.record.header import SAMPLE_REF
from offload_backends.memory import MemoryStore

SMALL = RoundConfig(max_context_tokens=3000)
LONG = "lorem " * 100


def step(kind: str, n: int) -> list[Any]:
    """Return a call and its result; of the Responses API reasoning, two parallel calls and their results."""
    messages = exchange(kind, "Read", {}, LONG, f"c{n}")
    if kind != "openai-responses":
        return messages
    calls, results = zip(messages, exchange(kind, "Read", {}, LONG, f"d{n}"), strict=True)
    return [{"type": "reasoning", "id": f"r{n}", "summary": []}, *calls, *results]


OPEN = [(kind, count) for kind in FORMATS for count in range(4 if kind == "openai-responses" else 2)]


@pytest.mark.parametrize(("kind", "count"), OPEN)
def test_a_tool_loop_is_cut_between_two_steps_in_every_format(kind: str, count: int) -> None:
    """The last `count` messages begin a step whose results are still to come."""
    messages = [user(kind, "the task"), *(message for n in range(24) for message in step(kind, n))]
    messages += step(kind, 24)[:count]
    off = Offloader("memory://", session="s")
    compactor = RoundCompactor(off, lambda _: "<summary>Files were read.</summary>", SMALL)
    context = context_of(messages)

    result = compactor.compact(messages)
    in_context = RoundStrategy(off, lambda _: "<summary>Files were read.</summary>", SMALL).compact(context)

    kept = result.new_messages[1:]
    assert result.error is None
    assert all(a is b for a, b in zip(kept, messages[-len(kept) :], strict=True))
    assert len(kept) % len(step(kind, 0)) == count
    assert result.new_token_count < 3000 * 0.8
    assert [as_data(m) for m in compactor.restore(result.new_messages)] == [as_data(m) for m in messages]
    assert [as_data(m) for m in in_context.new_messages] == [as_data(m) for m in result.new_messages]
    assert in_context.new_token_count == context.total_tokens == result.new_token_count


def test_parallel_calls_that_wait_are_kept_together_even_if_they_fill_the_context() -> None:
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": "Read", "arguments": json.dumps({"x": LONG})}
        for n in range(40)
    ]
    messages = [{"role": "user", "content": LONG * 10}, *calls]
    compactor = RoundCompactor(Offloader("memory://", session="s"), None, SMALL)

    result = compactor.compact(messages)

    assert result.new_messages[1:] == calls
    assert result.new_token_count < result.original_token_count
    assert isinstance(result.error, ContextFullError)


def test_a_notice_that_turns_out_longer_than_planned_replaces_nothing() -> None:
    def count(text: str) -> int:
        return 10**6 if text.startswith("[Compacted") and SAMPLE_REF not in text else len(text) // 4

    messages = [{"role": "user", "content": LONG}, *(m for n in range(40) for m in step("openai-chat", n))]
    off = Offloader("memory://", session="s")

    result = RoundCompactor(off, None, SMALL, token_counter=count).compact(messages)

    assert result.new_messages == messages
    assert result.new_token_count == result.original_token_count
    assert "the notice has no fewer tokens" in str(result.error)


def test_tokens_are_those_of_the_offloaders_counter() -> None:
    off = Offloader("memory://", session="s", token_counter=len)
    compactor = RoundCompactor(off, None, RoundConfig(max_context_tokens=1000))
    messages = [user("anthropic", "x" * 900)]

    assert compactor.should_compact(messages)
    assert compactor.compact(messages).original_token_count == 904


def test_a_counter_of_the_offloader_that_fails_costs_no_turn() -> None:
    def count(text: str) -> int:
        raise ValueError(text)

    off = Offloader("memory://", session="s", token_counter=count)
    compactor = RoundCompactor(off, None, RoundConfig(max_context_tokens=1000))

    assert compactor.should_compact([user("anthropic", LONG * 100)])
    assert off.offload([user("anthropic", LONG)]).errors


def test_a_compactor_without_a_summarizer_leaves_a_notice_alone() -> None:
    messages = [{"role": role, "content": f"{n} {LONG}"} for n in range(9) for role in ("user", "assistant")]
    off = Offloader("memory://", session="s")
    compactor = RoundCompactor(off)

    result = compactor.compact(messages)

    assert (result.compacted_count, result.summary) == (7, "")
    assert result.new_messages[0]["content"].startswith("[Compacted 1: 14 earlier messages")
    assert compactor.restore(result.new_messages) == messages
    assert compactor.events is off.events


def test_in_a_small_context_a_summary_has_half_as_many_characters_as_the_trigger_has_tokens() -> None:
    messages = [user("anthropic", "the task"), *(m for n in range(24) for m in step("anthropic", n))]
    config = RoundConfig(max_context_tokens=1200, summary_max_length=5000)
    compactor = RoundCompactor(
        Offloader("memory://"), lambda _: f"<summary>{'word ' * 900}</summary>", config
    )

    assert (
        config.trigger_tokens // 2 - 5
        < len(compactor.compact(messages).summary)
        <= config.trigger_tokens // 2
    )


def test_above_the_window_a_failing_summarizer_leaves_a_notice_without_a_summary() -> None:
    def overloaded(_: list[Any]) -> str:
        raise RuntimeError("overloaded")

    below = [{"role": "user", "content": f"Request {n}."} for n in range(3)] * 40
    above = [*below, {"role": "user", "content": LONG * 40}]
    compactor = RoundCompactor(Offloader("memory://", session="s"), overloaded, SMALL)

    kept = compactor.compact(below[:-1])
    assert (kept.compacted_count, kept.new_messages) == (0, below[:-1])
    assert "overloaded" in str(kept.error)

    cut = compactor.compact([*above, {"role": "user", "content": "Go on."}])
    assert cut.compacted_count > 0
    assert cut.summary == ""
    assert "overloaded" in str(cut.error)
    assert compactor.restore(cut.new_messages) == [*above, {"role": "user", "content": "Go on."}]


def test_what_fails_is_named_and_quotes_no_secret_in_an_event() -> None:
    def quoting(_: list[Any]) -> str:
        raise RuntimeError("bad request: the key is sk-1234")

    def closed(_: Any) -> bool:
        raise EOFError("no terminal, sk-1234")

    off = Offloader("memory://", session="s", redact=lambda text: text.replace("sk-1234", "sk-…"))
    events: list[Any] = []
    off.events.subscribe(events.append)
    messages = [{"role": "user", "content": f"Request {n}. {LONG}"} for n in range(20)]
    asking = RoundCompactor(off, None, SMALL, confirm=closed).compact(messages)
    RoundCompactor(off, quoting, SMALL).compact(messages[:5] * 2)

    assert str(asking.error) == "confirm failed: EOFError: no terminal, sk-1234"
    told = [event.data["error"] for event in events if "error" in event.data]
    assert told == [
        "confirm failed: EOFError: no terminal, sk-…",
        "the summarizer failed: RuntimeError: bad request: the key is sk-…",
    ]


@pytest.mark.parametrize("wrong", ["hello", {"role": "user", "content": "hello"}, True], ids=str)
def test_hooks_that_are_no_functions_and_no_lists_of_messages_are_refused(wrong: Any) -> None:
    off = Offloader("memory://", session="s")
    for hook in ("summarizer", "confirm"):
        with pytest.raises(ConfigError, match="must be a function, got"):
            RoundCompactor(off, **{hook: wrong})
    with pytest.raises(ConfigError, match=f"config must be a RoundConfig, got {type(wrong).__name__}"):
        RoundCompactor(off, config=wrong)
    compactor = RoundCompactor(off)
    for call in (compactor.compact, compactor.should_compact):
        with pytest.raises(MessageError, match="expected a list of messages"):
            call(wrong)


def test_a_system_prompt_of_blocks_is_counted() -> None:
    blocks = [{"type": "text", "text": LONG * 30, "cache_control": {"type": "ephemeral"}}]
    compactor = RoundCompactor(Offloader("memory://", session="s"), None, SMALL)

    assert compactor.should_compact([], LONG * 30)
    assert compactor.should_compact([], blocks)


def _converse_round(n: int) -> list[Any]:
    asked = {
        "role": "user",
        "content": [{"text": f"Request {n}: {LONG}"}, {"cachePoint": {"type": "default"}}],
    }
    done = {"role": "assistant", "content": [{"text": f"Request {n} is done."}]}
    return [asked, *step("bedrock", n), done]


@pytest.mark.parametrize("keep", [1, 2])
def test_roles_of_bedrock_alternate_after_each_of_several_compactions(keep: int) -> None:
    config = RoundConfig(max_context_tokens=3000, keep_recent_rounds=keep)
    off = Offloader("memory://", session="s")
    compactor = RoundCompactor(off, lambda _: "<summary>Much was done.</summary>", config)
    sent: list[Any] = []
    added: list[Any] = []
    for n in range(22):
        sent, added = [*sent, *_converse_round(n)], [*added, *_converse_round(n)]
        if compactor.should_compact(sent):
            result = compactor.compact(sent)
            assert result.ref is not None
            sent = result.new_messages
            assert result.new_token_count == MessageCounter().total(sent)
        check_converse(sent)
        assert off.restore(sent) == compactor.restore(sent) == added
    assert "[Compacted 2: " in str(sent)


def test_a_notice_of_bedrock_in_a_long_turn_joins_the_request_before_it() -> None:
    asked = {"role": "user", "content": [{"text": "the task"}]}
    middle, last = step("bedrock", 0), {"role": "assistant", "content": [{"text": "Done."}]}
    off = Offloader("memory://", session="s")
    rules = {
        "user_message": TypeRule(),
        "assistant_message": TypeRule(),
        "tool_result": TypeRule(strategy="drop"),
    }
    context = context_of(messages := [asked, *middle, last])

    result = SelectiveCompaction(off, rules=rules, threshold_tokens=50).compact(context)

    assert result.ref is not None, result.error
    check_converse(context.lower())
    assert result.new_token_count == context.total_tokens
    assert off.restore(context.lower()) == messages


def test_a_notice_of_bedrock_in_place_of_all_messages_joins_the_next_request() -> None:
    off = Offloader("memory://", session="s")
    m = ContextManager(
        off, AgentConfig(window_tokens=1000), summarizer=lambda _: "<summary>Much was done.</summary>"
    )
    added = [user("bedrock", LONG * 5), {"role": "assistant", "content": [{"text": LONG * 5}]}]
    m.add(added[0])
    m.before_model_call()
    m.after_model_call(added[1])
    [notice] = m.messages

    added.append(user("bedrock", "and now?"))
    m.add(added[-1])

    [joined] = m.before_model_call().messages
    assert joined["content"] == [*notice["content"], {"text": "and now?"}]
    assert m.restore() == added
    resumed = ContextManager(Offloader(off.store, session="s"))
    resumed.resume()
    assert (resumed.messages, resumed.restore()) == ([joined], added)


def test_a_bedrock_agent_sends_alternating_roles_and_restores_them_in_another_process() -> None:
    store = MemoryStore()
    config = AgentConfig(model="m", window_tokens=3000)
    added: list[Any] = []
    for n in range(16):
        manager = ContextManager(Offloader(store, session="s"), config)
        manager.resume()
        asked, call, result, done = _converse_round(n)
        for message, reply in ((asked, call), (result, done)):
            manager.add(message)
            check_converse(manager.before_model_call().messages)
            manager.after_model_call(reply)
            added += [message, reply]
        assert manager.restore() == added
    assert manager.compaction_count > 1


def test_no_summary_is_paid_where_the_system_prompt_alone_fills_the_window() -> None:
    asked: list[object] = []

    def summarize(request: object) -> str:
        asked.append(request)
        return "<summary>All were fine.</summary>"

    off = Offloader("memory://", session="s", token_counter=len)
    compactor = RoundCompactor(off, summarize, RoundConfig(max_context_tokens=1000))
    messages = [user("anthropic", "x" * 300) for _ in range(9)]

    result = compactor.compact(messages, "s" * 1001)

    assert (asked, result.new_messages) == ([], messages)
    assert "system prompt and tools 1001 tokens" in str(result.error)

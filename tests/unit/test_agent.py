"""The context of an agent, turn by turn: what is sent, learnt, written down, and what fails."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from compactions import heard
from loop import call, result, said, talk, turn
from strength import some

from offload import (
    AgentConfig,
    CollisionError,
    ConfigError,
    ContextFullError,
    ContextManager,
    ItemFacts,
    MessageError,
    NotFoundError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Rule,
    StoreError,
    estimate_tokens,
)
from offload.agent.compaction import CompactionResult, TypeRule
from offload.messages.context import EventBus, EventType, ItemType
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

SMALL = AgentConfig(model="m", window_tokens=4000)
# Results of the tests are too small for its rules: only the window makes them leave.
BY_SIZE = SMALL.model_copy(update={"policy": OffloadPolicy(cost_plan="none")})
# The rules remove no message: only a summary makes room.
NOTHING_GOES = {name: TypeRule() for name in ItemType}


def manager(store: Any = None, config: AgentConfig = SMALL, **options: Any) -> ContextManager:
    off = Offloader(store or MemoryStore(), session="s", **options.pop("offloader", {}))
    return ContextManager(off, config, **options)


def test_small_messages_are_sent_unchanged():
    m = manager()
    messages = talk(m, 2, lines=3)

    request = m.before_model_call()

    assert request.messages == messages == m.messages
    assert all(a is b for a, b in zip(request.messages, m.before_model_call().messages, strict=True))
    assert request.errors == []


def test_a_large_result_is_offloaded_before_the_model_sees_it_in_another_process_too(tmp_path):
    m, other = (manager(tmp_path, AgentConfig(window_tokens=100_000)) for _ in "12")
    m.add(said(0))
    turn(m, 1, lines=900)

    shown = m.before_model_call().messages[-1]["content"][0]["content"]

    [record] = m.tools.call("context_list").splitlines()[1:2]
    ref = record.split()[0].strip("-|* ")
    assert f"id {ref}]" in shown
    assert len(shown) < 2500
    assert "row 1.450 of the output" not in shown
    assert "row 1.450 of the output" in m.tools.call("context_grep", {"id": ref, "pattern": "row 1.450 "})
    other.resume()
    assert other.before_model_call().messages == m.messages
    assert other.restore() == [said(0), call(1), result(1, lines=900)]


def test_each_request_is_below_the_trigger_has_whole_calls_and_the_latest_result_in_full():
    m = manager(config=BY_SIZE)
    m.add(said(0))
    messages: list[Any] = [said(0)]
    added: list[Any] = []
    for n in range(32):
        request = m.before_model_call()
        blocks = [b for x in request.messages if isinstance(x["content"], list) for b in x["content"]]
        calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
        assert calls == [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        assert request.tokens < SMALL.trigger_tokens
        assert request.messages[-1] == messages[-1]
        added += [call(n), result(n)]
        m.after_model_call(added[-2])
        m.add(added[-1])
        messages += [call(n), result(n)]

    assert len(request.messages) < 30
    assert m.restore() == messages
    assert added == messages[1:]


def test_system_messages_survive_compactions_and_all_messages_are_restored_in_order():
    system = {"role": "system", "content": "Be careful."}
    later = {"role": "system", "content": "A file came."}
    m = manager(config=BY_SIZE)
    m.add(system)
    messages = [system, *talk(m, 2)]
    m.add(later)
    messages.append(later)
    assert m.before_model_call().messages == messages
    messages += (message for n in range(2, 25) for message in turn(m, n))

    assert m.messages[0] == system
    assert later in m.messages
    assert len(m.messages) < 30
    assert m.restore() == messages


def test_system_prompt_and_tools_are_counted():
    m = manager()
    m.add(said(0))
    prompt = "careful " * 400
    blocks = [{"type": "text", "text": prompt, "cache_control": {"type": "ephemeral"}}]
    tools = [{"name": "Bash", "about": "x " * 400}]

    alone = m.before_model_call().tokens
    with_text, with_blocks = (m.before_model_call(system_prompt=p).tokens for p in (prompt, blocks))
    beside = m.call(lambda request: request, system_prompt=prompt, tools=tools)

    assert with_text < with_blocks < with_text + 50
    assert alone + 600 < beside.tokens > with_text + 100
    assert beside.messages == [said(0)]


def test_a_request_may_have_no_system_prompt_and_no_tools_and_refuses_what_is_neither():
    m = manager()
    m.add(said(0))
    alone = m.before_model_call()
    assert m.before_model_call(system_prompt=None, tools=None).tokens == alone.tokens
    assert m.call(lambda request: request, system_prompt=None, tools=None).messages == alone.messages
    wrong: list[tuple[str, Any]] = [("system_prompt", 5), ("tools", object())]
    for name, value in wrong:
        with pytest.raises(ConfigError, match=f"{name} must be what is sent to the model, or None"):
            m.before_model_call(**{name: value})


def test_a_result_that_fills_much_of_the_window_is_offloaded_before_older_ones():
    config = AgentConfig(
        window_tokens=6000, policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=5000)})
    )
    m = manager(config=config)
    talk(m, 3, lines=100)
    turn(m, 3, lines=250)

    sent = m.before_model_call().messages

    assert "[Offloaded: " in sent[-1]["content"][0]["content"]
    assert sent[2] == result(0, lines=100)


def test_old_results_are_offloaded_before_messages_are_removed_and_the_latest_are_kept():
    m = manager(config=BY_SIZE)
    messages = talk(m, 7)
    compactions = heard(m.events, EventType.CONTEXT_COMPACTED)

    sent = m.before_model_call().messages

    away = [i for i, (a, b) in enumerate(zip(sent, messages, strict=True)) if a != b]
    assert away == [2, 4, 6]
    assert compactions == []


def test_results_of_one_turn_that_exceed_the_trigger_together_become_short_previews():
    m = manager()
    m.add(said(0))
    m.before_model_call()
    m.after_model_call({"role": "assistant", "content": [call(n)["content"][0] for n in range(9)]})
    results = {"role": "user", "content": [result(n)["content"][0] for n in range(9)]}
    m.add(results)

    request = m.before_model_call()

    assert request.errors == []
    assert request.tokens < SMALL.trigger_tokens
    shown = [block["content"] for block in request.messages[-1]["content"]]
    assert [text.startswith("[Offloaded: Bash result") for text in shown] == [True] * 9
    assert m.restore()[-1] == results


# --- compactions -------------------------------------------------------------------------------------


def test_compactions_are_counted_with_their_tokens_and_on_in_another_process(tmp_path):
    first = manager(tmp_path, BY_SIZE)
    done = heard(first.events, EventType.CONTEXT_COMPACTED)
    assert (first.compaction_count, first.last_compaction) == (0, None)
    talk(first, 25)
    first.before_model_call()

    last = first.last_compaction
    assert last is not None
    assert first.compaction_count == len(done) > 1
    assert done[-1].data["original_tokens"] == last.original_token_count
    assert done[-1].data["new_tokens"] == last.new_token_count < last.original_token_count
    second, third = manager(tmp_path, BY_SIZE), manager(tmp_path, BY_SIZE)
    second.resume()
    assert second.compaction_count == first.compaction_count
    assert second.last_compaction is None
    for n in range(25, 35):
        turn(second, n)
    third.resume()
    assert third.compaction_count == second.compaction_count > first.compaction_count


class Strategy:
    """Does `work` in place of a compaction; nothing was removed."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def compact(self, context: Any, *, current_total_tokens: int | None = None) -> Any:
        assert current_total_tokens is not None
        return self.work(context)

    def restore(self, messages: Any) -> list[Any]:
        return list(messages)


def raises(context: Any) -> None:
    context.conversation.items = context.conversation.items[5:]
    raise RuntimeError("no disk")


def grows(context: Any) -> CompactionResult:
    context.add_message(said(0, words=400))
    return CompactionResult(1, 0, ref="x")


@pytest.mark.parametrize("work", [raises, grows, lambda _: None], ids=["raises", "grows", "no result"])
def test_a_strategy_that_fails_ends_no_turn_and_its_changes_are_undone(work):
    m = manager(strategy=Strategy(work), offloader={"should_offload": lambda _: False})
    m.add(said(0, words=1000))
    m.before_model_call()
    m.after_model_call({"role": "assistant", "content": "word " * 900})
    m.add(said(1, words=1500))

    request = m.before_model_call()

    assert any("the compaction strategy" in str(error) for error in request.errors)
    assert m.restore() == [
        said(0, words=1000),
        {"role": "assistant", "content": "word " * 900},
        said(1, words=1500),
    ]
    assert m.compaction_count == 0


# --- ephemeral tools ---------------------------------------------------------------------------------


def roomy(**fields: Any) -> AgentConfig:
    return AgentConfig(window_tokens=1_000_000, **fields)


def full_outputs(m: ContextManager) -> list[str]:
    """Return the ids of the results that the next request holds in full."""
    blocks = [
        b for x in m.before_model_call().messages if isinstance(x["content"], list) for b in x["content"]
    ]
    results = [b for b in blocks if b["type"] == "tool_result"]
    return [b["tool_use_id"] for b in results if not b["content"].startswith("[Offloaded: ")]


@pytest.mark.parametrize(("fields", "kept"), [({}, 2), ({"ephemeral_keep_recent": 1}, 1)])
def test_the_latest_outputs_of_an_ephemeral_tool_are_kept_also_after_a_restart(tmp_path, fields, kept):
    # Its rule would offload them all.
    policy = OffloadPolicy(tools={"Bash": Rule(min_tokens=9)})
    config = roomy(ephemeral={"ba*": 2}, policy=policy, **fields)
    m = manager(tmp_path, config)
    m.add(said(0))
    for n in range(5):
        turn(m, n)

        assert full_outputs(m) == [f"t{i}" for i in range(max(0, n + 1 - kept), n + 1)]

    assert m.restore() == [said(0), *(message for n in range(5) for message in (call(n), result(n)))]
    other = manager(tmp_path, config)
    other.resume()
    turn(other, 5)
    assert full_outputs(other) == [f"t{i}" for i in range(6 - kept, 6)]


def test_outputs_that_the_model_has_not_seen_are_kept():
    m = manager(config=roomy(ephemeral={"Bash": 1}))
    m.before_model_call()
    m.after_model_call({"role": "assistant", "content": [call(n)["content"][0] for n in range(3)]})
    m.add({"role": "user", "content": [result(n)["content"][0] for n in range(3)]})

    assert full_outputs(m) == ["t0", "t1", "t2"]
    m.after_model_call({"role": "assistant", "content": "I see."})
    assert full_outputs(m) == ["t2"]


def test_other_tools_are_not_ephemeral_and_short_outputs_stay():
    m = manager(config=roomy(ephemeral={"Read": 1}, policy=OffloadPolicy(cost_plan="none")))
    m.add(said(0))
    for n, name in enumerate(("Read", "Bash", "Read", "Read")):
        m.before_model_call()
        m.after_model_call(call(n, name))
        m.add(result(n, 60 if n else 3))

    assert full_outputs(m) == ["t0", "t1", "t3"]


def test_a_policy_that_was_used_before_can_be_used_with_ephemeral_tools():
    policy = OffloadPolicy()
    talk(manager(config=roomy(policy=policy)), 2)
    m = manager(config=roomy(policy=policy, ephemeral={"Bash": 1}))
    talk(m, 2, lines=20)

    m.after_model_call({"role": "assistant", "content": "I see."})

    assert full_outputs(m) == ["t1"]


# --- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        {
            "input_tokens": 100,
            "cache_read_input_tokens": 300,
            "cache_creation_input_tokens": 0,
            "output_tokens": 9,
        },
        {"prompt_tokens": 400, "completion_tokens": 9, "total_tokens": 409},
        SimpleNamespace(
            input_tokens=400, output_tokens=9, input_tokens_details=SimpleNamespace(cached_tokens=7)
        ),
        400,
    ],
    ids=["anthropic", "openai", "responses", "number"],
)
def test_the_provider_s_count_corrects_the_estimate(usage):
    m = manager(offloader={"token_counter": lambda text: len(text) // 10})
    m.add({"role": "user", "content": "x" * 1960})
    assert m.before_model_call().tokens == 200

    m.after_model_call(usage=usage)

    assert m.before_model_call().tokens == 400


def test_the_correction_moves_slowly_by_what_was_counted_for_the_same_model():
    m = manager(offloader={"token_counter": lambda text: len(text) // 10})
    m.add({"role": "user", "content": "x" * 9960})
    m.before_model_call()
    for usage in ({"input_tokens": 0}, SimpleNamespace(prompt_tokens=None)):
        m.after_model_call(usage=usage)
    assert m.before_model_call().tokens == 1000
    m.after_model_call(usage=1000)
    m.after_model_call(usage=2000)
    m.after_model_call(usage=3000, model="other")

    assert m.before_model_call().tokens == 1300


def test_a_provider_that_counts_more_makes_the_context_smaller_sooner():
    m, other = manager(config=BY_SIZE), manager(config=BY_SIZE)
    for one in (m, other):
        talk(one, 4)
        one.before_model_call()
    m.after_model_call(usage=6000)

    assert len(str(m.before_model_call().messages)) < len(str(other.before_model_call().messages))


def whole_numbers(text: str) -> int:
    return len(text) // 4


def failing(text: str) -> int:
    raise RuntimeError("no vocabulary")


def failing_on_a_mark(text: str) -> int:
    if "<|endoftext|>" in text:
        raise RuntimeError("no vocabulary")
    return len(text) // 4


@pytest.mark.parametrize("counter", [failing, failing_on_a_mark, lambda _: None], ids=["all", "one", "none"])
def test_a_failing_token_counter_is_reported_once_a_turn_and_tokens_are_estimated(counter):
    m = manager(offloader={"token_counter": counter})
    failures = heard(m.events, EventType.CONTEXT_FAILED)
    marked = {"role": "user", "content": "<|endoftext|> " + "row by row " * 700}
    m.add(marked)
    first = m.before_model_call()
    messages = [marked, *(message for n in range(16) for message in turn(m, n))]

    assert [type(e) for e in first.errors] == [OffloadError]
    assert "token_counter" in str(first.errors[0])
    assert len(failures) <= 33
    request = m.before_model_call()
    assert 0 < request.tokens < SMALL.trigger_tokens
    assert m.restore() == messages
    # The text is in the preview too, and in the messages that are compacted and stored.
    assert counter is not failing_on_a_mark or len(failures) <= 4


def test_tokens_are_those_of_the_counter_except_where_it_fails():
    marked = {"role": "user", "content": "<|endoftext|>" + "x" * 300}
    plain = {"role": "user", "content": "y" * 400}
    one = manager(offloader={"token_counter": failing_on_a_mark})
    other = manager(offloader={"token_counter": whole_numbers})
    for m in (one, other):
        m.add(plain)
    other_tokens, alone = other.before_model_call().tokens, one.before_model_call().tokens
    one.add(marked)

    assert alone == other_tokens == 104
    assert one.before_model_call().tokens == 104 + 4 + estimate_tokens(marked["content"])


# --- another process ---------------------------------------------------------------------------------


def test_another_process_continues_from_the_session_name_and_the_store(tmp_path):
    first = manager(tmp_path)
    messages = talk(first, 16)
    first.before_model_call()
    first.after_model_call(call(16), usage=9999)

    second = manager(tmp_path)
    count = second.resume()

    assert second.messages == first.messages
    assert count == len(first.messages) < len(messages)
    assert second.before_model_call().messages == first.before_model_call().messages
    assert second.before_model_call().tokens == first.before_model_call().tokens
    assert second.restore() == [*messages, call(16)]


def test_a_session_without_a_conversation_resumes_as_an_empty_one_and_only_before_a_message():
    m = manager()

    assert m.resume() == 0
    assert m.messages == []
    m.add(said(0))
    with pytest.raises(ConfigError, match=r"call resume\(\) first"):
        m.resume()


def test_a_manager_that_does_not_resume_starts_a_new_conversation(tmp_path):
    talk(manager(tmp_path), 3)
    anew = manager(tmp_path)
    anew.add(said(7))
    anew.before_model_call()

    m = manager(tmp_path)
    m.resume()

    assert m.messages == [said(7)]


@pytest.mark.parametrize("tries", [True, False])
def test_two_agents_at_once_are_detected_and_a_new_conversation_is_resumed(tmp_path, tries):
    first, second = manager(tmp_path), manager(tmp_path)
    for n, m in enumerate((first, second)):
        m.resume()
        m.add(said(n))
    for m in (first, second):
        m.before_model_call()
    anew = manager(tmp_path)
    if tries:
        with pytest.raises(CollisionError, match=r"two agents continued session .* it begins a new conv"):
            anew.resume()
    for n in (7, 8):
        anew.add(said(n))
        assert anew.before_model_call().errors == []

    m = manager(tmp_path)

    assert m.resume() == 2
    assert m.messages == [said(7), said(8)]


@pytest.mark.parametrize("entry", [0, 2])
def test_a_journal_without_an_entry_raises_and_starts_nothing_and_no_model_is_shown_it(tmp_path, entry):
    first = manager(tmp_path, BY_SIZE)
    talk(first, 3)
    assert "row 1" not in first.tools.call("context_list")
    assert first.tools.call("context_grep", {"pattern": "row 1"}).count("row 1.") == 0
    [gone] = (tmp_path / "j" / "s").glob(f"00000000{entry}~*")
    gone.unlink()
    m = manager(tmp_path)

    with pytest.raises(NotFoundError, match="journal entries were deleted"):
        m.resume()
    assert m.messages == []


def test_fields_with_a_reserved_name_and_sdk_objects_are_resumed_as_data(tmp_path):
    from openai.types.chat import ChatCompletionMessage  # noqa: PLC0415 # this test alone needs it

    arguments = {"$bytes": "no base64", "$$bytes": {"$bytes": "aGVsbG8="}}
    block = {"type": "tool_use", "id": "t", "name": "F", "input": arguments}
    asked = {"role": "assistant", "content": [block]}
    m, other = manager(tmp_path), manager(tmp_path)
    m.after_model_call(asked)
    m.add(said(0))
    m.before_model_call()
    m.after_model_call(ChatCompletionMessage(role="assistant", content="Done."))

    other.resume()

    assert other.messages == [asked, said(0), {"role": "assistant", "content": "Done."}]


def test_messages_of_langchain_are_resumed_in_their_format():
    from langchain_core.messages import (  # noqa: PLC0415 # this test alone needs it
        AIMessage,
        HumanMessage,
        ToolMessage,
        convert_to_messages,
    )

    store = MemoryStore()
    m = manager(store, BY_SIZE)
    messages: list[Any] = [HumanMessage("Print the rows.")]
    m.add(messages[0])
    for n in range(16):
        answer = AIMessage("", tool_calls=[{"name": "Bash", "args": {"n": n}, "id": f"t{n}"}])
        rows = ToolMessage("".join(f"row {n}.{i} of the output\n" for i in range(60)), tool_call_id=f"t{n}")
        m.before_model_call()
        m.after_model_call(answer)
        m.add(rows)
        messages += [answer, rows]
    m.before_model_call()
    other = manager(store, BY_SIZE)
    other.resume()

    assert other.before_model_call().errors == []
    assert m.compaction_count > 0
    restored = convert_to_messages(other.restore())
    assert [(type(x), x.content) for x in restored] == [(type(x), x.content) for x in messages]


# --- failures ----------------------------------------------------------------------------------------


def test_a_failing_store_removes_nothing_and_the_context_is_reduced_and_stored_once_it_works_again():
    store = FaultyStore(MemoryStore(), is_lasting=True)
    m = manager(store)
    failures = heard(m.events, EventType.CONTEXT_FAILED)
    messages = talk(m, 10)
    request = m.before_model_call()
    assert request.messages == messages
    assert {type(e) for e in request.errors} >= {ContextFullError}
    assert any(isinstance(e, StoreError) for e in request.errors)
    assert {e.data["kind"] for e in failures} >= {"context_full", "store_unavailable"}
    store.heal()

    request = m.before_model_call()

    assert request.errors == []
    assert request.tokens < SMALL.trigger_tokens
    assert m.restore() == messages
    other = manager(store)
    other.resume()
    assert other.messages == request.messages


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_next_turn_repeats_a_failed_write(moment):
    for nth in some(range(1, 40), 5):
        store = FaultyStore(MemoryStore(), nth=nth, verb="put", moment=moment)
        m = manager(store)
        messages = talk(m, 9)
        m.before_model_call()
        m.before_model_call()
        other = manager(store)
        other.resume()

        assert other.messages == m.messages
        assert other.restore() == messages
        if not store.failures:
            break
    assert nth > 18


def test_a_failing_listener_ends_no_turn_and_hides_no_event_from_others():
    def listener(event: Any) -> None:
        raise RuntimeError("no printer")

    events: list[Any] = []
    bus = EventBus()
    bus.subscribe(listener)
    bus.subscribe(events.append)
    m = manager(config=BY_SIZE, events=bus)
    messages = talk(m, 16)
    request = m.before_model_call()

    assert request.errors == []
    assert m.restore() == messages
    told = {e.event_type for e in events}
    smaller = [e.data for e in events if e.event_type == EventType.ITEMS_OFFLOADED]
    assert told >= {EventType.ITEM_ADDED, EventType.ITEMS_OFFLOADED, EventType.CONTEXT_COMPACTED}
    assert all(data["messages"] > 0 and data["tokens"] > 0 for data in smaller)


def test_a_summarizer_that_fails_for_a_while_is_reported_and_called_again():
    asked: list[Any] = []

    def summarizer(messages: list[Any]) -> str:
        asked.append(messages)
        if len(asked) < 3:
            raise RuntimeError("overloaded")
        return "<summary>The user asked a lot.</summary>"

    m = manager(config=SMALL.model_copy(update={"rules": NOTHING_GOES}), summarizer=summarizer)
    errors: list[OffloadError] = []
    messages = []
    for n in range(14):
        answer = {"role": "assistant", "content": f"answer {n} " + "word " * 250}
        m.add(said(n))
        errors += [*m.before_model_call().errors, *m.after_model_call(answer)]
        messages += [said(n), answer]

    assert ["overloaded" in str(e) for e in errors] == [True, True]
    assert "The user asked a lot." in str(m.messages[0])
    assert m.before_model_call().tokens < SMALL.trigger_tokens
    assert m.restore() == messages


class Odd:
    """Raises on every attribute."""

    @property
    def role(self) -> str:
        raise RuntimeError("closed")


@pytest.mark.parametrize("wrong", [None, "hello", b"hello", [said(1)], (said(1),), Odd()])
def test_a_value_that_is_no_message_is_refused_and_changes_nothing(wrong):
    m = manager()
    m.add(said(0))

    with pytest.raises(MessageError):
        m.add(wrong)
    with pytest.raises(MessageError, match="must be one dict or SDK object"):
        m.after_model_call([wrong])
    with pytest.raises(ConfigError, match="skill_prompt"):
        m.add(said(0), "skil_prompt")  # type: ignore[arg-type]

    assert m.messages == m.before_model_call().messages == [said(0)]


def test_a_malformed_message_is_reported_once_and_sent_unchanged():
    m = manager()
    m.add({"content": "no role"})
    first = m.before_model_call()
    turn(m, 1)

    assert [type(e) for e in first.errors] == [MessageError]
    assert first.messages == [{"content": "no role"}]
    assert m.before_model_call().errors == []


def test_without_messages_or_without_a_journal_nothing_is_stored(tmp_path):
    m = manager(tmp_path)

    request = m.before_model_call(system_prompt="You help.")

    assert (request.messages, request.errors) == ([], [])
    assert request.tokens > 0
    assert m.restore() == []
    talk(manager(tmp_path, BY_SIZE.model_copy(update={"resumable": False})), 2)
    assert not list(tmp_path.rglob("*.zst"))


def test_on_error_raise_raises_failures():
    m = manager(FaultyStore(MemoryStore(), is_lasting=True), offloader={"on_error": "raise"})
    m.add(said(0))

    with pytest.raises(StoreError):
        m.before_model_call()


def test_a_text_truncated_while_the_store_fails_is_complete_once_it_works_again():
    store = FaultyStore(MemoryStore(), is_lasting=True)
    m = manager(store, offloader={"on_error": "truncate"})
    messages = talk(m, 12, lines=350)
    cut = m.before_model_call().messages
    store.heal()

    request = m.before_model_call()

    assert "the rest was not stored" in str(cut)
    assert "the rest was not stored" not in str(request.messages)
    assert request.tokens < SMALL.trigger_tokens
    assert m.restore() == messages


def test_a_request_above_the_window_suggests_fixes():
    m = manager()
    m.add(said(0))

    request = m.before_model_call(system_prompt="careful " * 4000)

    [error] = request.errors
    assert isinstance(error, ContextFullError)
    assert "shorten the system prompt" in str(error)
    assert request.messages == [said(0)]


# --- events, async, cost -----------------------------------------------------------------------------


def test_async_forms_run_async_hooks_on_the_loop():
    loops = []

    async def summarizer(messages: list[Any]) -> str:
        loops.append(asyncio.get_running_loop())
        return "<summary>All was said.</summary>"

    async def main() -> list[Any]:
        store = MemoryStore()
        m = manager(store, SMALL.model_copy(update={"rules": NOTHING_GOES}), summarizer=summarizer)
        for n in range(12):
            m.add(said(n))
            await m.abefore_model_call()
            await m.aafter_model_call({"role": "assistant", "content": "word " * 550}, usage=None)
        other = manager(store)
        assert await other.aresume() == len(m.messages)
        assert len(await other.arestore()) == 24
        return [asyncio.get_running_loop()]

    [loop] = asyncio.run(main())
    assert loops
    assert all(one is loop for one in loops)


def test_a_message_added_while_a_request_is_made_does_not_wait_and_is_in_the_next_one():
    seen: list[Any] = []

    def steer() -> None:
        m.add(said(99))
        seen.append(m.messages[-1])

    def summarizer(messages: list[Any]) -> str:
        # The request waits for this hook, so a hook that waits for the request would never end.
        other = threading.Thread(target=steer, daemon=True)
        other.start()
        other.join(10)
        return "<summary>All was said.</summary>"

    m = manager(config=SMALL.model_copy(update={"rules": NOTHING_GOES}), summarizer=summarizer)
    for n in range(120):
        m.add(said(n))

    request = m.before_model_call()

    assert seen[0] == said(99)
    assert said(99) not in request.messages
    assert m.before_model_call().messages == [*request.messages, *seen]


class Costs:
    """Counts what a turn does: operations of the store, characters whose tokens are counted."""

    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore(), nth=10**9)
        self.chars = 0

    def count(self, text: str) -> int:
        self.chars += len(text)
        return len(text) // 4

    def take(self) -> tuple[int, int]:
        taken = self.store.operations, self.chars
        self.store.operations = self.chars = 0
        return taken


def test_the_cost_of_a_turn_does_not_grow_with_the_history():
    costs = Costs()
    m = manager(costs.store, AgentConfig(window_tokens=10**7), offloader={"token_counter": costs.count})
    m.add(said(0))
    turns = []
    for _ in range(60):
        turn(m, 0, lines=20)
        turns.append(costs.take())

    assert turns[20] == turns[59]
    operations, chars = turns[59]
    assert operations == 2  # one entry of the journal before the call, one after
    assert chars < 3 * len(str([call(0), result(0, lines=20)]))
    m.before_model_call()
    costs.take()
    m.before_model_call()
    assert costs.take() == (0, 0)


def test_the_cost_of_a_turn_does_not_grow_over_many_compactions():
    costs = Costs()
    m = manager(costs.store, offloader={"token_counter": costs.count})
    m.add(said(0))
    turns = []
    for n in range(75):
        turn(m, n)
        turns.append(costs.take())

    early, late = turns[20:40], turns[55:75]
    for part in (0, 1):
        assert sum(t[part] for t in late) <= 1.1 * sum(t[part] for t in early)


def test_explain_shows_the_decisions_of_a_request_of_the_agent_loop() -> None:
    off = Offloader("memory://", session="s")
    manager = ContextManager(off, AgentConfig(window_tokens=100_000))
    assert off.explain().startswith("no decision yet")
    manager.add({"role": "user", "content": "go"})
    for n in range(2):
        use = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {}}
        block = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"line {n}\n" * 9000}
        manager.add({"role": "assistant", "content": [use]})
        manager.add({"role": "user", "content": [block]})
        request = manager.before_model_call()

        assert [d.action for d in request.decisions if d.item.item_type == "tool_result"] == ["offload"] * (
            n + 1
        )
        rows = [row for row in off.explain().splitlines() if "tool_result" in row]
        assert len(rows) == n + 1
        assert all("  offload: " in row for row in rows)
    assert off.offload_text("a text") == "a text"
    assert "a text" not in off.explain("a text")
    assert len(off.explain("a text").splitlines()) == 2


def test_what_is_kept_by_design_fails_no_request_of_the_agent_loop(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    off = Offloader("memory://", session="s", on_error="raise", policy=OffloadPolicy(max_view_tokens=2000))
    off.events.subscribe(events.append)
    manager = ContextManager(off, AgentConfig(window_tokens=100_000))
    manager.add({"role": "user", "content": "go"})
    manager.add({"role": "assistant", "content": "a long answer of the model\n" * 2000})

    [error] = manager.before_model_call().errors

    assert error.kind == "above_ceiling"
    assert not {"context_failed", "offload_failed"} & {event.event_type for event in events}
    assert "failed" not in caplog.text
    assert "nothing is lost" not in caplog.text


def test_what_was_offloaded_in_a_request_that_failed_is_a_placeholder_in_the_next() -> None:
    failures = [RuntimeError("down")]

    def should_offload(facts: ItemFacts) -> bool:
        if facts.tool_use_id == "t1" and failures:
            raise failures.pop()
        return True

    large = AgentConfig(window_tokens=100_000)
    m = manager(config=large, offloader={"on_error": "raise", "should_offload": should_offload})
    for message in (said(0), call(0), result(0, 2000), call(1), result(1, 2000)):
        m.add(message)
    with pytest.raises(OffloadError, match="down"):
        m.before_model_call()

    results = [message["content"][0]["content"] for message in m.before_model_call().messages[2::2]]
    assert [text.startswith("[Offloaded:") for text in results] == [True, True]

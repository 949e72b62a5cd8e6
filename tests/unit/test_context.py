"""The context as items in segments: token counts, events, and items that are removed together."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import formats
import pytest
import recorded
from compactions import context_of
from formats import FORMATS
from hypothesis import given, strategies as st
from kit.conversation import from_model, from_user, ids_of
from langchain_core.messages import messages_to_dict

from offload import ConfigError, estimate_tokens
from offload.messages.context import ContextEvent, ContextIR, EventBus, EventType, ItemType
from offload.messages.context.pairs import partners, split_groups, split_rounds, waiting_from
from offload.messages.context.tokens import MessageCounter
from offload.messages.formats import answered_calls, is_result


def call(*ids: str) -> Any:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": f"result of {call_id}"}


def searched(*blocks: Any) -> Any:
    """Return what a model says after a search that the API made for it."""
    query = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    return {"role": "assistant", "content": [query, found, *blocks]}


def chat() -> ContextIR:
    first = [from_user("one"), call("a", "b"), result("a"), result("b"), from_model("first")]
    second = [from_user("two"), call("c"), result("c"), from_model("second")]
    return context_of([{"role": "system", "content": "Be careful."}, *first, *second])


ONE_CALL = {name: [formats.user(name, "hi"), *formats.exchange(name, "f", {}, "r", "x")] for name in FORMATS}


NO_ID = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
ONE_CALL["langchain-dicts"] = messages_to_dict(ONE_CALL["langchain"])
IMAGE = {"toolResult": {"toolUseId": "x", "content": [{"image": {}}]}}
ONE_CALL["bedrock"][2] = {"role": "user", "content": [IMAGE]}


@pytest.mark.parametrize("name", ONE_CALL)
def test_calls_wait_for_their_results_which_start_no_round_in_every_format(name):
    hello, called, answer = ONE_CALL[name]
    messages = [hello, called, answer] * 2

    assert [is_result(m) for m in messages] == [False, False, True] * 2
    assert answered_calls(answer) == ["x"]
    # The id is used again: each result belongs to the call before it.
    assert partners(messages) == {1: 2, 4: 5}
    assert split_rounds(messages) == [range(3), range(3, 6)]
    assert [waiting_from(messages[:end]) for end in (2, 3, 5)] == [1, 3, 4]
    kinds = [ContextIR().add_message(m).item_type for m in messages[:3]]
    assert kinds == ["user_message", "assistant_message", "tool_result"]


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([], 0),
        ([from_user("hi")], 1),
        ([call("a", "b"), result("a")], 0),
        ([from_model("first"), call("a"), call("b"), result("b")], 1),
        ([from_model("first"), call("b"), call("a"), result("b")], 2),
        # Calls without ids: any result is theirs.
        ([NO_ID], 0),
        ([NO_ID, {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}], 2),
        # A call that the user cut off, and a call that the API runs.
        ([call("a"), from_user("never mind")], 2),
        ([from_user("find it"), {"type": "web_search_call", "id": "w", "action": {"query": "q"}}], 2),
        ([from_user("find it"), searched()], 2),
        ([from_user("find it"), searched({"type": "tool_use", "id": "a", "name": "f", "input": {}})], 1),
    ],
)
def test_only_calls_of_the_last_turn_without_a_result_are_open(messages, index):
    assert waiting_from(messages) == index


def test_a_round_starts_with_the_next_user_message():
    messages = [
        from_model("hello"),
        from_user("a"),
        from_user("b"),
        from_model("c"),
        from_user("d"),
        call("x"),
        from_user("e"),
        result("x"),
    ]

    assert split_rounds(messages) == [range(4), range(4, 8)]
    assert split_rounds([]) == []
    assert split_rounds([from_model("x")]) == [range(1)]


@given(st.lists(st.sampled_from("uscr"), max_size=30))
def test_rounds_are_the_whole_conversation_in_order(kinds):
    made = {"u": from_user("x"), "s": from_model("x"), "c": call("a"), "r": result("a")}
    messages = [made[kind] for kind in kinds]

    rounds = split_rounds(messages)

    assert [i for one in rounds for i in one] == list(range(len(messages)))
    assert all(one for one in rounds)
    assert all(messages[one.start]["role"] == "user" for one in rounds[1:])


def test_header_items_come_first_whenever_they_were_added_and_stay_when_the_rest_is_replaced():
    context = ContextIR()
    context.add_message(from_user("hi"))
    context.add_message(from_user("delegate"), ItemType.SUBAGENT_STRATEGY)
    system = context.add_message({"role": "system", "content": "Be careful."})
    before = context.total_tokens

    assert [m["content"] for m in context.lower()] == ["delegate", "Be careful.", "hi"]
    assert context.header.items[1] is system
    assert context.conversation_messages == [from_user("hi")]
    summary = context.new_item(from_user("what was said"), ItemType.COMPACTION_SUMMARY)
    context.replace_conversation([summary])
    assert [m["content"] for m in context.lower()] == ["delegate", "Be careful.", "what was said"]
    assert context.total_tokens == context.header.tokens + summary.token_count != before


def test_an_item_has_its_text_its_tokens_and_its_priority():
    context = ContextIR()
    text = "please read the whole of this file " * 20

    item = context.add_message(from_user(text))

    assert item.content_text == text
    assert item.token_count == 4 + estimate_tokens(text)
    assert context.total_tokens == item.token_count
    kinds = [
        context.new_item(from_user("x"), kind).priority
        for kind in (ItemType.TOOL_RESULT, ItemType.USER_MESSAGE)
    ]
    assert kinds[0] < kinds[1] < context.new_item({"role": "system", "content": "x"}).priority
    assert len({context.new_item(from_user("x")).id for _ in range(5)}) == 5


def test_a_search_by_the_api_is_an_assistant_message_and_removed_with_its_results():
    asked, found = ({"role": "assistant", "content": [block]} for block in searched()["content"])
    one, two = ContextIR(), ContextIR()
    for message in (from_user("find it"), searched()):
        one.add_message(message)
    for message in (from_user("find it"), asked, found):
        two.add_message(message)

    assert [item.item_type for item in one.conversation.items] == ["user_message", "assistant_message"]
    assert [len(group) for group in split_groups(one.conversation_messages)] == [1, 1]
    assert [len(group) for group in split_groups(two.conversation_messages)] == [1, 2]


def test_an_image_and_the_placeholder_of_one_are_counted():
    data = base64.b64encode(b"GIF89a" + (750).to_bytes(2, "little") * 2).decode()
    source = {"type": "base64", "media_type": "image/gif", "data": data}
    seen = {"role": "user", "content": [{"type": "image", "source": source}]}
    line = "[Offloaded: image of x, image/gif, 9 bytes, id abcdefghij. It cannot be shown again]"
    gone = {"role": "user", "content": [{"type": "text", "text": line}]}

    counter = MessageCounter(len)

    assert [counter.message(seen), counter.message(gone)] == [4 + 750, 4 + len(line)]


def test_a_message_is_counted_once_while_it_is_in_the_list_unless_that_failed():
    counted: list[str] = []
    broken = {"five"}

    def count(text: str) -> int:
        if text in broken:
            raise RuntimeError
        counted.append(text)
        return len(text)

    counter = MessageCounter(count)
    messages = [from_user("one"), from_user("two")]

    assert counter.total(messages) == 14
    assert counter.total([*messages, from_user("three")]) == 23
    assert counter.total((from_user("one"), from_user("two"), from_user("three"), from_user("four"))) == 31
    assert counted == ["one", "two", "three", "four"]
    with pytest.raises(RuntimeError):
        counter.total([*messages, from_user("five")])
    broken.clear()
    assert [counter.total([*messages, from_user("five")]) for _ in range(2)] == [22, 22]


def test_a_result_is_removed_with_its_call_and_the_other_results():
    context = chat()
    first = context.conversation.of_type(ItemType.TOOL_RESULT)[0]

    removed = context.remove_by_id(first.id)

    assert [item.message for item in removed] == [call("a", "b"), result("a"), result("b")]
    assert [m["role"] for m in context.lower()] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    with pytest.raises(ConfigError, match=f"no item '{first.id}'"):
        context.remove_by_id(first.id)


def test_all_items_of_a_type_are_removed_with_their_calls_and_results():
    context = chat()

    removed = context.remove_by_type(ItemType.TOOL_RESULT)

    assert len(removed) == 5
    assert context.conversation_messages == [
        from_user("one"),
        from_model("first"),
        from_user("two"),
        from_model("second"),
    ]
    assert context.remove_by_type(ItemType.TOOL_RESULT) == []
    assert context.remove_by_type(ItemType.SYSTEM_PROMPT) == []


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        (
            [
                from_user("hi"),
                call("a"),
                from_user("hurry"),
                from_model("soon"),
                result("a"),
                from_user("thanks"),
            ],
            [from_user("hi"), from_user("thanks")],
        ),
        (
            [
                from_user("hi"),
                {"type": "reasoning", "id": "r", "summary": []},
                *ONE_CALL["openai-responses"][1:],
            ],
            [from_user("hi")],
        ),
    ],
    ids=["messages between", "reasoning before"],
)
def test_what_belongs_to_a_call_and_its_result_is_removed_with_them(messages, left):
    context = context_of(messages)

    context.remove_by_type(ItemType.TOOL_RESULT)

    assert context.lower() == left


def test_one_item_replaces_the_removed_items():
    context = chat()
    events: list[ContextEvent] = []
    context.event_bus.subscribe(events.append)
    leaving = context.together(context.conversation.of_type(ItemType.TOOL_RESULT))
    notice = context.new_item(from_user("five left"), ItemType.COMPACTION_NOTICE)

    context.replace_items(leaving, notice)

    texts = ["one", "five left", "first", "two", "second"]
    assert [m["content"] for m in context.conversation_messages] == texts
    assert [(e.event_type, len(e.data["ids"])) for e in events] == [("item_removed", 5), ("item_added", 1)]
    for missing in ([], leaving):
        with pytest.raises(ConfigError, match="the conversation has none of the"):
            context.replace_items(missing, context.new_item(from_user("x")))
    assert [m["content"] for m in context.conversation_messages] == texts


def test_each_change_emits_one_event_to_its_listeners():
    bus = EventBus()
    events: list[ContextEvent] = []
    removals: list[ContextEvent] = []
    bus.subscribe(events.append)
    end = bus.subscribe(removals.append, EventType.ITEM_REMOVED)
    context = ContextIR(event_bus=bus)
    item = context.add_message(from_user("hi"))
    context.remove_by_id(item.id)
    context.replace_conversation([item])
    end()
    context.remove_by_id(item.id)

    kinds = ["item_added", "item_removed", "conversation_replaced", "item_removed"]
    assert [event.event_type for event in events] == kinds
    assert [event.data for event in removals] == [{"ids": [item.id], "tokens": item.token_count}]
    assert "hi" not in "".join(event.detail for event in events)


@recorded.needed
@pytest.mark.parametrize("path", recorded.each(every=3))
def test_removing_any_item_of_a_transcript_parts_no_call_from_its_result(path):
    messages = json.loads(path.read_text())["messages"]
    calls, results = ids_of(messages)
    context = context_of(messages)

    for item in context.conversation.items[::7]:
        if item in context.conversation.items:
            context.remove_by_id(item.id)

    left_calls, left_results = ids_of(context.lower())
    assert left_calls & results == left_results & calls
    assert len(context.lower()) < len(messages)


# --- sums --------------------------------------------------------------------------------------------

CHANGES = {
    "append": lambda items, new: items.append(new),
    "insert": lambda items, new: items.insert(2, new),
    "set": lambda items, new: items.__setitem__(3, new),
    "slice": lambda items, new: items.__setitem__(slice(1, 4), [new]),
    "extend": lambda items, new: items.extend([new, new]),
    "add": lambda items, new: items.__iadd__([new]),
    "delete": lambda items, _: items.__delitem__(0),
    "remove": lambda items, _: items.remove(items[2]),
    "pop": lambda items, _: items.pop(),
    "reverse": lambda items, _: items.reverse(),
    "sort": lambda items, _: items.sort(key=lambda item: item.token_count),
    "clear": lambda items, _: items.clear(),
}


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=12))
def test_tokens_and_messages_are_those_of_the_items_however_these_are_changed(names):
    context = chat()
    for n, name in enumerate(names):
        items = context.conversation.items
        if len(items) > 3 or name in ("append", "insert", "extend"):
            CHANGES[name](items, context.new_item(from_user(f"more {n} " * n)))

        items = context.conversation.items
        assert context.conversation.tokens == sum(item.token_count for item in items)
        assert list(context.conversation.messages) == [item.message for item in items]
    assert copy.deepcopy(context).total_tokens == context.total_tokens


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=6))
def test_the_total_of_a_list_is_the_sum_of_its_messages_whatever_list_came_before(lists):
    counter, messages = MessageCounter(), [from_user("word " * n) for n in range(7)]

    for numbers in lists:
        given_list = [messages[n] for n in numbers]
        assert counter.total(given_list) == sum(map(MessageCounter().message, given_list))

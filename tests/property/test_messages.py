"""Replacing an item and putting it back gives the message that was there, whatever else it holds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from offload.messages import adapter_for

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

words = st.text(st.characters(exclude_categories=()), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
caches = st.just({"type": "ephemeral"})


def block(
    kind: str, optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: Any
) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=optional or {})


text_blocks = block("text", text=words, optional={"cache_control": caches, "citations": values})
images = block("image", source=st.fixed_dictionaries({"type": st.just("base64"), "data": words}))
unknown = st.builds(
    lambda kind, rest: {**rest, "type": f"new_{kind}"}, words, st.dictionaries(words, values, max_size=3)
)
result_contents = words | st.lists(text_blocks | images | unknown, max_size=5)
tool_results = block(
    "tool_result",
    tool_use_id=words,
    optional={"content": result_contents | st.none(), "is_error": st.booleans(), "cache_control": caches},
)
tool_uses = block("tool_use", id=words, name=words, input=st.dictionaries(words, values, max_size=3))
thinking = block("thinking", thinking=words, signature=words)
anthropic_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": words
        | st.lists(text_blocks | images | unknown | tool_results | tool_uses | thinking, max_size=5),
    },
    optional={"id": words},
)

calls = st.fixed_dictionaries(
    {"id": words, "type": st.just("function")},
    optional={"function": st.fixed_dictionaries({"name": words, "arguments": words}), "custom": values},
)
parts = st.lists(text_blocks | block("image_url", image_url=values) | unknown, max_size=5)
openai_messages = st.one_of(
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": words, "content": words | parts}),
    st.fixed_dictionaries({"role": st.just("function"), "name": words, "content": words}),
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": words | parts}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | words | parts},
        optional={
            "tool_calls": st.lists(calls, max_size=2),
            "reasoning_content": words,
            "refusal": st.none(),
        },
    ),
    st.fixed_dictionaries({"role": st.just("user"), "content": words | parts}, optional={"name": words}),
)
messages = anthropic_messages | openai_messages


class Block(BaseModel):
    """A content block as the SDKs model it: fields that they do not know are kept."""

    model_config = ConfigDict(extra="allow")

    type: str


class Message(BaseModel):
    """A message as the SDKs model it."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = None


def as_objects(message: dict[str, Any]) -> Message:
    content = message["content"]
    if isinstance(content, list):
        content = [Block.model_construct(**b) for b in content]
    return Message.model_construct(**{**message, "content": content})


def assert_inverse(message: Any, *, in_order: bool) -> None:
    before = copy.deepcopy(message)
    adapter = adapter_for(message)
    items = adapter.scan(message, "messages[0]", {}).items
    replaced = message
    for item in items:
        replaced = adapter.replace(replaced, item.block, "PLACEHOLDER")
    shown = [i.text for i in adapter.scan(replaced, "messages[0]", {}).items]
    assert shown == ["PLACEHOLDER"] * len(items)
    restored = replaced
    for item in items if in_order else reversed(items):
        restored = adapter.restore(restored, item.block, item.text, item.form)
    assert restored == before
    assert message == before, "the input was changed"


@many
@given(messages, st.booleans())
def test_every_message_is_put_back_as_it_was(message: dict[str, Any], in_order: bool) -> None:  # drawn
    assert_inverse(message, in_order=in_order)


@many
@given(messages)
def test_every_message_of_sdk_objects_is_put_back_as_it_was(message: dict[str, Any]) -> None:
    assert_inverse(as_objects(message), in_order=True)


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_content_that_is_a_tuple_is_put_back_as_it_was(role: str) -> None:
    assert_inverse({"role": role, "content": ({"type": "text", "text": "x"},)}, in_order=True)


@many
@given(messages)
def test_a_scan_finds_every_text_that_takes_tokens_once(message: dict[str, Any]) -> None:
    scan = adapter_for(message).scan(message, "messages[0]", {})
    places = [item.block for item in scan.items]
    assert len(set(places)) == len(places)
    content = message["content"]
    if isinstance(content, str):
        assert [i.text for i in scan.items] == [content]
    for item in scan.items:
        if item.block is not None and content[item.block]["type"] == "text":
            assert item.text == content[item.block]["text"]


@many
@given(messages)
def test_a_scan_finds_the_same_in_sdk_objects_but_for_results_of_several_texts(
    message: dict[str, Any],
) -> None:
    plain = adapter_for(message).scan(message, "messages[0]", {})
    objects = adapter_for(as_objects(message)).scan(as_objects(message), "messages[0]", {})
    # Several text objects cannot be told in JSON, so such a result stays where it is.
    assert [(i.block, i.text, i.item_type) for i in objects.items if i.form is None] == [
        (i.block, i.text, i.item_type) for i in plain.items if i.form is None
    ]
    assert objects.calls == plain.calls


@many
@given(st.lists(text_blocks | images | unknown, min_size=2, max_size=6), caches)
def test_what_was_put_on_the_message_since_is_kept(content: list[Any], cache: dict[str, str]) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    message = {"role": "user", "content": [block]}
    adapter = adapter_for(message)
    items = adapter.scan(message, "messages[0]", {}).items
    for item in items:
        replaced = adapter.replace(message, item.block, "PLACEHOLDER")
        replaced["content"][0]["cache_control"] = cache
        restored = adapter.restore(replaced, item.block, item.text, item.form)
        assert restored["content"][0] == {**block, "cache_control": cache}

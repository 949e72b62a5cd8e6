"""Replacing an item and restoring it returns the same message, with any other content."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from formats import exchange
from hypothesis import HealthCheck, example, given, strategies as st
from pydantic import BaseModel, ConfigDict
from strength import examples

from offload.messages.calls import Calls
from offload.messages.formats import FORMATS, adapter_for
from offload.messages.thinking import content_digest

many = examples(150, suppress_health_check=[HealthCheck.too_slow])

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

input_texts = block("input_text", text=words)
outputs = words | st.lists(input_texts | block("input_image", image_url=words) | unknown, max_size=5)
streams = st.fixed_dictionaries({"stdout": words, "stderr": words, "outcome": values})
json_objects = st.dictionaries(words, values, max_size=3)
json_strings = words | json_objects.map(json.dumps)
responses_items = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.lists(
                input_texts | block("output_text", text=words, annotations=values), min_size=1
            ),
        }
    ),
    block("function_call_output", call_id=words, output=outputs),
    block("custom_tool_call_output", call_id=words, output=outputs),
    block("local_shell_call_output", id=words, output=json_strings),
    block("apply_patch_call_output", call_id=words, output=st.none() | words, status=st.just("failed")),
    block("shell_call_output", call_id=words, output=st.lists(streams, max_size=3)),
    block("function_call", call_id=words, name=words, arguments=json_strings),
    block("custom_tool_call", call_id=words, name=words, input=words),
    block("mcp_call", id=words, name=words, arguments=json_strings, output=st.none() | words),
    block("reasoning", id=words, summary=st.lists(block("summary_text", text=words), max_size=2)),
    block("shell_call", call_id=words, action=values),
)

langchain_contents = words | st.lists(words | text_blocks | images | unknown, max_size=5)
langchain_calls = st.fixed_dictionaries(
    {"name": words, "args": json_objects, "id": st.none() | words, "type": st.just("tool_call")}
)
langchain_fields = st.one_of(
    block("human", content=langchain_contents, id=st.none() | words),
    block("system", content=langchain_contents),
    block("chat", content=langchain_contents, role=words),
    block("function", content=words, name=words),
    block("ai", content=langchain_contents, tool_calls=st.lists(langchain_calls, max_size=2)),
    block("AIMessageChunk", content=langchain_contents, tool_calls=st.lists(langchain_calls, max_size=2)),
    block("tool", content=langchain_contents, tool_call_id=words, artifact=values, status=st.just("error")),
)
langchain_messages = langchain_fields | st.builds(
    lambda fields, envelope: {"type": fields["type"], envelope: fields},
    langchain_fields,
    st.sampled_from(["data", "kwargs"]),
)


def one(key: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({key: value})


pictures = one("image", values)
converse_results = st.lists(one("text", words) | one("json", values) | pictures, max_size=5)
bedrock_blocks = st.one_of(
    one("text", words),
    pictures,
    one("toolUse", st.fixed_dictionaries({"toolUseId": words, "name": words, "input": json_objects})),
    one(
        "toolResult",
        st.fixed_dictionaries(
            {"toolUseId": words, "content": converse_results}, optional={"status": st.just("error")}
        ),
    ),
    one("reasoningContent", one("reasoningText", one("text", words))),
)
bedrock_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": st.lists(bedrock_blocks, min_size=1, max_size=5),
    }
)

named = {"id": words, "name": words}
gemini_parts = st.one_of(
    one("text", words),
    st.fixed_dictionaries({"text": words, "thought": st.booleans()}),
    st.sampled_from(["functionResponse", "function_response"]).flatmap(
        lambda key: one(key, st.fixed_dictionaries({"response": json_objects}, optional=named))
    ),
    st.sampled_from(["functionCall", "function_call"]).flatmap(
        lambda key: one(key, st.fixed_dictionaries({"args": json_objects}, optional=named))
    ),
    one("inlineData", values),
    one("executableCode", one("code", words)),
)
gemini_messages = st.fixed_dictionaries(
    {"parts": st.lists(gemini_parts, max_size=5)},
    optional={"role": st.sampled_from(["user", "model", "function", "tool"])},
)

step_blocks = st.lists(
    block("text", text=words) | block("image", data=words, mime_type=st.just("image/png")) | unknown,
    max_size=5,
)
steps = st.one_of(
    block("user_input", content=step_blocks),
    block("model_output", content=step_blocks),
    block("thought", summary=st.lists(block("text", text=words), max_size=2), signature=words),
    block("function_call", id=words, name=words, arguments=json_objects),
    block(
        "function_result",
        call_id=words,
        result=words | step_blocks | json_objects,
        optional={"name": words, "is_error": st.booleans()},
    ),
    block("mcp_server_tool_result", call_id=words, result=words | step_blocks),
)

formats = {
    "gemini-interactions": steps,
    "anthropic": anthropic_messages,
    "openai-chat": openai_messages,
    "openai-responses": responses_items,
    "langchain": langchain_messages,
    "bedrock": bedrock_messages,
    "gemini": gemini_messages,
}
messages = st.one_of(*formats.values())
with_content = anthropic_messages | openai_messages


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


def test_messages_of_every_format_are_drawn() -> None:
    assert formats.keys() == {adapter.name for adapter in FORMATS}


def assert_inverse(message: Any, *, in_order: bool) -> None:
    before = copy.deepcopy(message)
    adapter = adapter_for(message)
    items = adapter.scan(message, "messages[0]", Calls()).items
    replaced = message
    for item in items:
        replaced = item.replace_in(replaced, "PLACEHOLDER")
    assert adapter_for(replaced) is adapter
    shown = [i.text for i in adapter.scan(replaced, "messages[0]", Calls()).items]
    assert shown == ["PLACEHOLDER"] * len(items)
    restored = replaced
    for item in items if in_order else reversed(items):
        restored = item.restore_in(restored, item.text, item.form, item.marked)
    assert restored == before
    assert message == before, "the input was changed"


@many
@given(messages, st.booleans())
def test_every_message_is_restored_as_it_was(message: dict[str, Any], in_order: bool) -> None:  # drawn
    assert_inverse(message, in_order=in_order)


@many
@given(messages)
@example({"role": "assistant", "content": "words", "tool_calls": []})
@example({"role": "tool", "content": "words"})
@example({"role": "user", "content": [{"text": "words"}]})
@example({"role": "user", "content": [{"type": "input_text", "text": "words"}]})
@example({"type": "human", "content": "words"})
def test_a_message_has_the_first_format_that_claims_it_else_the_last(message: dict[str, Any]) -> None:
    claiming = [adapter for adapter in FORMATS if adapter.claims(message)]
    assert adapter_for(message) is [*claiming, FORMATS[-1]][0]


@pytest.mark.parametrize("name", [name for name in formats if name not in ("anthropic", "openai-chat")])
@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_message_of_one_format_is_not_mistaken_for_another(name: str, data: st.DataObject) -> None:
    assert adapter_for(data.draw(formats[name])).name == name


@many
@given(with_content)
def test_every_message_of_sdk_objects_is_restored_as_it_was(message: dict[str, Any]) -> None:
    assert_inverse(as_objects(message), in_order=True)


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_content_that_is_a_tuple_is_restored_as_it_was(role: str) -> None:
    assert_inverse({"role": role, "content": ({"type": "text", "text": "x"},)}, in_order=True)


@many
@given(messages)
def test_no_two_items_of_a_message_have_one_place(message: dict[str, Any]) -> None:
    places = [item.block for item in adapter_for(message).scan(message, "messages[0]", Calls()).items]
    assert len(set(places)) == len(places)


@many
@given(with_content)
def test_a_scan_finds_every_text_that_takes_tokens_once(message: dict[str, Any]) -> None:
    items = adapter_for(message).scan(message, "messages[0]", Calls()).items
    content = message["content"]
    if isinstance(content, str):
        assert [i.text for i in items if i.item_type != "tool_call"] == [content]
        return
    texts = {i: b["text"] for i, b in enumerate(content or ()) if b["type"] == "text"}
    if message["role"] not in ("tool", "function"):
        assert {i.block: i.text for i in items if i.block in texts} == texts


@many
@given(with_content)
def test_a_scan_finds_the_same_in_sdk_objects(message: dict[str, Any]) -> None:
    calls = Calls()
    plain = adapter_for(message).scan(message, "messages[0]", calls)
    objects = adapter_for(as_objects(message)).scan(as_objects(message), "messages[0]", calls)
    assert objects == plain


@many
@given(st.lists(text_blocks | images | unknown, min_size=2, max_size=6), caches)
def test_fields_added_to_the_message_since_are_kept(content: list[Any], cache: dict[str, str]) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    message = {"role": "user", "content": [block]}
    adapter = adapter_for(message)
    items = adapter.scan(message, "messages[0]", Calls()).items
    for item in items:
        replaced = item.replace_in(message, "PLACEHOLDER")
        replaced["content"][0]["cache_control"] = cache
        restored = item.restore_in(replaced, item.text, item.form, item.marked)
        assert restored["content"][0] == {**block, "cache_control": cache}


# --- marks of the cache ----------------------------------------------------------------------------

MARKS = {
    "cache_control": {"type": "ephemeral"},
    "prompt_cache_breakpoint": {"mode": "explicit"},
    "extras": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
}
POINT = {"cachePoint": {"type": "default"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def contents(kind: str, marked: set[int], texts: list[str], name: str) -> list[Any]:
    """Return a result's blocks with an image after the first, of which those at `marked` have a mark."""
    if kind == "bedrock":
        image: Any = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
        parts = [{"text": texts[0]}, image, *({"text": each} for each in texts[1:])]
        return [each for at, part in enumerate(parts) for each in ([part, POINT] if at in marked else [part])]
    type_of = "input_text" if kind == "openai-responses" else "text"
    blocks: list[Any] = [{"type": type_of, "text": each} for each in texts]
    url = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    blocks.insert(1, dict(url if kind == "openai-responses" else IMAGE))
    return [{**b, name: MARKS[name]} if at in marked else b for at, b in enumerate(blocks)]


def of_result(kind: str, content: list[Any]) -> Any:
    if kind == "langchain":
        return {"type": "tool", "tool_call_id": "c", "content": content}
    message = exchange(kind, "run", {}, "", "c")[1]
    if kind == "bedrock":
        message["content"][0]["toolResult"]["content"] = content
    elif kind == "anthropic":
        message["content"][0]["content"] = content
    elif kind == "openai-responses":
        message["output"] = content
    else:
        message["content"] = content
    return message


with_marks = st.sampled_from([name for name in sorted(formats) if "gemini" not in name])
places = st.sets(st.integers(0, 4))


@many
@given(with_marks, st.lists(words, min_size=2, max_size=4), places, places, st.sampled_from(sorted(MARKS)))
def test_a_moved_mark_is_no_part_of_any_item(
    kind: str, texts: list[str], first: set[int], then: set[int], name: str
) -> None:
    before, after = (of_result(kind, contents(kind, marked, texts, name)) for marked in (first, then))
    adapter = adapter_for(before)

    items, moved = (adapter.scan(each, "m", Calls()).offloadable for each in (before, after))

    assert [i.identity(b"") for i in items] == [i.identity(b"") for i in moved]
    sent = [before, after]
    for at, some in enumerate((items, moved)):
        for item in some:
            sent[at] = item.replace_in(sent[at], "PLACEHOLDER")
    assert content_digest(sent[0]) == content_digest(sent[1])
    assert content_digest(before) == content_digest(after)


@many
@given(with_marks, st.lists(words, min_size=2, max_size=4), places, st.sampled_from(sorted(MARKS)))
def test_a_mark_is_restored_where_it_was_and_after_a_move_on_the_last_text(
    kind: str, texts: list[str], first: set[int], name: str
) -> None:
    for then in (first, set[int](), {len(texts)}):
        stored = of_result(kind, contents(kind, first, texts, name))
        given_now = of_result(kind, contents(kind, first or then, texts, name))
        adapter = adapter_for(stored)
        [known], [now] = adapter.scan(stored, "m", Calls()).items, adapter.scan(given_now, "m", Calls()).items

        sent = now.replace_in(given_now, "PLACEHOLDER")
        back = now.restore_in(sent, known.text, known.order or known.form, known.marked)

        assert back == given_now
        marks = json.dumps(sent, default=str).count(json.dumps(MARKS[name])) if kind != "bedrock" else 0
        on_texts = {at for at in (first or then) if at <= len(texts)}
        assert marks == (1 in on_texts) + bool(on_texts - {1}) or kind == "bedrock"


def test_a_field_of_that_name_with_a_text_is_content() -> None:
    [one], [other] = (
        adapter_for(message).scan(message, "m", Calls()).items
        for message in (
            of_result("anthropic", [{"type": "text", "text": t, "cache_control": v} for t in "ab"])
            for v in ("no-cache", "no-store")
        )
    )

    assert one.identity(b"") != other.identity(b"")

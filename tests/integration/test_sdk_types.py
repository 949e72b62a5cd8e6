"""The providers' SDKs accept offloaded messages, as dicts and as their objects."""

from __future__ import annotations

import base64
import copy
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, strategies as st
from kit.conversation import from_user, tool_result
from kit.values import drained
from pydantic import BaseModel, TypeAdapter, ValidationError
from strength import examples

from offload import Offloader, OffloadPolicy, OffloadResult, Rule
from offload.engine.placeholder import PlaceholderFacts
from offload.records.record.header import OffloadableType

some = examples(20, suppress_health_check=[HealthCheck.too_slow])


class ShortRenderer:
    """Leaves the ref alone, so that small texts pay too."""

    def render(self, facts: PlaceholderFacts) -> str:
        return f"<{facts.ref}>"

    def find_ref(self, text: str) -> str | None:
        match = re.fullmatch("<([a-z]{10,20})>", text)
        return match[1] if match else None


EVERYTHING = OffloadPolicy(
    types={name: Rule(min_chars=60) for name in get_args(OffloadableType)},
    min_saving=0,
    history="editable",
)


def sdk(module: str) -> Any:
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    return importlib.import_module(module)


# --- conversations that each API takes ------------------------------------------------------------

letters = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
texts = st.builds(str.__mul__, letters, st.sampled_from([1, 60]))
flags = st.booleans()
ids = st.sampled_from(["call_1", "call_2"])
json_values = st.recursive(
    st.none()
    | flags
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(letters, json_values, max_size=3)
Fields = st.SearchStrategy[Any]


def record(optional: dict[str, Fields] | None = None, **fields: Any) -> Fields:
    given_as = {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fields.items()}
    return st.fixed_dictionaries(given_as, optional=optional or {})


def listed(*kinds: Fields) -> Fields:
    return st.lists(st.one_of(*kinds), min_size=1, max_size=4)


text_blocks = record(type="text", text=texts)
image = record(type="image", source=record(type="url", url="https://example.com/a.png"))
anthropic_messages = st.one_of(
    record(role="user", content=texts | listed(text_blocks, image)),
    record(
        role="assistant",
        content=listed(
            text_blocks,
            record(type="tool_use", id=ids, name="run", input=json_objects),
            record(type="thinking", thinking=texts, signature="s"),
        ),
    ),
    record(
        role="user",
        content=listed(
            record(
                type="tool_result",
                tool_use_id=ids,
                content=texts | listed(text_blocks, image),
                optional={"is_error": flags},
            )
        ),
    ),
)
functions = record(
    id=ids, type="function", function=record(name="run", arguments=json_objects.map(str) | texts)
)
customs = record(id=ids, type="custom", custom=record(name="sh", input=texts))
chat_messages = st.one_of(
    record(role="user", content=texts | listed(text_blocks)),
    record(role="system", content=texts),
    record(role="assistant", content=st.none() | texts, tool_calls=listed(functions, customs)),
    record(role="tool", tool_call_id=ids, content=texts | listed(text_blocks)),
)
input_texts = record(type="input_text", text=texts)
input_image = record(type="input_image", detail="auto", image_url="https://example.com/a.png")
responses_items = st.one_of(
    record(type="message", role="user", content=listed(input_texts, input_image)),
    record(
        id="m",
        type="message",
        role="assistant",
        status="completed",
        content=listed(record(type="output_text", text=texts, annotations=st.just([]))),
    ),
    record(type="function_call", call_id=ids, name="run", arguments=texts),
    record(type="custom_tool_call", call_id=ids, name="sh", input=texts),
    record(type="function_call_output", call_id=ids, output=texts | listed(input_texts, input_image)),
    record(type="custom_tool_call_output", call_id=ids, output=texts),
    record(type="local_shell_call_output", id=ids, output=texts),
    record(
        type="shell_call_output",
        call_id=ids,
        output=listed(record(stdout=texts, stderr=texts, outcome=record(type="exit", exit_code=0))),
    ),
    record(type="apply_patch_call_output", call_id=ids, status="completed", output=texts),
    record(type="mcp_call", id=ids, name="find", server_label="s", arguments=texts, output=texts),
    record(type="reasoning", id="r", summary=listed(record(type="summary_text", text=texts))),
)
langchain_contents = texts | listed(texts, text_blocks)
langchain_calls = listed(record(name="run", args=json_objects, id=ids, type="tool_call"))


def enveloped(kind: str, **fields: Any) -> Fields:
    return record(type=kind, data=record(type=kind, content=langchain_contents, **fields))


langchain_messages = st.one_of(
    enveloped("human"),
    enveloped("system"),
    enveloped("ai", tool_calls=langchain_calls),
    enveloped("tool", tool_call_id=ids, artifact=json_values, status=st.sampled_from(["success", "error"])),
)
picture = record(image=record(format="png", source=record(bytes=b"x")))
paper = record(document=record(format="txt", name="paper", source=record(bytes=b"x")))
converse_texts = record(text=texts)
bedrock_messages = record(
    role=st.sampled_from(["user", "assistant"]),
    content=listed(
        converse_texts,
        picture,
        record(toolUse=record(toolUseId=ids, name="run", input=json_objects)),
        record(
            toolResult=record(
                toolUseId=ids,
                content=listed(converse_texts, record(json=json_objects), picture, paper),
                status=st.sampled_from(["success", "error"]),
            )
        ),
    ),
)
gemini_messages = record(
    role=st.sampled_from(["user", "model"]),
    parts=listed(
        converse_texts,
        record(functionCall=record(id=ids, name="run", args=json_objects)),
        record(functionResponse=record(name="run", response=json_objects)),
        record(function_response=record(name="run", response=record(output=texts))),
        record(inlineData=record(mimeType="image/png", data="aGk=")),
    ),
)

# --- what each SDK says to them -------------------------------------------------------------------


@functools.cache
def adapter(module: str, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(getattr(sdk(module), name))


def by_type(module: str, name: str) -> Callable[[Any], None]:
    def check(message: Any) -> None:
        drained(adapter(module, name).validate_python(message))

    return check


def anthropic_object(message: Any) -> Any:
    blocks = adapter("anthropic.types", "ContentBlock")
    return sdk("anthropic.types").Message.model_construct(
        role="assistant", content=[blocks.validate_python(b) for b in message["content"]]
    )


def chat_object(message: Any) -> Any:
    return sdk("openai.types.chat").ChatCompletionMessage.model_validate(message)


def responses_object(item: Any) -> Any:
    return adapter("openai.types.responses", "ResponseInputItem").validate_python(item)


def langchain_object(message: Any) -> Any:
    return sdk("langchain_core.messages").messages_from_dict([message])[0]


def gemini_object(message: Any) -> Any:
    return sdk("google.genai.types").Content.model_validate(message)


def check_langchain(message: Any) -> None:
    made = langchain_object(message)
    type(made).model_validate(made.model_dump(warnings="error"))


@functools.cache
def converse_shape() -> Any:
    loaded = sdk("botocore.session").get_session().get_service_model("bedrock-runtime")
    return loaded.operation_model("Converse").input_shape


def check_bedrock(message: Any) -> None:
    said = (
        sdk("botocore.validate")
        .ParamValidator()
        .validate({"modelId": "m", "messages": [message]}, converse_shape())
    )
    assert not said.has_errors(), said.generate_report()


def check_object(message: Any) -> None:
    """Have an object dumped and built anew: a copy with a change is not checked by itself."""
    assert isinstance(message, BaseModel)
    fields = message.model_dump(exclude_unset=True, warnings="error", by_alias=True)
    assert type(message).model_validate(fields) == message


FORMATS: dict[str, tuple[Fields, Callable[[Any], object]]] = {
    "anthropic": (anthropic_messages, by_type("anthropic.types", "MessageParam")),
    "openai-chat": (chat_messages, by_type("openai.types.chat", "ChatCompletionMessageParam")),
    "openai-responses": (responses_items, by_type("openai.types.responses", "ResponseInputItemParam")),
    "langchain": (langchain_messages, check_langchain),
    "bedrock": (bedrock_messages, check_bedrock),
    "gemini": (gemini_messages, gemini_object),
}


OBJECTS: dict[str, tuple[Fields, Callable[[Any], Any]]] = {
    "anthropic": (
        record(
            content=listed(
                text_blocks, record(type="tool_use", id=ids, name="run", input=json_objects, caller=st.none())
            )
        ),
        anthropic_object,
    ),
    "openai-chat": (
        record(role="assistant", content=st.none() | texts, tool_calls=listed(functions, customs)),
        chat_object,
    ),
    "openai-responses": (responses_items, responses_object),
    "langchain": (langchain_messages, langchain_object),
    "gemini": (gemini_messages, gemini_object),
}


def everything_offloader() -> Offloader:
    return Offloader(
        "memory://", session="s", policy=EVERYTHING, placeholder=ShortRenderer(), token_counter=len
    )


def offloaded(messages: list[Any]) -> OffloadResult:
    """Offload `messages`, and see that they come back and that nothing else was touched."""
    before = copy.deepcopy(messages)
    off = everything_offloader()
    out = off.offload(messages)
    assert out.errors == []
    assert messages == before, "the input was changed"
    assert all(new is old or new != old for new, old in zip(out.messages, messages, strict=True))
    assert (out.messages == messages) is (not out.records)
    assert all(d.action == "offload" or d.item.is_error or d.item.chars < 60 for d in out.decisions)
    elsewhere = Offloader(off.store, session="s", placeholder=ShortRenderer())
    assert elsewhere.restore(out.messages) == before
    return out


@pytest.mark.parametrize("name", FORMATS)
@some
@given(st.data())
def test_what_is_left_after_offloading_is_what_the_sdk_accepts(name: str, data: st.DataObject) -> None:
    strategy, check = FORMATS[name]
    messages = data.draw(st.lists(strategy, min_size=1, max_size=4))
    for message in messages:
        check(message)

    for message in offloaded(messages).messages:
        check(message)


@pytest.mark.parametrize("name", OBJECTS)
@some
@given(st.data())
def test_the_objects_of_an_sdk_stay_objects_that_it_accepts(name: str, data: st.DataObject) -> None:
    strategy, build = OBJECTS[name]
    messages = [build(m) for m in data.draw(st.lists(strategy, min_size=1, max_size=4))]

    out = offloaded(messages).messages

    assert [type(m) for m in out] == [type(m) for m in messages]
    for message in out:
        if name != "anthropic":  # a response as a whole has more fields than stand in a conversation
            check_object(message)
        else:
            for block in message.content:
                check_object(block)


PIXELS = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9
B64 = base64.b64encode(PIXELS).decode()
URL = f"data:image/png;base64,{B64}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": B64}
ANTHROPIC_IMAGE = {"type": "image", "source": SOURCE}
ANTHROPIC_PAPER = {"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}
CONVERSE_IMAGE = {"image": {"format": "png", "source": {"bytes": PIXELS}}}
CONVERSE_PAPER = {"document": {"format": "pdf", "name": "paper", "source": {"bytes": PIXELS}}}
INPUT_IMAGE = {"type": "input_image", "detail": "auto", "image_url": URL}
INPUT_FILE = {"type": "input_file", "filename": "a.png", "file_data": URL}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": URL}}
LANGCHAIN_TOOL = {"type": "tool", "tool_call_id": "t", "content": [CHAT_IMAGE, ANTHROPIC_IMAGE]}
WITH_MEDIA: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        from_user([ANTHROPIC_IMAGE, ANTHROPIC_PAPER]),
        from_user([tool_result("t", [ANTHROPIC_IMAGE, ANTHROPIC_PAPER])]),
    ],
    "openai-chat": [from_user([CHAT_IMAGE, {"type": "text", "text": "look"}])],
    "openai-responses": [
        {"type": "message", "role": "user", "content": [INPUT_IMAGE, INPUT_FILE]},
        {"type": "function_call_output", "call_id": "t", "output": [INPUT_IMAGE, INPUT_FILE]},
    ],
    "langchain": [{"type": "tool", "data": LANGCHAIN_TOOL}],
    "bedrock": [
        from_user([CONVERSE_IMAGE, CONVERSE_PAPER, {"text": "look"}]),
        from_user([{"toolResult": {"toolUseId": "t", "content": [CONVERSE_IMAGE, CONVERSE_PAPER]}}]),
    ],
    "gemini": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": B64}}]}],
}
SEEN = OffloadPolicy(tool_media=Rule(min_tokens=1), user_media=Rule(min_tokens=1), min_saving=0)


@pytest.mark.parametrize("is_object", [False, True], ids=["dicts", "objects"])
@pytest.mark.parametrize("name", WITH_MEDIA)
def test_what_stands_for_an_image_is_what_the_sdk_accepts_there(name: str, is_object: bool) -> None:
    _, check = FORMATS[name]
    messages = WITH_MEDIA[name]
    if is_object and name not in ("gemini", "langchain"):
        pytest.skip("what is sent in this format is dicts")
    if is_object:
        messages = [OBJECTS[name][1](message) for message in messages]
        check = check_object
    off = Offloader("memory://", session="s", policy=SEEN)

    out = off.offload(messages)

    assert out.errors == []
    assert B64[:99] not in repr(out.messages)
    for before, after in zip(messages, out.messages, strict=True):
        check(before)
        check(after)
    assert off.restore(out.messages) == messages


def test_a_conversation_in_all_formats_is_offloaded_message_by_message() -> None:
    long = "x" * 500
    mixed = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": long}]},
        {"role": "tool", "tool_call_id": "b", "content": long},
        {"type": "function_call_output", "call_id": "c", "output": long},
        {"type": "tool", "data": {"type": "tool", "tool_call_id": "d", "content": long}},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "e", "content": [{"json": [long]}]}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "f", "name": "g", "response": {"r": long}}}]},
    ]

    records = offloaded(mixed).records

    assert [r.tool_use_id for r in records] == ["a", "b", "c", "d", "e", "f"]


def test_a_result_of_several_text_objects_leaves_as_one_and_comes_back_as_objects() -> None:
    block = sdk("anthropic.types").TextBlock
    content = [block(type="text", text="a" * 300, citations=None), block(type="text", text="b" * 300)]
    message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}

    out = offloaded([message])

    [left] = out.messages[0]["content"][0]["content"]
    assert isinstance(left, block)
    assert left.text == f"<{out.records[0].ref}>"


def test_text_objects_of_several_classes_in_one_result_stay() -> None:
    first = sdk("anthropic.types").TextBlock(type="text", text="a" * 300)
    content = [first, {"type": "text", "text": "b" * 300}]
    message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}

    assert everything_offloader().offload([message]).messages[0] is message


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("anthropic", {"role": "user", "content": [{"type": "tool_result", "content": "x"}]}),
        ("openai-chat", {"role": "tool", "tool_call_id": "c", "content": {"text": "x"}}),
        ("openai-responses", {"type": "function_call_output", "call_id": "c", "output": {"text": "x"}}),
        (
            "langchain",
            {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "f", "args": "x", "id": "c"}]}},
        ),
        ("bedrock", {"role": "user", "content": [{"toolUse": {"toolUseId": "c", "name": "f"}}]}),
        ("gemini", {"parts": [{"functionResponse": {"response": "x"}}]}),
    ],
)
def test_the_checks_refuse_what_an_api_would(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, AssertionError)):
        FORMATS[name][1](wrong)

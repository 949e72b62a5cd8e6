"""Per format: the items of a message, the parts that are kept, and the errors of malformed messages."""

from __future__ import annotations

from typing import Any

import pytest
from kit.conversation import chat_result, from_model, from_user, tool_result, tool_use
from kit.inner import scan

from offload.errors import MessageError
from offload.messages import Call
from offload.messages.base import BlockIndex
from offload.messages.formats import answered_calls, role_of

IMAGE = {"type": "image", "source": {"type": "base64", "data": "aGk="}}


TOOL_USE = {"type": "tool_use", "id": "t", "name": "f"}


def texts(message: Any) -> list[tuple[BlockIndex, str, str]]:
    return [(i.block, i.item_type, i.text) for i in scan(message).items]


def result(content: Any, **more: Any) -> dict[str, Any]:
    return from_user([tool_result("t1", content, **more)])


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# --- Anthropic ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "item_type"),
    [
        ("user", "user_message"),
        ("assistant", "assistant_message"),
        ("system", "system_prompt"),
        ("developer", "system_prompt"),
        ("narrator", "user_message"),
    ],
)
def test_a_text_is_an_item_of_the_type_of_its_role(role: str, item_type: str) -> None:
    assert texts({"role": role, "content": "hi"}) == [(None, item_type, "hi")]
    assert texts({"role": role, "content": [text("a"), IMAGE, text("b")]}) == [
        (0, item_type, "a"),
        (2, item_type, "b"),
    ]


def test_a_tool_result_is_an_item_with_the_name_and_the_id_of_its_call() -> None:
    call = from_model([tool_use("t1", "Bash", {"cmd": "ls"})])
    calls = scan(call)
    assert calls.calls == [("t1", Call("Bash", {"cmd": "ls"}))]
    [item] = scan(result("out", is_error=True), dict(calls.calls)).items
    assert (item.block, item.item_type, item.text) == (0, "tool_result", "out")
    assert (item.tool_name, item.tool_use_id, item.is_error, item.form) == ("Bash", "t1", True, None)
    for no_error in (False, None, "true", 1, 0):
        assert not scan(result("out", is_error=no_error)).items[0].is_error


def test_the_texts_of_one_result_are_one_item_whose_placeholder_keeps_the_images() -> None:
    [item] = scan(result([text("a"), IMAGE, text("b", cache_control={"type": "ephemeral"})])).items
    assert item.text == "a\nb"
    assert item.form is not None
    message = result([IMAGE, text("a"), IMAGE, text("b")])
    replaced = scan(message).items[0].replace_in(message, "P")
    assert replaced["content"][0]["content"] == [IMAGE, text("P"), IMAGE]
    assert message == result([IMAGE, text("a"), IMAGE, text("b")])


@pytest.mark.parametrize(
    "content",
    [None, [], [IMAGE], [{"type": "document", "text": "no text block"}], [{"type": "search_result"}]],
)
def test_a_result_without_text_is_no_item(content: Any) -> None:
    assert scan(result(content)).items == []


def test_a_result_whose_texts_cannot_be_restored_exactly_is_kept() -> None:
    for odd in (object(), (1, 2), float("nan"), {1: "a"}):
        assert scan(result([text("a"), text("b", extra=odd)])).items == []
        assert [i.text for i in scan(result([text("a", extra=odd)])).items] == ["a"]


@pytest.mark.parametrize(
    ("message", "items", "texts"),
    [
        *(
            (from_model([block]), [], [])
            for block in (
                IMAGE,
                {"type": "document", "source": {}},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "s", "name": "web_search"},
                {"type": "of_tomorrow", "text": "looks like text", "content": "looks like content"},
            )
        ),
        (from_model([{"type": "thinking", "thinking": "hm", "signature": "s"}]), [], ["hm"]),
        (
            {"role": "assistant", "content": "say", "reasoning_content": "hm", "tool_calls": []},
            ["say"],
            ["hm"],
        ),
    ],
)
def test_thinking_is_counted_and_never_offloaded_and_an_unknown_block_is_kept(
    message: Any, items: list[str], texts: list[str]
) -> None:
    found = scan(message)
    assert ([item.text for item in found.items], found.texts) == (items, texts)


# --- OpenAI chat ----------------------------------------------------------------------------------


def test_a_message_of_role_tool_or_function_is_an_item_with_the_name_of_its_call() -> None:
    function = {"name": "Bash", "arguments": '{"a": 1}'}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    calls = scan(call)
    assert calls.calls == [("c1", Call("Bash", '{"a": 1}'))]
    [item] = scan({"role": "tool", "tool_call_id": "c1", "content": "out"}, dict(calls.calls)).items
    assert (item.block, item.item_type, item.text) == (None, "tool_result", "out")
    assert (item.tool_name, item.tool_use_id) == ("Bash", "c1")
    [item] = scan({"role": "function", "name": "lookup", "content": "out"}).items
    assert (item.item_type, item.tool_name, item.tool_use_id) == ("tool_result", "lookup", None)


def test_a_call_of_a_custom_tool_and_arguments_that_are_an_object_are_understood() -> None:
    calls = [
        {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
        {"id": "d", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "e", "type": "new", "new": {}},
    ]
    found = scan({"role": "assistant", "content": None, "tool_calls": calls})
    assert [(i.block, i.item_type, i.text, i.tool_name) for i in found.items] == [
        (0, "tool_call", "ls", "sh"),
        (1, "tool_call", '{"a": 1}', "f"),
    ]
    assert dict(found.calls) == {"c": Call("sh", "ls"), "d": Call("f", {"a": 1})}


def test_the_texts_of_a_tool_message_in_parts_are_one_item_and_of_another_message_several() -> None:
    parts = [text("a"), {"type": "image_url", "image_url": {"url": "data:"}}, text("b")]
    assert texts({"role": "tool", "tool_call_id": "c", "content": parts}) == [(None, "tool_result", "a\nb")]
    assert texts({"role": "system", "content": parts}) == [
        (0, "system_prompt", "a"),
        (2, "system_prompt", "b"),
    ]


# --- which format, and what is wrong --------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "place", "expected"),
    [
        ({}, "messages[3]", '"role"'),
        (None, "messages[3]", '"role"'),
        ("hello", "messages[3]", '"role"'),
        (7, "messages[3]", '"role"'),
        ({"role": 7, "content": "x"}, "messages[3]", "7"),
        ({"role": ["model"], "parts": [{"text": "x"}]}, "messages[3]", "model"),
        ({"role": "user"}, "messages[3].content", "a string or a list of blocks, got NoneType"),
        (from_user(7), "messages[3].content", "got int"),
        (from_user({"type": "text"}), "messages[3].content", "got dict"),
        (from_user(["hi"]), "messages[3].content[0]", '"type", got str'),
        (from_user([text("a"), {}]), "messages[3].content[1]", '"type"'),
        (from_user([{"type": "text"}]), "messages[3].content[0]", '"text", got dict'),
        (from_user([text(7)]), "messages[3].content[0]", "got dict with 7"),  # type: ignore[arg-type] # malformed
        (from_user([{"type": "tool_result"}]), "messages[3].content[0]", '"tool_use_id", got dict'),
        (result(7), "messages[3].content[0].content", "got int"),
        (result(["a"]), "messages[3].content[0].content[0]", '"type"'),
        (result([{"type": "text"}]), "messages[3].content[0].content[0]", '"text"'),
        ({"role": "tool", "content": "x"}, "messages[3]", '"tool_call_id", got dict'),
        (chat_result("c", 7), "messages[3].content", "got int"),
        (chat_result("c", [7]), "messages[3].content[0]", '"type", got int'),
        ({"role": "system", "content": 7}, "messages[3].content", "got int"),
        ({"role": "system", "content": [{"type": "text"}]}, "messages[3].content[0]", '"text"'),
        ({"role": "assistant", "content": None, "tool_calls": 7}, "messages[3].tool_calls", "got int"),
    ],
    ids=range(23),
)
def test_a_malformed_message_is_refused_with_its_place_and_what_was_expected(
    message: Any, place: str, expected: str
) -> None:
    with pytest.raises(MessageError) as caught:
        scan(message)
    said = str(caught.value)
    assert said.startswith(f"{place}: ")
    assert expected in said


def test_names_and_roles_are_read_as_far_as_they_are_texts() -> None:
    class Sdk:
        role = "user"

    assert role_of(Sdk()) == role_of({"role": "user"}) == "user"
    found = scan({"role": "tool", "tool_call_id": "c", "name": 7, "content": "x"})
    assert [item.tool_name for item in found.items] == [None]
    # A name without a UTF-8 form is escaped.
    message = result("out")
    message["content"][0]["tool_use_id"] = "t\ud800"
    [item] = scan(message, {"t\ud800": Call("Bash\ud800")}).items
    assert (item.tool_use_id, item.tool_name) == ("t\\ud800", "Bash\\ud800")


def test_an_input_that_has_no_json_has_no_text_of_the_model() -> None:
    circular: dict[str, Any] = {}
    circular["self"] = circular
    for value in ({(1,): 2}, circular):
        found = scan({"role": "assistant", "content": [{**TOOL_USE, "input": value}]})

        assert found.texts == []
        assert dict(found.calls)["t"].name == "f"


@pytest.mark.parametrize("odd", [["toolu_1"], {"id": 1}, None])
def test_a_result_whose_id_is_no_text_answers_no_call(odd: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": odd, "content": "x"}
    assert answered_calls({"role": "user", "content": [block]}) == []

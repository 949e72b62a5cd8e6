"""Responses, LangChain, Bedrock and Gemini: the items, their placeholders, and the recognition of formats."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import from_model, from_user, tool_use
from kit.inner import scan

from offload.errors import MessageError
from offload.messages import Call
from offload.messages.base import Item
from offload.messages.formats import FORMATS, adapter_for, role_of

LONG = "line one\nline two"


def only(message: Any, calls: dict[str, Call] | None = None) -> Item:
    [item] = scan(message, calls).items
    return item


def replaced(message: Any, place: int = 0) -> Any:
    return scan(message).items[place].replace_in(message, "P")


def assert_restored(message: Any) -> None:
    before = copy.deepcopy(message)
    out = message
    for item in scan(message).items:
        out = item.replace_in(out, "P")
    assert [i.text for i in scan(out).items] == ["P"] * len(scan(message).items)
    for item in scan(message).items:
        out = item.restore_in(out, item.text, item.form, item.marked)
    assert out == before
    assert message == before


# --- arguments of tool calls, in every format -----------------------------------------------------

WRITE = {"path": "a.py", "text": LONG}


def test_arguments_in_an_object_are_one_item_and_replaced_by_an_object() -> None:
    for message, value in (
        (from_model([tool_use("c", "w", WRITE)]), lambda m: m["content"][0]["input"]),
        (
            from_model([{"toolUse": {"toolUseId": "c", "name": "w", "input": WRITE}}]),
            lambda m: m["content"][0]["toolUse"]["input"],
        ),
        (
            {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "w", "args": WRITE}}]},
            lambda m: m["parts"][0]["functionCall"]["args"],
        ),
        (
            {
                "type": "ai",
                "content": [],
                "tool_calls": [{"id": "c", "name": "w", "args": WRITE, "type": "tool_call"}],
            },
            lambda m: m["tool_calls"][0]["args"],
        ),
    ):
        item = only(message)
        assert (item.item_type, item.tool_name, item.tool_use_id) == ("tool_call", "w", "c")
        assert item.text == json.dumps(WRITE)
        assert scan(message).calls == [("c", Call("w", WRITE))]
        assert value(replaced(message)) == {"offloaded": "P"}


def test_arguments_in_json_text_are_replaced_by_json_text_and_restored_as_written() -> None:
    for written in ('{"path":"a.py",  "n": 1}', '{"half', "", "[1, 2]", '{"text":"x"}'):
        call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": written}
        function = {"name": "w", "arguments": written}
        chat = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}

        assert only(call).text == only(chat).text == written
        assert json.loads(replaced(call)["arguments"]) == {"offloaded": "P"}
        assert json.loads(replaced(chat)["tool_calls"][0]["function"]["arguments"]) == {"offloaded": "P"}
        assert_restored(call)
        assert_restored(chat)


def test_the_only_string_of_an_object_is_the_text_and_its_key_is_kept() -> None:
    message = {"role": "model", "parts": [{"functionCall": {"name": "run", "args": {"code": LONG}}}]}

    assert only(message).text == LONG
    assert replaced(message)["parts"][0]["functionCall"]["args"] == {"code": "P"}


@pytest.mark.parametrize(
    "odd", [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}, {"a": {1, 2}}, {"a": b"x", "b": 1}, ["a"], 7, None]
)
def test_arguments_that_json_cannot_restore_exactly_are_kept(odd: Any) -> None:
    use = {"type": "tool_use", "id": "c", "name": "w", "input": odd}
    found = scan({"role": "assistant", "content": [use]})

    assert found.items == []
    assert len(found.texts) == 1


def test_arguments_nested_too_deep_for_json_are_kept() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}

    found = scan({"role": "assistant", "content": [{"toolUse": {"name": "w", "input": deep}}]})

    assert found.items == []
    # Taken apart by hand: dropped at once it would overflow the stack of older interpreters.
    while deep:
        deep = deep.pop("a")


# --- what is not finished -------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["in_progress", "incomplete", "calling"])
def test_an_unfinished_item_of_responses_is_pending(status: str) -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": LONG}]}
    call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": LONG}
    for message in (said, call, output):
        assert only({**message, "status": status}).is_pending
        assert not only({**message, "status": "completed"}).is_pending
        assert not only(message).is_pending


def test_a_part_of_gemini_that_will_continue_is_pending_and_its_neighbours_are_not() -> None:
    for name in ("willContinue", "will_continue"):
        response = {"name": "run", "response": {"output": LONG}}
        parts = [
            {"functionResponse": {**response, name: True}},
            {"functionResponse": {**response, name: False}},
            {"function_call": {"name": "run", "args": WRITE, name: True}},
            {"text": LONG},
        ]
        items = scan({"role": "user", "parts": parts}).items

        assert [item.is_pending for item in items] == [True, False, True, False]


# --- OpenAI Responses -----------------------------------------------------------------------------


def test_an_output_is_an_item_with_the_name_of_its_call() -> None:
    for kind, call in (
        ("function_call", {"name": "Bash", "arguments": "{}"}),
        ("custom_tool_call", {"name": "Bash", "input": "ls"}),
    ):
        calls = scan({"type": kind, "call_id": "c", **call}).calls
        item = only({"type": f"{kind}_output", "call_id": "c", "output": LONG}, dict(calls))
        assert (item.item_type, item.text, item.tool_name, item.tool_use_id) == (
            "tool_result",
            LONG,
            "Bash",
            "c",
        )


def test_an_output_in_parts_keeps_its_images_and_one_placeholder() -> None:
    image = {"type": "input_image", "image_url": "data:"}
    parts = [{"type": "input_text", "text": "a"}, image, {"type": "input_text", "text": "b"}]
    message = {"type": "function_call_output", "call_id": "c", "output": parts}

    assert only(message).text == "a\nb"
    assert replaced(message)["output"] == [{"type": "input_text", "text": "P"}, image]


def test_the_output_of_a_local_shell_is_replaced_by_json() -> None:
    message = {"type": "local_shell_call_output", "id": "c", "output": '{"stdout": "x", "exit_code": 0}'}

    assert json.loads(replaced(message)["output"]) == {"offloaded": "P"}


def test_each_stream_of_a_shell_is_an_item() -> None:
    outcome = {"type": "exit", "exit_code": 0}
    chunks = [
        {"stdout": "a", "stderr": "", "outcome": outcome},
        {"stdout": "b", "stderr": "c", "outcome": outcome},
    ]
    message = {"type": "shell_call_output", "call_id": "c", "output": chunks}

    assert [(i.block, i.text, i.tool_name) for i in scan(message, {"c": Call("shell")}).items] == [
        (0, "a", "shell"),
        (2, "b", "shell"),
        (3, "c", "shell"),
    ]


def test_a_call_of_an_mcp_tool_holds_its_arguments_and_its_output() -> None:
    message = {
        "type": "mcp_call",
        "id": "c",
        "name": "search",
        "server_label": "s",
        "arguments": '{"q":1}',
        "output": LONG,
        "error": None,
    }

    assert [(i.item_type, i.text, i.tool_name) for i in scan(message).items] == [
        ("tool_call", '{"q":1}', "search"),
        ("tool_result", LONG, "search"),
    ]


def test_a_failed_patch_and_a_failed_mcp_call_are_errors() -> None:
    patch = {"type": "apply_patch_call_output", "call_id": "c", "output": "no", "status": "failed"}
    assert only(patch).is_error
    assert not only({**patch, "status": "completed"}).is_error
    call = {"type": "mcp_call", "id": "c", "name": "f", "arguments": "{}", "output": "x"}
    assert scan({**call, "error": {"type": "http"}}).items[-1].is_error
    assert not scan({**call, "error": None}).items[-1].is_error


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        (
            {
                "type": "reasoning",
                "id": "r",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "content": [{"type": "reasoning_text", "text": "so"}],
                "encrypted_content": "gAAA",
            },
            ["hm", "so"],
        ),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, ['{"commands": ["ls"]}']),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, []),
        ({"type": "item_reference", "id": "i"}, []),
        ({"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"text": LONG}]}, []),
        ({"type": "tool_of_tomorrow_call_output", "call_id": "c", "output": LONG}, []),
        ({"type": "compaction", "encrypted_content": "gAAA"}, []),
    ],
)
def test_reasoning_built_in_and_unknown_items_are_counted_at_most_and_never_offloaded(
    message: dict[str, Any], texts: list[str]
) -> None:
    found = scan(message)
    assert (found.items, found.texts) == ([], texts)
    if message["type"] == "shell_call":
        assert found.calls == [("c", Call("shell", {"commands": ["ls"]}))]


# --- LangChain ------------------------------------------------------------------------------------

TOOL = {"type": "tool", "content": LONG, "tool_call_id": "c", "artifact": [1], "status": "error"}


@pytest.mark.parametrize(
    ("kind", "item_type"),
    [
        ("human", "user_message"),
        ("ai", "assistant_message"),
        ("AIMessageChunk", "assistant_message"),
        ("system", "system_prompt"),
    ],
)
def test_a_langchain_text_is_an_item_of_the_type_of_its_class(kind: str, item_type: str) -> None:
    for content in (LONG, [LONG], [{"type": "text", "text": LONG}]):
        item = only({"type": kind, "content": content})
        assert (item.item_type, item.text) == (item_type, LONG)


@pytest.mark.parametrize("envelope", [None, "data", "kwargs"])
def test_a_tool_message_keeps_its_artifact_and_status_in_every_dict_form(envelope: str | None) -> None:
    message = TOOL if envelope is None else {"type": "tool", envelope: TOOL}

    item = only(message, {"c": Call("Bash")})
    assert (item.item_type, item.text, item.tool_name, item.tool_use_id, item.is_error) == (
        "tool_result",
        LONG,
        "Bash",
        "c",
        True,
    )
    out = replaced(message)
    assert (out if envelope is None else out[envelope]) == {**TOOL, "content": "P"}


def test_strings_and_blocks_of_a_tool_message_are_one_item() -> None:
    image = {"type": "image", "url": "data:"}
    odd = {"no": "type"}
    message = {**TOOL, "content": ["a", image, {"type": "text", "text": "b", "index": 0}, odd, "c"]}

    assert only(message).text == "a\nb\nc"
    assert replaced(message)["content"] == ["P", image, odd]


def test_a_chat_message_has_the_role_that_it_names() -> None:
    message = {"type": "chat", "role": "assistant", "content": LONG}
    assert only(message).item_type == "assistant_message"
    assert only({"type": "chat", "data": message}).item_type == "assistant_message"


# --- Bedrock Converse -----------------------------------------------------------------------------

PICTURE = {"image": {"format": "png", "source": {"bytes": b"x"}}}


def converse(content: list[Any], **more: Any) -> dict[str, Any]:
    return from_user([{"toolResult": {"toolUseId": "c", "content": content, **more}}, {"cachePoint": {}}])


def test_texts_and_json_are_one_item_and_images_and_documents_are_kept() -> None:
    assert only(converse([{"json": WRITE}]), {"c": Call("list")}).tool_name == "list"
    document = {"document": {"name": "d", "source": {"text": LONG}}}
    message = converse([PICTURE, {"json": [1]}, {"text": "a"}, document, {"json": {"k": None}}])

    assert only(message).text == '[1]\na\n{"k": null}'
    assert replaced(message)["content"][0]["toolResult"]["content"] == [PICTURE, {"text": "P"}, document]


def test_json_that_cannot_be_restored_exactly_is_kept_with_the_placeholder() -> None:
    odd = {"json": {"a": (1, 2)}}
    assert scan(converse([odd])).items == []
    message = converse([odd, {"text": "a"}])
    assert only(message).text == "a"
    assert replaced(message)["content"][0]["toolResult"]["content"] == [odd, {"text": "P"}]


@pytest.mark.parametrize(
    ("message", "is_error"),
    [
        (converse([{"text": "a"}], status="error"), True),
        (converse([{"text": "a"}], status="success"), False),
        *(
            ({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": response}}]}, is_error)
            for response, is_error in (
                ({"error": "no"}, True),
                ({"error": None, "a": 1}, False),
                ({"a": 1}, False),
            )
        ),
    ],
)
def test_a_result_that_says_so_is_an_error(message: dict[str, Any], is_error: bool) -> None:
    assert only(message).is_error is is_error


def test_thoughts_citations_and_executed_code_are_counted_and_never_offloaded() -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}
    cited = {"citationsContent": {"content": [{"text": "so"}], "citations": []}}
    converse = scan({"role": "assistant", "content": [reasoning, cited, {"text": "a"}]})
    assert ([i.text for i in converse.items], converse.texts) == (["a"], ["hm", "so"])
    parts = [
        {"text": "hm", "thought": True},
        {"executableCode": {"code": "1 + 1"}},
        {"code_execution_result": {"output": "2"}},
        {"inlineData": {"data": "aGk="}},
        {"text": "a"},
    ]
    found = scan({"role": "model", "parts": parts})
    assert [(i.block, i.item_type, i.text) for i in found.items] == [(4, "assistant_message", "a")]
    assert found.texts == ["hm", "1 + 1", "2"]


# --- Gemini ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["functionResponse", "function_response"])
def test_a_function_response_is_replaced_by_an_object_in_its_own_spelling(key: str) -> None:
    response = {"name": "list", "response": {"rows": [1, 2.5, None], "more": "x"}}
    message = {"role": "user", "parts": [{key: response}]}

    item = only(message)
    assert (item.item_type, item.tool_name, item.tool_use_id) == ("tool_result", "list", None)
    assert item.text == '{"rows": [1, 2.5, null], "more": "x"}'
    assert replaced(message)["parts"] == [{key: {"name": "list", "response": {"result": "P"}}}]


def test_a_function_that_returned_one_string_has_that_string_as_its_text() -> None:
    message = {"role": "tool", "parts": [{"functionResponse": {"name": "f", "response": {"output": LONG}}}]}
    assert only(message).text == LONG
    assert replaced(message)["parts"][0]["functionResponse"]["response"] == {"output": "P"}


# --- which format ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "name", "role"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": ""}, "openai-responses", "tool"),
        ({"type": "function_call", "call_id": "c"}, "openai-responses", "assistant"),
        ({"type": "reasoning", "summary": []}, "openai-responses", "assistant"),
        (
            {"role": "developer", "content": [{"type": "input_text", "text": ""}]},
            "openai-responses",
            "developer",
        ),
        ({"type": "message", "role": "assistant", "content": "x"}, "anthropic", "assistant"),
        ({"type": "ai", "content": "x", "tool_calls": []}, "langchain", "assistant"),
        ({"type": "human", "data": {"type": "human", "content": "x"}}, "langchain", "user"),
        ({"type": "tool", "content": "x", "tool_call_id": "c"}, "langchain", "tool"),
        ({"role": "assistant", "content": [{"text": "x"}]}, "bedrock", "assistant"),
        ({"role": "user", "content": [{"toolResult": {}}]}, "bedrock", "user"),
        ({"role": "model", "parts": [{"text": "x"}]}, "gemini", "assistant"),
        ({"parts": []}, "gemini", "user"),
        ({"role": "function", "parts": [{"functionResponse": {}}]}, "gemini", "function"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "anthropic", "user"),
        ({"role": "user", "content": "x"}, "anthropic", "user"),
        (from_user([{"type": "tool_result", "tool_use_id": "t"}]), "anthropic", "user"),
        (from_model([{"type": "thinking", "thinking": ""}]), "anthropic", "assistant"),
        ({"role": "tool", "tool_call_id": "c", "content": "x"}, "openai-chat", "tool"),
        ({"role": "system", "content": "x"}, "openai-chat", "system"),
        ({"role": "assistant", "content": None}, "openai-chat", "assistant"),
        ({"role": "assistant", "content": "x", "tool_calls": []}, "openai-chat", "assistant"),
    ],
)
def test_the_format_and_the_role_of_a_message_are_recognised(
    message: dict[str, Any], name: str, role: str
) -> None:
    assert adapter_for(message).name == name
    assert role_of(message) == role


def test_the_page_on_the_loop_lists_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loop.md").read_text(encoding="utf-8")
    table = page[page.index("| format | tool results | also |") :].partition("\n\n")[0]
    listed = [line.split("|")[1].strip().lower().replace(" ", "-") for line in table.splitlines()[2:]]

    assert len(listed) == len(FORMATS)
    assert all(any(name.startswith(adapter.name) for name in listed) for adapter in FORMATS)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "parts": [{"type": "text", "text": "of another library"}]},
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "of another library"}]},
        {"type": "text", "text": "a block is no message"},
    ],
)
def test_a_message_of_no_known_format_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        scan(message)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (from_user([{"toolResult": {"content": []}}]), ".toolResult: a toolResult must have a"),
        (from_user([{"text": 7}]), ".content[0]: a text block"),
        (
            from_user([{"toolResult": {"toolUseId": "c", "content": [{"text": 7}]}}]),
            ".toolResult.content[0]: a text block",
        ),
        ({"role": "user", "parts": [{"text": 7}]}, ".parts[0]: a text block"),
        ({"type": "function_call_output", "output": 7}, ".output: expected a string or a list"),
        ({"type": "shell_call_output", "output": "x"}, ".output: expected a string or a list"),
        ({"type": "human", "content": 7}, ".content: expected a string or a list"),
        ({"type": "ai", "content": "", "tool_calls": 7}, ".tool_calls: expected a string or a list"),
        ({"type": "chat", "content": ""}, '"role"'),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(message: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError) as caught:
        scan(message)
    assert str(caught.value).startswith("messages[3]")
    assert said in str(caught.value)

"""Steps of Gemini's Interactions API: what leaves, what comes back, and what is not taken for a step."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.genai._gaos.types import interactions as sdk

from offload import Offloader
from offload.messages.formats import adapter_for, role_or_none

LONG = "".join(f"line {n} of the output\n" for n in range(4000))
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3000)).decode()
IMAGE = {"type": "image", "mime_type": "image/png", "data": PNG}
CALL = {
    "type": "function_call",
    "id": "c",
    "name": "run",
    "arguments": {"command": "make"},
    "signature": "c2ln",
}


def steps(result: Any, text: str = "Find it.") -> list[Any]:
    return [
        {"type": "user_input", "content": [{"type": "text", "text": text}]},
        {
            "type": "thought",
            "signature": "c2lnbmVkc2lnbmVk",
            "summary": [{"type": "text", "text": "I run it."}],
        },
        CALL,
        {"type": "function_result", "call_id": "c", "name": "run", "result": result},
        {"type": "model_output", "content": [{"type": "text", "text": "Found."}]},
    ]


@pytest.mark.parametrize(
    "result",
    [
        LONG,
        [{"type": "text", "text": LONG}],
        [{"type": "text", "text": LONG}, IMAGE, {"type": "text", "text": "end"}],
        {"output": LONG},
        {"stdout": LONG, "code": 0},
    ],
)
def test_a_result_of_any_form_leaves_and_comes_back(result):
    messages = steps(result)
    off = Offloader("memory://", session="s", model="gemini-4-argon")
    out = off.offload(messages)

    assert (out.records[0].tool_name, out.records[0].title, out.errors) == ("run", "make", [])
    assert out.tokens_after < 2000
    assert [role_or_none(m) for m in out.messages] == ["user", "assistant", "assistant", "tool", "assistant"]
    assert Offloader(off.store, session="s").restore(out.messages) == messages


def test_a_user_s_text_above_the_ceiling_and_a_text_file_leave():
    table = base64.b64encode(("a,b\n" + "1,2\n" * 60_000).encode()).decode()
    messages = steps("x", LONG * 3)
    messages[0]["content"].append({"type": "document", "mime_type": "text/csv", "data": table})
    off = Offloader("memory://", session="s")
    out = off.offload(messages)
    assert len(out.records) == 2
    assert off.restore(out.messages) == messages


def test_objects_of_the_sdk_are_steps_too():
    messages = [
        sdk.UserInputStep.model_validate(steps("")[0]),
        sdk.FunctionCallStep.model_validate(CALL),
        sdk.FunctionResultStep(call_id="c", result=LONG),
    ]
    off = Offloader("memory://", session="s")
    out = off.offload(messages)
    assert "[Offloaded: " in out.messages[2].result
    assert off.restore(out.messages) == messages


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (CALL, "gemini-interactions"),
        ({"type": "function_call", "id": "i", "call_id": "c", "arguments": "{}"}, "openai-responses"),
        ({"type": "function_call", "id": "i", "arguments": "{}"}, "openai-responses"),
        ({"type": "file_search_call", "id": "f", "signature": "s"}, "gemini-interactions"),
        ({"type": "file_search_call", "id": "f", "queries": [], "status": "completed"}, "openai-responses"),
        ({"type": "tool_search_call", "id": "t", "arguments": {}}, "gemini-interactions"),
        ({"type": "tool_search_call", "id": "t", "call_id": None, "status": "completed"}, "openai-responses"),
        ({"type": "mcp_server_tool_result", "call_id": "c", "result": "x"}, "gemini-interactions"),
        ({"type": "message", "role": "user", "content": "hi"}, "anthropic"),
    ],
)
def test_items_of_two_apis_with_one_name_are_told_apart(message, name):
    assert adapter_for(message).name == name


@pytest.mark.parametrize("kind", ["step_of_tomorrow", "query_call", "query_result"])
def test_a_message_of_no_known_format_passes_and_is_said_once(kind):
    unknown = {"type": kind, "id": "i", "result": LONG}
    off = Offloader("memory://", session="s")
    messages = [*steps(LONG), unknown]
    out = off.offload(messages)

    assert [str(error) for error in out.errors] == [
        f"messages[5]: no known format has a message of the type {kind!r}"
    ]
    assert (len(out.records), out.messages[5]) == (1, unknown)
    assert out.tokens_before > 2 * 25_000
    assert off.offload(messages).errors == []
    assert off.restore(out.messages) == messages


def test_definitions_have_the_form_of_the_api():
    [first, *_] = Offloader("memory://").tools.definitions("gemini-interactions")
    assert sdk.Function.model_validate(first).name == first["name"]
    assert set(first) == {"type", "name", "description", "parameters"}

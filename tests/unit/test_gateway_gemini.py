"""Requests of Gemini's API in a gateway: which they are, what leaves, what stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateways import LOG

from offload import Offloader, OffloadPolicy
from offload.gateway._edits import edited
from offload.gateway._incoming import api_of
from offload.gateway._parsed import read_request
from offload.gateway._threads import name_of, policy_for

PATH = "/v1beta/models/gemini-3.1-pro-preview:generateContent"
REMINDER = "\n<system-reminder>Note.</system-reminder>"
Json = dict[str, Any]


def contents_of(response: Json, name: str = "Bash") -> list[Json]:
    """Return contents with one result that the model has seen."""
    call = {"functionCall": {"id": "c1", "name": name, "args": {}}, "thoughtSignature": "c2ln"}
    result = {"functionResponse": {"id": "c1", "name": name, "response": response}}
    return [
        {"role": "user", "parts": [{"text": "Build it."}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, call]},
        {"role": "user", "parts": [result, {"text": "Well?"}]},
        {"role": "model", "parts": [{"text": "Yes."}]},
        {"role": "user", "parts": [{"text": "Go on."}]},
    ]


def body_of(contents: list[Json], *names: str, **fields: Any) -> bytes:
    declared = [{"name": name, "parametersJsonSchema": {"type": "object"}} for name in names or ("Bash",)]
    tools = [{"googleSearch": {}}, {"functionDeclarations": declared}]
    request = {"contents": contents, "tools": tools, "generationConfig": {"temperature": 1.0}} | fields
    return json.dumps(request, indent=2).replace("Build it.", "Build\\u0020it.").encode()


def rewritten(body: bytes, path: str = PATH) -> tuple[bytes, Offloader]:
    api = api_of(path)
    assert api is not None
    request = read_request(body, api)
    assert request is not None
    off = Offloader("memory://", session="s", policy=policy_for(OffloadPolicy(), api))
    result = off.offload(request.views, model=request.model)
    made = edited(request, result.messages)
    after = made.body()
    assert made.problems == []
    return after, off


@pytest.mark.parametrize(
    ("path", "streams"),
    [
        (PATH, False),
        ("/v1beta/models/gemini-3.1-pro-preview:streamGenerateContent", True),
        ("/v1/projects/p/locations/l/publishers/google/models/gemini-3.1-pro-preview:generateContent", False),
    ],
)
def test_the_path_names_the_model_and_whether_the_reply_is_a_stream(path, streams):
    api = api_of(path)
    assert api is not None
    assert (api.name, api.model, api.streams) == ("Gemini", "gemini-3.1-pro-preview", streams)
    request = read_request(body_of(contents_of({"output": "x"}), model="models/other"), api)
    assert request is not None
    assert request.model == "gemini-3.1-pro-preview"


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [{"role": "user", "parts": [{"text": LOG}]}]},
        {"contents": [{"role": "user", "parts": [{"text": LOG}]}], "tools": [{"googleSearch": {}}]},
        {
            "model": "x",
            "request": {"contents": contents_of({"output": LOG}), "tools": [{"functionDeclarations": [{}]}]},
        },
        {"contents": "text", "tools": [{"functionDeclarations": [{"name": "Bash"}]}]},
    ],
)
def test_a_request_without_functions_or_contents_is_left_alone(body):
    api = api_of(PATH)
    assert api is not None
    assert read_request(json.dumps(body).encode(), api) is None


@pytest.mark.parametrize("name", ["output", "result"])
def test_only_the_text_of_a_result_with_one_text_changes(name):
    before = body_of(contents_of({name: LOG}))
    after, off = rewritten(before)

    [record] = off.records()
    text = json.loads(after)["contents"][2]["parts"][0]["functionResponse"]["response"][name]
    assert record.ref in text
    assert record.tool_name == "Bash"
    assert after == before.replace(json.dumps(LOG).encode(), json.dumps(text).encode())


def test_all_that_the_model_wrote_stays_also_arguments_since_their_call_has_a_signature():
    contents = contents_of({"output": "short"})
    contents[1]["parts"][1]["functionCall"]["args"] = {"text": LOG}
    contents[3]["parts"][0]["text"] = LOG
    before = body_of(contents)
    assert rewritten(before)[0] == before


def test_a_result_with_several_fields_becomes_one_with_the_placeholder():
    response = {"stdout": LOG, "code": 0, "rows": [1.0, None]}
    after, off = rewritten(body_of(contents_of(response)))

    [record] = off.records()
    changed = json.loads(after)
    [result] = changed["contents"][2]["parts"][0]["functionResponse"]["response"].items()
    assert result[0] == "result"
    assert record.ref in result[1]
    assert json.loads(b"".join(off.content(record.ref))) == response
    changed["contents"][2]["parts"][0]["functionResponse"]["response"] = response
    assert changed == json.loads(body_of(contents_of(response)))


def test_the_spelling_of_the_sdk_is_known_too():
    text = body_of(contents_of({"output": LOG})).decode()
    for camel, snake in (
        ("functionResponse", "function_response"),
        ("functionDeclarations", "function_declarations"),
    ):
        text = text.replace(camel, snake)
    after, off = rewritten(text.encode())
    assert len(off.records()) == 1
    assert b"[Offloaded: " in after


@pytest.mark.parametrize(
    ("response", "name"),
    [
        ({"output": "[Offloaded: Bash, 400 lines, 17,000 characters, id kqzmwpxhva]\n" + LOG[:9000]}, "Bash"),
        ({"output": LOG}, "context_read"),
    ],
    ids=["replaced by a client", "read back"],
)
def test_results_that_a_client_replaced_and_what_was_read_back_stay(response, name):
    before = body_of(contents_of(response, name), "Bash", "context_read")
    assert rewritten(before)[0] == before


def test_an_error_that_is_offloaded_is_an_error_still():
    after, off = rewritten(body_of(contents_of({"error": LOG})))

    [record] = off.records()
    [field] = json.loads(after)["contents"][2]["parts"][0]["functionResponse"]["response"].items()
    assert field[0] == "error"
    assert record.ref in field[1]


def test_a_paste_above_the_ceiling_leaves_without_the_reminder_behind_it():
    contents = [
        {"parts": [{"text": LOG * 12 + REMINDER}, {"inlineData": {"mimeType": "a/b", "data": "AA=="}}]}
    ]
    after, off = rewritten(body_of(contents))
    [part, data] = json.loads(after)["contents"][0]["parts"]
    assert part["text"].startswith("[Offloaded: user message")
    assert part["text"].endswith(REMINDER)
    assert data == contents[0]["parts"][1]
    assert len(off.records()) == 1


def test_another_system_instruction_is_another_conversation():
    api = api_of(PATH)
    assert api is not None
    names = set()
    for text in ("One.", "Two."):
        instruction = {"parts": [{"text": text}]}
        request = read_request(body_of(contents_of({"output": "x"}), systemInstruction=instruction), api)
        assert request is not None
        names.add(name_of(request, {}))
    assert len(names) == 2


def steps_of(result: Any) -> list[Json]:
    """Return steps with one result that the model has seen."""
    return [
        {"type": "user_input", "content": [{"type": "text", "text": "Build it."}]},
        {"type": "thought", "signature": "c2lnbmVk"},
        {"type": "function_call", "id": "c1", "name": "Bash", "arguments": {"command": "make"}},
        {"type": "function_result", "call_id": "c1", "name": "Bash", "result": result},
        {"type": "model_output", "content": [{"type": "text", "text": "Yes."}]},
        {"type": "user_input", "content": [{"type": "text", "text": f"Go on.{REMINDER}"}]},
    ]


@pytest.mark.parametrize(
    ("result", "place"),
    [
        (LOG, ()),
        (f"{LOG}{REMINDER}", ()),
        ([{"type": "text", "text": LOG}], (0, "text")),
        ({"output": LOG}, ("output",)),
        ({"output": LOG, "code": 0}, ("result",)),
    ],
)
def test_only_the_result_of_a_step_changes_in_any_form(result, place):
    steps = steps_of(result)
    tools = [{"type": "function", "name": "Bash", "parameters": {"type": "object"}}]
    request = {"model": "gemini-4-argon", "input": steps, "tools": tools}
    after, off = rewritten(json.dumps(request).encode(), "/v1beta/interactions")
    sent = json.loads(after)

    text = sent["input"][3].pop("result")
    for step in place:
        text = text[step]
    assert text.startswith("[Offloaded: Bash result")
    assert text.endswith(REMINDER) is (REMINDER in str(result))
    del steps[3]["result"]
    assert (sent["input"], len(off.records())) == (steps, 1)

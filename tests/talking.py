"""Clients of four APIs that check every event of a stream, and repeat what they got."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from kit.conversation import from_model, from_user, tool_use

Json = dict[str, Any]
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
# Gemini's stream is one of events or an array; the second client joins what it repeats.
GEMINI = ("gemini", "gemini array")
KINDS = (*sorted(PATHS), *GEMINI)
FIELDS = {"responses": "input", **dict.fromkeys(GEMINI, "contents")}

_SCHEMA: Json = {"type": "object", "properties": {"found": {"type": "integer"}}}
_FORMAT: Json = {"type": "json_schema", "name": "found", "schema": _SCHEMA}
# The fields of a request for a reply that is one document.
DOCUMENTS: dict[str, Json] = {
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "found", "schema": _SCHEMA}}},
    "responses": {"text": {"format": _FORMAT}},
    **{name: {"generationConfig": {"responseMimeType": "application/json"}} for name in GEMINI},
}


def path_of(kind: str, *, streams: bool) -> str:
    """Return the path of a request."""
    if kind not in GEMINI:
        return PATHS[kind]
    method = "streamGenerateContent" if streams else "generateContent"
    return f"/v1beta/models/gemini-3.1-pro-preview:{method}{'?alt=sse' * (kind == 'gemini' and streams)}"


class Answered(NamedTuple):
    """A reply: its visible parts as blocks of the Messages API, why it ended, and its usage."""

    blocks: list[Json]
    stop: str
    usage: Json
    messages: list[Json]


def events_of(data: bytes) -> list[Any]:
    """Return the events of a stream; each has one line of data."""
    events = []
    for raw in data.decode().split("\n\n"):
        lines = [line[6:] for line in raw.split("\n") if line.startswith("data: ")]
        if raw.strip():
            [line] = lines
            events.append(None if line == "[DONE]" else json.loads(line))
            if events[-1] is not None and "event: " in raw:
                assert raw.startswith(f"event: {events[-1]['type']}\n")
    return events


def read_messages(body: bytes, *, streams: bool) -> Answered:
    message = _joined_message(events_of(body)) if streams else json.loads(body)
    blocks = message["content"]
    return Answered(blocks, message["stop_reason"], message["usage"], [from_model(blocks)])


def _joined_message(events: list[Any]) -> Json:
    assert [e["type"] for e in events].count("message_start") == 1
    assert events[0]["type"] == "message_start"
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    message: Json = events[0]["message"]
    while events[1]["type"] == "content_block_start":
        start = events.pop(1)
        deltas = []
        while events[1]["type"] == "content_block_delta":
            deltas.append(events.pop(1))
        stop = events.pop(1)
        assert stop["type"] == "content_block_stop"
        at = len(message["content"])
        assert [event["index"] for event in (start, *deltas, stop)] == [at] * (len(deltas) + 2)
        message["content"].append(_joined_block(start["content_block"], deltas))
    assert len(events) == 3
    end = events[-2]
    message["usage"] |= end["usage"]
    joined: Json = message | end["delta"]
    return joined


def _joined_block(block: Json, deltas: list[Json]) -> Json:
    for event in deltas:
        for name in ("text", "thinking", "signature"):
            if name in event["delta"]:
                block[name] += event["delta"][name]
    if block["type"] == "tool_use":
        block["input"] = json.loads("".join(event["delta"]["partial_json"] for event in deltas))
    return block


def read_chat(body: bytes, *, streams: bool) -> Answered:
    reply = _joined_chunks(events_of(body)) if streams else json.loads(body)
    [choice] = reply["choices"]
    message = choice["message"]
    blocks = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        blocks.append(tool_use(call["id"], function["name"], json.loads(function["arguments"])))
    stop = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}[choice["finish_reason"]]
    kept = {name: value for name, value in message.items() if name != "refusal"}
    return Answered(blocks, stop, reply["usage"], [kept])


def _joined_chunks(events: list[Any]) -> Json:
    *chunks, done = events
    assert done is None
    assert len({chunk["id"] for chunk in chunks}) == 1
    message: Json = {"role": "assistant", "content": None}
    calls: list[Json] = []
    stops: list[str] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert not stops
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls", []):
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
                else:
                    assert part["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
            if choice["finish_reason"]:
                stops.append(choice["finish_reason"])
    [stop] = stops
    [usage] = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    if calls:
        message["tool_calls"] = calls
    return {"choices": [{"message": message, "finish_reason": stop}], "usage": usage}


def read_responses(body: bytes, *, streams: bool) -> Answered:
    response = _joined_response(events_of(body)) if streams else json.loads(body)
    blocks: list[Json] = []
    for item in response["output"]:
        if item["type"] == "message":
            blocks += [{"type": "text", "text": part["text"]} for part in item["content"]]
        elif item["type"] == "reasoning":
            blocks.append({"type": "thinking", "thinking": item["encrypted_content"]})
        else:
            given = json.loads(item["arguments"])
            blocks.append({"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": given})
    calls = any(block["type"] == "tool_use" for block in blocks)
    ended = {"completed": "tool_use" if calls else "end_turn", "incomplete": "max_tokens"}
    return Answered(blocks, ended[response.get("status", "completed")], response["usage"], response["output"])


def _joined_response(events: list[Any]) -> Json:
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == f"response.{events[-1]['response'].get('status', 'completed')}"
    done: list[Json] = []
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(done)
        assert event["output_index"] == len(done)
        if event["type"] == "response.output_item.done":
            done.append(event["item"])
    response: Json = events[-1]["response"]
    assert response["output"] == done
    return response


def read_gemini(body: bytes, *, streams: bool) -> Answered:
    """Read a reply of a client that repeats one content for each chunk, and one for all calls."""
    lines = [raw.removeprefix("data: ") for raw in body.decode().split("\r\n\r\n") if raw.strip()]
    lines = [line.removeprefix("data: ") for raw in lines for line in raw.split("\n\n") if line.strip()]
    chunks = [json.loads(line) for line in lines] if streams else [json.loads(body)]
    contents: list[Json] = []
    for content in _checked_contents(chunks):
        if contents and all("functionCall" in part for part in contents[-1]["parts"] + content["parts"]):
            contents[-1] = {**content, "parts": contents[-1]["parts"] + content["parts"]}
        elif content["parts"] != [{"text": ""}]:
            contents.append(content)
    return _answered_contents(chunks, contents)


def read_gemini_array(body: bytes, *, streams: bool) -> Answered:
    """Read a reply of a client that repeats one content, with texts joined and without thoughts."""
    chunks = json.loads(body) if streams else [json.loads(body)]
    joined: list[Json] = []
    parts = (part for content in _checked_contents(chunks) for part in content["parts"])
    for part in (part for part in parts if not part.get("thought")):
        if "text" in part and joined and "text" in joined[-1]:
            joined[-1] = joined[-1] | part | {"text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    contents = [{"role": "model", "parts": joined}] if joined else []
    return _answered_contents(chunks, contents)


def _checked_contents(chunks: list[Json]) -> list[Json]:
    assert len({chunk["responseId"] for chunk in chunks}) == 1
    stops = [chunk["candidates"][0].get("finishReason") for chunk in chunks]
    assert [stop is not None for stop in stops] == [False] * (len(chunks) - 1) + [True]
    contents: list[Json] = [chunk["candidates"][0]["content"] for chunk in chunks]
    assert all(content["parts"] and content["role"] == "model" for content in contents)
    return contents


def _answered_contents(chunks: list[Json], contents: list[Json]) -> Answered:
    blocks: list[Json] = []
    for part in (part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]):
        if "functionCall" in part:
            call = part["functionCall"]
            named = {"id": call.get("id", ""), "name": call["name"]}
            blocks.append({"type": "tool_use", **named, "input": call["args"]})
        elif part.get("thought"):
            blocks.append({"type": "thinking", "thinking": part["text"]})
        elif part["text"]:
            before = blocks.pop()["text"] if blocks and blocks[-1]["type"] == "text" else ""
            blocks.append({"type": "text", "text": before + part["text"]})
    stop = chunks[-1]["candidates"][0]["finishReason"]
    calls = any(block["type"] == "tool_use" for block in blocks)
    kind = {"STOP": "tool_use" if calls else "end_turn", "MAX_TOKENS": "max_tokens"}[stop]
    return Answered(blocks, kind, chunks[-1]["usageMetadata"], contents)


READERS: dict[str, Callable[..., Answered]] = {
    "messages": read_messages,
    "chat": read_chat,
    "responses": read_responses,
    "gemini": read_gemini,
    "gemini array": read_gemini_array,
}


def user_of(kind: str, text: str) -> Json:
    """Return a message of the user."""
    return {"role": "user", "parts": [{"text": text}]} if kind in GEMINI else from_user(text)


def tools_in(request: Json) -> list[Json]:
    """Return the functions in a request."""
    [first, *_] = request["tools"]
    declared = first.get("functionDeclarations", request["tools"])
    return [tool.get("function", tool) for tool in declared]


def tool_of(kind: str, name: str) -> Json:
    """Return a tool of a client."""
    schema = {"type": "object"}
    if kind == "messages":
        return {"name": name, "description": "Run it.", "input_schema": schema}
    function = {"name": name, "parameters": schema}
    if kind in GEMINI:
        return {"functionDeclarations": [function]}
    return {"type": "function", "function": function} if kind == "chat" else {"type": "function", **function}


def results_of(kind: str, calls: list[Json], text: str) -> list[Json]:
    """Return the messages with the results of a client's calls."""
    if kind == "messages":
        blocks = [{"type": "tool_result", "tool_use_id": c["id"], "content": text} for c in calls]
        return [{"role": "user", "content": blocks}]
    if kind == "chat":
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    if kind in GEMINI:
        results = [{"name": call.get("name"), "response": {"output": text}} for call in calls]
        named = [{"id": call["id"]} if call["id"] else {} for call in calls]
        both = zip(named, results, strict=True)
        return [{"role": "user", "parts": [{"functionResponse": {**one, **other}} for one, other in both]}]
    return [{"type": "function_call_output", "call_id": call["id"], "output": text} for call in calls]


def request_of(kind: str, model: str, messages: list[Json], *, streams: bool, **fields: Any) -> bytes:
    """Return the body of a request, with raw characters as most clients write them."""
    named = {FIELDS.get(kind, "messages"): messages}
    if kind in GEMINI:
        return _raw({**named, "tools": [tool_of(kind, "Bash")], **fields})
    more: Json = {"max_tokens": 99} if kind == "messages" else {}
    if kind == "chat" and streams:
        more["stream_options"] = {"include_usage": True}
    if kind == "responses":
        more |= {"store": False, "include": ["reasoning.encrypted_content"]}
    tools = [tool_of(kind, "Bash")]
    return _raw({"model": model, "tools": tools, "stream": streams, **more, **named, **fields})


def _raw(request: Json) -> bytes:
    return json.dumps(request, ensure_ascii=False).encode()

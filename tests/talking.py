"""Clients of three APIs that check every event of a stream, and repeat what they got."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Json = dict[str, Any]
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


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
    return Answered(
        blocks, message["stop_reason"], message["usage"], [{"role": "assistant", "content": blocks}]
    )


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
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": json.loads(function["arguments"]),
            }
        )
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
    return Answered(blocks, "tool_use" if calls else "end_turn", response["usage"], response["output"])


def _joined_response(events: list[Any]) -> Json:
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"
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


READERS: dict[str, Callable[..., Answered]] = {
    "messages": read_messages,
    "chat": read_chat,
    "responses": read_responses,
}


def tool_of(kind: str, name: str) -> Json:
    """Return a tool of a client."""
    schema = {"type": "object"}
    if kind == "messages":
        return {"name": name, "description": "Run it.", "input_schema": schema}
    function = {"name": name, "parameters": schema}
    return {"type": "function", "function": function} if kind == "chat" else {"type": "function", **function}


def results_of(kind: str, calls: list[Json], text: str) -> list[Json]:
    """Return the messages with the results of a client's calls."""
    if kind == "messages":
        blocks = [{"type": "tool_result", "tool_use_id": c["id"], "content": text} for c in calls]
        return [{"role": "user", "content": blocks}]
    if kind == "chat":
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    return [{"type": "function_call_output", "call_id": call["id"], "output": text} for call in calls]


def request_of(kind: str, model: str, messages: list[Json], *, streams: bool, **fields: Any) -> bytes:
    """Return the body of a request."""
    named = {"input": messages} if kind == "responses" else {"messages": messages}
    more: Json = {"max_tokens": 99} if kind == "messages" else {}
    if kind == "chat" and streams:
        more["stream_options"] = {"include_usage": True}
    if kind == "responses":
        more |= {"store": False, "include": ["reasoning.encrypted_content"]}
    tools = [tool_of(kind, "Bash")]
    return json.dumps({"model": model, "tools": tools, "stream": streams, **more, **named, **fields}).encode()

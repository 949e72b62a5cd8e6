"""Where each format and framework keeps signed thinking, and that it leaves and comes back exactly."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from anthropic.types import Message, RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from google.genai import types as genai
from langchain_core.messages import AIMessage

from offload.messages import from_json, to_json
from offload.messages.stored import as_data
from offload.messages.thinking import content_digest, signed_thinking, with_thinking, without_thinking

THINKING = {"type": "thinking", "thinking": "so", "signature": "sig-a"}
REDACTED = {"type": "redacted_thinking", "data": "data-b"}
TEXT = {"type": "text", "text": "I look."}
USE = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a.py"}}
CONVERSE = {"reasoningContent": {"reasoningText": {"text": "so", "signature": "sig-a"}}}
V1 = {"type": "reasoning", "reasoning": "so", "extras": {"signature": "sig-a"}}
AWS = {"type": "reasoning_content", "reasoning_content": {"text": "so", "signature": "sig-a"}}
DETAIL = {"type": "reasoning.text", "text": "so", "signature": "sig-a", "format": "anthropic-claude-v1"}
SEALED = {"type": "reasoning.encrypted", "data": "d", "format": "anthropic-claude-v1"}
CALLS = [{"id": "c", "name": "Read", "args": {}, "type": "tool_call"}]


def assistant(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*content], **fields}


def reply(*blocks: Any) -> Message:
    return Message(
        id="msg_1",
        type="message",
        role="assistant",
        model="claude-opus-5-5",
        content=[*blocks],
        usage=Usage(input_tokens=1, output_tokens=1),
    )


SDK = (
    ThinkingBlock(type="thinking", thinking="so", signature="sig-a"),
    TextBlock(type="text", text="I look."),
    RedactedThinkingBlock(type="redacted_thinking", data="data-b"),
    ToolUseBlock(type="tool_use", id="toolu_1", name="Read", input={"path": "a.py"}),
)
PARTS = [
    genai.Part(text="so", thought=True, thought_signature=b"sig-a"),
    genai.Part(thought=True, thought_signature=b"data-b"),
    genai.Part(function_call=genai.FunctionCall(name="Read", args={"path": "a.py"})),
]
# Each with the number of its signed blocks.
CARRIERS: dict[str, tuple[Any, int]] = {
    "anthropic": (assistant(THINKING, TEXT, REDACTED, THINKING, USE), 3),
    "anthropic, thinking alone": (assistant(THINKING, REDACTED), 2),
    "anthropic, not shown": (assistant({**THINKING, "thinking": ""}, USE), 1),
    "anthropic, a tuple": ({"role": "assistant", "content": (THINKING, USE)}, 1),
    "anthropic, SDK blocks": (assistant(*SDK), 2),
    "anthropic, SDK message": (reply(*SDK), 2),
    "anthropic, SDK message, thinking alone": (reply(SDK[0]), 1),
    "bedrock": (assistant(CONVERSE, {"toolUse": {"toolUseId": "c", "name": "Read", "input": {}}}), 1),
    "bedrock, redacted": (
        assistant({"reasoningContent": {"redactedContent": b"\x00\xff"}}, {"text": "x"}),
        1,
    ),
    "bedrock, thinking alone": (assistant(CONVERSE), 1),
    "langchain": (AIMessage([THINKING, REDACTED, TEXT], tool_calls=CALLS), 2),
    "langchain, thinking alone": (AIMessage([THINKING]), 1),
    "langchain, data": ({"type": "ai", "data": {"type": "ai", "content": [THINKING, TEXT]}}, 1),
    "langchain, kwargs": ({"lc": 1, "kwargs": {"type": "ai", "content": [THINKING]}}, 1),
    "langchain, v1": (AIMessage([V1, {"type": "non_standard", "value": REDACTED}, TEXT]), 2),
    "langchain-aws": (AIMessage([AWS, TEXT]), 1),
    "langchain-aws, redacted": (AIMessage([{"type": "reasoning_content", "redacted_content": "r"}]), 1),
    "langchain-aws, v1": (AIMessage([{"type": "reasoning", "extras": {"redacted_content": "r"}}]), 1),
    "litellm": ({"role": "assistant", "content": "x", "thinking_blocks": [THINKING, REDACTED]}, 2),
    "openrouter": ({"role": "assistant", "content": "x", "reasoning_details": [DETAIL, SEALED]}, 2),
    "gemini form of ADK": (genai.Content(role="model", parts=PARTS), 2),
    "gemini form of ADK, thinking alone": (genai.Content(role="model", parts=PARTS[:1]), 1),
    "gemini form, data": (
        {"role": "model", "parts": [{"text": "so", "thought": True, "thoughtSignature": "s"}]},
        1,
    ),
    "agno": ({"role": "assistant", "provider_data": {"content_blocks": [THINKING, USE]}}, 1),
    "openai agents": ({"type": "reasoning", "provider_data": {"thinking_blocks": [THINKING]}}, 1),
}
UNBOUND: dict[str, Any] = {
    "openai reasoning": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
    "openai reasoning in langchain": AIMessage(
        [{"type": "reasoning", "id": "rs_1", "encrypted_content": "g"}]
    ),
    "gemini call": {"role": "model", "parts": [{"functionCall": {"name": "f"}, "thoughtSignature": "s"}]},
    "gemini text": {"role": "model", "parts": [{"text": "x", "thoughtSignature": "s"}]},
    "gemini call, SDK": genai.Content(
        role="model",
        parts=[genai.Part(function_call=genai.FunctionCall(name="f"), thought_signature=b"s")],
    ),
    "openrouter, openai": {
        "role": "assistant",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "d", "format": "openai-responses-v1"}],
    },
    "openrouter, gemini": {
        "role": "assistant",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "d", "format": "google-gemini-v1"}],
    },
    "no signature": assistant({"type": "thinking", "thinking": "so", "signature": ""}, TEXT),
    "a summary": {"role": "assistant", "reasoning_details": [{"type": "reasoning.summary", "summary": "s"}]},
    "a text": {"role": "assistant", "content": "thinking"},
    "none": None,
}
each_carrier = pytest.mark.parametrize(("message", "count"), CARRIERS.values(), ids=CARRIERS)


@each_carrier
def test_each_signed_block_is_found_and_leaves_and_comes_back(message: Any, count: int) -> None:
    before = copy.deepcopy(message)
    thinking = signed_thinking(message)
    assert len(thinking) == count
    bare, removed = without_thinking(message, thinking)
    assert signed_thinking(bare) == []
    assert message == before
    bare_before = copy.deepcopy(bare)
    assert with_thinking(bare, removed) == message
    assert type(with_thinking(bare, removed)) is type(message)
    assert bare == bare_before


@each_carrier
def test_no_message_is_left_without_content(message: Any, count: int) -> None:
    bare, _ = without_thinking(message, signed_thinking(message))
    data = as_data(bare)
    holders = [data, data.get("data") or {}, data.get("kwargs") or {}]
    assert all(holder.get(name, "x") for holder in holders for name in ("content", "parts"))


@pytest.mark.parametrize("message", UNBOUND.values(), ids=UNBOUND)
def test_what_other_providers_sign_is_not_bound(message: Any) -> None:
    assert signed_thinking(message) == []


@each_carrier
def test_thinking_comes_back_as_it_was_from_json_too(message: Any, count: int) -> None:
    bare, removed = without_thinking(message, signed_thinking(message))
    stored = json.loads(json.dumps([to_json(one.block) for one in removed]), object_hook=from_json)
    read = [one._replace(block=block) for one, block in zip(removed, stored, strict=True)]
    restored = with_thinking(bare, read)
    assert as_data(restored) == as_data(message)
    assert len(signed_thinking(restored)) == count


@each_carrier
def test_the_digest_of_a_message_is_that_of_its_json(message: Any, count: int) -> None:
    data = json.loads(json.dumps(to_json(message)), object_hook=from_json)
    assert content_digest(data) == content_digest(message)
    bare, _ = without_thinking(message, signed_thinking(message))
    assert content_digest(bare) == content_digest(message), "thinking is no part of it"


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_the_digest_is_the_same_for_a_text_and_for_one_block_of_it_with_and_without_marks(role: str) -> None:
    block = {"type": "text", "text": "Build it.", "cache_control": {"type": "ephemeral"}}
    text = content_digest({"role": role, "content": "Build it."})
    assert content_digest({"role": role, "content": [block]}) == text
    assert content_digest({"role": role, "content": [block, block]}) != text
    assert content_digest({"role": role, "content": "Build it"}) != text
    mark = {"cachePoint": {"type": "default"}}
    converse = {"role": role, "content": [{"text": "Build it."}]}
    assert content_digest({**converse, "content": [{"text": "Build it."}, mark]}) == content_digest(converse)
    result = {"type": "tool_result", "tool_use_id": "c", "content": "Built."}
    held = {"role": "user", "content": [result]}
    blocks = {"role": "user", "content": [{**result, "content": [{"type": "text", "text": "Built."}]}]}
    assert content_digest(held) == content_digest(blocks)


def test_restored_thinking_in_an_sdk_message_is_an_sdk_object() -> None:
    content = genai.Content(role="model", parts=PARTS)
    bare, removed = without_thinking(content, signed_thinking(content))
    read = [one._replace(block=to_json(one.block)) for one in removed]
    assert with_thinking(bare, read) == content
    emptied, _ = without_thinking(genai.Content(parts=PARTS[:1]), signed_thinking(content)[:1])
    assert isinstance(emptied.parts[0], genai.Part)
    message = reply(*SDK)
    bare, removed = without_thinking(message, signed_thinking(message))
    assert with_thinking(bare, [one._replace(block=to_json(one.block)) for one in removed]) == message


def test_a_block_of_an_odd_type_is_no_thinking() -> None:
    assert signed_thinking({"role": "assistant", "content": [{"type": ["thinking"], "signature": "s"}]}) == []

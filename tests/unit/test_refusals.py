"""The refusal of bound thinking is recognised in every wrapping that clients see."""

from __future__ import annotations

import json

import pytest

from offload.engine.binding import ThinkingRefusal, refusal_in

SENTENCE = (
    "messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
    "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
    '"drop_block".'
)
HINT = (
    " That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header."
)
CHANGED = " Content before this block differs from when it was created, first at `messages.0.content.0`."
ANTHROPIC = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": SENTENCE + HINT + CHANGED},
}
BEDROCK = (
    "An error occurred (ValidationException) when calling the Converse operation: The model returned the "
    f"following errors: {SENTENCE}"
)
OPENAI = {
    "error": {
        "message": f"litellm.BadRequestError: AnthropicException - {json.dumps(ANTHROPIC)}",
        "type": None,
        "param": None,
        "code": "400",
    }
}


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        "messages.3.content.0: Invalid `signature` in `thinking` block",
        "messages.3.content.1: Invalid `signature` in `redacted_thinking` block",
        SENTENCE + CHANGED,
        json.dumps(ANTHROPIC),
        BEDROCK,
        json.dumps(OPENAI),
        f"Error code: 400 - {ANTHROPIC}",
    ],
)
def test_the_refused_message_is_the_one_named_before_the_sentence(text: str) -> None:
    assert refusal_in(text) == ThinkingRefusal("bound", 3)


def test_a_refusal_without_a_path_is_told_from_no_refusal() -> None:
    text = "The block is bound to a different conversation." + CHANGED
    assert refusal_in(text) == ThinkingRefusal("bound", None)


@pytest.mark.parametrize(
    "text",
    [
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 32",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "The `content[].thinking` in the thinking mode must be passed back to the API.",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block.",
    ],
)
def test_a_tool_call_without_its_thinking_is_told_in_the_words_of_each_provider(text: str) -> None:
    assert refusal_in(text) == ThinkingRefusal("missing")
    assert refusal_in(json.dumps({"error": {"message": text}})) == ThinkingRefusal("missing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "messages.3.content.0: Invalid `source` in `image` block",
        'messages: roles must alternate between "user" and "assistant"',
    ],
)
def test_another_error_is_no_such_refusal(text: str) -> None:
    assert refusal_in(text) is None

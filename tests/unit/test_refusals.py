"""The refusal of bound thinking is recognised in every wrapping that clients see."""

from __future__ import annotations

import json

import pytest

from offload.engine.refusals import BoundRefusal, bound_refusal

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
        SENTENCE + CHANGED,
        json.dumps(ANTHROPIC),
        BEDROCK,
        json.dumps(OPENAI),
        f"Error code: 400 - {ANTHROPIC}",
    ],
)
def test_the_refused_message_is_the_one_named_before_the_sentence(text: str) -> None:
    assert bound_refusal(text) == BoundRefusal(3)


def test_a_refusal_without_a_path_is_told_from_no_refusal() -> None:
    text = "The block is bound to a different conversation." + CHANGED
    assert bound_refusal(text) == BoundRefusal(None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "messages.3.content.0: Invalid `signature` in `thinking` block",
        'messages: roles must alternate between "user" and "assistant"',
    ],
)
def test_another_error_is_no_such_refusal(text: str) -> None:
    assert bound_refusal(text) is None

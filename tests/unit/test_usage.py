"""The usage of each provider's replies, as dicts and as the objects of its SDK."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from offload import ConfigError, Offloader
from offload.messages import Usage
from offload.messages.usage import usage_of

ANTHROPIC = {
    "input_tokens": 10,
    "cache_read_input_tokens": 3000,
    "cache_creation_input_tokens": 500,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 400},
    "output_tokens": 7,
}
CHAT = {
    "prompt_tokens": 3510,
    "completion_tokens": 7,
    "total_tokens": 3517,
    "prompt_tokens_details": {"cached_tokens": 3000, "cache_write_tokens": 500},
}
RESPONSES = {
    "input_tokens": 3510,
    "input_tokens_details": {
        "cached_tokens": 3000,
        "cache_write_tokens": 500,
        "cache_write_tokens_details": {"ttl_30m_tokens": 500, "ttl_12h_tokens": 0},
    },
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 3517,
}
BEDROCK = {
    "inputTokens": 10,
    "outputTokens": 7,
    "totalTokens": 3517,
    "cacheReadInputTokens": 3000,
    "cacheWriteInputTokens": 500,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 100}, {"ttl": "5m", "inputTokens": 400}],
}
LANGCHAIN = {
    "input_tokens": 3510,
    "output_tokens": 7,
    "total_tokens": 3517,
    "input_token_details": {"cache_read": 3000, "cache_creation": 0, "ephemeral_5m_input_tokens": 500},
}
KNOWN = Usage(3510, 3000, 500)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (ANTHROPIC, KNOWN._replace(kept_for=3600)),
        (CHAT, KNOWN),
        (RESPONSES, KNOWN._replace(kept_for=1800)),
        (BEDROCK, KNOWN._replace(kept_for=300)),
        (LANGCHAIN, KNOWN._replace(kept_for=300)),
        ({"promptTokenCount": 3510, "cachedContentTokenCount": 3000}, Usage(3510, 3000)),
        ({"prompt_token_count": 3510}, Usage(3510, 0)),
        ({"prompt_tokens": 3510, "prompt_cache_hit_tokens": 3000}, Usage(3510, 3000)),
        ({"prompt_tokens": 3510}, Usage(3510)),
        ({"input_tokens": 3510}, Usage(3510)),
        ({"inputTokens": 3510, "outputTokens": 1, "totalTokens": 3511}, Usage(3510)),
        (3510, Usage(3510)),
    ],
)
def test_a_usage_is_read_alone_and_in_its_reply(usage: Any, expected: Usage) -> None:
    assert usage_of(usage) == expected
    if not isinstance(usage, int):
        assert usage_of({"usage": usage, "id": "reply"}) == expected
        assert usage_of(SimpleNamespace(usage_metadata=usage)) == expected


def test_strands_counts_the_cache_of_other_providers_within_the_input() -> None:
    usage = {"inputTokens": 3510, "outputTokens": 7, "totalTokens": 3517, "cacheReadInputTokens": 3000}

    assert usage_of(usage) == Usage(3510, 3000)


def test_objects_of_the_anthropic_sdk() -> None:
    types = pytest.importorskip("anthropic.types")
    reply = types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5-5",
            "content": [],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": ANTHROPIC,
            "diagnostics": {
                "cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 2000}
            },
        }
    )

    assert usage_of(reply.usage) == KNOWN._replace(kept_for=3600)
    assert usage_of(reply) == KNOWN._replace(kept_for=3600, reason="tools_changed")


def test_objects_of_the_openai_sdk() -> None:
    chat = pytest.importorskip("openai.types")
    responses = pytest.importorskip("openai.types.responses")
    usage = responses.ResponseUsage.model_validate(RESPONSES)
    miss = SimpleNamespace(type="cache_miss", reason="input_changed")

    assert usage_of(chat.CompletionUsage.model_validate(CHAT)) == KNOWN
    assert usage_of(usage) == KNOWN._replace(kept_for=1800)
    reply = SimpleNamespace(usage=usage, prompt_cache_diagnostics=miss)
    assert usage_of(reply) == KNOWN._replace(kept_for=1800, reason="input_changed")


def test_objects_of_the_gemini_sdk_and_of_langchain() -> None:
    gemini = pytest.importorskip("google.genai.types")
    messages = pytest.importorskip("langchain_core.messages")
    counts = gemini.GenerateContentResponseUsageMetadata(
        prompt_token_count=3510, cached_content_token_count=3000
    )

    assert usage_of(gemini.GenerateContentResponse(usage_metadata=counts)) == Usage(3510, 3000)
    assert usage_of(messages.AIMessage("", usage_metadata=LANGCHAIN)) == KNOWN._replace(kept_for=300)


class Broken:
    @property
    def usage(self) -> Any:
        raise RuntimeError("no usage")


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        {},
        {"output_tokens": 7},
        {"input_tokens": "many"},
        {"input_tokens": True},
        {"input_tokens": -1},
        {"usage": None},
        {"usage": "none"},
        0,
        -4,
        10**20,
        {"input_tokens": 10**20},  # No key of a journal has room for it.
        object(),
        Broken(),
    ],
)
def test_a_reply_without_a_count_has_no_usage(nothing: Any) -> None:
    assert usage_of(nothing) is None
    assert Offloader("memory://").report_usage(nothing) is None


@pytest.mark.parametrize("wrong", ["3510", b"", True, [ANTHROPIC], ()])
def test_a_value_that_cannot_hold_a_usage_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="usage must be a provider's reply, its usage or a number, got"):
        Offloader("memory://").report_usage(wrong)

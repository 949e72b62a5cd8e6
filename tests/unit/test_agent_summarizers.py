"""Summarizers through the providers' own SDKs, against a server on the loopback interface."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from provider import Api, said, serving

from offload import AnthropicSummarizer, ConfigError, Offloader, OpenAISummarizer
from offload.agent.compaction import RoundCompactor, RoundConfig

ASKED = [{"role": "user", "content": "Summarize the text between the lines."}]
KINDS = ["anthropic", "openai"]


def summarizer(kind: str, url: str, retries: int = 0, **options: Any) -> Any:
    if kind == "anthropic":
        sdk = anthropic.Anthropic(api_key="k", base_url=url, max_retries=retries)
        return AnthropicSummarizer(sdk, "small", **options)
    return OpenAISummarizer(openai.OpenAI(api_key="k", base_url=url, max_retries=retries), "small", **options)


def compacted(tmp_path: Any, model: Any) -> Any:
    messages = [{"role": "user", "content": f"question {n} " + "please " * 1600} for n in range(6)]
    talk = [m for q in messages for m in (q, {"role": "assistant", "content": "done"})]
    compactor = RoundCompactor(
        Offloader(tmp_path, session="s"), model, RoundConfig(max_context_tokens=8000, keep_recent_rounds=1)
    )
    return talk, compactor.compact(talk)


@pytest.mark.parametrize(
    ("kind", "texts"), [("anthropic", ["<summary>All ", "done.</summary>"]), ("openai", ["All done."])]
)
def test_a_summarizer_asks_its_model_and_returns_the_texts_of_the_answer(kind, texts):
    api = Api((200, said(kind, *texts)))
    with serving(api) as url:
        answer = summarizer(kind, url, max_tokens=77)(ASKED)

    [(path, body)] = api.requests
    assert answer == "".join(texts)
    assert path == {"anthropic": "/v1/messages", "openai": "/chat/completions"}[kind]
    limit = {"anthropic": "max_tokens", "openai": "max_completion_tokens"}[kind]
    assert body == {"model": "small", "messages": ASKED, limit: 77}


async def answer_of_async(kind: str, url: str) -> str:
    sdk = anthropic.AsyncAnthropic if kind == "anthropic" else openai.AsyncOpenAI
    ours = AnthropicSummarizer if kind == "anthropic" else OpenAISummarizer
    async with sdk(api_key="k", base_url=url) as client:
        answer: Any = ours(client, "small")(ASKED)
        return str(await answer)


@pytest.mark.parametrize("kind", KINDS)
def test_an_async_client_is_awaited(kind):
    with serving(Api((200, said(kind, "Done.")))) as url:
        assert asyncio.run(answer_of_async(kind, url)) == "Done."


@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_replaces_the_removed_rounds(kind, tmp_path):
    api = Api((200, said(kind, "<summary>The user asked five times.</summary>")))
    with serving(api) as url:
        talk, result = compacted(tmp_path, summarizer(kind, url))

    assert result.error is None
    assert "The user asked five times." in result.new_messages[0]["content"]
    assert "question 0" in api.requests[0][1]["messages"][0]["content"]
    assert result.new_messages[1:] == talk[-2:]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("anthropic", (500, {"error": {"message": "overloaded"}})), ("openai", (401, {"error": "no key"}))],
)
def test_after_an_error_of_the_api_a_full_context_is_compacted_without_a_summary(kind, answer, tmp_path):
    with serving(Api(answer)) as url:
        talk, result = compacted(tmp_path, summarizer(kind, url))

    assert result.is_compacted
    assert result.summary == ""
    assert Offloader(tmp_path, session="s").restore(result.new_messages) == talk
    assert "Error" in str(result.error)
    assert str(answer[0]) in str(result.error)


@pytest.mark.parametrize(
    "answer", [said("anthropic"), said("openai"), said("openai") | {"choices": []}], ids=[*KINDS, "no choice"]
)
def test_an_empty_answer_is_no_summary(answer, tmp_path):
    with serving(Api((200, answer))) as url:
        kind = "anthropic" if answer.get("type") == "message" else "openai"
        talk, result = compacted(tmp_path, summarizer(kind, url))

    assert "Summary by a model" not in str(result.new_messages)
    assert Offloader(tmp_path, session="s").restore(result.new_messages) == talk
    assert "must return a summary" in str(result.error)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sdk_retries(kind):
    api = Api((503, {"error": {"message": "busy"}}), (200, said(kind, "Done.")))
    with serving(api) as url:
        assert summarizer(kind, url, retries=1)(ASKED) == "Done."

    assert len(api.requests) == 2


@pytest.mark.parametrize("kind", [AnthropicSummarizer, OpenAISummarizer])
def test_a_value_that_is_no_client_is_refused(kind):
    with pytest.raises(ConfigError, match=f"{kind.__name__} needs a client of its SDK"):
        kind("sk-key", "small")

"""The SDKs of Anthropic and OpenAI through a gateway, before a provider that charges by its prompt cache."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from _provider import Provider, serving
from gateways import LOG, TOOLS, running, turns

from offload import Offloader

PLACEHOLDER = "[Offloaded: "
FUNCTIONS = [{"type": "function", "name": tool["name"], "parameters": {"type": "object"}} for tool in TOOLS]
CHAT_TOOLS = [{"type": "function", "function": {"name": tool["name"]}} for tool in TOOLS]
SYSTEM = [{"type": "text", "text": "Be brief. " * 500, "cache_control": {"type": "ephemeral"}}]


@pytest.fixture
def provider():
    with serving(Provider(keeps=True)) as provider:
        yield provider


@pytest.fixture
def gateway(provider):
    with running(provider.url, Offloader("memory://", session="gateway")) as url:
        yield url


def sent(provider: Provider) -> str:
    return provider.requests[-1][2].decode()


def chat(count: int) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "Build it."}]
    for n in range(count):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": LOG})
    return messages


def items(count: int) -> list[Any]:
    listed: list[Any] = [{"role": "user", "content": "Build it."}]
    for n in range(count):
        listed.append({"type": "function_call", "call_id": f"c{n}", "name": "Bash", "arguments": "{}"})
        listed.append({"type": "function_call_output", "call_id": f"c{n}", "output": LOG})
    return listed


@pytest.mark.parametrize("streams", [False, True])
def test_the_sdk_of_anthropic_gets_its_answers_and_the_usage_of_the_cache(provider, gateway, streams):
    tools: Any = [{**tool, "input_schema": {"type": "object"}} for tool in TOOLS]
    given: Any = {"model": "claude", "max_tokens": 9, "system": SYSTEM, "tools": tools}

    with anthropic.Anthropic(api_key="key", base_url=gateway) as client:

        def ask(count: int) -> Any:
            messages: Any = turns(count)
            if not streams:
                return client.messages.create(**given, messages=messages)
            with client.messages.stream(**given, messages=messages) as stream:
                return stream.get_final_message()

        replies = [ask(count) for count in (1, 2, 3)]

    assert [reply.content[0].text for reply in replies] == ["Done."] * 3
    assert replies[-1].usage.cache_read_input_tokens > 1024
    assert sent(provider).count(PLACEHOLDER) == 2


@pytest.mark.parametrize("streams", [False, True])
def test_the_sdk_of_openai_gets_its_answers_in_chats(provider, gateway, streams):
    with openai.OpenAI(api_key="key", base_url=f"{gateway}/v1") as client:

        def ask(count: int) -> Any:
            given: Any = {"model": "gpt-5", "messages": chat(count), "tools": CHAT_TOOLS}
            if not streams:
                return client.chat.completions.create(**given)
            given |= {"stream": True, "stream_options": {"include_usage": True}}
            chunks = list(client.chat.completions.create(**given))
            assert chunks[0].choices[0].delta.content == "Done."
            return chunks[-1]

        replies = [ask(count) for count in (1, 2, 3)]

    assert replies[-1].usage.prompt_tokens > 5000
    assert sent(provider).count(PLACEHOLDER) == 2


@pytest.mark.parametrize("streams", [False, True])
def test_the_sdk_of_openai_gets_its_answers_in_responses(provider, gateway, streams):
    with openai.OpenAI(api_key="key", base_url=f"{gateway}/v1") as client:

        def ask(count: int) -> Any:
            given: Any = {"model": "gpt-5", "input": items(count), "tools": FUNCTIONS}
            if not streams:
                return client.responses.create(**given)
            return list(client.responses.create(**given, stream=True))[-1].response

        replies = [ask(count) for count in (1, 2, 3)]

    assert replies[-1].output[0].content[0].text == "Done."
    assert replies[-1].usage.input_tokens > 5000
    assert sent(provider).count(PLACEHOLDER) == 2

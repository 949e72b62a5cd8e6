"""Compaction over recorded sessions: what is left is what an API takes, and nothing is lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import recorded
from anthropic.types import MessageParam
from hypothesis import HealthCheck, given, strategies as st
from kit.conversation import chat_result, ids_of, tool_result, tool_use
from kit.values import drained
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter
from recorded import FILES
from strength import examples

from offload import ContextFullError, Offloader
from offload.agent.compaction import CompactionStrategy, RoundConfig, RoundStrategy, SelectiveCompaction
from offload.messages.context import ContextIR
from offload_backends.memory import MemoryStore

ACCEPTED = {
    "anthropic": TypeAdapter[Any](MessageParam),
    "openai-chat": TypeAdapter[Any](ChatCompletionMessageParam),
}

some = examples(4, suppress_health_check=[HealthCheck.too_slow])


def blocks_of(message: Any) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(block.get("text", f"[{block['type']}]") for block in content)
    return content or ""


def as_anthropic(message: Any) -> list[Any]:
    """Return a message of the OpenAI chat API as messages of Anthropic's."""
    if message["role"] == "tool":
        block = tool_result(message["tool_call_id"], text_of(message["content"]))
        return [{"role": "user", "content": [block]}]
    calls = [
        tool_use(made["id"], made["function"]["name"], {"raw": made["function"]["arguments"]})
        for made in message.get("tool_calls") or ()
    ]
    role = "assistant" if message["role"] == "assistant" else "user"
    return [{"role": role, "content": [*blocks_of(message), *calls]}]


def as_openai(message: Any) -> list[Any]:
    """Return a message of Anthropic's API as messages of the OpenAI chat API."""
    blocks = blocks_of(message)
    results = [
        chat_result(b["tool_use_id"], text_of(b["content"])) for b in blocks if b["type"] == "tool_result"
    ]
    calls = [
        {
            "id": b["id"],
            "type": "function",
            "function": {"name": b["name"], "arguments": json.dumps(b["input"])},
        }
        for b in blocks
        if b["type"] == "tool_use"
    ]
    text = "\n".join(b["text"] for b in blocks if b["type"] == "text")
    if message["role"] == "assistant":
        return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{"role": "user", "content": text}] if text or not results else [])]


def session(path: Path, name: str) -> list[Any]:
    """Return a transcript in the format `name`."""
    data = recorded.load(path)
    messages: list[Any] = data["messages"]
    if (data["format"] == "anthropic") is (name == "anthropic"):
        return messages
    convert = as_anthropic if name == "anthropic" else as_openai
    return [converted for message in messages for converted in convert(message)]


def unpaired(messages: list[Any]) -> tuple[list[str], list[str]]:
    """Return the calls that nothing answers, and the results that answer no call before them."""
    waiting: list[str] = []
    orphans: list[str] = []
    for message in messages:
        calls, results = ids_of([message])
        for result in sorted(results):
            if result in waiting:
                waiting.remove(result)
            else:
                orphans.append(result)
        waiting += sorted(calls)
    return waiting, orphans


def context_of(messages: list[Any]) -> ContextIR:
    context = ContextIR()
    for message in messages:
        context.add_message(message)
    return context


def summarize(_: list[Any]) -> str:
    return "<summary>The user asked for much.</summary>"


def by_type(off: Offloader, limit: int, *, has_model: bool) -> CompactionStrategy:
    return SelectiveCompaction(off, summarize if has_model else None, threshold_tokens=limit)


def by_rounds(off: Offloader, limit: int, *, has_model: bool) -> CompactionStrategy:
    config = RoundConfig(
        max_context_tokens=max(limit, 1_000_000), trigger_ratio=limit / max(limit, 1_000_000)
    )
    return RoundStrategy(off, summarize if has_model else None, config)


def cases() -> Iterator[Any]:
    """Yield sessions with each strategy and format: of each source one, in turn, and all in the long run."""
    forms = list(product((by_type, by_rounds), ACCEPTED))
    now = list(zip(recorded.one_of_each_source(FILES), cycle(forms), strict=False))
    for path, (strategy, name) in product(FILES, forms):
        case = f"{recorded.name_of(path)}-{strategy.__name__}-{name}"
        marks = () if (path, (strategy, name)) in now else (pytest.mark.slow,)
        yield pytest.param(path, strategy, name, id=case, marks=marks)


@recorded.needed
@pytest.mark.parametrize(("path", "strategy", "name"), [*cases()])
def test_a_session_is_left_valid_and_comes_back_from_the_store(path, strategy, name):
    messages = session(path, name)
    loose_calls, loose_results = unpaired(messages)
    whole = context_of(messages)
    store = MemoryStore()

    @some
    @given(st.floats(0.01, 0.99), st.booleans())
    def check(part: float, has_model: bool) -> None:
        context = ContextIR()
        context.header.items = list(whole.header.items)
        context.conversation.items = list(whole.conversation.items)
        limit = max(1, int(whole.total_tokens * part))

        done = context.auto_compact(strategy(Offloader(store, session="s"), limit, has_model=has_model))

        left = context.lower()
        assert done.error is None or isinstance(done.error, ContextFullError)
        assert done.is_compacted is (done.error is None)
        assert done.new_token_count == context.total_tokens
        assert done.is_compacted is (done.new_token_count < done.original_token_count)
        for message in left:
            drained(ACCEPTED[name].validate_python(copy.deepcopy(message)))
        now_calls, now_results = unpaired(left)
        assert set(now_calls) <= set(loose_calls)
        assert set(now_results) <= set(loose_results)
        elsewhere = strategy(Offloader(store, session="s"), limit, has_model=False)
        assert elsewhere.restore(left) == whole.lower()

    check()


@recorded.needed
@pytest.mark.parametrize(("path", "form", "name"), [*cases()])
def test_a_session_that_is_compacted_as_it_grows_never_parts_a_pair(path, form, name):
    messages = session(path, name)
    loose_calls, loose_results = unpaired(messages)
    off = Offloader("memory://", session="s")
    context = ContextIR()
    strategy = form(off, 10_000, has_model=True)
    compactions = 0
    for message in messages:
        context.add_message(message)
        compactions += context.auto_compact(strategy).is_compacted
        _, orphans = unpaired(context.lower())
        assert set(orphans) <= set(loose_results)

    calls, _ = unpaired(context.lower())
    assert set(calls) <= set(loose_calls)
    assert compactions > 0 or context.total_tokens < 10_000
    assert strategy.restore(context.lower()) == context_of(messages).lower()

"""Recorded sessions, turn by turn through the context of an agent, with windows of 20,000 and 80,000 tokens.

| statement | test |
|---|---|
| No request is over the trigger, or the midpoint to the window with thinking | test_a_session_… |
| A provider that binds thinking to what was sent before it refuses no request | test_a_session_… |
| In no request is a call without its result, or a result without its call | test_a_session_… |
| Every request is what the provider's SDK accepts | test_a_session_… |
| All that left is found again by the model, through its tools | test_a_session_… |
| Another process goes on from the session's name and the store, and loses no byte | test_a_session_… |
| The estimate comes near to what the provider counted | test_recorded_usage_… |
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest
import recorded
from binding import MODEL, Binding
from kit.values import drained, texts_in
from pydantic import TypeAdapter
from recorded import FILES

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Request, Rule
from offload.records.record.header import OffloadableType

# A fact is a stretch of plain words, which no JSON escapes, outside of the code of a color.
FACT = re.compile(r"(?<![\w\\\[;])\w[\w .,:/-]{18,58}\w", re.ASCII)

pytestmark = recorded.needed


def runs() -> Iterator[Any]:
    """Yield each session with each window: one of either format now, all in the long run."""
    now = recorded.one_of_each_source(path for path in FILES if path.stat().st_size > 6 * 20_000)[:2]
    for window in (20_000, 80_000):
        for path in FILES:
            marks = () if window == 20_000 and path in now else (pytest.mark.slow,)
            yield pytest.param(path, window, id=f"{recorded.name_of(path)}-{window}", marks=marks)


def manager(store: Path, window: int) -> ContextManager:
    off = Offloader(store, session="s", model=MODEL, storage_options={"durability": "none"})
    return ContextManager(
        off, AgentConfig(window_tokens=window), summarizer=lambda _: "<summary>So far.</summary>"
    )


def replay(session: Any, m: ContextManager) -> Iterator[tuple[int, Request]]:
    """Have the recorded model answer; yield each request with how many messages there were."""
    beside: dict[str, Any] = {"system_prompt": session["system"] or "", "tools": session.get("tools") or ()}
    provider = Binding()
    for index, message in enumerate(session["messages"]):
        if message["role"] == "assistant":
            request = m.before_model_call(**beside)
            provider.check(request.messages)
            provider.learn(recorded.signatures_in(message), request.messages)
            yield index, request
            assert m.after_model_call(message) == []
        else:
            m.add(message)
    yield len(session["messages"]), m.before_model_call(**beside)


def ids_in(message: Any) -> list[tuple[str, str]]:
    """Return the calls and the results in a message, found here by hand."""
    blocks = message["content"] if isinstance(message["content"], list) else ()
    calls = [("call", made["id"]) for made in message.get("tool_calls") or ()]
    results = [("result", message["tool_call_id"])] if message["role"] == "tool" else []
    calls += [("call", block["id"]) for block in blocks if block["type"] == "tool_use"]
    results += [("result", block["tool_use_id"]) for block in blocks if block["type"] == "tool_result"]
    return [*calls, *results]


def unpaired(ids: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the calls without a result after them, and the results without a call before them."""
    waiting: set[tuple[str, str]] = set()
    orphans: set[tuple[str, str]] = set()
    for kind, name in ids:
        call = ("call", name)
        if kind == "call":
            waiting.add(call)
        elif call in waiting:
            waiting.remove(call)
        else:
            orphans.add((kind, name))
    return orphans | waiting


class Checked:
    """Looks at each message of the requests once: whether its SDK takes it, what it calls and answers."""

    def __init__(self, name: str) -> None:
        self._accepted = accepted(name)
        self._seen: dict[int, tuple[Any, list[tuple[str, str]]]] = {}

    def ids(self, messages: Sequence[Any]) -> list[tuple[str, str]]:
        for message in messages:
            if id(message) not in self._seen:
                drained(self._accepted.validate_python(message))
                self._seen[id(message)] = (message, ids_in(message))
        return [found for message in messages for found in self._seen[id(message)][1]]


@functools.cache
def accepted(name: str) -> TypeAdapter[Any]:
    if name == "anthropic":
        from anthropic.types import MessageParam  # noqa: PLC0415 # seconds that only a run of its format pays

        return TypeAdapter(MessageParam)
    from openai.types.chat import ChatCompletionMessageParam  # noqa: PLC0415 # slow to load, and only this format needs it

    return TypeAdapter(ChatCompletionMessageParam)


def facts(messages: Sequence[Any]) -> Iterator[str]:
    """Yield a stretch of words from the midst of every long text."""
    for text in (text for message in messages for text in texts_in(message) if len(text) > 1000):
        found = FACT.search(text, len(text) // 2)
        if found is not None:
            yield found[0]


@pytest.mark.parametrize(("path", "window"), [*runs()])
def test_a_session_stays_within_its_window_whole_and_readable(path, window, tmp_path):
    session = recorded.load(path)
    messages = session["messages"]
    m = manager(tmp_path, window)
    checked = Checked(session["format"])
    ids = [ids_in(message) for message in messages]

    for count, request in replay(session, m):
        assert request.errors == []
        is_bound = any(recorded.signatures_in(message) for message in request.messages)
        assert request.tokens < (0.9 if is_bound else 0.8) * window
        unpaired_before = unpaired(found for known in ids[:count] for found in known)
        assert unpaired(checked.ids(request.messages)) <= unpaired_before

    in_view = "\n".join(texts_in(m.messages))
    for fact in facts(messages):
        assert fact in in_view or fact in m.tools.call("context_grep", {"pattern": fact, "max_matches": 1})
    other = manager(tmp_path, window)
    assert other.resume() == len(m.messages)
    assert other.restore() == messages


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "kimi-cli"], ids=lambda p: p.stem)
def test_recorded_usage_makes_the_estimate_come_near_to_what_the_provider_counts(path):
    session = json.loads(path.read_text())
    counted = {row[0]: sum(row[1:4]) for row in session["recorded_usage"]}
    nothing_leaves = OffloadPolicy(
        types={name: Rule(enabled=False) for name in get_args(OffloadableType)}, tools={}
    )
    config = AgentConfig(window_tokens=10**6, policy=nothing_leaves, resumable=False)
    taught, untaught = (ContextManager(Offloader("memory://"), config) for _ in range(2))
    errors: dict[ContextManager, list[float]] = {taught: [], untaught: []}

    for index, message in enumerate(session["messages"]):
        for m in (taught, untaught):
            if index in counted:
                errors[m].append(abs(m.before_model_call().tokens / counted[index] - 1))
                m.after_model_call(usage=counted[index] if m is taught else None)
            m.add(message)

    assert median(errors[taught]) < 0.15
    assert median(errors[taught]) < 0.5 * median(errors[untaught])

"""Any mix of offloading, compactions and renderers is undone by one restore, in every message format."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from kit.conversation import from_model, from_user, tool_turn
from strength import examples

from offload import ContextFullError, Offloader, OffloadError, OffloadPolicy, Rule
from offload.agent.compaction import MessageArchive, RoundCompactor, RoundConfig, SelectiveCompaction
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.engine.placeholder import DefaultRenderer, PlaceholderRenderer, TemplateRenderer
from offload.messages.context import ContextIR
from offload_backends.memory import MemoryStore

LINE = "a line of a long text that says little\n"
LOOK_ALIKES = [
    "[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\nsome\n[Read it: x]",
    "[Compacted 3: 5 earlier messages moved to storage, id abcdefghij]\nplease go on",
    "see\n\n[Bash output in context: ab12c] (3.0KB)",
]
Round = Callable[[str, str, str], list[Any]]


def anthropic(call: str, asked: str, text: str) -> list[Any]:
    return [from_user(asked), *tool_turn(call, text), from_model([{"type": "text", "text": "done"}])]


def openai_chat(call: str, asked: str, text: str) -> list[Any]:
    made = {"id": call, "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call, "content": text},
        {"role": "assistant", "content": "done"},
    ]


def openai_responses(call: str, asked: str, text: str) -> list[Any]:
    return [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": asked}]},
        {"type": "function_call", "call_id": call, "name": "Bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call, "output": text},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]


def gemini(call: str, asked: str, text: str) -> list[Any]:
    answer = {"id": call, "name": "Bash", "response": {"output": text}}
    return [
        {"role": "user", "parts": [{"text": asked}]},
        {"role": "model", "parts": [{"functionCall": {"id": call, "name": "Bash", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": answer}]},
        {"role": "model", "parts": [{"text": "done"}]},
    ]


def bedrock(call: str, asked: str, text: str) -> list[Any]:
    return [
        {"role": "user", "content": [{"text": asked}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": call, "name": "Bash", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": call, "content": [{"text": text}]}}]},
        {"role": "assistant", "content": [{"text": "done"}]},
    ]


def langchain(call: str, asked: str, text: str) -> list[Any]:
    made = {"name": "Bash", "args": {}, "id": call, "type": "tool_call"}
    return [
        {"type": "human", "content": asked},
        {"type": "ai", "content": "", "tool_calls": [made]},
        {"type": "tool", "content": text, "tool_call_id": call},
        {"type": "ai", "content": "done"},
    ]


FORMATS: dict[str, Round] = {
    each.__name__: each for each in (anthropic, openai_chat, openai_responses, gemini, bedrock, langchain)
}


def policy(least: int) -> OffloadPolicy:
    rule = Rule(min_chars=least, preview_chars=60)
    return OffloadPolicy(types={"tool_result": rule, "user_message": rule}, min_saving=0)


def renderers(folder: Path) -> list[PlaceholderRenderer]:
    """Return one renderer of each kind."""
    fs, refs = ContextFileSystem(folder / "fs", "s"), ContextRefs(folder / "refs", "s")
    presets = [system.offloader.options.placeholder for system in (fs, refs)]
    return [DefaultRenderer(), *presets]


def by_archive(off: Offloader, messages: list[Any], draw: Any) -> list[Any]:
    """Remove any messages, as a strategy of the host may."""
    removed = sorted(draw(st.sets(st.integers(0, len(messages) - 1), min_size=1, max_size=5)))
    archive = MessageArchive(off)
    try:
        _, notice = archive.store(
            messages, removed, replace(archive.notice(messages), messages=len(removed), task="the task")
        )
    except OffloadError as error:
        if "would be longer" not in str(error):
            raise
        return messages
    kept = [m for i, m in enumerate(messages) if i not in removed]
    return [*kept[: removed[0]], notice, *kept[removed[0] :]]


def by_rounds(off: Offloader, messages: list[Any], _: Any) -> list[Any]:
    config = RoundConfig(max_context_tokens=200, keep_recent_rounds=1, require_confirmation=False)
    with suppress(ContextFullError):
        return list(RoundCompactor(off, lambda _: "a summary", config).compact(messages).new_messages)
    return messages


def by_type(off: Offloader, messages: list[Any], draw: Any) -> list[Any]:
    context = ContextIR()
    for message in messages:
        context.add_message(message)
    summarizer = draw(st.sampled_from([None, lambda _: "a summary"]))
    strategy = SelectiveCompaction(off, summarizer, threshold_tokens=draw(st.integers(1, 400)))
    strategy.compact(context, current_total_tokens=100_000)
    return context.lower()


def by_offload(off: Offloader, messages: list[Any], _: Any) -> list[Any]:
    out = off.offload(messages)
    assert out.errors == []
    return out.messages


STEPS = [by_archive, by_rounds, by_type, by_offload, by_offload]


@pytest.mark.parametrize("name", FORMATS)
def test_one_restore_undoes_any_mix(tmp_path: Path, name: str) -> None:
    drawn = renderers(tmp_path)

    @examples(8, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        draw, store = data.draw, MemoryStore()
        one = [draw(st.sampled_from([*drawn, TemplateRenderer("<{tool} {ref}\n{preview}>")]))]
        mixed = draw(st.booleans())
        # What looks like a placeholder depends on the renderer of the session.
        texts = [LINE * 3, LINE * 30, LINE * 31] + ([] if mixed else LOOK_ALIKES)
        whole: list[Any] = []
        sent: list[Any] = []
        for turn in range(draw(st.integers(2, 6))):
            asked, text = draw(st.sampled_from(texts)), draw(st.sampled_from(texts))
            new = FORMATS[name](f"c{turn}", asked, text)
            whole, sent = [*whole, *new], [*sent, *copy.deepcopy(new)]
            off = Offloader(
                store,
                session="s",
                policy=policy(draw(st.sampled_from([1, 800]))),
                placeholder=draw(st.sampled_from(drawn if mixed else one)),
            )
            sent = draw(st.sampled_from(STEPS))(off, sent, draw)
        off = Offloader(store, session="s", policy=policy(800), placeholder=one[0])
        sent = off.offload(sent).messages

        far = Offloader(store, session="s", placeholder=one[0])
        restores = [far.restore, MessageArchive(far).restore, RoundCompactor(far, str).restore]
        restored = draw(st.sampled_from(restores))(sent)

        assert restored == whole

    check()

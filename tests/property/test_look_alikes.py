"""Text that looks like a placeholder is restored unchanged, anywhere in a message of any format."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from formats import FORMATS, exchange, user
from hypothesis import HealthCheck, given, strategies as st
from langchain_core.messages import AIMessage
from strength import examples

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.messages.formats import scan_of
from offload_backends.memory import MemoryStore

_FOUND = importlib.util.spec_from_file_location(
    "messages_strategies", Path(__file__).with_name("test_messages.py")
)
assert _FOUND is not None
assert _FOUND.loader is not None
_drawn = importlib.util.module_from_spec(_FOUND)
_FOUND.loader.exec_module(_drawn)

EAGER = Rule(min_chars=200, preview_chars=40)
POLICY = OffloadPolicy(
    types={"tool_result": EAGER, "user_message": EAGER, "tool_call": EAGER, "assistant_message": EAGER},
    min_saving=0,
)
LOG = "".join(f"line {n} of a result that is long\n" for n in range(60))
# The fields that identify a message.
KEPT = ("type", "role", "id", "call_id", "tool_use_id", "toolUseId", "tool_call_id", "name", "status")


def look_alikes() -> tuple[MemoryStore, list[str]]:
    """Return a store with a session "s", and texts that look like placeholders of it."""
    store = MemoryStore()
    off = Offloader(store, session="s", policy=POLICY)
    own = off.offload_text(LOG, tool_name="Bash", tool_use_id="call of its own")
    [record] = off.records()
    line = "[Offloaded: image of Shot, image/png, 9 bytes, id {0}. It cannot be shown again]"
    return store, [
        own,
        own.replace(record.ref, "abcdefghij"),
        own[:-3],
        f"[Offloaded: Bash result, 1 line, 9 characters, id {record.ref}]\n",
        line.format(record.ref),
        line.format("abcdefghij"),
        LOG,
    ]


def planted(thing: Any, texts: list[str], draw: Any) -> Any:
    """Return a copy of a message in which some of its texts are look-alikes."""
    if isinstance(thing, dict):
        return {k: v if k in KEPT else planted(v, texts, draw) for k, v in thing.items()}
    if isinstance(thing, list):
        return [planted(value, texts, draw) for value in thing]
    if isinstance(thing, str) and draw(st.booleans()):
        return draw(st.sampled_from(texts))
    return thing


@examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_a_conversation_full_of_look_alikes_comes_back_equal_from_the_store_alone(
    data: st.DataObject,
) -> None:
    store, texts = look_alikes()
    drawn = data.draw(st.lists(st.one_of(*_drawn.formats.values()), min_size=1, max_size=4))
    messages = [planted(message, texts, data.draw) for message in drawn]
    original = copy.deepcopy(messages)
    off = Offloader(store, session="s", policy=POLICY)

    out = off.offload(messages)

    assert messages == original
    assert off.restore(out.messages) == original
    assert Offloader(store, session="s", policy=POLICY).restore(out.messages) == original
    assert Offloader(store, session="s", policy=POLICY).offload(messages).messages == out.messages
    assert off.offload(out.messages).messages == out.messages


# --- copies of placeholders, where only a text tells them apart ------------------------------------

TURNED = OffloadPolicy(types={"tool_result": Rule(min_tokens=500), "user_message": Rule(min_tokens=500)})


def without_id(kind: str, tool: str, result: str) -> list[Any]:
    """Return a call without an id and its result; its arguments begin as the result does."""
    messages = exchange(kind, tool, {"command": result[:9]}, result, "")
    if kind == "gemini":
        messages[0]["parts"][0]["functionCall"].pop("id")
        messages[1]["parts"][0]["functionResponse"].pop("id")
    return messages


def said(kind: str, _tool: str, words: str) -> list[Any]:
    """Return a reply, and a text of the user."""
    reply: Any = {"gemini": {"role": "model", "parts": [{"text": "ok"}]}}.get(kind)
    reply = reply or {"role": "assistant", "content": [{"text": "ok"}] if kind == "bedrock" else "ok"}
    return [AIMessage("ok") if kind == "langchain" else reply, user(kind, words)]


@pytest.mark.parametrize("tools", [("Bash", "read_transcript"), ("Bash", "Bash")])
@pytest.mark.parametrize(
    ("kind", "turn"), [*((kind, turn) for kind in FORMATS for turn in (without_id, said))]
)
def test_a_copy_of_a_placeholder_without_an_id_is_text(kind: str, turn: Any, tools: tuple[str, str]) -> None:
    store = MemoryStore()
    off = Offloader(store, session="s", policy=TURNED)
    first = [user(kind, "Go."), *turn(kind, tools[0], LOG * 3)]
    placed = off.offload(first).messages
    [shown] = [item.text for item in scan_of(placed[-1]).offloadable]
    assert shown.startswith("[Offloaded: ")
    whole = [*first, *turn(kind, tools[1], shown)]

    out = off.offload(whole)

    assert off.restore(out.messages) == whole
    assert off.offload(out.messages).messages == out.messages
    other = Offloader(store, session="s", policy=TURNED)
    assert other.restore(out.messages) == whole
    for given_now in (whole, out.messages):
        assert Offloader(store, session="s", policy=TURNED).offload(given_now).messages == out.messages
    later = [*whole, *turn(kind, tools[0], "short")]
    assert off.restore(off.offload(later).messages) == later


@pytest.mark.parametrize("kind", FORMATS)
def test_a_copied_result_is_text_after_a_restart_with_what_was_sent(kind: str) -> None:
    store, turn = MemoryStore(), without_id
    first = [user(kind, "Go."), *turn(kind, "Bash", LOG * 3)]
    placed = Offloader(store, session="s", policy=TURNED).offload(first).messages
    [shown] = [item.text for item in scan_of(placed[-1]).offloadable]
    copied = turn(kind, "Bash", shown)

    out = Offloader(store, session="s", policy=TURNED).offload([*placed, *copied]).messages

    assert out[: len(placed)] == placed
    assert Offloader(store, session="s").restore(out) == [*first, *copied]
    longer = [*out, *turn(kind, "Bash", "short")]
    assert Offloader(store, session="s", policy=TURNED).offload(longer).messages == longer


@pytest.mark.parametrize("kind", FORMATS)
def test_equal_results_without_ids_are_no_copies(kind: str) -> None:
    store = MemoryStore()
    messages = [user(kind, "Go."), *(m for _ in range(3) for m in without_id(kind, "Bash", LOG * 3))]

    out = Offloader(store, session="s", policy=TURNED).offload(messages).messages

    assert len(Offloader(store, session="s").records()) == 1
    assert Offloader(store, session="s", policy=TURNED).offload(out).messages == out
    assert Offloader(store, session="s").restore(out) == messages


@pytest.mark.parametrize("kind", ["gemini", "openai-chat"])
def test_a_copy_that_an_agent_gets_after_a_restart_is_text(kind: str) -> None:
    store = MemoryStore()
    first = [user(kind, "Go."), *without_id(kind, "Bash", LOG * 9)]
    agent = ContextManager(Offloader(store, session="s", policy=TURNED))
    for message in first:
        agent.add(message)
    [shown] = [item.text for item in scan_of(agent.before_model_call().messages[-1]).offloadable]
    assert shown.startswith("[Offloaded: ")
    again = ContextManager(Offloader(store, session="s", policy=TURNED))
    again.resume()

    for message in (copied := without_id(kind, "Bash", shown)):
        again.add(message)
    again.before_model_call()

    assert again.restore() == [*first, *copied]


def test_equal_texts_of_a_user_that_an_agent_replaces_are_no_copies() -> None:
    agent = ContextManager(
        Offloader(MemoryStore(), session="s", policy=TURNED), AgentConfig(window_tokens=6000)
    )
    added: list[Any] = []
    for turn in range(12):
        added += [{"role": "user", "content": LOG}, {"role": "assistant", "content": f"{turn} " * 200}]
        agent.add(added[-2])
        agent.before_model_call()
        agent.after_model_call(added[-1])

    assert agent.restore() == added

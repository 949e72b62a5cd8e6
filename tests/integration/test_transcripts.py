"""Every recorded transcript, in both formats: out and back, byte-stable, with the input untouched."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import prepared
import pytest
import recorded
from kit.conversation import chat_result, tool_result, tool_use
from recorded import FILES

from offload import Offloader

FORMATS = ("anthropic", "openai-chat")

pytestmark = recorded.needed


def load(path: Path, wanted: str):
    document = json.loads(path.read_text())
    messages = document["messages"]
    if wanted == "anthropic":
        return messages if document["format"] == "anthropic" else to_anthropic(messages)
    return to_openai(messages) if document["format"] == "anthropic" else messages


def to_openai(messages):
    """Return the messages in OpenAI's format: a result is a message, a call is next to the text."""
    out = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            out.append(message)
            continue
        results = [b for b in content if b["type"] == "tool_result"]
        calls = [b for b in content if b["type"] == "tool_use"]
        rest = [b for b in content if b["type"] not in ("tool_result", "tool_use")]
        out += [chat_result(b["tool_use_id"], b.get("content", "")) for b in results]
        if rest or calls:
            said = {"role": message["role"], "content": rest or None}
            if calls:
                said["tool_calls"] = [
                    {"id": c["id"], "function": {"name": c["name"], "arguments": json.dumps(c["input"])}}
                    for c in calls
                ]
            out.append(said)
    return out


def to_anthropic(messages):
    """Say the same in Anthropic's format."""
    out = []
    for message in messages:
        if message["role"] in ("tool", "function"):
            block = tool_result(message.get("tool_call_id", "none"), message["content"])
            out.append({"role": "user", "content": [block]})
            continue
        blocks = message.get("content") or []
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else list(blocks)
        blocks += [
            tool_use(c["id"], c["function"]["name"], {"arguments": c["function"]["arguments"]})
            for c in message.get("tool_calls") or []
        ]
        out.append({"role": message["role"], "content": blocks})
    return out


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("path", recorded.each())
def test_a_transcript_comes_back_equal_from_the_store_alone(path, wanted, tmp_path):
    messages = load(path, wanted)
    before = copy.deepcopy(messages)

    out = Offloader(tmp_path, session="s").offload(messages)

    assert out.errors == []
    assert messages == before
    assert all(a is b for a, b in zip(messages, out.messages, strict=True) if a == b)
    assert Offloader(tmp_path, session="s").restore(out.messages) == messages


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("path", recorded.each())
def test_a_transcript_turn_by_turn_is_never_rewritten_but_where_an_item_leaves(path, wanted, tmp_path):
    messages = load(path, wanted)
    off = Offloader(tmp_path, session="s")
    replaced: dict[int, object] = {}

    for turn in [i for i, m in enumerate(messages) if m["role"] == "assistant"]:
        sent = off.offload(messages[: turn + 1]).messages
        for i, (message, original) in enumerate(zip(sent, messages, strict=False)):
            if message is not original:
                assert replaced.setdefault(i, message) == message or len(message["content"]) > 1
        assert [i for i in replaced if sent[i] is messages[i]] == []

    assert off.restore(off.offload(messages).messages) == messages


def digest(messages):
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()


def test_a_second_run_and_a_second_process_make_the_same_bytes(tmp_path):
    paths = recorded.one_of_each_source(FILES)
    program = (
        "import hashlib, json, sys; from offload import Offloader\n"
        "for path in sys.argv[1:]:\n"
        "    messages = json.load(open(path, encoding='utf-8'))['messages']\n"
        "    sent = Offloader('memory://', session=path).offload(messages).messages\n"
        "    print(hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest())\n"
    )
    here = [
        digest(Offloader(tmp_path, session=str(p)).offload(json.loads(p.read_text())["messages"]).messages)
        for p in paths
    ]
    again = [
        digest(Offloader(tmp_path, session=str(p)).offload(json.loads(p.read_text())["messages"]).messages)
        for p in paths
    ]
    there = prepared.run(program, *paths)

    assert again == here
    assert there.stdout.split() == here

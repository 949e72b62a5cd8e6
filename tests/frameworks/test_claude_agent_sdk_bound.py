"""`offloaded` options of the Claude Agent SDK, in a conversation whose model binds its thinking."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

pytest.importorskip("claude_agent_sdk", reason="in the environment of the group integration-claude-agent-sdk")

from binding import Binding, BoundError
from claude_agent_sdk import ClaudeAgentOptions, query
from frameworks.claude_code import Answer, ClaudeCode, blocks_of, serving, text, tool

from offload import Offloader
from offload.integrations.claude_agent_sdk import offloaded

TURNS = 12
SIZES = (20, 6000, 900, 40_000)


class Provider:
    """Answers with calls of tools after signed thinking, and checks all that comes back."""

    def __init__(self):
        self.binding = Binding()
        self.refusals = []
        self.sent = []

    def answer(self, request):
        # What a text alone means, and that a deferred tool binds nothing, is the provider's business.
        messages = [{**message, "content": blocks_of(message)} for message in request.messages]
        tools = [each for each in request.json["tools"] if not each.get("defer_loading")]
        context = {"system": request.json["system"], "tools": tools}
        try:
            self.binding.check(messages, **context)
        except BoundError as refusal:
            self.refusals.append(str(refusal))
        self.sent.append(request.results)
        signatures = self.binding.sign(messages, **context)
        blocks = tuple({"type": "thinking", "thinking": "So.", "signature": each} for each in signatures)
        return Answer(blocks) + step(request)


def step(request):
    """Do what a model does: commands with output of all sizes, and searches of what was stored."""
    if request.step == TURNS:
        return text("done")
    if request.step % 4 == 2:
        [ref] = re.findall(r"\bid ([a-z]{10})\b", request.results[-1])
        return tool("mcp__offload__context_grep", id=ref, pattern="59")
    return tool("Bash", command=f"seq {request.step} {SIZES[request.step % 4]}")


def test_nothing_that_was_sent_changes(tmp_path, store):
    provider = Provider()
    off = Offloader(store, session="s")
    with serving(provider.answer) as api:
        place = ClaudeCode(tmp_path, api.url).place
        options = ClaudeAgentOptions(cwd=place["cwd"], env=place["env"], allowed_tools=["Bash"])

        async def run():
            return [message async for message in query(prompt="go", options=offloaded(options, off))]

        asyncio.run(run())

    assert provider.refusals == []
    assert len(provider.sent) == TURNS + 1
    for before, after in itertools.pairwise(provider.sent):
        assert after[: len(before)] == before
    assert len(provider.binding.signatures(api.last.messages)) == TURNS
    assert len(off.records()) > 4

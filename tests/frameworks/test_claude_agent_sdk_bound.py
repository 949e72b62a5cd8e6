"""`offloaded` options of the Claude Agent SDK, in a conversation whose model binds its thinking."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("claude_agent_sdk", reason="in the environment of the group integration-claude-agent-sdk")

from claude_agent_sdk import ClaudeAgentOptions, query
from frameworks.claude_code import ClaudeCode, serving
from frameworks.test_claude_code_bound import TURNS, Provider, step

from offload import Offloader
from offload.integrations.claude_agent_sdk import offloaded


def test_nothing_that_was_sent_changes(tmp_path, store):
    provider = Provider(step("mcp__offload__context_grep"))
    off = Offloader(store, session="s")
    with serving(provider.answer) as api:
        place = ClaudeCode(tmp_path, api.url).place
        options = ClaudeAgentOptions(cwd=place["cwd"], env=place["env"], allowed_tools=["Bash"])

        async def run():
            return [message async for message in query(prompt="go", options=offloaded(options, off))]

        asyncio.run(run())

    assert provider.refusals == []
    assert len(provider.binding.signatures(api.last.messages)) == TURNS
    assert len(off.records()) > 4

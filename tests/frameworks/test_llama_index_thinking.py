"""`OffloadFunctionAgent` of LlamaIndex with a model that binds its thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="in the environment of the group integration-llama-index")

from frameworks import bound_server
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.llms.anthropic import Anthropic

from offload.integrations.llama_index import OffloadContexts, OffloadFunctionAgent, _blocks_of, _message_of
from offload.messages.thinking import signed_thinking, with_thinking, without_thinking

# LlamaIndex uses names of pydantic that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")

RUNS = 3


def tool(name: str) -> FunctionTool:
    def call(n: int) -> str:
        return bound_server.result(n)

    return FunctionTool.from_defaults(call, name=name, description="Sales.")


def agent(server: Any, offloading: OffloadContexts, *, streaming: bool) -> OffloadFunctionAgent:
    llm = Anthropic(model=server.model, max_tokens=1000)
    return OffloadFunctionAgent(
        llm=llm,
        tools=[*map(tool, bound_server.TOOLS)],
        offloading=offloading,
        system_prompt="You sell.",
        streaming=streaming,
    )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_no_request_changes_what_thinking_is_bound_to(store, streaming, restarts):
    async def conversation(server: Any) -> Any:
        offloading = OffloadContexts(store)
        made = agent(server, offloading, streaming=streaming)
        ctx = Context(made)
        for n in range(RUNS):
            if restarts:
                offloading = OffloadContexts(store)
                made = agent(server, offloading, streaming=streaming)
                ctx = Context.from_dict(made, ctx.to_dict())
            await made.run(user_msg=f"Question {n}?", ctx=ctx)
        messages = (await ctx.store.get("memory")).get_all()
        return messages, await offloading.restore(ctx, messages)

    # LlamaIndex sends back no thinking that is not shown.
    with bound_server.serving(redacts=False) as server:
        messages, restored = asyncio.run(conversation(server))
        bound_server.check(server, requests=RUNS * bound_server.CALLS, thinking=10)
    calls = [b.tool_kwargs["n"] for m in restored for b in m.blocks if b.block_type == "tool_call"]
    results = [m.content for m in restored if m.role.value == "tool"]
    assert results == [bound_server.result(int(n)) for n in calls]
    assert [m for m in restored if m.role.value != "tool"] == [m for m in messages if m.role.value != "tool"]


def test_a_change_by_the_host_removes_the_thinking_behind_it(store):
    async def conversation(server: Any) -> list[ChatMessage]:
        made = agent(server, OffloadContexts(store), streaming=False)
        ctx = Context(made)
        await made.run(user_msg="Question?", ctx=ctx)
        memory = await ctx.store.get("memory")
        messages = memory.get_all()
        result = next(m for m in messages if m.role.value == "tool")
        edited = result.model_copy(update={"blocks": [TextBlock(text="a shorter result")]})
        memory.set([edited if m is result else m for m in messages])
        await made.run(user_msg="Question?", ctx=ctx, memory=memory)
        return [*(await ctx.store.get("memory")).get_all()]

    with bound_server.serving(redacts=False) as server:
        messages = asyncio.run(conversation(server))
        assert server.refusals == []
        sent = server.thinking_sent()
    kept = [b for m in messages for b in m.blocks if b.block_type == "thinking"]
    assert len(kept) > sent, "the memory keeps what requests leave out"


def test_thinking_that_was_removed_comes_back_as_it_was():
    block = ThinkingBlock(content="so", num_tokens=3, additional_information={"signature": "s", "type": "t"})
    message = ChatMessage(role="assistant", blocks=[block])
    old = _blocks_of(message)
    bare, removed = without_thinking(old, signed_thinking(old))
    without = _message_of(message, old, bare)
    assert [each.block_type for each in without.blocks] == ["text"]
    assert _message_of(without, bare, with_thinking(bare, removed)) == message

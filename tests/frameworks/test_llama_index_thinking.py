"""`OffloadFunctionAgent` of LlamaIndex with a model that binds its thinking."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

pytest.importorskip("llama_index.core", reason="in the environment of the group integration-llama-index")

from frameworks.bound_story import BoundStory, ConvertedStory
from frameworks.llama_index_model import tool
from frameworks.scenario import QUERY, READER
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock
from llama_index.core.workflow import Context
from llama_index.llms.anthropic import Anthropic

from offload.integrations import llama_index as ours
from offload.integrations.llama_index import OffloadContexts, OffloadFunctionAgent

# LlamaIndex uses names of pydantic that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


SIGNED = ThinkingBlock(content="so", num_tokens=3, additional_information={"signature": "s", "type": "t"})


class TestBoundStory(BoundStory):
    # Each run with or without a stream; LlamaIndex sends back no thinking that is not shown.
    ways, redacts = (False, True), False
    saved: Any = None
    edits = False

    def restart(self):
        self.offloading = OffloadContexts(self.store)

    def ask(self, text, way):
        asyncio.run(self._ask(text, streaming=way))

    async def _ask(self, text, *, streaming):
        made = OffloadFunctionAgent(
            llm=Anthropic(model=self.server.model, max_tokens=1000),
            tools=[tool(name, returns=self.output) for name in (QUERY, READER)],
            offloading=self.offloading,
            system_prompt="You sell.",
            streaming=streaming,
        )
        ctx = Context(made) if self.saved is None else Context.from_dict(made, self.saved)
        options = {}
        if self.edits:
            memory = await ctx.store.get("memory")
            messages = memory.get_all()
            at = next(at for at, message in enumerate(messages) if message.role.value == "tool")
            messages[at] = messages[at].model_copy(update={"blocks": [TextBlock(text="a shorter result")]})
            memory.set(messages)
            options = {"memory": memory}
        await made.run(user_msg=text, ctx=ctx, **options)
        self.saved = ctx.to_dict()
        self.restored_messages = await self.offloading.restore(ctx, (await ctx.store.get("memory")).get_all())

    def restored(self):
        return self.restored_messages

    def results(self, messages):
        return [message.content for message in messages if message.role.value == "tool"]

    def thinking(self, messages):
        return sum(block.block_type == "thinking" for message in messages for block in message.blocks)

    def edit(self):
        self.edits = True


class TestConverted(ConvertedStory):
    module: ClassVar = ours
    signed: ClassVar = ((ChatMessage(role="assistant", blocks=[SIGNED]), 1),)
    unsigned: ClassVar = (ChatMessage(role="assistant", blocks=[ThinkingBlock(content="so")]),)

"""`OffloadFunctionAgent` of LlamaIndex, alone and in an agent workflow."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("llama_index.core", reason="in the environment of the group integration-llama-index")

from frameworks.llama_index_model import scripted, tool
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.workflow import Context

from offload import Offloader
from offload.integrations.llama_index import OffloadContexts, OffloadFunctionAgent

# LlamaIndex uses names of pydantic that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


def agent(script, offloading, *tools, **options):
    return OffloadFunctionAgent(
        llm=scripted(script), tools=list(tools) or [tool()], offloading=offloading, **options
    )


def workflow(script, offloading, *tools, **options):
    return AgentWorkflow(agents=[agent(script, offloading, *tools, **options)])


AGENTS = pytest.mark.parametrize("made_by", [agent, workflow])


def run(made, ctx=None, asked=QUESTION):
    async def go():
        return await made.run(user_msg=asked, ctx=ctx)

    return asyncio.run(go())


def context(made):
    return Context(made)


def offloader_of(offloading, ctx):
    return asyncio.run(offloading.offloader(ctx))


def memory_of(ctx):
    return asyncio.run(ctx.store.get("memory")).get_all()


def results(messages):
    return [message.content for message in messages if message.role.value == "tool"]


class TestStory(Story):
    extra, without, second_try, keeps_late = "llama-index", "llama_index.core", 2, False
    instructs = "system_prompt"
    tool = staticmethod(tool)
    ways = (agent, workflow, partial(agent, streaming=False))
    named: ClassVar = {"session": "s"}
    own_arguments: ClassVar = {"self": 1, "ctx": 2}
    refusal = "rror|multiple values"
    agents: ClassVar = ["critic"]
    left_out: ClassVar = (
        # Its models report no cache.
        "test_a_request_that_the_provider_s_cache_missed_is_noticed",
        # It hands a conversation on to another agent: tested below.
        "test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",
    )

    def plugin(self, store, **options):
        return OffloadContexts(store, **options)

    def forge(self, session):
        return {"ctx": {"store": {"offload_session": session}}}

    def play(self, script, plugin, *tools, way=agent, asked=QUESTION, saved=None, owner="", **options):  # noqa: ARG002 # a context is its own session
        made = way(script, plugin, *tools, name="critic", **options)
        ctx = Context.from_dict(made, saved) if saved else Context(made)
        answer = str(run(made, ctx, asked))
        messages = memory_of(ctx)
        return Told(
            answer,
            offloader_of(plugin, ctx),
            results(messages),
            lambda: results(asyncio.run(plugin.restore(ctx, messages))),
            ctx.to_dict(),
            messages[0].content,
        )


@AGENTS
def test_the_saved_context_has_the_placeholder_and_never_the_original(store, made_by):
    saved = []

    def look(texts):
        saved.append(json.dumps(ctx.to_dict()))
        return scenario.search(texts)

    offloading = OffloadContexts(store)
    made = made_by(Script([scenario.ask(), look, scenario.end]), offloading)
    ctx = context(made)

    run(made, ctx)

    saved.append(json.dumps(ctx.to_dict()))
    assert "entry 01500" in report()
    for each in saved:
        assert "[Offloaded:" in each
        assert "entry 01500" not in each
    messages = memory_of(ctx)
    restored = asyncio.run(offloading.restore(ctx, messages))
    assert results(restored)[0] == report()
    assert restored[-1] is messages[-1]


def test_a_placeholder_names_the_tool_if_the_messages_of_the_model_do_not(store):
    script = scenario.whole_run()
    llm = scripted(script, has_calls=False)
    made = OffloadFunctionAgent(llm=llm, tools=[tool()], offloading=OffloadContexts(store), streaming=False)

    run(made)

    assert "[Offloaded: query_sales result" in script.shown(2)
    assert needle("alice") in script.seen[2][-1]


def test_runs_with_one_memory_share_its_session(store):
    memory = Memory.from_defaults(session_id="alice", token_limit=100_000)
    offloading = OffloadContexts(store)
    script = Script([scenario.ask(), scenario.end, scenario.search, scenario.end])
    made = agent(script, offloading)

    async def go():
        for _ in range(2):
            await made.run(user_msg=QUESTION, memory=memory)
        await memory.sql_store._async_engine.dispose()

    asyncio.run(go())

    assert needle("alice") in script.seen[3][-1]
    assert len(Offloader(store, session="alice").records()) == 1


def test_only_texts_in_a_result_with_media_are_offloaded(store):
    image = ImageBlock(image=b"aGk=", image_mimetype="image/png")
    offloading = OffloadContexts(store)
    given = [TextBlock(text=report()), image]
    made = agent(Script([scenario.ask(), scenario.end]), offloading, tool(returns=lambda: given))

    run(made, ctx := context(made))

    messages = memory_of(ctx)
    [message] = [each for each in messages if each.role.value == "tool"]
    assert scenario.refs([message.blocks[0].text])
    assert message.blocks[1] == image
    [restored] = asyncio.run(offloading.restore(ctx, [message]))
    assert restored.blocks == given


@AGENTS
def test_a_result_that_is_the_answer_is_kept_in_full(store, made_by):
    offloading = OffloadContexts(store, session="s")

    output = run(made_by(Script([scenario.ask()]), offloading, tool(return_direct=True)))

    assert str(output) == report()
    assert offloader_of(offloading, None).records() == []


def test_an_agent_to_which_another_hands_off_shares_the_session(store):
    offloading = OffloadContexts(store)
    hand_off = {"to_agent": "second", "reason": "It knows."}
    first = Script([scenario.ask(), lambda _: Call("handoff", hand_off, "h")])
    second = Script([scenario.search, scenario.end])
    scripts = {"first": first, "second": second}
    agents = [agent(script, offloading, name=name, description=name) for name, script in scripts.items()]

    run(AgentWorkflow(agents=agents, root_agent="first"))

    assert needle("alice") not in second.shown(1)
    assert needle("alice") in second.seen[1][-1]


def test_a_plain_agent_is_sent_all_in_full(store):
    offloading = OffloadContexts(store, session="s")
    plain = Script([scenario.ask(), scenario.end])
    made = FunctionAgent(llm=scripted(plain), tools=[tool()])

    run(AgentWorkflow(agents=[made]))

    assert plain.seen[1][-1] == report()
    assert offloader_of(offloading, None).records() == []


def test_a_history_of_the_callers_own_is_offloaded_in_the_request(store):
    script = Script([scenario.end])
    made = agent(script, OffloadContexts(store))
    history = [
        ChatMessage(role="user", content=QUESTION),
        ChatMessage(role="assistant", content="I look."),
        ChatMessage(role="tool", content=report(), additional_kwargs={"tool_call_id": "c"}),
    ]

    async def go():
        memory = ChatMemoryBuffer.from_defaults(token_limit=100_000)
        await made.run(user_msg="And?", chat_history=history, memory=memory)

    asyncio.run(go())

    assert scenario.refs(script.seen[0])
    assert history[2].content == report()

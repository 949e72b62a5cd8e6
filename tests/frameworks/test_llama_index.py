"""`OffloadFunctionAgent` of LlamaIndex, alone and in an agent workflow."""

from __future__ import annotations

import asyncio
import json

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, Call, Script, needle, report

pytest.importorskip("llama_index.core", reason="in the environment of the group integration-llama-index")

from frameworks.llama_index_model import scripted, tool, without_calls
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.workflow import Context

from offload import ConfigError, Offloader, OffloadPolicy, StoreUnavailableError
from offload.integrations.llama_index import OffloadContexts, OffloadFunctionAgent
from offload.testing import FaultyStore
from offload.tools import TOOL_NAMES
from offload_backends.memory import MemoryStore

# LlamaIndex uses names of pydantic that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")

RESUMED = """
import json, sys
from llama_index.core.workflow import Context
from frameworks import scenario, test_llama_index as ours
from offload.integrations.llama_index import OffloadContexts

given = json.load(sys.stdin)
script = scenario.Script([scenario.search, scenario.read, scenario.end])
made = ours.agent(script, OffloadContexts(given["url"], storage_options=given["options"]))
ours.run(made, Context.from_dict(made, given["ctx"]), "And then?")
print(json.dumps(script.seen))
"""


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


@AGENTS
@pytest.mark.parametrize("streaming", [True, False])
def test_a_model_searches_and_reads_an_offloaded_result(store, made_by, streaming):
    script = scenario.whole_run()

    output = run(made_by(script, OffloadContexts(store), streaming=streaming))

    scenario.check_whole_run(script)
    assert str(output) == ANSWER


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
    made = OffloadFunctionAgent(
        llm=without_calls(script), tools=[tool()], offloading=OffloadContexts(store), streaming=False
    )

    run(made)

    assert "[Offloaded: query_sales result" in script.shown(2)
    assert needle("alice") in script.seen[2][-1]


def test_the_placeholder_is_the_same_whenever_and_wherever_it_is_made(store):
    scripts = [Script([scenario.ask(), scenario.end]) for _ in range(2)]
    for script, into in zip(scripts, (store, MemoryStore()), strict=True):
        run(agent(script, OffloadContexts(into, session="s")))

    assert scripts[0].seen[1] == scripts[1].seen[1]
    assert scenario.refs(scripts[0].seen[1])


def test_two_contexts_with_one_call_id_read_their_own(store):
    offloading = OffloadContexts(store)
    scripts, contexts = {}, {}
    for owner in ("alice", "bob"):
        scripts[owner] = scenario.whole_run()
        made = agent(scripts[owner], offloading, tool(returns=lambda owner=owner: report(owner)))
        contexts[owner] = context(made)
        run(made, contexts[owner])

    for owner, other in (("alice", "bob"), ("bob", "alice")):
        scenario.check_whole_run(scripts[owner], owner)
        assert needle(other) not in scripts[owner].shown(4)
        assert scenario.calls_of(offloader_of(offloading, contexts[owner])) == ["call_0"]


@AGENTS
def test_a_context_cannot_read_items_of_another_and_a_model_cannot_name_one(store, made_by):
    offloading = OffloadContexts(store)
    made = agent(scenario.whole_run(), offloading)
    run(made, ctx := context(made))
    [record] = offloader_of(offloading, ctx).records()
    forged = {"id": record.ref, "ctx": {"store": {"offload_session": record.session}}}
    foreign = Script([lambda _: Call("context_read", forged, "c"), scenario.end])
    unknown = Script([lambda _: Call("context_read", {"id": "abcdefghij"}, "c"), scenario.end])

    for script in (foreign, unknown):
        run(made_by(script, offloading))

    assert foreign.seen[1][-1].replace(record.ref, "abcdefghij") == unknown.seen[1][-1]
    assert foreign.seen[1][-1].startswith("Error: ")


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


@AGENTS
def test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run(store, made_by, caplog):
    faulty = FaultyStore(store, verb="put", nth=2, is_lasting=True)
    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])
    owners = iter(["alice", "bob"])

    output = run(made_by(script, OffloadContexts(faulty), tool(returns=lambda: report(next(owners)))))

    assert scenario.refs(script.seen[1])
    assert script.seen[2][-1] == report("bob")
    assert "kept in the message" in caplog.text
    assert str(output) == ANSWER


def test_the_caller_may_have_a_failure_end_the_run(store):
    faulty = FaultyStore(store, verb="put", is_lasting=True)

    with pytest.raises(StoreUnavailableError):
        run(agent(scenario.whole_run(), OffloadContexts(faulty, on_error="raise")))


def test_a_new_process_continues_from_the_context_and_the_store(s3_bucket):
    offloading = OffloadContexts(s3_bucket.url, storage_options=s3_bucket.storage_options)
    script = Script([scenario.ask(), scenario.end])
    made = agent(script, offloading)
    run(made, ctx := context(made))
    given = {"url": s3_bucket.url, "options": s3_bucket.storage_options, "ctx": ctx.to_dict()}

    seen = scenario.in_new_process(RESUMED, given)

    assert seen[0][: len(script.seen[1])] == script.seen[1]
    assert needle("alice") not in json.dumps(seen[0])
    assert needle("alice") in seen[1][-1]
    assert f"entry {scenario.NEEDLE_LINE + 1:05}" in seen[2][-1]


def test_a_file_reader_result_is_shown_once_in_full(store):
    script = Script([scenario.ask(READER), scenario.ask(READER, "call_1"), scenario.end])
    owners = iter(["alice", "bob"])

    run(agent(script, OffloadContexts(store), tool(READER, returns=lambda: report(next(owners)))))

    assert script.seen[1][-1] == report("alice")
    assert scenario.refs(script.seen[2])
    assert needle("alice") not in script.shown(3)
    assert script.seen[2][-1] == report("bob")


def test_a_long_prompt_is_offloaded_and_kept_in_the_memory(store):
    policy = OffloadPolicy.model_validate({"types": {"user_message": {"min_tokens": 1000}}})
    script = Script([scenario.end])
    made = agent(script, OffloadContexts(store, policy=policy))

    run(made, ctx := context(made), report())

    assert scenario.refs(script.seen[0])
    assert memory_of(ctx)[0].content == report()


@AGENTS
def test_results_of_concurrent_calls_are_all_offloaded(store, made_by):
    calls = [Call(QUERY, {"n": n}, f"call_{n}") for n in range(8)]
    offloading = OffloadContexts(store)
    numbered = tool(returns=lambda n: f"{n}\n{report()}")
    made = made_by(Script([lambda _: calls, scenario.end]), offloading, numbered)

    run(made, ctx := context(made))

    messages = memory_of(ctx)
    assert len({ref for text in results(messages) for ref in scenario.refs([text])}) == 8
    restored = asyncio.run(offloading.restore(ctx, messages))
    assert sorted(results(restored)) == [f"{n}\n{report()}" for n in range(8)]


@pytest.mark.parametrize("given", [{"rows": report()}, [report()]])
def test_a_value_is_offloaded_as_the_text_that_llamaindex_makes_of_it(store, given):
    script = Script([scenario.ask(), scenario.end])
    offloading = OffloadContexts(store, session="s")

    run(agent(script, offloading, tool(returns=lambda: given)))

    [ref] = scenario.refs(script.seen[1])
    assert b"".join(offloader_of(offloading, None).content(ref)).decode() == str(given)


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
def test_the_error_of_a_tool_is_kept(store, made_by):
    def fail():
        raise ValueError(report())

    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])
    offloading = OffloadContexts(store, session="s")

    run(made_by(script, offloading, tool(returns=fail)))

    assert script.seen[1][-1] == script.seen[2][-1] == report()
    assert offloader_of(offloading, None).records() == []


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
    agents = [
        agent(script, offloading, name=name, description=name)
        for name, script in (("first", first), ("second", second))
    ]

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


@pytest.mark.parametrize(
    "arguments", [{}, {"id": 7}, {"id": "abcdefghij", "self": 1, "ctx": 2}, {"id": "../../etc/passwd"}]
)
@AGENTS
def test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run(store, made_by, arguments):
    script = Script([lambda _: Call("context_read", arguments, "c"), scenario.end])

    output = run(made_by(script, OffloadContexts(store)))

    assert "rror" in script.seen[1][-1] or "multiple values" in script.seen[1][-1]
    assert str(output) == ANSWER


@pytest.mark.parametrize("given", [None, "Be brief."])
def test_the_model_gets_the_tools_and_instructions_after_the_callers_own(store, given):
    sent = []
    offloading = OffloadContexts(store)
    made = agent(Script([scenario.end]), offloading, system_prompt=given)
    answer = made.llm.response_generator

    def note(messages, **options):
        sent.append((messages, options))
        return answer(messages, **options)

    made.llm.response_generator = note

    run(made)

    [(messages, options)] = sent
    schemas = {each.metadata.name: each.metadata.get_parameters_dict() for each in options["tools"]}
    assert set(schemas) == {QUERY, *TOOL_NAMES}
    assert schemas["context_read"]["required"] == ["id"]
    texts = [block.text for block in messages[0].blocks]
    assert texts == [*([given] if given else []), offloading.prompt]
    assert [message.role.value for message in messages] == ["system", "user"]


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


def test_an_invalid_argument_is_reported_before_an_agent_is_created(store):
    with pytest.raises(ConfigError, match="on_error"):
        OffloadContexts(store, on_error="shrug")  # type: ignore[arg-type]


def test_without_the_framework_the_error_names_the_command():
    told = scenario.import_error("llama_index", without="llama_index.core")
    assert "pip install 'offload[llama-index]'" in told

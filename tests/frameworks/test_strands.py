"""`StrandsOffloadPlugin` in an agent of Strands, and `OffloadStorage` under the offloader of its own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.objects_story import ObjectsStory
from frameworks.scenario import QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("strands", reason="in the environment of the group integration-strands")

from frameworks.strands_model import ScriptedModel, tool
from strands import Agent, tool as function_tool
from strands.multiagent import GraphBuilder, Swarm
from strands.session.file_session_manager import FileSessionManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import LocalFileStorage
from strands.types.exceptions import EventLoopException, StorageError
from strands.vended_plugins.context_offloader import ContextOffloader

from offload import ConfigError, Offloader
from offload.integrations.strands import OffloadStorage, StrandsOffloadPlugin
from offload.testing import FaultyStore


def agent(script, *plugins, tools=(), **options):
    return Agent(
        model=ScriptedModel(script),
        tools=[*tools] or [tool()],
        plugins=list(plugins),
        callback_handler=None,
        **options,
    )


def run(agent, asked=QUESTION):
    return agent(asked)


def arun(agent, asked=QUESTION):
    return asyncio.run(agent.invoke_async(asked))


RUNS = pytest.mark.parametrize("run", [run, arun])


def results(agent):
    return texts(agent.messages)


def texts(messages):
    return [
        "".join(block["text"] for block in part["toolResult"]["content"])
        for message in messages
        for part in message["content"]
        if "toolResult" in part
    ]


def as_function(agent):
    """Return a tool that runs an agent."""

    @function_tool
    def helper(input: str) -> str:  # noqa: A002 # the name that `as_tool` has
        """Help."""
        return str(agent(input))

    return helper


def helper_by(made):
    return lambda script, plugin, *tools: made(agent(script, plugin, tools=tools, name="helper"))


class TestStory(Story):
    extra, without, failure = "strands", "strands.plugins", EventLoopException
    tool = staticmethod(tool)
    ways = (run, arun)
    own_arguments: ClassVar = {"self": 1, "agent": {}, "tool_use": 2}
    missed: ClassVar = [0, 0, 5301]
    agents: ClassVar = ["Strands Agents"]
    errors: ClassVar = ({"status": "error", "content": [{"text": report()}]},)
    instructs = "system_prompt"
    helpers: ClassVar = tuple(
        (helper_by(made), options)
        for made in (Agent.as_tool, as_function)
        for options in ({}, {"session": "team"})
    )
    # Its tools return texts.
    left_out: ClassVar = ("test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it",)

    def plugin(self, store, **options):
        return StrandsOffloadPlugin(store, **options)

    def play(self, script, plugin, *tools, way=run, owner="alice", asked=QUESTION, saved=None, **options):
        """Save and load the session as Strands' own manager does, in a folder."""
        with TemporaryDirectory() as folder:
            for name, text in (saved or {}).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            manager = FileSessionManager(owner, storage_dir=folder) if owner else None
            made = agent(script, plugin, tools=tools, session_manager=manager, **options)
            answer = str(way(made, asked)).strip()
            files = {str(p.relative_to(folder)): p.read_text() for p in Path(folder).rglob("*.json")}
        off = plugin.offloader(made)
        question = made.messages[0]["content"][0]["text"]
        return Told(answer, off, results(made), lambda: texts(off.restore(made.messages)), files, question)


def test_a_result_keeps_its_status_and_its_other_blocks(store):
    image = {"image": {"format": "png", "source": {"bytes": b"hi"}}}
    given = {"status": "success", "content": [{"text": report()}, image]}
    plugin = StrandsOffloadPlugin(store)
    made = agent(Script([scenario.ask(), scenario.end]), plugin, tools=[tool(returns=lambda: given)])

    run(made)

    left = made.messages[2]["content"][0]["toolResult"]
    assert scenario.refs([left["content"][0]["text"]])
    assert (left["status"], left["toolUseId"], left["content"][1]) == ("success", "call_0", image)
    [restored] = plugin.offloader(made).restore([made.messages[2]])
    assert restored["content"][0]["toolResult"] == {"toolUseId": "call_0", **given}
    assert given["content"][0] == {"text": report()}


@pytest.mark.parametrize("is_first", [True, False])
@RUNS
def test_results_of_strands_own_offloader_are_kept(store, tmp_path, run, is_first):
    def made(script):
        own = ContextOffloader(stored(store, "theirs"), max_result_tokens=2500, preview_tokens=2400)
        plugins = [own, StrandsOffloadPlugin(store)] if is_first else [StrandsOffloadPlugin(store), own]
        return agent(script, *plugins, session_manager=file_manager(tmp_path))

    look = retrieve(line_range={"start": 1, "end": 500})
    script = Script([scenario.ask(), look, scenario.end])
    run(made(script))
    resumed = Script([scenario.end])
    run(made(resumed))

    for texts in (script.seen[1], script.seen[2], resumed.seen[0]):
        [preview] = [text for text in texts if text.startswith("[Offloaded:")]
        assert "Stored references" in preview
        assert len(preview) > 9000
    for texts in (script.seen[2], resumed.seen[0]):
        assert any("entry 00160 account" in text for text in texts)
    assert Offloader(store, session="alice").records() == []


def test_a_text_far_longer_than_any_preview_of_strands_is_offloaded_even_if_it_looks_like_one(store):
    forged = f"[Offloaded: 1 blocks, ~50,000 tokens]\n{report() * 2}\n\n[Stored references:]\n  x"
    script = Script([scenario.ask(), scenario.end])

    run(agent(script, StrandsOffloadPlugin(store), tools=[tool(returns=lambda: forged)]))

    assert len(script.seen[1][-1]) < 5000


def test_an_agent_that_is_a_tool_keeps_the_session_of_its_own_manager(store, tmp_path):
    plugin = StrandsOffloadPlugin(store)
    manager = FileSessionManager("bob", storage_dir=str(tmp_path))
    helper = agent(Script([scenario.end]), plugin, name="helper", session_manager=manager)
    script = Script([lambda _: Call("helper", {"input": "Go."}, "h"), scenario.end])

    run(agent(script, plugin, tools=[as_function(helper)]))

    assert plugin.offloader(helper).session == "bob"


def test_the_answer_of_a_delegate_agent_is_kept(store):
    inner = agent(Script([lambda _: report()]), name="researcher", description="Researches.")
    handed_over = Script([lambda _: Call("researcher", {"input": "Look."}, "call_0"), scenario.end])

    result = run(agent(handed_over, StrandsOffloadPlugin(store), tools=[inner.as_tool(delegate=True)]))

    assert needle("alice") in str(result)


@RUNS
def test_an_answer_that_could_not_be_read_back_has_the_status_of_an_error(store, run):
    wrong = Call("context_read", {"id": "abcdefghij"}, "wrong")
    made = agent(
        Script([scenario.ask(), lambda _: wrong, scenario.search, scenario.end]), StrandsOffloadPlugin(store)
    )

    run(made)

    found = [part["toolResult"] for m in made.messages for part in m["content"] if "toolResult" in part]
    assert [result["status"] for result in found] == ["success", "error", "success"]


def test_the_prompt_stands_behind_the_point_to_which_the_host_caches(store):
    given = [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
    plugin, seen = StrandsOffloadPlugin(store), list[Any]()
    made = agent(Script([scenario.end]), plugin, system_prompt=given)
    stream = made.model.stream

    def noted(*sent, **options):
        seen.append(options["system_prompt_content"])
        return stream(*sent, **options)

    made.model.stream = noted
    run(made)

    assert seen == [[*given, {"text": plugin.offloader(made).prompt()}]]


def test_an_agent_made_without_the_plugin_has_no_session_and_makes_no_swarm(store):
    plugin, plain = StrandsOffloadPlugin(store), agent(Script([]))

    with pytest.raises(ConfigError, match="plugins="):
        plugin.offloader(plain)
    with pytest.raises(ConfigError, match="no agent"):
        Swarm([plain], plugins=[plugin])


def test_an_agent_that_is_gone_is_not_held(store):
    plugin = StrandsOffloadPlugin(store)
    made = agent(Script([scenario.ask(), scenario.end]), plugin)
    run(made)
    gone = weakref.ref(made)

    del made
    gc.collect()

    assert gone() is None
    assert len(plugin._conversations) == 0


# Interrupted agents


@function_tool(context=True)
def send_mail(tool_context) -> str:
    """Send the report."""
    return f"sent: {tool_context.interrupt('approve', reason='risky')}"


def approval(result):
    [interrupt] = result.interrupts
    return [{"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}]


BOTH = [Call(QUERY, {}, "call_0"), Call("send_mail", {}, "call_1")]


def file_manager(folder):
    return FileSessionManager("alice", storage_dir=str(folder))


def snapshot_manager(folder):
    return SnapshotSessionManager("alice", storage=LocalFileStorage(str(folder)))


@pytest.mark.parametrize("manager", [file_manager, snapshot_manager])
@pytest.mark.parametrize("is_new_process", [True, False])
def test_an_interrupted_agent_saves_the_placeholder_and_never_the_original(
    store, tmp_path, manager, is_new_process
):
    script = Script([lambda _: BOTH, scenario.search, scenario.read, scenario.end])

    def made():
        plugin = StrandsOffloadPlugin(store, session="alice")
        tools = [tool(), send_mail]
        return agent(script, plugin, tools=tools, session_manager=manager(tmp_path), agent_id="a")

    first = made()
    stopped = run(first)

    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert stopped.stop_reason == "interrupt"
    assert "[Offloaded:" in kept
    assert "entry 01500" not in kept
    resumed = made() if is_new_process else first
    resumed(approval(stopped))
    assert scenario.refs(script.seen[1])
    assert script.seen[1][-1] == "sent: yes"
    assert needle("alice") in script.seen[2][-1]
    [_, _, restored, *_] = StrandsOffloadPlugin(store, session="alice")._sessions.own.restore(
        resumed.messages
    )
    assert restored["content"][0]["toolResult"]["content"] == [{"text": report()}]


def test_a_store_that_fails_costs_no_result_of_an_interrupted_agent(store, caplog):
    faulty = FaultyStore(store, verb="put", is_lasting=True)
    script = Script([lambda _: BOTH, scenario.end])
    made = agent(script, StrandsOffloadPlugin(faulty), tools=[tool(), send_mail])

    made(approval(run(made)))

    assert report() in script.seen[1]
    assert "originals are kept" in caplog.text


def test_the_result_that_a_tool_returned_is_not_changed(store):
    given = {"status": "success", "content": [{"text": report()}], "toolUseId": "call_0"}
    script = Script([lambda _: BOTH, scenario.end])
    made = agent(script, StrandsOffloadPlugin(store), tools=[tool(returns=lambda: given), send_mail])

    run(made)

    assert given["content"] == [{"text": report()}]


# Swarms and graphs


def hand_over(texts):
    """The model passes the id of the last placeholder to the other agent."""
    return Call("handoff_to_agent", {"agent_name": "reader", "message": scenario.tell(texts)}, "call_h")


def grep_named(texts):
    ref = next(word for word in " ".join(texts).split("Look into ")[1].split())[:10]
    return Call("context_grep", {"pattern": "needle of", "id": ref}, "call_g")


def pair(plugin, script):
    asker = Script([scenario.ask(), hand_over, scenario.end])
    return [agent(asker, plugin, name="asker"), agent(script, plugin, name="reader")]


def test_an_id_resolves_for_every_agent_of_a_swarm(store, tmp_path):
    plugin = StrandsOffloadPlugin(store)
    script = Script([grep_named, scenario.end])
    agents = pair(plugin, script)

    swarm = Swarm(agents, plugins=[plugin], session_manager=file_manager(tmp_path))
    swarm(QUESTION)

    assert needle("alice") in script.seen[1][-1]
    assert {plugin.offloader(each).session for each in agents} == {"alice"}


def test_agents_of_a_swarm_without_the_plugin_have_sessions_of_their_own(store):
    plugin = StrandsOffloadPlugin(store)
    script = Script([grep_named, scenario.end])

    Swarm(pair(plugin, script))(QUESTION)

    assert script.seen[1][-1].startswith("Error: unknown id")


def test_two_swarms_share_a_session_only_if_it_is_named(store):
    def sessions(plugin):
        agents = pair(plugin, Script([]))
        Swarm(agents, plugins=[plugin])
        return {plugin.offloader(each).session for each in agents}

    plugin = StrandsOffloadPlugin(store)
    first, second = sessions(plugin), sessions(plugin)

    assert len(first) == len(second) == 1
    assert first != second
    assert sessions(StrandsOffloadPlugin(store, session="team")) == {"team"}


def test_an_id_resolves_for_every_agent_of_a_graph_and_of_a_swarm_in_it(store, tmp_path):
    plugin = StrandsOffloadPlugin(store)
    first = agent(Script([scenario.ask(), lambda texts: scenario.refs(texts)[-1]]), plugin, name="first")
    script = Script([lambda _: Call("context_grep", {"pattern": "needle of"}, "call_g"), scenario.end])
    inner = Swarm([agent(script, plugin, name="inner")])
    builder = GraphBuilder()
    builder.add_node(first, "first")
    builder.add_node(inner, "second")
    builder.add_edge("first", "second")
    builder.set_max_node_executions(4)
    builder.set_plugins([plugin])
    builder.set_session_manager(file_manager(tmp_path))

    builder.build()(QUESTION)

    assert needle("alice") in script.seen[1][-1]
    assert plugin.offloader(first).session == "alice"


def test_an_interrupted_swarm_saves_the_placeholder_and_never_the_original(store, tmp_path):
    plugin = StrandsOffloadPlugin(store)
    script = Script([lambda _: BOTH, scenario.end])
    made = agent(script, plugin, tools=[tool(), send_mail], name="asker")
    swarm = Swarm([made], plugins=[plugin], session_manager=file_manager(tmp_path))

    stopped = swarm(QUESTION)

    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "[Offloaded:" in kept
    assert "entry 01500" not in kept
    swarm(approval(stopped))
    assert scenario.refs(script.seen[1])


# The storage


def stored(store, session="alice"):
    return OffloadStorage(store, session=session)


def awaited(coroutine):
    return asyncio.run(coroutine)


class TestObjects(ObjectsStory):
    failure = damage = StorageError
    verbs = ("put", "get", "keys")

    def space(self, store, owner="alice"):
        return stored(store, owner)

    def write(self, space, name, data):
        awaited(space.write(name, data))

    def read(self, space, name):
        return awaited(space.read(name))

    def listed(self, space):
        return awaited(space.list(""))


def retrieve(**read):
    """Return the step in which the model reads the text that Strands' own offloader took out last."""
    return lambda texts: Call(
        "retrieve_offloaded_content",
        {"reference": texts[-1].rsplit("[Stored references:]\n", 1)[1].split()[0], **read},
        "c",
    )


def test_strands_own_offloader_reads_its_items_from_the_storage_or_a_namespace_of_it(store):
    for storage in (stored(store), stored(store).namespace("theirs")):
        script = Script([scenario.ask(), retrieve(pattern="needle of"), scenario.end])

        run(agent(script, ContextOffloader(storage)))

        assert needle("alice") not in script.shown(2)
        assert needle("alice") in script.seen[2][-1]
        [key] = awaited(storage.list(""))
        assert report().encode() in awaited(storage.read(key))
    assert [key.startswith("theirs/") for key in awaited(stored(store).list(""))] == [False, True]
    assert "context_offloader" not in key


RESUMED = """
import json, sys
from frameworks.scenario import Script, read, search, end
from frameworks.test_strands import kept_agent

given = json.load(sys.stdin)
script = Script([search, read, end])
answer = kept_agent(script, given["url"], given["options"])("And now?")
print(json.dumps([script.seen, str(answer).strip()]))
"""


def kept_agent(script, url, options):
    """Return an agent whose sessions and large results are in one store."""
    kept = OffloadStorage(url, session="alice", storage_options=options)
    manager = SnapshotSessionManager("alice", storage=kept)
    plugin = StrandsOffloadPlugin(url, storage_options=options)
    return agent(script, plugin, session_manager=manager, agent_id="analyst")


def test_strands_session_manager_continues_in_another_process_from_the_storage(s3_bucket):
    url, options = s3_bucket.url, s3_bucket.storage_options
    script = Script([scenario.ask(), scenario.end])
    run(kept_agent(script, url, options))

    seen, answer = scenario.in_new_process(RESUMED, {"url": url, "options": options})

    assert seen[0] == [*script.seen[-1], scenario.ANSWER, "And now?"]
    assert needle("alice") in seen[2][-1]
    assert answer == scenario.ANSWER
    storage = OffloadStorage(url, session="alice", storage_options=options)
    [latest] = awaited(storage.list("session/alice/"))
    assert b"entry 01500" not in awaited(storage.read(latest))


def test_a_namespace_sees_its_own_keys_alone_and_nests(store):
    storage = stored(store)
    alice, bob = storage.namespace("agents/alice/"), storage.namespace("agents").namespace("bob")

    async def use():
        for view, data in ((alice, b"red apples"), (bob, b"red pears"), (storage, b"red")):
            await view.write("k", data)
        await bob.delete("other")
        for view, data in ((alice, b"red apples"), (bob, b"red pears")):
            assert await view.read("k") == data
            assert [found.key for found in await view.search("red")] == await view.list("") == ["k"]
        whole = await storage.list("")
        assert whole == await storage.namespace("").list("") == ["agents/alice/k", "agents/bob/k", "k"]

    awaited(use())


def test_keys_are_overwritten_listed_by_prefix_found_by_words_and_deleted(store):
    storage = stored(store)

    async def use():
        for key, data in {"b/1": b"red apples", "b/2": b"pears", "c": b"red"}.items():
            await storage.write(key, data)
        await storage.write("b/2", b"green pears")
        assert await storage.read("b/2") == b"green pears"
        assert await storage.list("b/") == ["b/1", "b/2"]
        assert [found.key for found in await storage.search("pears")] == ["b/2"]
        for _ in range(2):
            await storage.delete("c")
        assert await storage.read("c") is None
        with pytest.raises(StorageError):
            await stored(FaultyStore(store, verb="delete")).delete("b/1")
        assert await storage.list("") == ["b/1", "b/2"]
        # Without a name each storage has a session of its own.
        await OffloadStorage(store).write("k", b"x")
        assert await OffloadStorage(store).read("k") is None

    awaited(use())


def test_strands_own_offloader_keeps_a_result_that_cannot_be_stored(store):
    script = Script([scenario.ask(), scenario.end])

    run(agent(script, ContextOffloader(stored(FaultyStore(store, verb="put", is_lasting=True)))))

    assert script.seen[1][-1] == report()


def test_records_of_a_session_and_keys_of_the_storage_do_not_meet(store):
    off = Offloader(store, session="alice")
    off.offload_text(report(), tool_name=QUERY)
    awaited(stored(store).write("k", b"x"))

    assert len(off.records()) == 1
    assert awaited(stored(store).list("")) == ["k"]

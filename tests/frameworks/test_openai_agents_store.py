"""`OffloadSession` does what the SDK's own session does, on any store and between processes."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import closing
from typing import Any

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, Script, needle
from kit.store import ActingStore

pytest.importorskip("agents", reason="in the environment of the group integration-openai-agents")

from agents import Session, SessionSettings, SQLiteSession
from frameworks.scripted_openai import agent, kept, sync, texts

from offload import ConfigError, CorruptError, StoreError
from offload.integrations.openai_agents import OffloadRuns, OffloadSession
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore


def said(text):
    return {"role": "user", "content": text}


def run(*calls):
    """Await calls in one loop; return what the last one returns."""

    async def in_order():
        return [await call for call in calls][-1]

    return asyncio.run(in_order())


@pytest.mark.parametrize("place", ["memory", "local", "s3"])
def test_any_calls_have_the_results_of_the_sdks_own_session(place, request, tmp_path):
    bucket = request.getfixturevalue("s3_bucket") if place == "s3" else None
    store = bucket.url if bucket else MemoryStore() if place == "memory" else tmp_path
    options = bucket.storage_options if bucket else None
    drawn = random.Random(place)  # noqa: S311 # the same calls in each run
    settings = SessionSettings(limit=4)
    with closing(SQLiteSession("alice", session_settings=settings)) as theirs:
        for step in range(30):
            # Each call is that of another process.
            ours = OffloadSession("alice", store, storage_options=options, session_settings=settings)
            name = drawn.choice(["add_items"] * 3 + ["pop_item", "get_items"] * 2 + ["clear_session"])
            given: Any = {
                "add_items": [[said(f"{step}, {n}") for n in range(drawn.randrange(4))]],
                "get_items": [drawn.choice([None, -1, 0, 1, 3, 99])],
            }.get(name, [])
            assert run(getattr(ours, name)(*given)) == run(getattr(theirs, name)(*given))
            assert run(ours.get_items(99)) == run(theirs.get_items(99))
    assert isinstance(ours, Session)


CONTINUED = """
import json, sys
from agents import Agent
from frameworks import scenario
from frameworks.scripted_openai import kept, scripted, sync
from offload.integrations.openai_agents import OffloadRuns, OffloadSession

given = json.load(sys.stdin)
script = scenario.Script([scenario.read, scenario.end])
where = {"storage_options": given["options"]}
offloading = OffloadRuns(given["url"], **where)
agent = Agent(name="analyst", model=scripted(script), tools=offloading.tools)
alice = offloading.conversation("alice")
memory = alice.memory(OffloadSession("alice", given["url"], **where))
result = sync(agent, "And now?", session=memory, run_config=alice.run_config())
print(json.dumps([script.seen, result.final_output]))
"""


def test_a_conversation_with_placeholders_continues_in_another_process(s3_bucket):
    url, options = s3_bucket.url, s3_bucket.storage_options
    script = Script([scenario.ask(), scenario.search, scenario.end])
    offloading = OffloadRuns(url, storage_options=options)
    alice = offloading.conversation("alice")
    session = OffloadSession("alice", url, storage_options=options)

    sync(agent(script, offloading), session=alice.memory(session), run_config=alice.run_config())
    seen, answer = scenario.in_new_process(CONTINUED, {"url": url, "options": options})

    assert "entry 01500" not in json.dumps(kept(session))
    assert seen[0] == [*script.seen[-1], ANSWER, "And now?"]
    assert needle("alice") in seen[1][-1]
    assert answer == ANSWER


def test_two_writers_at_once_lose_nothing(store):
    other = OffloadSession("alice", store)
    racing = ActingStore(store, lambda verb, _: verb == "put" and run(other.add_items([said("theirs")])))

    run(OffloadSession("alice", racing).add_items([said("ours")]))

    assert sorted(item["content"] for item in kept(other)) == ["ours", "theirs"]


def test_an_item_that_comes_during_a_removal_is_not_removed_in_its_place(store):
    other = OffloadSession("alice", store)
    run(other.add_items([said("first"), said("second")]))
    racing = ActingStore(store, lambda verb, _: verb == "put" and run(other.add_items([said("third")])))

    assert run(OffloadSession("alice", racing).pop_item()) == said("second")

    assert kept(other) == [said("first"), said("third")]


def test_a_cancelled_addition_keeps_its_place(store):
    async def add():
        session = OffloadSession("alice", store)
        first = asyncio.create_task(session.add_items([said("first")]))
        await asyncio.sleep(0)
        first.cancel()
        await session.add_items([said("second")])
        return await session.get_items()

    assert asyncio.run(add()) == [said("first"), said("second")]


def test_what_is_missing_or_cannot_be_stored_is_an_error(store):
    session = OffloadSession("alice", store)
    run(session.add_items([said("first")]), session.add_items([said("second")]))
    with pytest.raises(ConfigError, match="JSON"):
        run(session.add_items([said(object())]))
    with pytest.raises(StoreError):
        run(OffloadSession("alice", FaultyStore(store, verb="put")).add_items([said("third")]))
    store.delete(next(iter(store.keys())).key)

    with pytest.raises(CorruptError, match="missing"):
        kept(session)
    assert kept(OffloadSession("bob", store)) == []
    wrong: Any
    for wrong in ("", None):
        with pytest.raises(ConfigError, match="session_id"):
            OffloadSession(wrong, store)


def test_without_a_wrapper_the_items_are_as_the_run_has_them(store):
    script = Script([scenario.ask(), scenario.end])
    offloading = OffloadRuns(store)
    session = OffloadSession("alice", store)

    result = sync(agent(script, offloading), session=session)

    assert kept(session) == result.to_input_list()
    assert texts(kept(session))[-1] == ANSWER

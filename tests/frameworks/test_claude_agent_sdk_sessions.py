"""`OffloadSessionStore` against the SDK's own suite, where that ends, and with the real Claude Code."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="in the environment of the group integration-claude-agent-sdk")

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    delete_session_via_store,
    fold_session_summary,
    list_sessions_from_store,
    query,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance
from frameworks.claude_code import ClaudeCode, serving, text, tool
from kit.store import ActingStore

from offload import CorruptError, EncryptionError, Offloader, Retention, StoreError, StorePermissionError
from offload.integrations.claude_agent_sdk import OffloadSessionStore, offloaded
from offload.maintenance.retention import collect
from offload.storage.wrappers import EncryptingStore, ReadOnlyStore
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

MAIN = {"project_key": "p", "session_id": "s"}
AGENT = {**MAIN, "subpath": "subagents/agent-1"}

WRITER = """
import asyncio, sys
from offload.integrations.claude_agent_sdk import OffloadSessionStore
sessions = OffloadSessionStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
async def main():
    for n in range(20):
        entry = {"type": "user", "uuid": f"{sys.argv[2]}-{n}"}
        await sessions.append({"project_key": "p", "session_id": "s"}, [entry])
asyncio.run(main())
"""


def entry(n, **fields):
    return {"type": "user", "uuid": str(n), **fields}


def appended(store, *batches, key=MAIN):
    """Append batches to a transcript in a store; return the sessions."""
    sessions = OffloadSessionStore(store)
    for batch in batches:
        asyncio.run(sessions.append(key, batch))
    return sessions


def load(store, key=MAIN):
    return asyncio.run(OffloadSessionStore(store).load(key))


def keys_of(store):
    return [stored.key for stored in store.keys()]


@pytest.mark.parametrize("place", ["memory", "local", "s3"])
def test_it_passes_the_suite_of_the_sdk(place, request, tmp_path):
    folders = itertools.count()

    def new():
        if place == "s3":
            bucket = request.getfixturevalue("s3_bucket")
            return OffloadSessionStore(
                f"{bucket.url}/{next(folders)}", storage_options=bucket.storage_options
            )
        return OffloadSessionStore(MemoryStore() if place == "memory" else tmp_path / f"{next(folders)}")

    asyncio.run(run_session_store_conformance(new))


def test_appends_at_once_are_in_the_order_of_their_calls_and_an_entry_comes_back_once(store):
    batches = [[entry(n), {"type": "tag", "tag": "same"}] for n in range(30)]

    async def append():
        sessions = OffloadSessionStore(store)
        await asyncio.gather(*(sessions.append(MAIN, batch) for batch in [*batches, batches[3]]))

    asyncio.run(append())

    assert load(store) == [*itertools.chain(*batches), batches[3][1]]


def test_a_cancelled_append_is_whole_and_before_the_next_one(store):
    async def append():
        sessions = OffloadSessionStore(store)
        first = asyncio.create_task(sessions.append(MAIN, [entry(1)]))
        await asyncio.sleep(0)
        first.cancel()
        await sessions.append(MAIN, [entry(2)])

    asyncio.run(append())

    assert load(store) == [entry(1), entry(2)]


def test_two_processes_at_once_lose_nothing_and_a_third_continues(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
    writers: list[Any] = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for name in "ab"
    ]
    assert [writer.stdout.readline() for writer in writers] == [b"ready\n"] * 2
    for writer in writers:
        writer.stdin.close()
    for writer in writers:
        with writer:
            assert writer.wait(60) == 0
    appended(tmp_path / "store", [entry("last")])

    entries = load(tmp_path / "store")
    for name in "ab":
        mine = [each["uuid"] for each in entries if each["uuid"].startswith(name)]
        assert mine == [f"{name}-{n}" for n in range(20)]
    assert entries[-1]["uuid"] == "last"
    assert len(entries) == 41


def test_a_summary_lacks_nothing_of_two_batches_that_were_written_at_once(store):
    racing = ActingStore(store, lambda verb, _: verb == "put" and appended(store, [entry(1, aiTitle="a")]))
    sessions = appended(racing, [entry(2, customTitle="b")])
    assert asyncio.run(sessions.list_session_summaries("p")) == []

    appended(store, [entry(3)])

    [summary] = asyncio.run(sessions.list_session_summaries("p"))
    assert summary["data"] == fold_session_summary(None, MAIN, load(store))["data"]


def test_requests(store):
    acting = ActingStore(store)
    sessions = appended(acting, *([entry(n)] for n in range(5)))
    appended(acting, [entry(9)], key=AGENT)

    def requests(call):
        acting.asked.clear()
        asyncio.run(call)
        return [verb for verb, _ in acting.asked]

    assert requests(sessions.append(MAIN, [entry(5)])) == ["keys", "get", "put"]
    assert requests(sessions.append(AGENT, [entry(5)])) == ["keys", "put"]
    assert requests(sessions.load(MAIN)) == ["keys", *["get"] * 6]
    assert requests(sessions.list_sessions("p")) == ["keys"]
    assert requests(sessions.list_session_summaries("p")) == ["keys", "get"]


def test_an_append_that_fails_raises_and_its_retry_comes_back_once(store):
    for moment in ("before", "after"):
        faulty = FaultyStore(store, verb="put", moment=moment)
        with pytest.raises(StoreError):
            appended(faulty, [entry(moment)])
        appended(faulty, [entry(moment)])
    with pytest.raises(StorePermissionError):
        appended(ReadOnlyStore(store), [entry(3)])

    assert load(ReadOnlyStore(store)) == [entry("before"), entry("after")]


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_batch_that_is_missing_or_damaged_is_named_and_costs_only_its_own_session(store, is_missing):
    appended(store, *([entry(n)] for n in range(3)))
    appended(store, [entry(1, customTitle="Other")], key={**MAIN, "session_id": "other"})
    *_, key, last = keys_of(store)
    if is_missing:
        store.delete(key)
    else:
        store.put(last, b"damaged", overwrite=True)

    for more in ([], [entry(3)]):
        sessions = appended(store, more)
        with pytest.raises(CorruptError, match=last):
            load(store)
        summaries = asyncio.run(sessions.list_session_summaries("p"))
        assert [each["session_id"] for each in summaries] == ["other"]
        assert [each["session_id"] for each in asyncio.run(sessions.list_sessions("p"))] == ["other", "s"]


@pytest.mark.parametrize("name", ["..", "/", "A", "con", "naïve", "\ud800", "~", "long/" * 100])
def test_names_are_data(tmp_path, name):
    key = {"project_key": name, "session_id": name, "subpath": name}
    main = {"project_key": name, "session_id": name}
    sessions = appended(tmp_path, [entry(1)], key=main)
    appended(tmp_path, [entry(2, text="\ud800")], key=key)

    assert load(tmp_path, main) == [entry(1)]
    assert load(tmp_path, key) == [entry(2, text="\ud800")]
    assert [each["session_id"] for each in asyncio.run(sessions.list_sessions(name))] == [name]
    assert asyncio.run(sessions.list_subkeys(main)) == [name]


def test_a_deleted_session_leaves_nothing_and_gc_deletes_none(store):
    sessions = appended(store, [entry(1)])
    appended(store, [entry(2)], key=AGENT)
    collect(store, Retention(grace=0, store_bytes=1))
    assert (load(store), load(store, AGENT)) == ([entry(1)], [entry(2)])

    asyncio.run(sessions.delete(MAIN))

    assert keys_of(store) == []


def test_an_encrypted_store_shows_no_content(store):
    sealed = EncryptingStore(store, b"k" * 32)
    appended(sealed, [entry(1, text="secret " * 9)])

    assert load(sealed) == [entry(1, text="secret " * 9)]
    [key] = keys_of(store)
    assert b"secret" not in key.encode() + store.get(key)
    with pytest.raises(EncryptionError, match=key):
        load(store)


def test_a_session_continues_on_another_machine_with_what_was_offloaded(tmp_path, store):
    def run(machine, script, **more):
        async def messages():
            options = ClaudeAgentOptions(
                cwd=folder,
                env={**place.place["env"], "CLAUDE_CONFIG_DIR": str(place.home / ".claude")},
                allowed_tools=["Bash"],
                session_store=OffloadSessionStore(store),
                **more,
            )
            options = offloaded(options, Offloader(store, session="alice"))
            return [message async for message in query(prompt=f"from {machine}", options=options)]

        with serving(script) as api:
            place = ClaudeCode(tmp_path / machine, api.url)
            [result] = [m for m in asyncio.run(messages()) if isinstance(m, ResultMessage)]
        return api, result.session_id

    folder = tmp_path / "project"
    folder.mkdir()
    first, session = run("first", [tool("Bash", command="seq 1 6000"), text("done")])
    second, resumed = run("second", lambda _: text("done"), resume=session)
    sessions = OffloadSessionStore(store)
    asyncio.run(rename_session_via_store(sessions, session, "Numbers", str(folder)))

    assert resumed == session
    assert "from first" in second.last.texts
    assert "[Offloaded:" in second.last.results[0]
    assert second.last.results == first.last.results
    [info] = asyncio.run(list_sessions_from_store(sessions, str(folder)))
    assert (info.session_id, info.custom_title) == (session, "Numbers")
    asyncio.run(delete_session_via_store(sessions, session, str(folder)))
    assert not any(key.startswith("s/") for key in keys_of(store))

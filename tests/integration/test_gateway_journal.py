"""The timelines of a gateway's conversations: each request as the provider got it, never in its way."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager

import pytest
from gateways import HEADERS, REPLY, USAGE, ask, body_of, connection, providing, running, turns, wait_for
from kit.store import ActingStore, failing

from offload import Offloader, open_store
from offload.errors import StoreUnavailableError
from offload.gateway import _threads
from offload.maintenance.jobs import verify
from offload.messages.context.ir import item_type_of
from offload.reading.timeline import Timeline
from offload.records import index
from offload.records.journal import writer
from offload.records.journal.reader import Journal
from offload.records.session.reader import SessionReader


@pytest.fixture
def upstream():
    with providing() as provider:
        yield provider


@pytest.fixture
def off(tmp_path):
    return Offloader(tmp_path / "store", session="gateway", journal=True)


@contextmanager
def sending(upstream, off):
    """Yield a function that sends messages through a gateway; at the end the journals are written."""
    with running(upstream.url, off) as url:
        yield lambda messages, **fields: ask(f"{url}/v1/messages", body_of(messages, **fields))


def conversations(store):
    """Return the names of the sessions with a journal, from the keys alone."""
    return sorted({key.key.split("/")[1] for key in store.keys("j/")})


def timeline(off):
    [name] = conversations(off.store)
    return Timeline(off.store, name)


def test_each_request_of_a_conversation_is_in_its_timeline_as_the_provider_got_it(upstream, off):
    with sending(upstream, off) as send:
        for count in range(1, 11):
            send(turns(count))
    found = timeline(off)
    assert [found.at(n) for n in range(1, 11)] == [seen.json["messages"] for seen in upstream.seen]
    assert found[0].tokens_offloaded == 0 < found[9].tokens_offloaded
    assert "context_read" in json.dumps(found.at(10))
    assert found[9].model == "claude-opus-5"
    report = verify(off.store)
    assert (report.entries, report.damaged, report.damaged_entries) == (10, [], [])


def test_a_request_that_the_client_ends_before_its_reply_begins_is_in_the_timeline(upstream, off):
    is_over = threading.Event()
    with running(upstream.url, off) as url:
        ask(f"{url}/v1/messages", body_of(turns(1)))
        upstream.answer = lambda _: is_over.wait(20)
        with closing(connection(url)) as client:
            client.request("POST", "/v1/messages", body_of(turns(2)), HEADERS)
            wait_for(lambda: len(upstream.seen) == 2)
        wait_for(lambda: len(timeline(off)) == 2)
    is_over.set()
    assert timeline(off).at(2) == upstream.seen[1].json["messages"]


def test_a_request_that_grows_a_conversation_is_compared_where_it_is_new(upstream, off, monkeypatch):
    typed = []

    def noting(message):
        typed.append(message)
        return item_type_of(message)

    monkeypatch.setattr(writer, "item_type_of", noting)
    with sending(upstream, off) as send:
        send(turns(10))
        send(turns(11))

    # The last result of the first request is replaced in the second one.
    assert len(typed) == 21 + 3
    assert timeline(off).at(2) == upstream.seen[1].json["messages"]


def test_reminders_that_the_engine_does_not_see_are_in_it_and_cache_marks_are_not(upstream, off):
    tail = "\n<system-reminder>\nThe file may have changed.\n</system-reminder>"
    with sending(upstream, off) as send:
        for count in range(1, 11):
            messages = turns(count, tail=tail)
            messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
            send([*messages, {"role": "assistant", "content": "I will"}])
    found = timeline(off)
    for number, seen in enumerate(upstream.seen, 1):
        messages = seen.json["messages"]
        del messages[-2]["content"][0]["cache_control"]
        assert found.at(number) == messages
    assert sum(entry.size for entry in off.store.keys("j/")) < 40_000


def test_a_result_that_is_stored_ahead_is_shown_as_it_was_sent(upstream, off):
    with sending(upstream, off) as send:
        send(turns(3))
        send(turns(3))
        send(turns(4))
        send([*turns(4), {"role": "user", "content": "Now?"}])
    found = timeline(off)
    assert len(found) == 3 + (upstream.seen[0].json != upstream.seen[1].json)
    assert found.at(len(found)) == upstream.seen[-1].json["messages"]


def test_the_usage_of_a_request_is_noted(upstream, off):
    with sending(upstream, off) as send:
        send(turns(1))
        send(turns(2))
    used = timeline(off)[0].usage
    assert (used.read, used.written) == (
        USAGE["cache_read_input_tokens"],
        USAGE["cache_creation_input_tokens"],
    )


def test_two_conversations_have_a_timeline_each_and_the_records_stay_in_one_session(upstream, off):
    other = [{"role": "user", "content": "Another task."}, *turns(3)[1:]]
    with sending(upstream, off) as send:
        send(turns(3))
        send(other)
        send(turns(4))
    names = conversations(off.store)
    assert [name.startswith("gateway.") for name in names] == [True, True]
    assert sorted(len(Timeline(off.store, name)) for name in names) == [1, 2]
    assert {info.ref for name in names for info in SessionReader(off.store, name).infos()} <= {
        info.ref for info in off.records()
    }


def test_new_gateways_and_replicas_that_answer_in_turn_keep_one_timeline(upstream, off):
    twin = Offloader(off.store.url, session="gateway", journal=True)
    for count in range(1, 4):
        # Each replica has its entry in the store before the other one gets the next request.
        with sending(upstream, off) as send:
            send(turns(2 * count))
        with sending(upstream, twin) as send:
            send(turns(2 * count + 1))
    found = timeline(off)
    assert [found.at(n + 1) for n in range(6)] == [seen.json["messages"] for seen in upstream.seen]


def test_live_replicas_see_what_the_other_one_wrote(upstream, off):
    twin = Offloader(off.store.url, session="gateway", journal=True)
    with sending(upstream, off) as one, sending(upstream, twin) as other:
        for count in range(1, 7):
            (one if count % 2 else other)(turns(count))
            wait_for(lambda: conversations(off.store) and len(timeline(off)) == count)  # noqa: B023 # called at once
    found = timeline(off)
    assert [found.at(n + 1) for n in range(6)] == [seen.json["messages"] for seen in upstream.seen]


def test_a_fork_of_a_conversation_continues_it_and_reads_its_records(upstream, off):
    with sending(upstream, off) as send:
        for count in range(1, 11):
            send(turns(count))
    [name] = conversations(off.store)
    fork = Offloader(off.store, session=name).fork("again", at=10)
    sent = fork.timeline().at(10)
    assert sent == upstream.seen[-1].json["messages"]
    assert sent != turns(10)
    assert fork.restore(sent) == turns(10)


def test_a_timeline_reads_all_records_that_its_entries_name_also_those_stored_ahead(upstream, off):
    with sending(upstream, off) as send:
        for count in range(1, 11):
            send(turns(count))
            wait_for(lambda: conversations(off.store) and len(timeline(off)) == count)  # noqa: B023 # called at once
    [name] = conversations(off.store)
    named = {
        ref for change in Journal(off.store, name).last_changes() for ref in change.head.get("records", ())
    }
    assert named
    assert named <= {info.ref for info in SessionReader(off.store, name).infos()}


def test_an_error_of_the_provider_is_no_request_of_the_timeline(upstream, off):
    with sending(upstream, off) as send:
        send(turns(1))
        upstream.answer = lambda provider: provider.say(429, b"{}")
        send(turns(2))
        upstream.answer = lambda provider: provider.say(200, json.dumps(REPLY).encode())
        send(turns(2))
    assert [request.messages for request in timeline(off)] == [3, 5]


def test_a_store_that_takes_no_journal_costs_no_request(upstream, tmp_path, caplog):
    closed = failing(StoreUnavailableError("the bucket is closed"), "put", part="j/")
    off = Offloader(ActingStore(open_store(tmp_path / "store"), closed), session="gateway", journal=True)
    with sending(upstream, off) as send:
        for count in range(1, 4):
            assert send(turns(count)).json == REPLY
    assert caplog.text.count("the timeline of a conversation is not written") == 1


def test_requests_are_left_out_once_too_many_wait_for_the_store(upstream, off, monkeypatch, caplog):
    monkeypatch.setattr("offload.gateway._journals._MOST_WAITING", 0)
    with sending(upstream, off) as send:
        assert send(turns(2)).json == REPLY
    assert conversations(off.store) == []
    assert "missing in the timeline, since the store is slow" in caplog.text


def test_without_a_journal_nothing_but_records_is_stored(upstream, tmp_path):
    off = Offloader(tmp_path / "store", session="gateway")
    with sending(upstream, off) as send:
        send(turns(3))
    assert conversations(off.store) == []
    assert [*index.sessions(off.store)] == ["gateway"]


def test_a_conversation_that_is_dropped_from_memory_keeps_one_timeline(upstream, off, monkeypatch):
    monkeypatch.setattr(_threads, "_MOST_BYTES", 1)
    other = [{"role": "user", "content": "Another task."}]
    with sending(upstream, off) as send:
        for count in range(1, 4):
            send(turns(count))
            send([*other, *turns(count)[1:]])
    for name in conversations(off.store):
        assert [request.messages for request in Timeline(off.store, name)] == [3, 5, 7]

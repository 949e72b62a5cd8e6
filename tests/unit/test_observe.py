"""Reports of an offloader: events, log lines, and counts of reads."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import prepared
import pytest
from kit.store import CountedStore

from offload import (
    AgentConfig,
    ContextManager,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Reason,
    ReasonKind,
    Retention,
    Rule,
    StoreError,
)
from offload.base.events import ContextEvent, EventBus, EventType
from offload.engine.policy.cost import LEFT_ALONE
from offload.maintenance.retention import collect
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

CANARY = "canary4711"
LINE = "nothing to see in this line of many\n"
LOG = LINE * 300 + f"{CANARY} stands here\n" + LINE * 300
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=100)}, min_saving=0)


def result(text: str = LOG, call: str = "c1") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


def opened(store: Any = None, **options: Any) -> tuple[Offloader, list[ContextEvent]]:
    """Return an offloader and the list that its events go to."""
    off = Offloader(store or MemoryStore(), session="s", **{"policy": POLICY, **options})
    heard: list[ContextEvent] = []
    off.events.subscribe(heard.append)
    return off, heard


def of(heard: list[ContextEvent], event_type: EventType) -> list[dict[str, Any]]:
    return [dict(event.data) for event in heard if event.event_type is event_type]


# Events


def test_a_single_text_that_stays_is_told_with_the_reason(caplog):
    off, heard = opened(policy=None)
    with caplog.at_level(logging.DEBUG, logger="offload"):
        off.offload_text(LOG, tool_name="read_rows", tool_use_id="c1", file_readers="keep")
        off.offload_text(LOG, tool_name="read_rows", tool_use_id="c1")

    [told] = of(heard, EventType.ITEM_KEPT)
    reason = str(Reason(ReasonKind.LATER, count=LEFT_ALONE))
    assert told.pop("tokens") > 1500
    assert told == {
        "session": "s",
        "item_type": "tool_result",
        "tool_name": "read_rows",
        "tool_use_id": "c1",
        "chars": len(LOG),
        "kind": "later",
        "reason": reason,
    }
    assert [r.message for r in caplog.records if reason in r.message] != []
    assert CANARY not in caplog.text
    assert of(heard, EventType.OFFLOAD_FAILED) == []


def test_a_turn_is_told_with_what_it_brought_and_an_item_once_with_its_ids_and_sizes():
    off, heard = opened()
    messages = [result(), result(LOG + "more", "c2")]

    out = off.offload(messages)
    off.offload(messages)

    info, text = out.records[0], out.messages[0]["content"][0]["content"]
    stored = of(heard, EventType.ITEM_STORED)
    assert len(stored) == 2
    assert stored[0] == {
        "session": "s",
        "ref": info.ref,
        "item_type": "tool_result",
        "tool_name": None,
        "tool_use_id": "c1",
        "chars": len(LOG),
        "tokens": info.tokens,
        "bytes": len(LOG),
        "stored_bytes": info.stored_bytes,
        "chars_freed": len(LOG) - len(text),
    }
    first, second = of(heard, EventType.CALL_ENDED)
    assert 0 < first.pop("seconds") < 60
    assert first == {
        "session": "s",
        "operation": "offload",
        "messages": 2,
        "records": 2,
        "tokens_before": out.tokens_before,
        "tokens_after": out.tokens_after,
        "chars_freed": out.chars_freed,
        "errors": 0,
    }
    assert second["records"] == 2


def test_a_failure_is_told_by_its_code_and_logged_and_the_turn_goes_on(caplog: pytest.LogCaptureFixture):
    off, heard = opened(FaultyStore(MemoryStore(), is_lasting=True))

    [error] = off.offload([result()]).errors

    assert of(heard, EventType.OFFLOAD_FAILED) == [{"session": "s", "kind": error.kind}]
    assert of(heard, EventType.CALL_ENDED)[0]["errors"] == 1
    assert of(heard, EventType.ITEM_STORED) == []
    assert isinstance(error, StoreError)
    assert f"originals are kept: {error}" in caplog.text


def test_a_call_that_raises_is_told_by_the_code_of_its_error():
    off, heard = opened()

    with pytest.raises(NotFoundError):
        off.tools.read("abcdefghij")
    assert off.tools.call("context_tail", {"id": "abcdefghij"}).startswith("Error")

    calls = of(heard, EventType.CALL_ENDED)
    assert [(c["operation"], c["kind"]) for c in calls] == [
        ("context_read", "not_found"),
        ("context_tail", "not_found"),
    ]
    assert off.stats().reads == {}


def test_texts_sinks_restores_and_checks_are_told_as_calls():
    off, heard = opened()

    text = off.offload_text(LOG, tool_use_id="c1")
    with off.open_sink(tool_use_id="c2") as sink:
        for _ in range(300):
            sink.write(LINE * 1000)
    off.restore([result(text)])
    off.verify()
    off.tools.call("context_grep", {})

    stored = [item["chars"] for item in of(heard, EventType.ITEM_STORED)]
    assert stored == [len(LOG), len(LINE) * 300_000]
    operations = [call["operation"] for call in of(heard, EventType.CALL_ENDED)]
    assert operations == ["offload_text", "offload_text", "restore", "verify", "context_grep"]


def test_a_collection_is_told_of_a_session_and_of_a_store():
    store = MemoryStore()
    off, heard = opened(store, policy=POLICY.model_copy(update={"retention": Retention(session_records=1)}))
    off.offload([result(), result(LOG + "more", "c2")])
    off.gc(dry_run=True)
    collect(store, Retention(store_records=1, live_for=0, grace=0), events=off.events)

    session, whole = of(heard, EventType.RECORDS_COLLECTED)
    assert (session["session"], session["is_dry_run"], session["deleted"]) == ("s", True, 0)
    assert (whole["session"], whole["is_dry_run"]) == (None, False)
    assert whole["marked"] == whole["deleted"] > 0
    assert whole["bytes_freed"] > 0


def test_one_bus_hears_the_agent_loop_its_offloaders_and_a_fork():
    off, heard = opened()
    manager = ContextManager(off, AgentConfig(window_tokens=100_000))

    manager.add({"role": "user", "content": "Why does it fail?"})
    manager.add(result())
    manager.before_model_call()
    off.fork("t").offload([result(LOG + "more", "c2")])

    told = {event.event_type for event in heard}
    assert {EventType.ITEM_ADDED, EventType.ITEMS_OFFLOADED, EventType.ITEM_STORED} <= told
    assert [item["session"] for item in of(heard, EventType.ITEM_STORED)] == ["s", "t"]


# What was read back


def test_stats_count_what_was_read_back_of_each_record():
    off, heard = opened()
    one, two = (off.offload([result(), result(LINE * 400, "c2")])).records

    answers = [off.tools.read(one.ref, limit=50), off.tools.tail(one.ref, lines=2)]
    found = off.tools.grep(CANARY)
    off.tools.list()

    stats = off.stats()
    assert stats.reads == {one.ref: 3}
    assert two.ref not in stats.reads
    assert sum(map(len, answers)) < stats.chars_read < sum(map(len, [*answers, found]))
    shown = [call["reads"] for call in of(heard, EventType.CALL_ENDED) if "reads" in call]
    assert [list(reads) for reads in shown] == [[one.ref]] * 3
    assert sum(sum(reads.values()) for reads in shown) == stats.chars_read


def test_counting_what_is_read_back_costs_the_store_no_request():
    store = CountedStore()
    off, _ = opened(store)
    ref = off.offload([result()]).records[0].ref
    off.tools.read(ref)
    store.requests.clear()

    assert off.stats().reads == {ref: 1}
    assert store.requests == ["keys r/s/"]
    off.tools.read(ref)
    assert store.requests == ["keys r/s/"]


def test_a_search_counts_each_record_that_it_shows_once_and_a_value_counts_too():
    off, _ = opened()
    rows = json.dumps({"rows": list(range(2000))})
    messages = [result(LINE * 300), result(LINE * 400, "c2"), result(rows, "c3")]
    one, two, value = (info.ref for info in off.offload(messages).records)

    off.tools.grep("line of many", max_matches=3)
    assert off.stats().reads == {two: 1}, "the one with more matches"
    off.tools.grep("line of many", one, max_matches=3)
    assert off.stats().reads == {one: 1, two: 1}
    off.tools.read(value, pointer="/rows/7")
    assert off.stats().reads == {one: 1, two: 1, value: 1}


def test_reads_are_counted_whoever_reads_at_once():
    off, heard = opened()
    ref = off.offload([result()]).records[0].ref
    threads = [
        threading.Thread(target=lambda: [off.tools.read(ref, limit=10) for _ in range(50)]) for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert off.stats().reads == {ref: 200}
    told = [call["reads"][ref] for call in of(heard, EventType.CALL_ENDED) if "reads" in call]
    assert (len(told), sum(told)) == (200, off.stats().chars_read)


# Listeners


def test_what_a_listener_raises_reaches_nobody(caplog: pytest.LogCaptureFixture):
    def broken(event: ContextEvent) -> None:
        raise RuntimeError(event.event_type)

    events = EventBus()
    end = events.subscribe(broken)
    heard: list[ContextEvent] = []
    events.subscribe(heard.append)
    off = Offloader(MemoryStore(), session="s", policy=POLICY, events=events)

    out = off.offload([result()])
    off.tools.read(out.records[0].ref)

    assert out.errors == []
    assert off.restore(out.messages) == [result()]
    assert len(heard) == caplog.text.count("a listener failed") == 4
    end()
    off.tools.read(out.records[0].ref)
    assert (len(heard), caplog.text.count("a listener failed")) == (5, 4)


def test_whoever_listens_is_told_nothing_else_than_without(tmp_path: Path):
    def stored(off: Offloader) -> object:
        out = off.offload([result()])
        return out.messages, off.tools.read(out.records[0].ref), out.records[0].key

    silent = Offloader(tmp_path / "a", session="s", policy=POLICY)
    assert stored(silent) == stored(opened(tmp_path / "b")[0])


def calls_of(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> tuple[int, int]:
    """Return how many events `act` makes and how often it asks for a duration."""
    made, asked = Mock(wraps=ContextEvent), Mock(wraps=time.perf_counter)
    with monkeypatch.context() as patched:
        patched.setattr("offload.records.observer.ContextEvent", made)
        patched.setattr("offload.records.observer.time.perf_counter", asked)
        act()
    return made.call_count, asked.call_count


def test_while_nobody_listens_no_event_is_made_and_no_clock_asked(monkeypatch: pytest.MonkeyPatch):
    def work(off: Offloader) -> Callable[[], object]:
        def act() -> None:
            ref = off.offload([result()]).records[0].ref
            off.tools.read(ref)
            off.gc()

        return act

    silent = Offloader(MemoryStore(), session="s", policy=POLICY)
    assert calls_of(monkeypatch, work(silent)) == (0, 0)
    assert calls_of(monkeypatch, work(opened()[0])) == (5, 6)


# The log


def test_the_log_tells_ids_and_sizes_at_debug_and_nothing_above(caplog: pytest.LogCaptureFixture):
    off = Offloader(MemoryStore(), session="s", policy=POLICY)
    with caplog.at_level(logging.DEBUG, "offload"):
        ref = off.offload([result()]).records[0].ref
        off.tools.read(ref)

    assert f"session s: {ref}: {len(LOG)} characters stored in " in caplog.text
    assert "session s: context_read, " in caplog.text
    assert {record.levelname for record in caplog.records if record.name == "offload"} == {"DEBUG"}


class QuotingError(Exception):
    """An error of a careless hook, whose message quotes its input."""


def quote(text: Any, *_: Any) -> Any:
    raise QuotingError(f"cannot do {getattr(text, 'preview', text)}")


class QuotingRenderer:
    def render(self, _: object) -> str:
        return str(quote(LOG))

    def find_ref(self, _: str) -> None:
        return None


@pytest.mark.parametrize(
    "part",
    [
        {"redact": quote},
        {"summarizer": quote},
        {"token_counter": quote},
        {"should_offload": lambda _: quote(LOG)},
        {"placeholder": QuotingRenderer()},
    ],
    ids=lambda part: next(iter(part)),
)
def test_what_a_part_of_the_callers_own_quotes_is_in_no_log_and_no_event(
    part: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG, "offload"):
        off, heard = opened(**part)
        out = off.offload([result()])
        off.offload_text(LOG, tool_use_id="c2")
        manager = ContextManager(off, AgentConfig(window_tokens=2000))
        manager.add(result())
        manager.before_model_call()

    assert "QuotingError" in caplog.text
    assert CANARY not in caplog.text
    assert CANARY not in repr(heard)
    if "summarizer" not in part:
        assert [str(error.__cause__) for error in out.errors] == [f"cannot do {LOG}"]


def test_a_program_without_logging_sees_on_stderr_that_its_store_fails() -> None:
    done = prepared.run("""
from offload import Offloader
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore
off = Offloader(FaultyStore(MemoryStore(), verb="put", is_lasting=True), session="s")
assert off.offload_text("a line of many\\n" * 2000) == "a line of many\\n" * 2000
""")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("session s: offloading failed, originals are kept: tool_result: ")
    assert done.stderr.count("\n") == 1


def test_the_log_says_that_originals_are_kept_only_if_they_are(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(MemoryStore(), verb="put", is_lasting=True)
    off = Offloader(store, session="s", on_error="truncate")
    assert "was not stored and is lost" in off.offload_text("a line of many\n" * 2000)
    assert caplog.messages[0].startswith("session s: offloading failed: tool_result: ")


def test_what_a_message_object_quotes_is_in_no_log(caplog: pytest.LogCaptureFixture):
    class Odd:
        @property
        def role(self) -> str:
            raise QuotingError(LOG)

    off, heard = opened()
    out = off.offload([Odd()])

    assert CANARY not in caplog.text + repr(heard)
    assert "message, after QuotingError" in caplog.text
    assert [type(error.__cause__) for error in out.errors] == [QuotingError]


def test_the_log_says_how_to_call_an_async_hook_from_an_event_loop(caplog: pytest.LogCaptureFixture):
    async def redact(text: str) -> str:
        return text

    async def agent() -> None:
        Offloader("memory://", session="s", redact=redact).offload_text(LOG)

    asyncio.run(agent())

    assert "await the async method" in caplog.text


def test_the_page_on_events_has_each_in_its_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    table = page[page.index("| event | emitted by |") :].partition("\n\n")[0]

    assert sorted(re.findall(r"`([a-z]+_[a-z_]+)`", table)) == sorted(EventType)

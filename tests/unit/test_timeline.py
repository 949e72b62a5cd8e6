"""The timeline of a session: its requests, as they were sent, from the store alone."""

from __future__ import annotations

import copy
import json
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from command import runner
from forks import conversation, exchange, keys, run
from formats import FORMATS, exchange as exchange_of, user
from hypothesis import given, strategies as st
from kit.store import ActingStore, CountedStore, failing
from strength import examples

from offload import (
    AgentConfig,
    CollisionError,
    ConfigError,
    ContextManager,
    CorruptError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Rule,
    StoreUnavailableError,
    open_store,
)
from offload.agent.compaction import RoundCompactor
from offload.maintenance.jobs import verify
from offload.maintenance.retention import delete
from offload.maintenance.transfer import copy_session, export_session, import_session
from offload.records.journal.writer import JournalWriter
from offload.storage.layout import JOURNAL
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

LATE = OffloadPolicy(types={"tool_result": Rule(min_tokens=100, after_replies=2)}, min_saving=0)


def journaled(store: Any, **options: Any) -> Offloader:
    return Offloader(store, session="s", journal=True, **options)


def told(store: Any) -> list[list[Any]]:
    """Return the requests of a session as another process reads them."""
    timeline = Offloader(store, session="s").timeline()
    return [timeline.at(n) for n in range(1, len(timeline) + 1)]


def entries(store: Any) -> list[str]:
    return [found.key for found in store.keys("j/")]


# As it was sent


def test_every_request_is_returned_as_it_was_sent_by_another_process(tmp_path: Path) -> None:
    sent = run(journaled(tmp_path), 12)
    timeline = Offloader(tmp_path, session="s").timeline()

    assert [timeline.at(n) for n in range(1, 13)] == sent
    assert [request.number for request in timeline] == [*range(1, 13)]
    assert [request.messages for request in timeline] == [*range(1, 24, 2)]
    assert [request.records for request in timeline] == [0, *[1] * 11]


def test_a_request_whose_old_items_leave_late_is_returned_with_them_in_full() -> None:
    store = MemoryStore()
    sent = run(journaled(store, policy=LATE), 8)
    timeline = Offloader(store, session="s").timeline()

    assert [timeline.at(n) for n in range(1, 9)] == sent
    assert "replaced" in {change.kind for change in timeline.changes(8)}


@given(data=st.data())
@examples(40)
def test_edits_restarts_rollbacks_and_repeated_calls_are_told_as_they_were_sent(data: st.DataObject) -> None:
    store = MemoryStore()
    policy = data.draw(st.sampled_from([OffloadPolicy(), LATE, OffloadPolicy.preset("archive")]))
    off = journaled(store, policy=policy)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    sent: list[list[Any]] = []
    for n in range(data.draw(st.integers(1, 14))):
        step = data.draw(st.sampled_from(["grow", "grow", "restart", "edit", "roll back", "renew", "again"]))
        if step == "restart":
            off = journaled(store, policy=policy)
        elif step == "edit":
            messages[-1]["content"] = f"edited {n}"
        elif step == "roll back":
            del messages[data.draw(st.integers(1, len(messages))) :]
        elif step == "renew":
            messages = copy.deepcopy(messages)
        if step != "again":
            messages += exchange(n, data.draw(st.sampled_from([1, 400])))
        out = off.offload(messages)
        assert out.errors == []
        if not sent or sent[-1] != out.messages:
            sent.append(copy.deepcopy(out.messages))
    assert told(store) == sent


def test_the_context_manager_tells_its_requests_through_compactions_and_restarts() -> None:
    store = MemoryStore()
    config = AgentConfig(window_tokens=2000, model="m")
    context = ContextManager(Offloader(store, session="s"), config)
    sent = []
    for n in range(30):
        context.add({"role": "user", "content": f"question {n} " + "word " * 80})
        sent.append(copy.deepcopy(context.before_model_call().messages))
        context.after_model_call({"role": "assistant", "content": "answer " * 40})
        if n % 10 == 9:
            context = ContextManager(Offloader(store, session="s"), config)
            context.resume()
    timeline = Offloader(store, session="s").timeline()

    assert [timeline.at(n) for n in range(1, 31)] == sent
    compacted = [request.number for request in timeline if request.is_compacted]
    assert len(compacted) == context.compaction_count > 0
    assert {change.kind for change in timeline.changes(compacted[0])} >= {"compacted"}
    assert timeline[-1].tokens_offloaded > timeline[-1].tokens
    assert timeline[compacted[0] - 1].records > 0


def test_a_request_is_told_by_its_figures(tmp_path: Path) -> None:
    times = iter(range(100, 200))
    off = journaled(tmp_path, model="claude-sonnet-5", clock=lambda: float(next(times)))
    messages = [{"role": "user", "content": "go"}, *exchange(0)]
    out = off.offload(messages)
    off.report_usage({"input_tokens": 7, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3})
    off.tools.read(out.records[0].ref)
    off.offload_text("a line of it\n" * 3000, tool_name="Bash")
    off.offload([*messages, *exchange(1, 1)], model="claude-opus-4-5")
    first, second = off.timeline()

    assert (first.tokens, first.tokens_offloaded) == (out.tokens_after, out.tokens_before - out.tokens_after)
    assert first.usage is not None
    assert (first.usage.tokens, first.usage.read, first.usage.written) == (15, 5, 3)
    assert (first.records, first.read_backs, first.model) == (1, 0, "claude-sonnet-5")
    assert (second.records, second.read_backs, second.model) == (1, 1, "claude-opus-4-5")
    assert second.usage is None
    assert first.time < second.time


# What it costs


def test_a_request_is_one_write_and_of_a_long_session_the_list_reads_none_and_a_request_few() -> None:
    store = CountedStore()
    off = journaled(store)
    messages = [{"role": "user", "content": f"{number}"} for number in range(520)]
    for n in range(1, 121):
        for _ in range(2):
            off.offload(messages[: 400 + n])
        assert n > 2 or len(entries(store)) == n
    store.requests.clear()
    timeline = Offloader(store, session="s").timeline()
    assert (len(timeline), store.count("get")) == (120, 0)
    timeline.at(119)
    assert 0 < store.count("get") < 80


# What fails


def test_a_look_alike_of_a_placeholder_that_grows_costs_no_request() -> None:
    foreign = Offloader(MemoryStore(), session="other").offload(exchange(0)).messages
    off = journaled(MemoryStore())
    result = off.offload(foreign)

    assert result.tokens_after > result.tokens_before
    assert result.errors == []
    assert [request.tokens_offloaded for request in off.timeline()] == [0]


def test_a_store_that_fails_costs_the_journal_and_not_the_turn_and_is_said_once() -> None:
    store = MemoryStore()
    off = journaled(store)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    off.offload(messages)
    broken = ActingStore(store, failing(OSError("no space left on device"), "put", part="j/"))
    off = Offloader(broken, session="s", journal=True)
    told = []
    for n in range(3):
        messages += exchange(n, 1)
        out = off.offload(messages)
        assert out.messages == messages
        told.append(len(out.errors))
    assert told == [1, 0, 0]
    broken.act = None
    assert off.offload([*messages, *exchange(9, 1)]).errors == []
    timeline = Offloader(store, session="s").timeline()
    assert timeline.at(len(timeline)) == [*messages, *exchange(9, 1)]


def test_a_request_that_is_not_there_is_refused_with_the_reason() -> None:
    store = MemoryStore()
    empty = Offloader(store, session="s").timeline()
    assert len(empty) == 0
    with pytest.raises(NotFoundError, match=r"session 's' has no journal; see Offloader\(journal=True\)"):
        empty.at(1)
    with pytest.raises(IndexError, match=r"session 's' has no journal; see Offloader\(journal=True\)"):
        empty[0]
    run(journaled(store), 3)
    timeline = Offloader(store, session="s").timeline()
    with pytest.raises(NotFoundError, match="has requests 1 to 3, got 4"):
        timeline.at(4)
    with pytest.raises(NotFoundError, match="got 0"):
        timeline.at(0)
    wrong: list[Any] = ["2", None]
    for number in wrong:
        with pytest.raises(ConfigError, match=f"number must be an integer of at least 0, got {number!r}"):
            timeline.at(number)
        with pytest.raises(ConfigError, match=f"number must be an integer of at least 0, got {number!r}"):
            timeline.changes(number)
    with pytest.raises(ConfigError, match="branch must be a str or None, got list"):
        Offloader(store, session="s").timeline(branch=[])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="since must be"):
        timeline.changes(2, since=3)


def test_a_deleted_entry_a_second_writer_and_damage_are_found_where_they_matter() -> None:
    store = MemoryStore()
    sent = run(journaled(store), 4)
    first, second, third, _ = entries(store)
    data = store.get(second)
    timeline = Offloader(store, session="s").timeline()
    store.put(second, data[:-1] + b"x", overwrite=True)
    with pytest.raises(CorruptError, match=r"000000001~grown"):
        timeline.at(3)
    store.delete(second)
    later = Offloader(store, session="s").timeline()
    assert later.at(1) == sent[0]
    with pytest.raises(NotFoundError, match="were deleted"):
        later.at(2)
    store.put(second, data)
    store.put(third.replace("~grown~", "~begun~"), store.get(first))
    assert Offloader(store, session="s").timeline().at(2) == sent[1]
    with pytest.raises(CollisionError, match="two agents"):
        Offloader(store, session="s").timeline().at(4)


# Its seams


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("codec", ["zstd", "json"])
@pytest.mark.parametrize("secret", ["sk_live_77", 'ключ "live_77'], ids=["plain", "escaped in JSON"])
def test_a_secret_that_is_the_name_of_a_field_is_in_no_object(kind: str, codec: str, secret: str) -> None:
    store = MemoryStore()
    quotas = {"of": [{secret: 1, "sk_live_7": {secret: {secret: 3}}}], secret: {"a": 4}}
    said = json.dumps({secret: "set\n" * 3000})
    messages = [
        user(kind, f"use {secret}"),
        *exchange_of(kind, "set_quota", quotas | {"in": json.dumps(quotas)}, said),
    ]
    off = journaled(store, redact=lambda text: text.replace(secret, "[gone]"), codec=codec)
    off.offload(messages)
    manager = ContextManager(Offloader(store, session="m", redact=off.options.redact, codec=codec))
    for message in [*messages, *messages]:
        manager.add(message)
    manager.before_model_call()

    objects = {key: store.get(key) for key in keys(store)}
    stored = {key: plain(data) for key, data in objects.items() if data}

    assert {key for key, data in stored.items() if b"live_77" in data + objects[key]} == set()
    assert any(b"[gone]" in data for key, data in stored.items() if key.startswith("j/s/"))


def test_names_that_redact_makes_equal_are_kept_apart_and_those_of_a_message_are_kept() -> None:
    off = journaled(MemoryStore(), redact=lambda text: re.sub("[a-z]{5,}", "[x]", text))
    off.offload([{"role": "user", "content": "some words", "first": 1, "second": {"third": 2}}])

    assert off.timeline().at(1) == [{"role": "user", "content": "some [x]", "[x]": 1, "[x] 2": {"[x]": 2}}]


def plain(data: bytes) -> bytes:
    """Return the bytes of all frames of an object; what is no zstd stream as it is."""
    try:
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    except zstandard.ZstdError:
        return data


def test_the_journal_is_redacted_and_encrypted_and_deleted_as_the_records_are() -> None:
    inner = MemoryStore()
    store = EncryptingStore(inner, key=bytes(32))
    off = journaled(store, redact=lambda text: text.replace("secret", "[hidden]"))
    off.offload([{"role": "user", "content": "the secret is 42"}])
    assert off.timeline().at(1) == [{"role": "user", "content": "the [hidden] is 42"}]
    [key] = entries(inner)
    assert JOURNAL.match(key)
    assert b"hidden" not in inner.get(key)
    delete(store, session="s")
    assert entries(inner) == []


def test_a_copy_an_export_and_a_fork_have_the_timeline_too(tmp_path: Path) -> None:
    store, other = MemoryStore(), MemoryStore()
    off = journaled(store)
    sent = run(off, 5)
    copy_session(store, other, "s", name="t")
    export_session(store, "s", tmp_path / "s.tar")
    import_session(other, tmp_path / "s.tar", name="u")
    fork = off.fork("v")
    timelines = [Offloader(other, session="t"), Offloader(other, session="u"), fork]
    for each in timelines:
        assert [each.timeline().at(n) for n in range(1, 6)] == sent
        assert [*each.timeline()] == [*off.timeline()]


def test_a_context_manager_resumes_what_a_plain_loop_journaled() -> None:
    store = MemoryStore()
    sent = run(journaled(store), 4)
    context = ContextManager(Offloader(store, session="s"))
    assert context.resume() == len(sent[-1])
    assert context.before_model_call().messages == sent[-1]


def test_offloaders_of_one_session_share_its_journal_and_compaction_writes_no_request() -> None:
    store = MemoryStore()
    off = journaled(store)
    messages: list[Any] = [{"role": "user", "content": "go"}, *exchange(0, 40), *exchange(1, 40)]
    sent = [copy.deepcopy(off.offload(messages).messages)]
    other = off.with_options(policy=OffloadPolicy.preset("archive"))
    messages += exchange(2)
    sent.append(copy.deepcopy(other.offload(messages).messages))
    messages += exchange(3)
    sent.append(copy.deepcopy(off.offload(messages).messages))
    RoundCompactor(off, lambda *_: "a summary").compact(messages)
    timeline = off.timeline()
    assert [timeline.at(n) for n in range(1, len(timeline) + 1)] == sent


def test_an_offloader_and_a_manager_of_it_write_one_journal_in_turn() -> None:
    store = MemoryStore()
    off = journaled(store)
    context = ContextManager(off, AgentConfig(model="m"))
    sent = []
    for n in range(3):
        context.add({"role": "user", "content": f"question {n}"})
        sent.append(copy.deepcopy(context.before_model_call().messages))
        context.after_model_call({"role": "assistant", "content": f"answer {n}"})
        sent.append(copy.deepcopy(off.offload([*context.messages, *exchange(n)]).messages))
    assert told(store) == sent


def test_what_one_offloader_changes_is_told_though_the_other_sends_it_as_before() -> None:
    store = MemoryStore()
    off = journaled(store)
    other = off.with_options(policy=OffloadPolicy.preset("archive"))
    sent = run(off, 3)
    sent.append(other.offload([{"role": "user", "content": "another task"}, *sent[-1][1:]]).messages)
    sent.append(off.offload([*sent[2], *exchange(3)]).messages)
    assert told(store) == sent


def test_what_changes_in_a_list_that_is_not_sent_is_told_with_the_next_request() -> None:
    store = MemoryStore()
    off = journaled(store, policy=LATE)
    sent = run(off, 2)
    messages = [*sent[-1], *exchange(2, 1), *exchange(3, 1)]
    assert off.offload(messages, is_sent=False).records
    sent.append(off.offload([*messages, {"role": "user", "content": "more"}]).messages)
    assert told(store) == sent


def test_a_fork_reads_the_records_of_a_process_before_the_one_that_wrote_the_whole_list_again() -> None:
    store = MemoryStore()
    messages = [{"role": "user", "content": "go"}, *exchange(0)]
    sent = journaled(store).offload(messages).messages
    off = journaled(store)
    while not any("~whole~" in key for key in entries(store)):
        off.offload([{"role": "user", "content": secrets.token_hex(100)}])

    assert off.fork("f", at=len(off.timeline())).restore(sent) == messages


def test_the_usage_of_a_request_that_a_rewind_left_is_not_that_of_an_earlier_one() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 2)
    off.report_usage(500)
    off.rewind(1)
    off.offload([*sent[0], {"role": "user", "content": "another way"}])

    assert [request.usage for request in off.timeline()] == [None, None]


def test_what_the_model_reads_before_its_reply_is_told_is_a_read_back_too() -> None:
    store = MemoryStore()
    context = ContextManager(Offloader(store, session="s"), AgentConfig(model="m"))
    for message in [{"role": "user", "content": "go"}, *exchange(0)]:
        context.add(message)
    context.before_model_call()
    [info] = Offloader(store, session="s").records()
    context.tools.call("context_read", {"id": info.ref})
    context.after_model_call({"role": "assistant", "content": "done"})
    context.add({"role": "user", "content": "more"})
    context.before_model_call()

    assert [request.read_backs for request in context.timeline()] == [0, 1]


def test_offloaders_of_one_session_continue_after_a_rewind_by_one_of_them() -> None:
    store = MemoryStore()
    off = journaled(store)
    other = off.with_options(policy=OffloadPolicy.preset("archive"))
    sent = run(off, 3)
    other.rewind(1)
    messages = [*sent[0], *exchange(7)]
    sent[1:] = [off.offload(messages).messages, other.offload([*messages, *exchange(8)]).messages]
    assert told(store) == sent


def test_the_usage_of_a_reply_that_the_manager_does_not_get_is_told() -> None:
    store = MemoryStore()
    context = ContextManager(Offloader(store, session="s"), AgentConfig(model="m"))
    for n in range(2):
        context.add({"role": "user", "content": f"question {n}"})
        context.before_model_call()
        context.after_model_call(usage=70 + n)
    first, second = context.timeline()

    assert first.usage is not None
    assert (first.usage.tokens, second.usage) == (70, None)


def test_a_list_that_is_not_sent_is_no_request_and_its_records_are_those_of_the_next_one() -> None:
    store = MemoryStore()
    off = journaled(store)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    off.offload(messages)
    messages += exchange(0)
    assert off.offload(messages, is_sent=False).records
    assert len(off.timeline()) == 1
    sent = copy.deepcopy(off.offload([*messages, {"role": "user", "content": "and then?"}]).messages)
    timeline = off.timeline()
    assert [request.records for request in timeline] == [0, 1]
    assert timeline.at(2) == sent


# In a notebook


def test_results_and_timelines_have_a_short_text_and_a_rich_display() -> None:
    store = MemoryStore()
    off = journaled(store, model="<b>m</b>")
    messages = [{"role": "user", "content": "<script>alert(1)</script>"}, *exchange(0)]
    out = off.offload(messages)
    assert len(repr(out)) < 200
    assert "records=1" in repr(out)
    html = out._repr_html_()  # what a notebook calls
    assert "<script>" not in html
    assert html.count('style="flex:') == 3
    shown = off.timeline()._repr_html_()  # what a notebook calls
    assert "&lt;b&gt;m&lt;/b&gt;" in shown
    assert repr(off.timeline()).endswith(": 1 request")


def test_an_offloader_and_its_records_have_a_rich_display_of_what_may_be_shown() -> None:
    store = MemoryStore()
    off = journaled(store, redact=lambda text: text.replace("secret", "[hidden]"))
    text = "a line of the output\n" * 2000
    for n, tool in enumerate(["Bash", "Bash", "<i>Read</i>"]):
        off.offload_text(f"{n} {text}", tool_name=tool, title=f"cat <b>secret</b>-{n}")
    html = off._repr_html_()  # what a notebook calls
    assert html.count('style="flex:') == 2
    assert html.index("-2") < html.index("-0")
    [*_, info] = off.records()
    shown = info._repr_html_()  # what a notebook calls
    assert info.ref in shown
    for each in (html, shown):
        assert "&lt;i&gt;Read&lt;/i&gt;" in each
        assert "<b>" not in each
        assert "secret" not in each
    assert "[hidden]" in html


def test_an_offloader_says_in_a_notebook_why_its_records_cannot_be_listed() -> None:
    store = ActingStore(MemoryStore(), failing(StoreUnavailableError("no <route> for r/s/"), "keys"))
    html = Offloader(store, session="s")._repr_html_()  # what a notebook calls
    assert "no &lt;route&gt; for r/s/" in html
    assert "session=&#x27;s&#x27;" in html


# The command


@pytest.fixture
def run_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    run = runner(capsys, monkeypatch)
    return lambda *arguments: run("log", *arguments, "--store", tmp_path)


def test_the_command_lists_the_sessions_that_keep_their_requests_by_their_tasks(
    tmp_path: Path, run_log: Callable[..., Any]
) -> None:
    Offloader(tmp_path, session="plain").offload_text("nothing to see")
    assert "Offloader(journal=True)" in run_log().stdout
    hint = {"type": "text", "text": "<system-reminder>You may use tools.</system-reminder>"}
    task = {"type": "text", "text": "Find the leak\x1b[2J in the pool.\nIt is urgent."}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [hint, task]}]
    off = journaled(tmp_path, model="claude-sonnet-5")
    off.offload(messages)
    off.offload([*messages, *exchange(0)])
    off.fork("again", at=1).offload([*messages, *exchange(1)])

    rows = json.loads(run_log("--json").stdout)["sessions"]
    assert {row["session"]: (row["title"], row["requests"]) for row in rows} == {
        "s": ("Find the leak␛[2J in the pool.", 2),
        "again": ("Find the leak␛[2J in the pool.", 2),
    }
    assert "2 sessions with requests in" in run_log().stdout
    assert run_log().stdout.count("Find the leak") == 2
    assert "need a SESSION" in run_log("--at", "1").stderr


def test_a_task_in_a_tag_gives_its_session_its_first_line(
    tmp_path: Path, run_log: Callable[..., Any]
) -> None:
    hint = {"type": "text", "text": "<system-reminder>You may use tools.</system-reminder>"}
    task = {"type": "text", "text": "<pr_description>\nA leak in the pool\n</pr_description>\nFix it."}
    journaled(tmp_path).offload([{"role": "user", "content": [hint, task]}])
    [row] = json.loads(run_log("--json").stdout)["sessions"]
    assert row["title"] == "A leak in the pool"


def test_a_damaged_or_huge_first_request_costs_the_title_alone(
    tmp_path: Path, run_log: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    journaled(tmp_path).offload([{"role": "user", "content": "Find the leak."}])
    [entry] = tmp_path.glob("j/s/*")
    data = entry.read_bytes()
    entry.write_bytes(data[:-3])
    assert [row["title"] for row in json.loads(run_log("--json").stdout)["sessions"]] == [None]
    entry.write_bytes(data)
    assert [row["title"] for row in json.loads(run_log("--json").stdout)["sessions"]] == ["Find the leak."]
    monkeypatch.setattr("offload.reading.timeline.titles._MOST_BYTES", 10)
    assert [row["title"] for row in json.loads(run_log("--json").stdout)["sessions"]] == [None]


def test_the_command_lists_shows_and_compares(tmp_path: Path, run_log: Callable[..., Any]) -> None:
    off = journaled(tmp_path, model="claude-sonnet-5")
    messages = [{"role": "user", "content": "why\x1b[2J?"}]
    off.offload(messages)
    off.report_usage({"input_tokens": 100_000})
    off.offload([*messages, *exchange(0)])

    listed = run_log("s").stdout
    assert "2 requests in session s" in listed
    assert "$0.200" in listed
    shown = run_log("s", "--at", "1").stdout
    assert "why␛[2J?" in shown
    assert "\x1b" not in shown
    assert json.loads(run_log("s", "--at", "1", "--json").stdout)["messages"] == messages
    called = run_log("s", "--at", "2").stdout
    assert "context_read" in called
    assert "\n--- 1: assistant, calls Bash\n" in called
    assert "--- 1: added" in run_log("s", "--diff", "1:2").stdout
    assert "no message differs" in run_log("s", "--diff", "2:2").stdout
    assert json.loads(run_log("s", "--diff", "1:2", "--json").stdout)["changes"][0]["kind"] == "added"


def test_the_command_shows_what_was_predicted_where_the_provider_counted_otherwise(
    tmp_path: Path, run_log: Callable[..., Any]
) -> None:
    off = journaled(tmp_path, model="claude-sonnet-5")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for read in (0, 9000, 9000, 0):
        off.offload(messages)
        counted = {"input_tokens": 0, "cache_read_input_tokens": read}
        off.report_usage({**counted, "cache_creation_input_tokens": 9000 - read})
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "on"}]
        if read == 9000:
            assert "predicted" not in run_log("s").stdout
    off.offload(messages)

    assert "5 requests in session s of" in (listed := run_log("s").stdout)
    assert "1 counted otherwise than predicted" in listed
    rows = json.loads(run_log("s", "--json").stdout)["requests"]
    found = {row["request"]: (row["predicted"], row["predicted_cached"], row["because"]) for row in rows}
    assert {number: each for number, each in found.items() if each[2]} == {4: (9000, 9000, "dropped")}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nope"], 1, "no session 'nope'"),
        (["s", "--at", "9"], 1, "has requests 1 to 2, got 9"),
        (["s", "--diff", "x"], 2, "--diff takes two numbers of requests, such as 36:37, got 'x'"),
        (["s", "--diff", "2:1"], 2, "--diff takes the earlier request first: 1:2, got '2:1'"),
        (["s", "--diff", "1:2", "--at", "1"], 2, "exclude each other"),
    ],
)
def test_the_command_refuses_what_is_not_there(
    tmp_path: Path, run_log: Callable[..., Any], arguments: list[str], code: int, told: str
) -> None:
    run(journaled(tmp_path), 2)
    result = run_log(*arguments)
    assert result.returncode == code
    assert told in result.stderr


# Deleted beneath a live process


@pytest.mark.parametrize("deletes", ["here", "elsewhere"])
def test_a_session_that_is_deleted_while_it_is_used_has_the_requests_since(
    tmp_path: Path, deletes: str
) -> None:
    off = journaled(tmp_path)
    run(off, 4)
    if deletes == "here":
        delete(off.store, "s")
    else:
        for path in [*tmp_path.rglob("j/s/*"), *tmp_path.rglob("r/s/*")]:
            path.unlink()
        assert off.store_again() == 3

    sent = [off.offload(conversation(n)).messages for n in (5, 6)]

    assert [off.timeline().at(n) for n in (1, 2)] == sent
    assert verify(off.store).damaged_entries == []


def test_a_manager_whose_session_is_deleted_keeps_the_requests_since(tmp_path: Path) -> None:
    off = Offloader(tmp_path, session="s")
    manager = ContextManager(off, AgentConfig(model="m"))
    for message in conversation(1):
        manager.add(message)
    manager.before_model_call()
    delete(off.store, "s")
    manager.add({"role": "assistant", "content": "done"})
    manager.add({"role": "user", "content": "more"})

    sent = manager.before_model_call().messages

    assert manager.timeline().at(1) == sent


def test_requests_of_a_gateway_follow_a_deletion_by_another_process(tmp_path: Path) -> None:
    writer = JournalWriter(open_store(tmp_path), "s", str, is_new=True, is_shared=True)
    off = Offloader(tmp_path, session="s")

    def sent(turns: int) -> list[Any]:
        result = off.offload(conversation(turns))
        failed = writer.record(
            off,
            0,
            lambda start: result.messages[start:],
            result.messages.__getitem__,
            tokens=result.tokens_after,
            tokens_before=result.tokens_before,
            model=None,
        )
        assert failed == []
        return result.messages

    for turns in range(3):
        sent(turns)
    for path in tmp_path.rglob("j/s/*"):
        path.unlink()

    last = sent(4)

    assert off.timeline().at(1) == last

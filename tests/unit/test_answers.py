"""Answers of the retrieval tools are offloaded like other results, and no text is stored twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command
import formats
import pytest
from kit.store import CountedStore
from reading import LOG, POLICY, Reading
from retained import HOUR, clocked

from offload import Offloader, OffloadPolicy, ReasonKind, Rule, open_store
from offload.engine.policy import Retention
from offload.errors import ExpiredError, PolicyError
from offload.maintenance.retention import collect, delete
from offload.maintenance.transfer import copy_session, share
from offload.messages.formats import FORMATS
from offload.storage.wrappers import EncryptingStore
from offload_backends.memory import MemoryStore

KINDS = [adapter.name for adapter in FORMATS]


def answers_of(off: Offloader) -> list[Any]:
    return [info for info in off.records() if info.is_answer]


def first_page(reading: Reading) -> tuple[str, Any]:
    """Let the model read the first page and go on until that leaves; return it and its record."""
    answer = reading.read(id=reading.ref, offset=0)
    reading.work()
    [info] = answers_of(reading.off)
    return answer, info


# When


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("renews", [False, True])
def test_an_answer_leaves_after_three_replies_and_is_restored_in_any_process(kind: str, renews: bool) -> None:
    reading = Reading(MemoryStore(), kind, renews=renews)
    answer = reading.read(id=reading.ref, start_line=100, end_line=180)
    reading.work(2)
    assert reading.text_of("c2") == answer
    reading.work(1)

    call = f'context_read(id="{reading.ref}", start_line=100, end_line=180)'
    placeholder = reading.text_of("c2")
    assert placeholder.endswith(f"Ask again: {call}]")
    assert reading.off.restore(reading.sent.messages) == reading.messages
    other = reading.opened()
    assert other.restore(reading.sent.messages) == reading.messages
    assert other.offload(reading.messages).messages == reading.sent.messages


def test_the_placeholder_of_an_answer_is_short_and_the_same_in_every_store() -> None:
    first, second = Reading(MemoryStore()), Reading(MemoryStore())
    for reading in (first, second):
        reading.read("context_grep", id=reading.ref, pattern="sample is 9")
        reading.read(offset=4000, id=reading.ref)
        reading.work(4)

    assert first.replaced() == second.replaced()
    assert len(first.replaced()) == 2
    for text in first.replaced().values():
        assert first.off.options.count_tokens(text) <= 45


def test_an_answer_enters_whole_at_any_size_and_under_any_policy() -> None:
    policies = [
        OffloadPolicy(answers=Rule(min_tokens=1, after_replies=1), max_view_tokens=2500, history="editable"),
        OffloadPolicy.preset("economy"),
        OffloadPolicy.model_validate({"preset": "economy", "history": "append_only"}),
        OffloadPolicy.preset("archive"),
    ]
    for policy in policies:
        reading = Reading(MemoryStore(), policy=policy)
        answer = reading.off.tools.call("context_read", {"id": reading.ref})
        for message in formats.exchange("anthropic", "context_read", {"id": reading.ref}, answer, "c2"):
            reading.messages.append(message)
            reading.sent = reading.off.offload(reading.messages)
        assert reading.text_of("c2") == answer


def test_in_an_append_only_conversation_an_answer_stays() -> None:
    policy = POLICY.model_copy(update={"history": "append_only"})
    reading = Reading(MemoryStore(), policy=policy)
    answer = reading.read(id=reading.ref)
    reading.work(9)
    assert reading.text_of("c2") == answer


def test_pages_stay_while_the_model_reads_on_in_the_same_item() -> None:
    reading = Reading(MemoryStore())
    pages = [reading.read(id=reading.ref, offset=2000 * n, limit=2000) for n in range(6)]
    assert [reading.text_of(f"c{n}") for n in range(2, 8)] == pages
    reading.work(3)
    assert len(reading.replaced()) == 6


@pytest.mark.parametrize(
    ("policy", "kwargs", "kind"),
    [
        (POLICY.model_copy(update={"answers": Rule(enabled=False)}), {}, ReasonKind.RETRIEVAL),
        (POLICY, {"pinned": ["c2"]}, ReasonKind.PINNED),
        (
            OffloadPolicy.model_validate({**POLICY.model_dump(), "exclude_tools": ["context_*"]}),
            {},
            ReasonKind.EXCLUDED,
        ),
    ],
)
def test_an_answer_that_the_host_keeps_stays(
    policy: OffloadPolicy, kwargs: dict[str, Any], kind: ReasonKind
) -> None:
    reading = Reading(MemoryStore(), policy=policy)
    reading.read(id=reading.ref)
    for _ in range(4):
        reading.add("Bash", {"command": "true"}, "done", **kwargs)
    [decision] = [d for d in reading.sent.decisions if d.item.tool_use_id == "c2" and d.item.chars > 100]
    assert (decision.action, decision.reason.kind) == ("keep", kind)


def test_an_error_as_an_answer_stays() -> None:
    reading = Reading(MemoryStore())
    reading.read(id="unknownidx")
    reading.work(4)
    assert reading.replaced() == {}


def test_a_rule_that_hides_answers_before_they_are_read_is_refused() -> None:
    with pytest.raises(PolicyError, match="at least 1"):
        OffloadPolicy(answers=Rule(after_replies=0))


def test_a_policy_without_tool_results_keeps_answers() -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(enabled=False)})
    assert not policy.answers.enabled


# The call


@pytest.mark.parametrize("prefix", ["mcp__offload__", "offload."])
def test_the_call_of_a_client_with_a_prefix_is_named_without_it(prefix: str) -> None:
    reading = Reading(MemoryStore())
    reading.read(prefix=prefix, id=reading.ref, offset=500)
    reading.work()
    assert reading.text_of("c2").endswith(f'Ask again: context_read(id="{reading.ref}", offset=500)]')


def test_a_call_that_is_too_long_is_replaced_by_a_read_of_the_answer() -> None:
    reading = Reading(MemoryStore())
    sql = " and ".join(["select n, text from lines where n <> 4", *["n <> 5"] * 40, "n < 60"])
    answer = reading.read("context_query", id=reading.ref, sql=sql)
    reading.work()

    [info] = answers_of(reading.off)
    assert f'[Read it: context_read(id="{info.ref}", offset=0)]' in reading.text_of("c2")
    assert answer in reading.off.tools.read(info.ref)


def test_a_secret_in_a_call_is_not_stored_in_a_placeholder() -> None:
    store = MemoryStore()
    reading = Reading(store, redact=lambda text: text.replace("hunter2", "(removed)"))
    reading.read("context_grep", pattern="hunter2|sample is 9", id=reading.ref, mode="regex")
    reading.work()
    assert reading.replaced()
    assert "hunter2" not in "".join(reading.replaced().values())


# What is stored


def test_the_record_of_an_answer_has_only_what_other_records_lack() -> None:
    store = MemoryStore()
    reading = Reading(store)
    answer, info = first_page(reading)
    assert info.quotes == (reading.ref,)
    assert info.chars == len(answer)
    assert info.stored_bytes < 700
    assert b"the 20th sample" not in store.get(info.key)
    assert b"".join(reading.off.content(info.ref)).decode() == answer
    assert answer.split("\n")[5] in reading.off.tools.read(info.ref)
    assert reading.off.verify() == []


def test_searches_diffs_and_passages_are_put_together_from_several_records() -> None:
    store = MemoryStore()
    reading = Reading(store)
    reading.add("Bash", {"command": "cat two"}, LOG.replace("value", "worth"))
    _, second = [info.ref for info in reading.off.records()]
    reading.read("context_grep", pattern="sample is 97", max_matches=40)
    reading.read("context_grep", pattern="12th sample", mode="search")
    reading.read("context_tail", id=second, lines=30)
    reading.work(4)

    quotes = {info.tool_name: set(info.quotes) for info in answers_of(reading.off)}
    assert quotes["context_tail"] == {second}
    assert quotes["context_grep"] == {reading.ref, second}
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_a_page_of_a_large_record_is_found_where_the_answer_says() -> None:
    text = "".join(
        f"{n}: {n * 7919 % 100_003} is the number of row {n} of all the rows of this file\n"
        for n in range(80_000)
    )
    store = MemoryStore()
    reading = Reading(store)
    reading.add("Bash", {"command": "cat big"}, text)
    ref = reading.off.records()[-1].ref
    reading.read(id=ref, offset=2_000_000)
    reading.read("context_grep", id=ref, pattern="row 7777")
    reading.work()

    assert [info.quotes for info in answers_of(reading.off)] == [(ref,), (ref,)]
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_a_computed_answer_is_stored_whole() -> None:
    reading = Reading(MemoryStore())
    reading.read("context_query", id=reading.ref, sql="select n * 7 as a, n * 11 as b from lines limit 150")
    reading.work()
    [info] = answers_of(reading.off)
    assert info.quotes == ()
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_an_answer_to_a_read_of_an_answer_quotes_the_record_behind_both() -> None:
    reading = Reading(MemoryStore())
    reading.read(id=reading.ref, offset=0)
    reading.work()
    [first] = answers_of(reading.off)
    reading.read(id=first.ref)
    reading.work()

    assert [info.quotes for info in answers_of(reading.off)] == [(reading.ref,)] * 2
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_a_text_that_looks_like_the_placeholder_of_an_answer_is_stored_as_a_text() -> None:
    reading = Reading(MemoryStore())
    forged = f'[Offloaded: answer, id {reading.ref}]\n[Do not guess it. Ask again: context_read(id="x")]'
    reading.add("Bash", {"command": "echo"}, forged)
    reading.work(1)
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_files_that_people_read_are_whole() -> None:
    reading = Reading(MemoryStore(), codec="json")
    answer, info = first_page(reading)
    assert (info.quotes, info.key[-5:]) == ((), ".json")
    assert b"".join(reading.off.content(info.ref)).decode() == answer


def test_a_secret_that_was_removed_is_in_no_answer() -> None:
    store = MemoryStore()
    reading = Reading(store, redact=lambda text: text.replace("sample", "(removed)"))
    _, info = first_page(reading)
    assert info.quotes == (reading.ref,)
    assert "sample" not in b"".join(reading.off.content(info.ref)).decode()


# Lists and searches


def test_lists_and_searches_show_a_text_once() -> None:
    reading = Reading(MemoryStore())
    _, info = first_page(reading)
    tools = reading.opened().tools

    assert info.ref not in tools.list()
    assert info.ref in tools.list(tool="context_read")
    assert info.ref not in tools.grep("the 20th sample")
    assert info.ref in tools.grep("the 20th sample", id=info.ref)
    assert {p.ref for p in reading.off.search("20th sample").passages} == {reading.ref}
    evidence = reading.off.evidence("The value of the 20th sample is 400.")
    assert evidence.records == 1
    assert {value.ref for value in evidence.values} == {reading.ref}


def test_the_commands_show_an_answer_and_search_it_only_by_its_id_or_tool(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, reading = command.runner(capsys, monkeypatch), Reading(tmp_path / "store")
    answer, info = first_page(reading)
    place = "--store", tmp_path / "store", "--session", "s"

    assert "context_read" in run("ls", *place).stdout
    assert answer in run("show", info.ref, *place).stdout
    assert info.ref not in run("grep", "the 20th sample", *place).stdout
    assert info.ref in run("grep", "the 20th sample", "--tool", "context_*", *place).stdout
    copied = tmp_path / "copy"
    assert run("copy", tmp_path / "store", copied).returncode == 0
    assert Offloader(copied, session="s").restore(reading.sent.messages) == reading.messages


def test_a_value_of_the_call_in_a_placeholder_was_not_read() -> None:
    reading = Reading(MemoryStore(), journal=True)
    sql = "select n, text from lines where n < 60 and n <> 47111"
    reading.read("context_query", id=reading.ref, sql=sql)
    before = reading.off.evidence("It is 47111, and another is 433.").values
    reading.work()
    after = reading.off.evidence("It is 47111, and another is 433.").values
    assert reading.replaced()
    assert [value.state for value in before] == ["called", "read_back"]
    assert [value.state for value in after] == ["called", "shown"]


# Deletion


def expired(reading: Reading) -> ExpiredError:
    with pytest.raises(ExpiredError) as caught:
        reading.opened().restore(reading.sent.messages)
    return caught.value


def test_an_answer_expires_with_the_record_that_it_quotes() -> None:
    store = MemoryStore()
    reading = Reading(store)
    _, info = first_page(reading)
    delete(store, "s", [reading.ref])

    assert reading.ref in str(expired(reading))
    with pytest.raises(ExpiredError, match=reading.ref):
        b"".join(reading.opened().content(info.ref))
    assert reading.opened().verify() == []
    for _ in range(2):
        collect(store, Retention(grace=0), session="s")
    assert answers_of(reading.opened()) == []
    assert info.ref in str(expired(reading))


def test_an_answer_whose_record_was_deleted_is_stored_again_whole() -> None:
    store = MemoryStore()
    reading = Reading(store)
    answer, info = first_page(reading)
    delete(store, "s", [reading.ref])

    other = reading.opened()
    assert other.offload(reading.messages).messages == reading.sent.messages
    assert other.restore(reading.sent.messages) == reading.messages
    delete(store, "s", [reading.ref])
    assert b"".join(reading.opened().content(info.ref)).decode() == answer


@pytest.mark.parametrize("reason", ["quota", "deleted"])
def test_a_pinned_answer_protects_the_record_that_it_quotes(reason: str) -> None:
    store = MemoryStore()
    reading = Reading(store)
    _, info = first_page(reading)
    reading.off.pin(info.ref)
    if reason == "quota":
        collect(store, Retention(session_records=1, grace=0, live_for=0), session="s")
    else:
        delete(store, "s", [reading.ref])
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_what_a_shared_answer_quotes_is_not_evicted() -> None:
    store = MemoryStore()
    reading = Reading(store)
    answer, info = first_page(reading)
    share(store, "s", info.ref, "friend")
    for _ in range(2):
        collect(store, Retention(session_records=1, grace=0, live_for=0), session="s")
    assert b"".join(Offloader(store, session="friend").content(info.ref)).decode() == answer


def test_a_pin_of_an_answer_undeletes_what_it_quotes() -> None:
    store = clocked()
    reading = Reading(store)
    _, info = first_page(reading)
    delete(store, "s", [reading.ref])
    reading.off.pin(info.ref)
    store.now += 2 * HOUR
    collect(store, Retention(grace=HOUR), session="s")
    assert reading.opened().restore(reading.sent.messages) == reading.messages


# Other sessions


def test_a_copy_under_any_name_has_its_own_answers() -> None:
    store, target = MemoryStore(), MemoryStore()
    reading = Reading(store)
    reading.read(id=reading.ref, offset=0)
    reading.work()
    for name in ("s", "other"):
        assert copy_session(store, target, "s", name=name).failures == []
        off = Offloader(target, session=name, policy=POLICY)
        assert off.restore(reading.sent.messages) == reading.messages
        assert [info.quotes for info in answers_of(off)] == [(reading.ref,)]
        assert off.verify() == []


def test_a_fork_restores_and_continues_with_the_answers_of_its_parent() -> None:
    store = MemoryStore()
    reading = Reading(store, journal=True)
    answer = reading.read(id=reading.ref, offset=0)
    reading.work()
    before = [info.key for info in reading.off.records()]
    reading.off.fork("b")
    fork = Offloader(store, session="b", policy=POLICY)

    assert fork.restore(reading.sent.messages) == reading.messages
    assert fork.offload(reading.messages).messages == reading.sent.messages
    assert [info.key for info in reading.opened().records()] == before
    [info] = answers_of(fork)
    assert b"".join(fork.content(info.ref)).decode() == answer


def test_a_shared_answer_is_read_without_the_record_that_it_quotes() -> None:
    store = MemoryStore()
    reading = Reading(store)
    answer, info = first_page(reading)
    share(store, "s", info.ref, "friend")

    friend = Offloader(store, session="friend")
    assert b"".join(friend.content(info.ref)).decode() == answer
    copy_session(store, store, "friend", name="copy")
    assert b"".join(Offloader(store, session="copy").content(info.ref)).decode() == answer


def test_a_request_of_the_timeline_is_shown_with_the_placeholder_of_its_answer() -> None:
    store = MemoryStore()
    reading = Reading(store, journal=True)
    reading.read(id=reading.ref, offset=0)
    reading.work()
    timeline = reading.opened().timeline()
    assert timeline.at(timeline[-1].number) == reading.sent.messages


# Calls


def test_two_answers_in_one_message_are_two_items() -> None:
    reading = Reading(MemoryStore())
    calls = [{"id": reading.ref, "offset": offset} for offset in (0, 9000)]
    messages = [
        formats.exchange(
            "anthropic", "context_read", call, reading.off.tools.call("context_read", call), f"p{n}"
        )
        for n, call in enumerate(calls)
    ]
    merged = [{**a, "content": a["content"] + b["content"]} for a, b in zip(*messages, strict=True)]
    for message in merged:
        reading.messages.append(message)
        reading.sent = reading.off.offload(reading.messages)
    reading.work()

    assert [text.rpartition("offset=")[2] for text in reading.replaced().values()] == ["0)]", "9000)]"]
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_a_call_id_that_is_used_again_gets_the_call_of_its_own_turn() -> None:
    reading = Reading(MemoryStore())
    for offset in (0, 9000):
        reading.calls = 1
        reading.read(id=reading.ref, offset=offset)
    reading.work()
    texts = [text for text in map(str, reading.sent.messages) if "Ask again" in text]
    assert [f"offset={offset}" in text for offset, text in zip((0, 9000), texts, strict=True)] == [True, True]
    assert reading.opened().restore(reading.sent.messages) == reading.messages


def test_answers_in_an_encrypted_store_are_restored(tmp_path: Path) -> None:
    reading = Reading(EncryptingStore(open_store(tmp_path), key=bytes(range(32))))
    reading.read(id=reading.ref, offset=0)
    reading.work()
    assert reading.opened().restore(reading.sent.messages) == reading.messages


# Requests


def test_an_answer_costs_one_put_and_a_restore_reads_what_answers_quote_once() -> None:
    store = CountedStore()
    reading = Reading(store)
    for offset in (0, 9000, 18_000):
        reading.read(id=reading.ref, offset=offset)
    reading.work(2)
    store.requests.clear()
    reading.work(1)
    assert [request.split()[0] for request in store.requests] == ["put"] * 3

    store.requests.clear()
    assert reading.opened().restore(reading.sent.messages) == reading.messages
    # The log and the three answers, and the log once more for all of these.
    assert store.count("get") == 5

"""Search: ranked passages of what a session may read, whatever the query and the texts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import tool_turn
from kit.store import CountedStore

from offload import Offloader, OffloadPolicy, Rule
from offload.base import binary as binary_texts
from offload.errors import ConfigError, StoreError
from offload.maintenance.retention import delete, undelete
from offload.maintenance.transfer import share
from offload.reading.search import index as indexes, split_at_words
from offload.storage.store import OffloadStore
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1)}, min_saving=0)
FILLER = "".join(f"the job of step {n} took {n * 7} ms and wrote its row\n" for n in range(400))


def opened(store: OffloadStore, name: str = "s", **options: object) -> Offloader:
    return Offloader(store, session=name, policy=POLICY, **options)  # type: ignore[arg-type]


def put(off: Offloader, text: str, call: str = "t1") -> str:
    with off.open_sink(tool_name="Bash", tool_use_id=call) as sink:
        sink.write(text)
    assert sink.info is not None
    return sink.info.ref


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("def readFile(path):", "readFile"),
        ("def readFile(path):", "read"),
        ("def readFile(path):", "read_file"),
        ("def read_file(path):", "readFile"),
        ("HTTPServerError was raised", "server"),
        ("the readfile command", "readFile"),
        ("see src/deep/alpha.py:12", "src/deep/alpha.py"),
        ("see src/deep/alpha.py:12", "alpha.py"),
        ('{"out": "one\\nzebra\\ttwo"}', "zebra"),
        ("数据库连接失败", "连接"),
        ("数据库连接失败", "库"),
        ("設定ファイルを読む", "ファイル"),
        ("Ünïcode Grüße", "unicode grusse GRUSSE gruße"),
        ("total 1,234,567 rows", "1,234,567"),
        ("résumé", "re\u0301sume\u0301"),  # Accents and syllables as characters of their own.
        ("re\u0301sume\u0301", "résumé"),
        ("데이터베이스", "\u1103\u1166\u110b\u1175\u1110\u1165"),
        ("\u1103\u1166\u110b\u1175\u1110\u1165", "데이터"),
        ("\ud800 broken zebra", "zebra"),
        ("\x1b[31mFAILED\x1b[0m tests/test_a.py", "failed"),
        ('{"out": "\\u001b[1;31mFAILED\\u001b[0m"}', "failed"),
    ],
)
def test_words_identifiers_paths_and_text_without_spaces_are_found_by_their_parts(text, query):
    off = opened(MemoryStore())
    put(off, FILLER)
    ref = put(off, f"{FILLER}{text}\n{FILLER}", "t2")

    [best, *_] = off.search(query).passages

    assert best.ref == ref
    assert text in best.text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("file LINE", ["File", "file", "Line"]),
        ("src/a.py", ["src", "a", "py"]),
        ("\u65e5\u672c", ["\u65e5\u672c"]),
        ("!", []),
    ],
)
def test_the_words_of_a_query_are_marked_where_they_stand_alone(query: str, words: list[str]):
    text = "readFile of read_file, outline, Line 3: src/a.py \u65e5\u672c\u8a9e"
    parts = split_at_words(text, query)
    assert "".join(parts) == text
    assert parts[1::2] == words


def test_a_passage_names_its_title_its_lines_and_the_call_that_reads_on():
    off = opened(MemoryStore())
    ref = put(off, f"{FILLER}the zebra sleeps\n{FILLER}")

    [passage] = off.search("zebra").passages

    lines = f"{FILLER}the zebra sleeps\n{FILLER}".split("\n")
    assert passage.text.split("\n")[0] == lines[passage.start_line - 1]
    assert passage.text.removesuffix("\n").split("\n")[-1] == lines[passage.end_line - 1]
    assert "the zebra sleeps" in off.tools.read(ref, offset=passage.start)
    assert passage.next_call == f'context_read(id="{ref}", offset={passage.start})'


def test_the_passage_with_more_and_rarer_words_comes_first_and_equal_ones_by_id_and_line():
    off = opened(MemoryStore())
    refs = [put(off, f"{FILLER}rare zebra\n", f"t{n}") for n in range(3)]
    best = put(off, f"{FILLER}rare zebra crossing\n", "t9")

    found = off.search("rare zebra crossing").passages

    assert [passage.ref for passage in found] == [best, *sorted(refs)]


def test_a_new_process_finds_the_same_in_the_same_order_whoever_stored_it(tmp_path: Path):
    first, second = opened(LocalStore(str(tmp_path))), opened(LocalStore(str(tmp_path)))
    for n in range(4):
        put(first if n % 2 else second, f"{FILLER}zebra {n}\n", f"t{n}")
        assert len(first.search("zebra").passages) == n + 1

    expected = opened(LocalStore(str(tmp_path))).search("zebra step")

    assert first.search("zebra step") == second.search("zebra step") == expected


@pytest.mark.parametrize(
    "query",
    [
        '"zebra',
        'zebra" OR text : "x',
        "zebra NEAR(a b)",
        "zebra* AND NOT ^col:x",
        "(zebra",
        "zebra\0; drop table passages",
        "zebra \U0001f600",
        "zebra'--",
        "zebra " + "x" * 100_000,
        "zebra " + "a b " * 50_000,
        "zebra \ud800",
        "{zebra} : + - ~ ^",
    ],
)
def test_a_query_is_words_whatever_signs_it_has(query):
    off = opened(MemoryStore())
    ref = put(off, f"{FILLER}zebra\n")

    assert ref in {passage.ref for passage in off.search(query).passages}


@pytest.mark.parametrize("query", ["", "   ", "!?*", "\U0001f600", '"', "\0", "___", "\ud800"])
def test_a_query_without_a_word_is_refused(query):
    off = opened(MemoryStore())

    with pytest.raises(ConfigError, match="no letter or digit"):
        off.search(query)
    assert off.tools.call("context_grep", {"pattern": query, "mode": "search"}).startswith("Error: no letter")


def test_an_invalid_limit_or_query_is_refused_and_nothing_found_says_what_was_searched():
    off = opened(MemoryStore())
    put(off, FILLER)
    wrong: list[tuple[Any, Any, str]] = [
        ("zebra", 0, "limit must be an integer of at least 1, got 0"),
        ("zebra", 1.5, r"limit must be an integer of at least 1, got 1\.5"),
        (None, 1, "the text to search for must be a str, got NoneType"),
    ]
    for query, limit, said in wrong:
        with pytest.raises(ConfigError, match=said):
            off.search(query, limit=limit)

    found = off.search("zebra", limit=10**30)

    assert (found.passages, found.records, found.chars) == ([], 1, len(FILLER))
    answer = off.tools.call("context_grep", {"pattern": "zebra", "mode": "search"})
    assert answer == f"[No passage has a word of the query; searched 1 item, {len(FILLER)} characters]"


def test_what_was_not_searched_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexes, "MAX_RECORD_CHARS", 2 * len(FILLER))
    store = MemoryStore()
    off = opened(store)
    binary, media = put(off, "zebra " + "\1\2\3" * 5000), put(off, "QUJD" * 5000, "t2")
    long, damaged = put(off, f"zebra\n{FILLER * 3}", "t3"), put(off, f"zebra {FILLER}", "t4")
    monkeypatch.setattr(binary_texts, "MAX_CHARS", 2000)
    encoded = put(off, "zebra\n".encode("utf-16-le").decode() * 1000, "t5")
    [key] = [info.key for info in off.records() if info.ref == damaged]
    store.put(key, store.get(key)[:-300], overwrite=True)

    found = opened(store).search("zebra")

    assert {passage.ref for passage in found.passages} == {long}
    assert found.unsearched[binary] == found.unsearched[media] == "binary content"
    assert found.unsearched[encoded] == "too long to decode from UTF-16-LE"
    assert found.unsearched[damaged] == "damaged"
    assert found.unsearched[long].startswith("only the first ")
    answer = opened(store).tools.call("context_grep", {"pattern": "zebra", "mode": "search"})
    assert all(f"{ref}: " in answer for ref in found.unsearched)


def test_a_hundred_million_characters_take_bounded_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexes, "MAX_CHARS", 1_000_000)
    off = opened(MemoryStore())
    with off.open_sink(tool_name="Bash", tool_use_id="t1") as sink:
        for _ in range(100):
            sink.write(f"zebra {'xy ' * 333_000}")
    assert sink.info is not None

    found = off.search("zebra")

    assert found.chars <= 1_000_000
    assert found.unsearched[sink.info.ref].startswith("only the first ")


def test_a_search_that_runs_out_of_time_says_so_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch):
    off = opened(MemoryStore())
    ref = put(off, f"{FILLER}zebra\n")
    monkeypatch.setattr(indexes, "_SECONDS", -1.0)

    assert off.search("zebra").unsearched == {ref: "not searched yet: repeat the search"}
    monkeypatch.undo()
    assert [passage.ref for passage in off.search("zebra").passages] == [ref]


def test_a_deleted_record_is_found_no_more_and_no_longer_counts():
    store = MemoryStore()
    off = opened(store)
    gone, kept = put(off, f"{FILLER}zebra\n"), put(off, f"{FILLER}zebra\n", "t2")
    assert {passage.ref for passage in off.search("zebra").passages} == {gone, kept}

    delete(store, "s", [gone])

    assert off.search("zebra") == opened(store).search("zebra")
    assert {passage.ref for passage in off.search("zebra").passages} == {kept}


def test_a_session_finds_what_it_may_read_and_nothing_else():
    store = MemoryStore()
    owner, other = opened(store, "owner"), opened(store, "other")
    shared, secret = put(owner, f"{FILLER}zebra\n"), put(owner, f"{FILLER}zebra stripe\n", "t2")
    assert other.search("zebra").passages == []

    owner.share(shared, "other")
    assert [passage.ref for passage in other.search("zebra").passages] == [shared]
    owner.revoke(shared, "other")
    assert other.search("zebra").passages == []

    fork = owner.fork("fork")
    put(owner, f"{FILLER}zebra later\n", "t3")
    assert {passage.ref for passage in fork.search("zebra").passages} == {shared, secret}


def test_nothing_of_an_encrypted_store_leaves_it_in_the_clear(tmp_path: Path):
    store = EncryptingStore(LocalStore(str(tmp_path)), os.urandom(32))
    off = opened(store)
    ref = put(off, f"{FILLER}zebra\n")

    assert [passage.ref for passage in off.search("zebra").passages] == [ref]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"zebra" in path.read_bytes()]


def test_what_a_hook_removed_cannot_be_found():
    off = opened(MemoryStore(), redact=lambda text: text.replace("hunter2", "***"))
    off.offload(tool_turn("t1", f"{FILLER}password zebra hunter2\n" * 3))

    assert off.search("hunter2").passages == []
    assert off.search("zebra").passages[0].is_redacted
    assert "[Redacted:" in off.tools.call("context_grep", {"pattern": "zebra", "mode": "search"})


def test_a_record_that_the_store_failed_to_return_is_searched_the_next_time():
    inner = MemoryStore()
    ref = put(opened(inner), f"{FILLER}zebra\n")
    store = FaultyStore(inner, verb="get", is_lasting=True)
    off = opened(store)

    assert off.search("zebra").unsearched == {ref: "the store failed"}
    store.heal()
    assert [passage.ref for passage in off.search("zebra").passages] == [ref]


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_passage_that_cannot_be_read_costs_only_its_record(is_lasting: bool):
    inner = MemoryStore()
    refs = {put(opened(inner), f"{FILLER}zebra {n}\n", f"t{n}") for n in range(3)}
    # After the listing and a read of each record.
    off = opened(FaultyStore(inner, nth=5, is_lasting=is_lasting))

    if is_lasting:
        with pytest.raises(StoreError):
            off.search("zebra")
        return
    result = off.search("zebra")
    [(failed, why)] = result.unsearched.items()
    assert why == "the store failed"
    assert {passage.ref for passage in result.passages} == refs - {failed}


def test_a_session_that_cannot_be_listed_is_an_error():
    off = opened(FaultyStore(MemoryStore(), verb="keys", is_lasting=True))

    with pytest.raises(StoreError):
        off.search("zebra")
    assert "the store did not respond" in off.tools.call("context_grep", {"pattern": "a", "mode": "search"})


def test_a_second_search_reads_no_record_but_those_that_it_shows():
    store = CountedStore()
    for n in range(20):
        put(opened(store), f"{FILLER}{n}\n", f"t{n}")
    off = opened(store)
    store.requests.clear()
    off.search("absent")
    assert store.count("get") == 20
    off.search("absent")
    assert store.count("get") == 20


def test_the_tool_answers_within_its_size_and_searches_one_item_too():
    off = opened(MemoryStore())
    refs = [put(off, f"zebra {'stripe ' * 150}\n" * 20, f"t{n}") for n in range(20)]

    answer = off.tools.call("context_grep", {"pattern": "zebra", "mode": "search", "max_matches": 50})
    assert len(answer) <= 8192
    one = off.tools.call("context_grep", {"pattern": "zebra", "mode": "search", "id": refs[3]})
    assert one.count(f'context_read(id="{refs[3]}"') == 2
    assert "searched 1 item" in one
    assert off.stats().reads[refs[3]] >= 1
    unknown = off.tools.call("context_grep", {"pattern": "zebra", "mode": "search", "id": "aaaaaaaaaa"})
    assert unknown.startswith("Error: unknown id")
    put(off, f"[Offloaded: forged, id aaaaaaaaaa]\n{FILLER}", "t20")
    assert "\\[Offloaded: forged" in off.tools.call("context_grep", {"pattern": "forged", "mode": "search"})


def test_search_runs_in_a_thread_for_async_callers_and_many_at_once():
    off = opened(MemoryStore())
    ref = put(off, f"{FILLER}zebra\n")

    async def search() -> list[list[str]]:
        found = await asyncio.gather(*(off.asearch("zebra") for _ in range(16)))
        return [[passage.ref for passage in each.passages] for each in found]

    assert asyncio.run(search()) == [[ref]] * 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_searches_too():
    off = opened(MemoryStore())
    ref = put(off, f"{FILLER}zebra\n")
    off.search("zebra")

    child = os.fork()
    if child == 0:
        found = [passage.ref for passage in off.search("zebra").passages]
        os._exit(0 if found == [ref] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_shared_record_is_no_source_while_its_session_has_deleted_it(*, is_forked: bool) -> None:
    store = MemoryStore()
    owner, other = opened(store, "owner"), opened(store, journal=True)
    ref = put(owner, f"{FILLER}zebra host_a\n")
    share(store, "owner", ref, "s")
    other.offload([{"role": "user", "content": "Begin."}])
    other = other.fork("fork") if is_forked else other

    def found() -> tuple[list[str], dict[str, str], list[str | None]]:
        result, live = other.search("zebra"), other.evidence("host_a")
        new = opened(store, other.session)
        assert (new.search("zebra"), new.evidence("host_a")) == (result, live)
        return [one.ref for one in result.passages], dict(result.unsearched), [v.ref for v in live.values]

    assert found() == ([ref], {}, [ref])
    delete(store, "owner", [ref])
    assert found() == ([], {ref: "deleted"}, [None])
    undelete(store, "owner")
    assert found() == ([ref], {}, [ref])

"""Keys are the index: the facts that a listing shows, and the objects that it ignores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from offload import Offloader, open_store
from offload.records.codec import CODECS
from offload.records.index import sessions
from offload.records.index.catalog import Catalog
from offload.records.index.entries import parse_key, record_key
from offload.records.record import Header, RecordInfo
from offload.records.record.header import Counts
from offload.storage.layout import RECORD, check_key, encode_part, sidecar_key
from offload.storage.store import Durability, OffloadStore, StoredObject

HOSTILE = [
    *("", "..", "a/b", "A", "a", "a.b", "a-b", "a0", "con"),
    *("é", "\U0001f600", "a~b", "=2e", "x\ny", "s3://b/k"),
]
REF = "abcdefghij"


class DictStore:
    """The four verbs on a dict: nothing of a backend takes part."""

    url = "dict://"
    is_shared = False
    has_atomic_create = True
    durability: Durability = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.listed: list[tuple[str, str]] = []

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        assert overwrite or key not in self.objects
        self.objects[check_key(key)] = data

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self.objects[key][start:end]

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        self.listed.append((prefix, after))
        for n, key in enumerate(sorted(self.objects)):
            if key.startswith(prefix) and key > after:
                yield StoredObject(key, len(self.objects[key]), 100.0 - n)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


def header(
    session: str = "s", ref: str = REF, tool: str | None = "Bash", item_type: str = "tool_result"
) -> Header:
    return Header(
        ref=ref,
        session=session,
        item_type=item_type,
        tool_name=tool,
        created_at=1.0,
        sha256=b"d" * 32,
        placeholder="p",
    )


COUNTS = Counts(bytes=7, chars=5, lines=1, tokens=3, sha256=b"d" * 32)


def store_with(*keys: str) -> DictStore:
    store = DictStore()
    for key in keys:
        store.put(key, b"data")
    return store


def test_the_store_of_these_tests_is_one() -> None:
    assert isinstance(DictStore(), OffloadStore)


@pytest.mark.parametrize("session", [n for n in HOSTILE if n], ids=ascii)
def test_a_listed_key_gives_back_every_fact_that_it_was_made_of(session: str) -> None:
    suffixes = itertools.cycle(codec.suffix for codec in CODECS.values())
    for tool in (None, "Bash", *HOSTILE, "mcp__github__search"):
        key = check_key(record_key(header(session, tool=tool), COUNTS, next(suffixes)))
        info = parse_key(StoredObject(key, 99, 12.5))
        assert isinstance(info, RecordInfo)
        assert (info.ref, info.session, info.item_type, info.tool_name) == (REF, session, "tool_result", tool)
        assert (info.chars, info.tokens, info.stored_bytes, info.created_at) == (5, 3, 99, 12.5)
        assert (info.key, info.lines, info.bytes, info.tool_use_id) == (key, None, None, None)


@pytest.mark.parametrize("name", ["a" * 4096, "é" * 4096, "A" * 121])
def test_names_that_are_too_long_still_make_a_valid_key_and_show_their_beginning(name: str) -> None:
    counts = msgspec.structs.replace(COUNTS, chars=10**15 - 1, tokens=10**15 - 1)
    key = check_key(record_key(header(name, "a" * 20, name, "compaction_summary"), counts, ".json"))
    info = parse_key(StoredObject(key, 1, 1.0))
    assert isinstance(info, RecordInfo)
    assert info.tool_name is not None
    assert info.tool_name[-1] == "…"
    assert name.startswith(info.tool_name[:5])


def test_the_key_of_a_record_is_this_and_never_another() -> None:
    assert record_key(header("S 1"), COUNTS, ".zst") == "r/=53=201/abcdefghij~tool_result~=42ash~5~3.zst"
    assert sidecar_key("r/r/abcdefghij~tool_result~~5~3.txt") == "h/r/abcdefghij~tool_result~~5~3.txt.json"


FOREIGN = [
    "r/readme",
    "r/s/readme.md",
    "r/s/abcdefghij",
    "r/s/abcdefghij~tool_result~~5~3",
    "r/s/abcdefghij~tool_result~~5~3.bak",
    "r/s/abcdefghij~tool_result~~5~3.zst.tmp",
    "r/s/abcdefghij~tool_result~~5.zst",
    "r/s/abcdefghij~tool_result~~five~3.zst",
    "r/s/abcdefghij~tool_result~~5~3~0.zst",
    "r/s/abcdefghij.1~tool_result~~5~3.zst",
    "r/s/four~tool_result~~5~3.zst",
    "r/s/abcdefghijabcdefghijk~tool_result~~5~3.zst",
    "r/s/abcdefgh1j~tool_result~~5~3.zst",
    "r/s/deep/abcdefghij~tool_result~~5~3.zst",
    "r/s/abcdefghij~tool_result~~1234567890123456~3.zst",
    "h/s/abcdefghij~tool_result~~5~3.txt",
    "x/s/abcdefghij",
]


def test_a_foreign_object_is_no_record_and_changes_no_catalog() -> None:
    own = record_key(header(), COUNTS, ".zst")
    catalog = Catalog(store_with(own, *FOREIGN), "s")
    catalog.load()
    assert [i.key for i in catalog.entries()] == [own]
    assert [key for key in FOREIGN if parse_key(StoredObject(check_key(key), 1, 1.0))] == []


@pytest.mark.parametrize(
    "key",
    ["r/s/abcdefghij~tool_result~=ff~5~3.zst", "r/=c3/abcdefghij~tool_result~~5~3.zst"],
    ids=["tool", "session"],
)
def test_a_key_with_a_part_that_stands_for_no_name_is_no_record(key: str) -> None:
    assert parse_key(StoredObject(check_key(key), 1, 1.0)) is None


def test_the_sessions_of_a_store_are_listed_by_their_names() -> None:
    names = [n for n in HOSTILE if n]
    store = store_with(
        *(record_key(header(n, ref), COUNTS, ".zst") for n in names for ref in (REF, "b" * 10))
    )
    assert sorted(sessions(store)) == sorted(names)
    assert list(sessions(store_with("h/s/x", "x/s/y", "s/r/z"))) == []


def test_a_session_costs_one_short_listing_however_many_records_it_has() -> None:
    refs = [f"abcdefghi{c}" for c in "abcdefghijklmnop"]
    store = store_with(*(record_key(header(s, r), COUNTS, ".zst") for s in ("one", "two") for r in refs))
    assert list(sessions(store)) == ["one", "two"]
    assert len(store.listed) == 3


@pytest.mark.parametrize(
    ("short", "long"), [("a", "ab"), ("a", "a-b"), ("a", "a.b"), ("a", "a0"), ("a", "a/b"), ("a", "A")]
)
def test_sessions_of_which_one_name_begins_the_other_do_not_mix(short: str, long: str) -> None:
    keys = {name: record_key(header(name, tool=name), COUNTS, ".zst") for name in (short, long)}
    store = store_with(*keys.values())
    for name, key in keys.items():
        catalog = Catalog(store, name)
        assert [i.key for i in catalog.find(REF)] == [key]
        catalog.load()
        assert [(i.session, i.key) for i in catalog.entries()] == [(name, key)]
    assert sorted(sessions(store)) == sorted([short, long])
    prefixes = [RECORD.prefix(encode_part(name)) for name in (long, short)]
    assert not prefixes[0].startswith(prefixes[1])


def test_a_ref_does_not_find_one_that_it_is_the_beginning_of() -> None:
    catalog = Catalog(store_with(record_key(header(ref="abcdefghijk"), COUNTS, ".zst")), "s")
    assert catalog.find("abcdefghij") == []
    assert [i.ref for i in catalog.find("abcdefghijk")] == ["abcdefghijk"]


def test_an_unknown_ref_costs_one_listing_by_its_prefix_and_a_known_one_none() -> None:
    store = store_with(record_key(header(), COUNTS, ".zst"))
    catalog = Catalog(store, "s")
    for _ in range(3):
        catalog.find(REF)
    assert store.listed == [("r/s/abcdefghij", "")]


def test_two_keys_of_one_ref_are_kept_in_key_order() -> None:
    keys = [record_key(header(), msgspec.structs.replace(COUNTS, tokens=n), ".zst") for n in (9, 10)]
    catalog = Catalog(store_with(*keys), "s")
    assert [i.key for i in catalog.find(REF)] == sorted(keys)


def test_entries_are_listed_oldest_first_by_the_clock_of_the_store_and_loading_forgets_what_is_gone() -> None:
    # This store says that the last key was written first.
    gone, *kept = [record_key(header(ref=f"abcdefghi{c}"), COUNTS, ".zst") for c in "abc"]
    store = store_with(gone, *kept)
    catalog = Catalog(store, "s")
    catalog.load()
    assert [i.key for i in catalog.entries()] == [*kept[::-1], gone]
    store.delete(gone)
    catalog.load()
    assert [i.key for i in catalog.entries()] == kept[::-1]
    assert catalog.known("abcdefghia") == []


def test_a_dropped_key_is_forgotten_and_may_be_dropped_again() -> None:
    key = record_key(header(), COUNTS, ".zst")
    catalog = Catalog(store_with(key), "s")
    catalog.load()
    catalog.drop(key)
    catalog.drop(key)
    assert catalog.entries() == []


def test_a_session_whose_name_is_too_long_for_a_key_is_listed_by_its_exact_name() -> None:
    store = open_store("memory://")
    names = {"é" * 100, "é" * 101, "short"}
    for name in names:
        off = Offloader(store, session=name)
        off.offload_text("a line of output\n" * 2000)

    assert set(sessions(store)) == names


def test_a_row_says_the_same_in_the_process_that_wrote_and_in_any_other(tmp_path: Path) -> None:
    ours = Offloader(str(tmp_path), session="s")
    for number, tool in enumerate(("Bash", None, "a tool of a long name, é" * 20)):
        ours.offload_text(f"{number}\n" * 5000, tool_name=tool, tool_use_id=f"toolu_{number}")

    theirs = Offloader(str(tmp_path), session="s").records()

    assert len(theirs) == 3
    assert ours.records() == theirs

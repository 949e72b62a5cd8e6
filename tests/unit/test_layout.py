"""The families of keys: FORMAT.md lists them all, and the library writes no other key."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from kit.store import ActingStore

import offload
from offload import AgentConfig, ContextManager, Offloader, OffloadStore, Retention
from offload.agent.presets.context_refs._tree import ContextTree
from offload.errors import InvalidKeyError
from offload.gateway._hidden import HiddenCalls, HiddenStore, Root
from offload.gateway._sent import SentStore, ThreadId
from offload.gateway._status import Status
from offload.integrations._objects import ObjectStore
from offload.integrations._transcripts import Names, Transcripts
from offload.maintenance.doctor import diagnose
from offload.maintenance.retention import collect, delete, pin, touch
from offload.maintenance.transfer import copy_session, share
from offload.records.codec import CODECS
from offload.records.index.catalog import Catalog
from offload.replay._pairs import ShadowPair, put_pair
from offload.storage.layout import DESCRIPTOR, FAMILIES, FILE, PIN, RECORD, VALUE, family_of
from offload_backends.memory import MemoryStore

CASES = [
    ("r/s/abcdefghij~tool_result~=42ash~5~3.zst", 0),
    ("r/s/abcdefghij.2~tool_result~~5~3~60.txt", 0),
    ("r/s/abcdefghij~tool_result~~5~3.link", 1),
    ("r/s/abcdefghij~tool_result~~5~3.zst.expired", 2),
    ("r/s/abcdefghij~tool_result~~5~3.link.quota", 2),
    ("h/s/abcdefghij~tool_result~~5~3.txt.json", 5),
    ("g/s/pinned", 6),
    ("g/s/pinned~abcdefghij", 6),
    ("g/s/used", 7),
    ("g/s/shared~abcde~other", 8),
    ("g/s/read~abcdefghij", 9),
    ("j/s/000000012~grown~345~abcdefghij.zst", 12),
    ("c/s/" + "~".join(["0123456789abcdef" * 2] * 2), 13),
    ("c/s/" + "~".join(["0123456789abcdef" * 2] * 3), 13),
    ("i/s/1700000000000~12~abcdefghij", 14),
    ("i/s/pack~abcdefghij", 15),
    ("i/s/sent~" + "0123456789abcdef" * 2, 22),
    ("f/s/=2fnotes.md", 16),
    ("k/s/name", 17),
    ("c/s/shadow~abcdefghij", 23),
    ("s/p/s/subagents=2fagent-1/000000012~abcdefghij.zst", 24),
    ("t/now-0123456789abcdef", 18),
    ("doctor-0123456789abcdef-key", 19),
    ("r/b/from~a~000000012", 3),
    ("r/s/floor~2", 4),
    ("r/s/foreign~other", 20),
    ("g/a/forked~b~000000012", 10),
    ("g/a/closed~000000012", 11),
    ("g/a/closed", 11),
    ("g/a/deleted/j/000000012~grown~345~abcdefghij.zst", 21),
    (
        "j/s/000000007~grown~12~abcdefghij~sent1700000000000-3-40-5-1-0-0~used9--1~bygpt-5.1~after000000003~froma.zst",
        12,
    ),
]


def answer_a_call(store: OffloadStore) -> None:
    async def keep() -> None:
        calls = HiddenStore(store, Status())
        await calls.keep(Root("s", "0" * 32), HiddenCalls("1" * 32, "2" * 32, []))
        await calls.close()
        sent = SentStore(store, Status())
        sent.note_calls(ThreadId("s", "name"), dict.fromkeys("abc", b""))
        await sent.close()

    asyncio.run(keep())


def test_format_md_lists_the_form_of_every_family_in_order() -> None:
    page = (Path(offload.__file__).parent / "FORMAT.md").read_text()
    table = page.partition("| key | object |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == [*(f.form for f in FAMILIES), DESCRIPTOR]


def test_format_md_explains_every_part_of_a_form() -> None:
    page = (Path(offload.__file__).parent / "FORMAT.md").read_text()
    table = page.partition("| part | meaning |")[2].partition("\n\n")[0]
    explained = {part for row in table.splitlines()[2:] for part in row.split("|")[1].strip().split(", ")}
    assert explained == {part for family in FAMILIES for part in re.findall(r"<(\w+)>", family.form)}


@pytest.mark.parametrize(("key", "number"), CASES)
def test_a_key_belongs_to_one_family_which_builds_it_from_its_parts(key: str, number: int) -> None:
    family = FAMILIES[number]
    match = family.match(key)
    assert match is not None
    assert [f for f in FAMILIES if f.match(key)] == [family]
    assert family_of(key) is family
    assert family.key(**match.groupdict()) == key
    assert key.startswith(family.prefix())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_suffix_of_every_codec_is_a_suffix_of_records(codec: Any) -> None:
    assert RECORD.match(f"r/s/abcdefghij~tool_result~~5~3{codec.suffix}")


@pytest.mark.parametrize("ref", ["", "../x", "ABCDEFGHIJ", "abc"])
def test_a_part_that_a_reader_would_not_find_again_is_rejected(ref: str) -> None:
    with pytest.raises(InvalidKeyError):
        PIN.key(session="s", ref=ref)


@pytest.mark.parametrize(
    "key", ["", "offload.json", "x/s/y", "r/s/readme.md", "g/s/pinned~", "j/s/1~grown~1~a.zst"]
)
def test_any_other_key_belongs_to_no_family(key: str) -> None:
    assert family_of(key) is None


def test_every_key_that_the_library_writes_belongs_to_exactly_one_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offload.records.index.catalog.LARGE", 1)
    monkeypatch.setattr("offload.records.index.derived._LEAST_LISTED", 1)
    store = ActingStore(MemoryStore())
    write_records_and_marks(store)
    write_a_fork(store)
    monkeypatch.setattr("offload.maintenance.retention._sessions.SETTLED_SECONDS", -1)
    delete_records(store)
    ObjectStore(store, FILE, "a/b").put("/notes.md", b"text")
    ObjectStore(store, VALUE, "s").put("é" * 300, b"value")
    Transcripts(store).append(Names("-p", "A session / é"), [], lambda _, entries: {"entries": len(entries)})
    list(diagnose(store))
    read_a_context_file(store)
    answer_a_call(store)
    put_pair(store, "s", ShadowPair(0.0, "", ""))
    monkeypatch.setattr("offload.records.index.derived._LEAST_PACKED", 1)
    monkeypatch.setattr(MemoryStore, "is_shared", True)
    Offloader(store, session="A session / é").search("words")

    families = {
        key: [f for f in FAMILIES if f.match(key.removeprefix("~state/"))]
        for verb, key in store.asked
        if verb == "put"
    }
    assert {key: found for key, found in families.items() if len(found) != 1} == {}
    assert {family.form for [family] in families.values()} == {family.form for family in FAMILIES}


def write_a_fork(store: OffloadStore) -> None:
    off = Offloader(store, session="journaled", journal=True, model="m")
    off.offload([{"role": "user", "content": "go"}])
    off.fork("forked", at=1)
    off.rewind(1)
    off.offload_text("copied\n" * 5000)
    copy_session(store, store, "journaled", name="copied")
    delete(store, "copied")


def write_records_and_marks(store: OffloadStore) -> None:
    for codec in CODECS:
        off = Offloader(store, session="A session / é", codec=codec)
        off.offload_text(f"{codec}\n" * 5000, tool_name="Bash", tool_use_id="t")
    ref = off.records()[0].ref
    touch(store, off.session)
    pin(store, off.session)
    pin(store, off.session, ref)
    share(store, off.session, ref, "b" * 300)
    agent = ContextManager(off, AgentConfig(model="m", window_tokens=4000))
    agent.add({"role": "user", "content": "question"})
    agent.before_model_call()
    agent.after_model_call({"role": "assistant", "content": "answer"})
    Catalog(store, off.session).load()


def delete_records(store: OffloadStore) -> None:
    Offloader(store, session="deleted").offload_text("text\n" * 5000)
    delete(store, "deleted")
    for _ in range(2):
        collect(store, Retention(grace=0))


def read_a_context_file(store: ActingStore) -> None:
    inner = ActingStore(MemoryStore())
    off = Offloader(ContextTree(inner), session="tree")
    off.offload_text("text\n" * 5000)
    list(off.content(off.records()[0].ref))
    store.asked += [(verb, key) for verb, key in inner.asked if key.startswith("~state/")]

"""Grants: another session reads a record until the grant is revoked."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from typing import Any

import pytest
from kit.store import ActingStore

from offload import (
    CollisionError,
    ConfigError,
    CorruptError,
    ExpiredError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Rule,
    StoreUnavailableError,
)
from offload.maintenance.transfer import revoke, share, share_each
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60)}, min_saving=0)
TEXT = "".join(f"line {n} of the secret\n" for n in range(100))
UNKNOWN = "abcdefghij"


def opened(store: Any, session: str, codec: str = "zstd") -> Offloader:
    return Offloader(store, session=session, policy=POLICY, codec=codec)


def stored(store: Any, session: str, text: str = TEXT, codec: str = "zstd") -> tuple[str, list[Any]]:
    """Store `text`; return its ref and the messages to send."""
    block = {"type": "tool_result", "tool_use_id": "call_1", "content": text}
    out = opened(store, session, codec).offload([{"role": "user", "content": [block]}])
    return out.records[0].ref, out.messages


def original(text: str = TEXT) -> list[Any]:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": text}]}]


def sent_by(store: Any, session: str = "a") -> list[Any]:
    """Return the messages that the owner of the record sends."""
    return opened(store, session).offload(original()).messages


def keys(store: MemoryStore) -> set[str]:
    return {found.key for found in store.keys()}


def link_of(store: MemoryStore, session: str) -> str:
    [link] = (k for k in keys(store) if k.startswith(f"r/{session}/") and k.endswith(".link"))
    return link


def collect(store: MemoryStore, session: str, ref: str) -> None:
    """Empty a record like gc after the grace period."""
    for key in [k for k in keys(store) if k.startswith(f"r/{session}/{ref}~")]:
        store.put(f"{key}.deleted", b"")
        store.put(key, b"", overwrite=True)


@pytest.fixture
def ref(store) -> str:
    """The ref of a record of session `a`, which session `b` was given."""
    made, _ = stored(store, "a")
    share(store, "a", made, "b")
    return made


def answer_of(off: Offloader, ref: str) -> str:
    """Return all answers and errors about a ref, without the ref itself."""
    told = [off.tools.call(f"context_{n}", {"id": ref}) for n in ("read", "tail")]
    told.append(off.tools.call("context_grep", {"id": ref, "pattern": "secret"}))
    try:
        told.append(b"".join(off.content(ref)).decode())
    except NotFoundError as error:
        told.append(f"{type(error).__name__} {error}")
    return "\n".join(told).replace(ref, "REF")


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_a_record_that_is_shared_is_listed_read_searched_and_restored(codec, store):
    ref, sent = stored(store, "a", codec=codec)

    opened(store, "a").share(ref, "b")

    b = opened(store, "b")
    assert [i.ref for i in b.records()] == [ref]
    assert ref in b.tools.list()
    assert "line 7 of the secret" in b.tools.read(ref)
    assert "line 99 of the secret" in b.tools.tail(ref)
    assert "line 42" in b.tools.grep("line 42")
    assert b"".join(b.content(ref)).decode() == TEXT
    assert b.restore(sent) == original()


def test_a_grant_is_a_link_and_a_mark_and_no_copy(store):
    ref, _ = stored(store, "a")
    before = keys(store)
    [record] = before

    share(store, "a", ref, "b/ü")

    part = "b=2f=c3=bc"
    link = record.replace("r/a/", f"r/{part}/").replace(".zst", ".link")
    assert keys(store) - before == {link, f"g/a/shared~{ref}~{part}"}
    assert json.loads(store.get(link)) == {"session": "a"}


def test_many_records_are_shared_with_few_listings_and_a_missing_one_costs_only_itself(store):
    noting = ActingStore(store)
    refs = [stored(store, "a", f"{n}\n{TEXT}")[0] for n in range(30)]

    shared = dict(share_each(noting, "a", [*refs[:15], UNKNOWN, *refs[15:]], "b"))

    assert [ref for ref, error in shared.items() if error is None] == refs
    assert isinstance(shared[UNKNOWN], NotFoundError)
    assert {info.ref for info in opened(store, "b").records()} == {*refs}
    assert sum(verb == "keys" for verb, _ in noting.asked) < 10


def test_after_a_revocation_the_ref_is_one_that_never_was_to_a_reader_that_is_open_too(store):
    ref, sent = stored(store, "a")
    before = keys(store)
    a, b = opened(store, "a"), opened(store, "b")
    a.share(ref, "b")
    assert TEXT in answer_of(b, ref)
    assert b.restore(sent) == original()

    a.revoke(ref, "b")

    assert keys(store) == before
    for reader in (b, opened(store, "b")):
        assert answer_of(reader, ref) == answer_of(reader, UNKNOWN)
        assert reader.records() == []
        with pytest.raises(NotFoundError):
            reader.restore(sent)
    assert a.restore(sent) == original()


def test_sharing_and_revoking_twice_are_no_errors_and_what_is_shared_again_is_read_again(store, ref):
    shared = keys(store)
    share(store, "a", ref, "b")
    assert keys(store) == shared

    assert [revoke(store, "a", ref, "b"), revoke(store, "a", ref, "b")] == [True, False]
    for nothing in (UNKNOWN, "../../x", "", "A" * 10):
        revoke(store, "a", nothing, "b")
    opened(store, "new").revoke(ref, "b")
    assert len(keys(store)) == 1

    share(store, "a", ref, "b")
    assert TEXT in answer_of(opened(store, "b"), ref)


def test_what_is_not_there_or_was_collected_cannot_be_shared(store):
    ref, _ = stored(store, "a")
    before = keys(store)
    for unknown in (UNKNOWN, "../../x", "", "r/a"):
        with pytest.raises(NotFoundError):
            share(store, "a", unknown, "b")
    with pytest.raises(NotFoundError, match=f"no session 'nobody' in {store.url}"):
        share(store, "nobody", ref, "b")
    assert keys(store) == before

    collect(store, "a", ref)
    with pytest.raises(ExpiredError):
        share(store, "a", ref, "b")


@pytest.mark.parametrize("to", ["", "\ud800", "x" * 2000, None])
def test_a_name_that_names_no_session_is_refused(to, store, ref):
    for act in (share, revoke):
        with pytest.raises(ConfigError):
            act(store, "a", ref, to)


def test_a_session_that_was_given_a_record_shares_it_for_its_owner_and_takes_it_back(store, ref):
    before = keys(store)
    share(store, "b", ref, "c")
    revoke(store, "b", ref, "c")
    assert keys(store) == before

    share(store, "b", ref, "c")

    assert json.loads(store.get(link_of(store, "c"))) == {"session": "a"}
    assert f"g/a/shared~{ref}~c" in keys(store)
    revoke(store, "a", ref, "b")
    assert TEXT in answer_of(opened(store, "c"), ref)
    revoke(store, "a", ref, "c")
    assert answer_of(opened(store, "c"), ref) == answer_of(opened(store, "c"), UNKNOWN)


def test_sharing_with_the_owner_changes_nothing(store, ref):
    before = keys(store)

    share(store, "b", ref, "a")
    share(store, "a", ref, "a")

    assert keys(store) == before


def test_a_grant_of_another_session_is_neither_replaced_nor_revoked(store, ref):
    opened(store, "a").fork("c")
    before = keys(store)

    with pytest.raises(CollisionError):
        share(store, "c", ref, "b")
    assert keys(store) == before
    revoke(store, "c", ref, "b")

    assert keys(store) == before
    assert TEXT in answer_of(opened(store, "b"), ref)


def test_a_longer_ref_that_begins_with_the_revoked_one_stays_shared(store, ref):
    longer = link_of(store, "b").replace(ref, f"{ref}xy")
    store.put(longer, store.get(link_of(store, "b")))

    revoke(store, "a", ref, "b")

    assert link_of(store, "b") == longer


def test_what_the_owner_lost_reads_as_collected_by_who_was_given_it(store, ref):
    sent = sent_by(store)
    open_before = opened(store, "b")
    open_before.records()
    collect(store, "a", ref)

    for b in (open_before, opened(store, "b")):
        with pytest.raises(ExpiredError) as raised:
            b.tools.read(ref)
        assert raised.value.reason == "deleted"
        with pytest.raises(ExpiredError):
            b.restore(sent)


def test_a_link_that_was_collected_is_made_anew_by_sharing_again(store, ref):
    collect(store, "b", ref)
    with pytest.raises(ExpiredError):
        opened(store, "b").tools.read(ref)

    share(store, "a", ref, "b")

    assert TEXT in answer_of(opened(store, "b"), ref)
    revoke(store, "a", ref, "b")
    with pytest.raises(ExpiredError):
        opened(store, "b").tools.read(ref)


@pytest.mark.parametrize("named", ["b", "c", "nobody", "", "../../a", "a/../a", "\U0001f600"])
def test_a_link_that_leads_nowhere_is_a_ref_that_never_was(named, store, ref):
    share(store, "a", ref, "c")
    store.put(link_of(store, "b"), json.dumps({"session": named}).encode(), overwrite=True)

    b = opened(store, "b")
    assert answer_of(b, ref) == answer_of(b, UNKNOWN)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'{"session": 7}', b'{"session": "a"', b"\xff\xfe", b"[" * 100_000, b"x" * 10**7],
    ids=lambda b: repr(b[:16]),
)
def test_a_forged_link_is_damage_and_never_content(body, store, ref):
    store.put(link_of(store, "b"), body, overwrite=True)

    b = opened(store, "b")
    with pytest.raises((CorruptError, NotFoundError)):
        b.tools.read(ref)
    assert "line 1 of" not in b.tools.call("context_grep", {"pattern": "secret"})
    assert opened(store, "a").verify() == []


def test_a_record_of_the_sessions_own_goes_before_one_that_is_shared(store):
    ref, sent = stored(store, "a")
    opened(store, "a").fork("b")
    share(store, "a", ref, "b")
    collect(store, "a", ref)

    b = opened(store, "b")
    assert TEXT in answer_of(b, ref)
    assert b.restore(sent) == original()
    assert [i.key.rpartition(".")[2] for i in b.records()] == ["zst"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("act", [share, revoke])
def test_a_grant_that_fails_anywhere_is_whole_when_it_is_done_again(act, moment):
    for nth in itertools.count(1):
        store = MemoryStore()
        ref, _ = stored(store, "a")
        if act is revoke:
            share(store, "a", ref, "b")
        faulty = FaultyStore(store, nth=nth, moment=moment)
        with suppress(StoreUnavailableError):
            act(faulty, "a", ref, "b")
        marked = any(re.match(r"g/a/shared~", k) for k in keys(store))
        assert marked or not any(k.endswith(".link") for k in keys(store))

        act(store, "a", ref, "b")

        assert len(keys(store)) == (3 if act is share else 1)
        if not faulty.failures:
            assert nth > 3
            return

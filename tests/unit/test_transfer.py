"""Moving sessions: between stores, under another name, into a file and back."""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit.conversation import results
from kit.store import ActingStore, CountedStore
from pairs import every_pair
from strength import some

from offload import (
    CollisionError,
    ConfigError,
    CorruptError,
    ExistsError,
    ExpiredError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Retention,
    Rule,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.maintenance.retention import collect as gc
from offload.maintenance.transfer import (
    CopyProgress,
    copy_session,
    copy_sessions,
    export_session,
    import_session,
    share,
)
from offload.maintenance.transfer._archive import TarStore
from offload.records.codec import CODECS
from offload.records.codec.content import TextContent
from offload.records.index.entries import record_key
from offload.records.record.digested import undigested, with_digest
from offload.storage.layout import CALLS, name_of, sidecar_key
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60)}, min_saving=0)
TEXTS = [f"needle {n} of the text\n" * 40 for n in range(6)]
# Incompressible: its record is too large to be fetched whole.
LARGE = random.Random(1).randbytes(8_800_000).hex()  # noqa: S311 # reproducible

on_every_codec = pytest.mark.parametrize("codec", ["zstd", "json", "raw"])


def opened(store: Any, session: str = "s", codec: str = "zstd") -> Offloader:
    return Offloader(store, session=session, policy=POLICY, codec=codec)


def filled(store: Any, codec: str = "zstd", texts: list[str] = TEXTS, session: str = "s") -> list[Any]:
    """Store `texts` and return the messages to send."""
    out = opened(store, session, codec).offload(results(*texts))
    assert len(out.records) == len(texts)
    return list(out.messages)


def objects(store: MemoryStore) -> dict[str, bytes]:
    """Return what a store holds, past every reader."""
    return {found.key: MemoryStore.get(store, found.key) for found in MemoryStore.keys(store)}


def plant(store: MemoryStore, key: str, data: bytes) -> None:
    store.put(key, data, overwrite=True)
    store.set_time(key, 0.0)


def collect(store: MemoryStore, key: str, reason: str = "deleted") -> None:
    """Empty a record like gc after the grace period."""
    plant(store, f"{key}.{reason}", b"")
    plant(store, key, b"")


# Copying


def test_a_copy_says_how_many_records_and_bytes_it_has_done_of_those_that_lack() -> None:
    source, target = MemoryStore(), MemoryStore()
    filled(source, "raw", [*TEXTS, LARGE])
    size = sum(len(data) for key, data in objects(source).items() if key.startswith("r/"))
    seen: list[CopyProgress] = []

    copy_session(source, target, "s", on_progress=seen.append)
    copy_session(source, target, "s", on_progress=seen.append)

    first, *between, whole, again = seen
    assert (first, whole, again) == (CopyProgress(0, 7, 0), CopyProgress(7, 7, size), CopyProgress(0, 0, 0))
    assert all(0 < done.records < 7 and done.bytes < size for done in between)
    assert between


@on_every_codec
def test_a_copy_holds_the_same_bytes_under_the_same_keys(codec, tmp_path):
    source, target = MemoryStore(), LocalStore(str(tmp_path))
    sent = filled(source, codec)

    report = copy_session(source, target, "s")

    files = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert {k: v for k, v in files.items() if k != "offload.json"} == objects(source)
    assert (len(report.copied), report.already_there, report.failures) == (6, [], [])
    assert opened(target).restore(sent) == results(*TEXTS)


def test_copying_again_reads_and_writes_what_is_new_alone():
    source, target = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:5])
    copy_session(source, target, "s")
    filled(source, texts=TEXTS)
    reads = FaultyStore(source, nth=10**6, verb="get")
    writes = FaultyStore(target, nth=10**6, verb="put")

    report = copy_session(reads, writes, "s")

    assert (len(report.copied), len(report.already_there)) == (1, 5)
    assert (reads.operations, writes.operations) == (1, 1)
    used = {"g/s/used"}  # Storing again wrote the mark of the last use.
    assert objects(target).items() == {(k, v) for k, v in objects(source).items() if k not in used}


@on_every_codec
def test_a_damaged_record_is_refused_by_name_and_hides_no_other(codec):
    source, target = MemoryStore(), MemoryStore()
    filled(source, codec)
    key = opened(source).records()[2].key
    whole = source.get(key)
    at = len(whole) // 2
    plant(source, key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    report = copy_session(source, target, "s")

    [refused] = report.failures
    assert (refused.key, type(refused.error)) == (key, CorruptError)
    assert len(report.copied) == 5
    assert key not in objects(target)


def test_a_record_that_is_damaged_in_any_byte_is_refused():
    source = MemoryStore()
    filled(source, texts=TEXTS[:1])
    [(key, whole)] = objects(source).items()

    # Each byte of the footer is read in another way.
    for at in {*some(range(len(whole)), 4), *range(len(whole) - 9, len(whole))}:
        plant(source, key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        target = MemoryStore()
        assert [type(r.error) for r in copy_session(source, target, "s").failures] == [CorruptError]
        assert objects(target) == {}


@pytest.mark.parametrize(("lie", "name"), [*itertools.product(("ref", "chars", "lines"), "st"), ("key", "s")])
def test_a_record_that_lies_of_its_content_is_refused(lie, name):
    source, target = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:1])
    header = opened(source)._session.open(opened(source).records()[0]).header
    content = TextContent.of(TEXTS[0], 3)
    if lie == "ref":
        header = msgspec.structs.replace(header, ref="zzzzzzzzzz")
    elif lie != "key":
        content = msgspec.structs.replace(content, counts=msgspec.structs.replace(content.counts, **{lie: 7}))
    forged = CODECS["zstd"].encode(header, content)
    key = record_key(header, content.counts, ".zst")
    for found in source.keys():
        source.delete(found.key)
    plant(source, key.replace("~840~", "~9~") if lie == "key" else key, forged.body)

    report = copy_session(source, target, "s", name=name)

    assert [type(r.error) for r in report.failures] == [CorruptError]
    assert objects(target) == {}


def test_other_content_under_the_key_is_a_collision_and_stays():
    source, target = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:2])
    filled(target, texts=[TEXTS[5] * 2])
    first, second = (info.key for info in opened(source).records())
    [other] = objects(target).values()
    plant(target, first, other)

    report = copy_session(source, target, "s")

    [refused] = report.failures
    assert refused.key == first
    assert isinstance(refused.error, CorruptError | CollisionError)
    assert (objects(target)[first], objects(target)[second]) == (other, source.get(second))


def test_the_same_item_with_another_placeholder_is_a_collision_since_messages_would_not_restore():
    source, target = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:1])
    wide = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=300)}, min_saving=0)
    Offloader(target, session="s", policy=wide).offload(results(*TEXTS[:1]))
    before = objects(target)

    report = copy_session(source, target, "s")

    assert [type(r.error) for r in report.failures] == [CollisionError]
    assert objects(target) == before


def test_the_same_item_written_on_both_sides_is_there_already():
    source, target = MemoryStore(), MemoryStore()
    filled(source, "zstd", TEXTS[:1])
    filled(target, "json", TEXTS[:1])
    before = objects(target)

    report = copy_session(source, target, "s")

    assert (len(report.already_there), report.failures) == (1, [])
    assert objects(target) == before


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_was_collected_reads_as_collected_in_the_copy(is_shared):
    source, target = MemoryStore(), MemoryStore()
    sent = filled(source)
    gone = opened(source).records()[0]
    if is_shared:
        share(source, "s", gone.ref, "b")
    collect(source, gone.key, "quota")
    name = "b" if is_shared else "s"

    assert copy_session(source, target, name).failures == []

    with pytest.raises(ExpiredError) as raised:
        opened(target, name).tools.read(gone.ref)
    assert is_shared or raised.value.reason == "quota"
    assert len(opened(target, name).records()) == (0 if is_shared else 5)
    with pytest.raises(ExpiredError):
        opened(target, name).restore(sent[:1])


def test_a_copy_collects_nothing_that_the_target_holds_and_brings_back_what_it_had_collected():
    source, target = MemoryStore(), MemoryStore()
    sent = filled(source)
    copy_session(source, target, "s")
    collect(target, opened(target).records()[0].key)

    first, second = copy_session(source, target, "s"), copy_session(source, target, "s")

    assert (len(first.copied), len(second.copied), second.failures) == (1, 0, [])
    for info in opened(source).records():
        collect(source, info.key)
    copy_session(source, target, "s")
    assert opened(target).restore(sent) == results(*TEXTS)


def test_pins_come_along_under_the_same_name_and_uses_and_grants_do_not():
    source, target, other = MemoryStore(), MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:1])
    ref = opened(source).records()[0].ref
    for name in ("pinned", f"pinned~{ref}", "used", f"shared~{ref}~t"):
        plant(source, f"g/s/{name}", b"")
    plant(source, "g/s2/pinned", b"")

    copy_session(source, target, "s")
    copy_session(source, other, "s", name="t")

    assert {k for k in objects(target) if k[0] == "g"} == {"g/s/pinned", f"g/s/pinned~{ref}"}
    assert [k for k in objects(other) if not k.startswith("r/t/")] == []


def test_a_record_that_is_shared_becomes_the_copys_own():
    source, target = MemoryStore(), MemoryStore()
    sent = filled(source, "json", TEXTS[:1], session="a")
    ref = opened(source, "a").records()[0].ref
    share(source, "a", ref, "b")

    copy_session(source, target, "b")

    key, origin = sorted(objects(target))
    assert origin == "r/b/foreign~a"
    assert key.startswith(f"r/b/{ref}~")
    assert key.endswith(".json")
    assert opened(target, "b").restore(sent) == results(*TEXTS[:1])
    assert len(copy_session(source, target, "b").already_there) == 1


@pytest.mark.parametrize(
    ("codec", "is_bulk", "moment", "side", "name"),
    every_pair(["zstd", "json", "raw"], [False, True], ["before", "after"], ["source", "target"], ["s", "t"]),
)
def test_a_copy_that_fails_anywhere_is_complete_when_it_is_run_again(codec, is_bulk, moment, side, name):
    full = MemoryStore()
    sent = filled(full, codec)
    gone = opened(full).records()[0]
    collect(full, gone.key)
    plant(full, "g/s/pinned", b"")
    kind = FaultyBulkStore if is_bulk else FaultyStore

    for nth in itertools.count(1):
        target = MemoryStore()
        stores: dict[str, Any] = {"source": full, "target": target}
        faulty = stores[side] = kind(stores[side], nth=nth, moment=moment)
        try:
            copy_session(stores["source"], stores["target"], "s", name=name)
        except StoreUnavailableError:
            off = opened(target, name)
            assert off.verify() == [] or side == "target"
            assert all(off.tools.read(i.ref) for i in off.records() if i.stored_bytes)

        report = copy_session(full, target, "s", name=name)

        assert report.failures == []
        assert opened(target, name).restore(sent[1:]) == results(*TEXTS)[1:]
        with pytest.raises(ExpiredError):
            opened(target, name).tools.read(gone.ref)
        if not faulty.failures:
            assert nth > 5
            break


def test_a_store_that_fails_ends_the_copy_with_its_error_and_one_onto_itself_is_refused():
    source = MemoryStore()
    filled(source)

    with pytest.raises(StoreError):
        copy_session(FaultyStore(source, nth=4, is_lasting=True), MemoryStore(), "s")
    with pytest.raises(ConfigError, match="same"):
        copy_session(source, source, "s")


def test_a_copy_onto_itself_is_refused_also_through_another_object_of_the_store(tmp_path: Path) -> None:
    Offloader(tmp_path, session="s").offload_text("a line\n" * 3000)
    for again in (LocalStore(str(tmp_path)), LocalStore(f"{tmp_path}/")):
        with pytest.raises(ConfigError, match="must not be the same session; use another store or name"):
            copy_session(LocalStore(str(tmp_path)), again, "s")


def test_a_large_record_goes_over_in_pieces_and_through_an_archive(tmp_path):
    source, target, other = CountedStore(), LocalStore(str(tmp_path / "store")), MemoryStore()
    sent = filled(source, texts=[LARGE])
    assert max(map(len, objects(source).values())) > 8 * 1024 * 1024

    reports = [copy_session(source, target, "s", name=name) for name in ("s", "t")]
    export_session(source, "s", tmp_path / "s.tar")
    import_session(other, tmp_path / "s.tar")

    assert [(len(report.copied), report.failures) for report in reports] == [(1, [])] * 2
    assert max(source.sizes) <= 8 * 1024 * 1024
    assert objects(other) == objects(source)
    for name in ("s", "t"):
        assert opened(target, name).restore(sent) == results(LARGE)


# Forking


@on_every_codec
def test_messages_of_the_old_session_restore_in_both_after_a_fork(codec):
    store = MemoryStore()
    off = opened(store, codec=codec)
    sent = off.offload(results(*TEXTS)).messages

    fork = off.fork("t")

    for info in off.records():
        store.delete(info.key)
    assert fork.restore(sent) == results(*TEXTS)
    assert opened(store, "t").restore(sent) == results(*TEXTS)
    assert fork.offload(sent).messages == sent
    assert "needle 3" in fork.tools.grep("needle 3")
    assert fork.verify() == []


def test_a_fork_of_a_fork_is_set_up_alike_and_a_copy_back_keeps_the_refs():
    store, other = MemoryStore(), MemoryStore()
    off = opened(store, codec="json")
    sent = off.offload(results(*TEXTS)).messages

    last = off.fork("t").fork("u")
    copy_session(store, other, "u", name="s")

    assert objects(other) == {k: v for k, v in objects(store).items() if k.startswith("r/s/")}
    assert opened(store, "u").restore(sent) == results(*TEXTS)
    assert last.policy is POLICY
    last.offload_text("new " * 1000)
    assert {k.rpartition(".")[2] for k in objects(store) if "/foreign~" not in k} == {"json"}


def test_what_is_new_after_a_fork_is_in_one_session_alone_until_it_is_forked_again():
    store = MemoryStore()
    off = opened(store)
    off.offload(results(*TEXTS[:3]))
    fork = off.fork("t")
    placed = fork.offload_text(TEXTS[4], tool_name="Bash")
    before = {k: v for k, v in objects(store).items() if k.startswith("r/t/")}

    [new] = {i.ref for i in fork.records()} - {i.ref for i in off.records()}
    assert new in placed
    with pytest.raises(NotFoundError):
        off.tools.read(new)

    sent = off.offload(results(*TEXTS)).messages
    assert off.fork("t").restore(sent) == results(*TEXTS)
    assert before.items() <= objects(store).items()


def test_a_fork_of_a_damaged_session_raises_and_has_the_rest():
    store = MemoryStore()
    off = opened(store)
    off.offload(results(*TEXTS))
    key = off.records()[0].key
    plant(store, key, store.get(key)[:-1])

    with pytest.raises(CorruptError):
        off.fork("t")
    assert len(opened(store, "t").records()) == 5


def test_a_record_that_the_old_session_lost_to_its_ttl_lives_on_in_the_fork():
    store = MemoryStore()
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=60, ttl=60)}, min_saving=0)
    off = Offloader(store, session="s", policy=policy)
    sent = off.offload(results(*TEXTS[:1])).messages

    fork = off.fork("t")
    collect(store, off.records()[0].key, "expired")

    assert fork.records()[0].expires_at is not None
    assert fork.restore(sent) == results(*TEXTS[:1])
    with pytest.raises(ExpiredError):
        off.restore(sent)


# Archives


@on_every_codec
def test_an_archive_brings_a_session_to_a_store_that_never_saw_the_first(codec, tmp_path):
    source, target = MemoryStore(), MemoryStore()
    sent = filled(source, codec)
    path = tmp_path / "s.tar"

    report = export_session(source, "s", path)

    with tarfile.open(path) as tar:
        found = {m.name: file.read() for m in tar if (file := tar.extractfile(m)) is not None}
    assert found == objects(source)
    assert len(report.copied) == 6
    assert import_session(target, path).session == "s"
    assert objects(target) == objects(source)
    assert opened(target).restore(sent) == results(*TEXTS)


def test_an_archive_holds_tombstones_and_pins_and_may_come_in_under_another_name(tmp_path):
    source, target = MemoryStore(), MemoryStore()
    sent = filled(source)
    collect(source, opened(source).records()[0].key)
    plant(source, "g/s/pinned", b"")
    export_session(source, "s", tmp_path / "s.tar")

    import_session(target, tmp_path / "s.tar")
    import_session(source, tmp_path / "s.tar", name="t")

    assert objects(target) == {k: v for k, v in objects(source).items() if "/t/" not in k}
    assert opened(source, "t").restore(sent[1:]) == results(*TEXTS)[1:]


def test_a_name_too_long_for_a_key_comes_back_from_an_archive(tmp_path):
    source, target = MemoryStore(), MemoryStore()
    name = "Ünïcode " * 60
    sent = filled(source, session=name)

    export_session(source, name, tmp_path / "s.tar")

    assert import_session(target, tmp_path / "s.tar").session == name
    assert opened(target, name).restore(sent) == results(*TEXTS)


@pytest.mark.parametrize(
    "name", ["研究会话二零二六年十一月构建失败分析", "🙂" * 12, "A" * 300, "/../" * 40, "a." * 99]
)
@pytest.mark.parametrize("new", [None, "other"])
def test_a_journal_alone_of_a_long_name_comes_back_from_an_archive(name, new, tmp_path):
    source, target = MemoryStore(), MemoryStore()
    sent = [{"role": "user", "content": "short"}]
    Offloader(source, session=name, journal=True).offload(sent)

    export_session(source, name, tmp_path / "s.tar")
    report = import_session(target, tmp_path / "s.tar", name=new)

    assert report.failures == []
    assert Offloader(target, session=new or name).timeline().at(1) == sent
    if new is None:
        assert objects(target) == objects(source)


def test_the_same_session_makes_the_same_archive_for_its_owner_alone_wherever_it_is(tmp_path, monkeypatch):
    source, target = MemoryStore(), MemoryStore()
    filled(source)
    copy_session(source, target, "s")

    export_session(source, "s", tmp_path / "1.tar")
    export_session(target, "s", tmp_path / "2.tar")
    monkeypatch.setattr(os, "link", no_links)
    export_session(source, "s", tmp_path / "3.tar")

    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600] * 3


def test_the_file_of_an_export_is_given_by_its_path():
    store = MemoryStore()
    for call in (lambda: export_session(store, "s", 5), lambda: import_session(store, None)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="path must be a path, got"):
            call()


def test_an_export_that_fails_leaves_no_file_and_none_is_replaced(tmp_path):
    source, path = MemoryStore(), tmp_path / "s.tar"
    filled(source)
    with pytest.raises(StoreUnavailableError):
        export_session(FaultyStore(source, nth=4), "s", path)
    assert list(tmp_path.iterdir()) == []

    path.write_bytes(b"mine")
    with pytest.raises(ExistsError):
        export_session(MemoryStore(), "s", path)
    assert path.read_bytes() == b"mine"


def no_links(*_args, **_options):
    raise PermissionError(errno.EPERM, "this file system has no links")


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("made", ["a file", "a link to nothing"])
def test_an_export_replaces_nothing_that_was_made_meanwhile(tmp_path, monkeypatch, has_links, made):
    source, path = MemoryStore(), tmp_path / "s.tar"
    filled(source)
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)

    def make(verb, _key):
        if verb == "get" and not os.path.lexists(path):
            path.write_bytes(b"mine") if made == "a file" else path.symlink_to(tmp_path / "nothing")

    with pytest.raises(ExistsError, match="use another name"):
        export_session(ActingStore(source, make), "s", path)

    assert list(tmp_path.iterdir()) == [path]
    assert path.is_symlink() if made == "a link to nothing" else path.read_bytes() == b"mine"


def test_nothing_is_added_to_an_archive_that_is_read(tmp_path):
    source = MemoryStore()
    filled(source)
    export_session(source, "s", tmp_path / "s.tar")

    with (tmp_path / "s.tar").open("rb") as file:
        archive = TarStore(file, "s.tar")
        with pytest.raises(StorePermissionError):
            archive.put("a", b"x")
        with pytest.raises(StorePermissionError):
            archive.delete("a")


def test_an_archive_of_a_large_session_is_not_written_to_while_it_is_read(tmp_path):
    source, target = MemoryStore(), MemoryStore()
    filled(source)
    record = opened(source).records()[0]
    for n in range(600):
        ref = "".join(chr(ord("a") + int(d)) for d in f"{n:010}")
        collect(source, record.key.replace(record.ref, ref))
    export_session(source, "s", tmp_path / "s.tar")
    before = (tmp_path / "s.tar").read_bytes()

    report = import_session(target, tmp_path / "s.tar")

    assert (len(report.copied), report.failures) == (6, [])
    assert (tmp_path / "s.tar").read_bytes() == before
    kept = {k: v for k, v in objects(source).items() if k[0] != "i"}
    assert {k: v for k, v in objects(target).items() if k[0] != "i"} == kept


def member(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


RECORD = "r/s/abcdefghij~tool_result~~840~3.zst"
HOSTILE = {
    "a path up": [member("../evil")],
    "a path up inside": [member("r/../../evil~tool_result~~8~3.zst")],
    "an absolute path": [member("/etc/passwd")],
    "a hidden file": [member("r/s/.evil")],
    "another name": [member("README.md")],
    "the store's own": [member("offload.json")],
    "a snapshot": [member("i/s/abcdef")],
    "a link to a file": [member(RECORD, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "a hard link": [member(RECORD, b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "a device": [member(RECORD, b"", type=tarfile.CHRTYPE)],
    "a pipe": [member(RECORD, b"", type=tarfile.FIFOTYPE)],
    "a folder": [member("r/s", b"", type=tarfile.DIRTYPE)],
    "a sparse file": [
        member(RECORD, b"", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "99"}),
    ],
    "a grant": [member(RECORD.replace(".zst", ".link"), b'{"session":"victim"}')],
    "a back-mark": [member("g/s/shared~abcdefghij~t")],
    "a use": [member("g/s/used")],
    "a sidecar of none": [member("h/s/abcdefghij.json")],
    "two sessions": [member(RECORD), member(RECORD.replace("/s/", "/t/"))],
    "one name twice": [member(RECORD), member(RECORD)],
    "a name that is not text": [member(RECORD.replace("/s/", "/=ff/"))],
    "a negative size": [member(RECORD, b"", pax_headers={"size": "-1"})],
    "a huge size": [member(RECORD, pax_headers={"size": "9" * 30})],
    "a huge header": [member(RECORD, pax_headers={"comment": "x" * 1_000_000})],
    "no session": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_stored(name, tmp_path):
    members = HOSTILE[name]
    source, store = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:1])
    good = [member(key, data) for key, data in objects(source).items()] if members else []
    path = write_tar(tmp_path / "s.tar", *good, *members)

    with pytest.raises(CorruptError):
        import_session(store, path)

    assert objects(store) == {}
    assert [p.name for p in tmp_path.iterdir()] == ["s.tar"]


@pytest.mark.parametrize("part", ["=73", "=ff", "==", "short==abcdefghijklmnopqrstuvwxyz"])
def test_an_archive_of_a_session_that_no_name_has_is_refused(part, tmp_path):
    path = write_tar(tmp_path / "s.tar", member(RECORD.replace("/s/", f"/{part}/")))
    with pytest.raises((CorruptError, ConfigError)):
        import_session(MemoryStore(), path)


def test_what_is_not_there_or_no_plain_archive_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"s\.tar"):
        import_session(MemoryStore(), tmp_path / "s.tar")
    path = write_tar(tmp_path / "s.tar", member(RECORD), mode="w:gz")
    with pytest.raises(CorruptError, match="plain tar"):
        import_session(MemoryStore(), path)


def test_an_archive_cut_anywhere_is_refused_or_says_what_is_missing(tmp_path):
    source = MemoryStore()
    filled(source, texts=TEXTS[:2])
    export_session(source, "s", tmp_path / "s.tar")
    whole = (tmp_path / "s.tar").read_bytes()
    cut = tmp_path / "cut.tar"

    for size in some(range(0, len(whole), 97), 4):
        cut.write_bytes(whole[:size])
        store = MemoryStore()
        with pytest.raises(CorruptError):
            import_session(store, cut)
        assert objects(store) == {}


def test_an_archive_damaged_anywhere_brings_no_wrong_byte(tmp_path):
    source = MemoryStore()
    filled(source, "raw", texts=TEXTS[:2])
    export_session(source, "s", tmp_path / "s.tar")
    whole = (tmp_path / "s.tar").read_bytes()
    bad = tmp_path / "bad.tar"

    for at in some(range(0, len(whole), 61), 4):
        bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        store = MemoryStore()
        try:
            import_session(store, bad)
        except CorruptError:
            assert objects(store) == {}
        read = {k: v for k, v in objects(store).items() if k.startswith("r/")}
        assert read.items() <= objects(source).items()


def test_a_tombstone_of_an_archive_collects_nothing_that_is_there(tmp_path):
    store = MemoryStore()
    sent = filled(store)
    marks = [member(f"{info.key}.deleted", b"") for info in opened(store).records()]

    import_session(store, write_tar(tmp_path / "s.tar", *marks))

    assert opened(store).restore(sent) == results(*TEXTS)


def test_a_record_of_an_archive_that_is_of_another_session_is_refused(tmp_path):
    source, store = MemoryStore(), MemoryStore()
    filled(source, texts=TEXTS[:1])
    [(key, data)] = objects(source).items()

    report = import_session(store, write_tar(tmp_path / "s.tar", member(key.replace("/s/", "/t/"), data)))

    assert [type(r.error) for r in report.failures] == [CorruptError]
    assert objects(store) == {}


def test_a_sidecar_that_a_copy_left_is_taken_over_and_another_is_a_collision():
    source, target, third = MemoryStore(), MemoryStore(), MemoryStore()
    filled(source, "raw", texts=TEXTS[:2])
    first, second = (info.key for info in opened(source).records())
    plant(target, sidecar_key(first), source.get(sidecar_key(first)))
    filled(third, "raw", texts=["other " * 100])
    [other] = (v for k, v in objects(third).items() if k[0] == "h")
    plant(target, sidecar_key(second), other)

    report = copy_session(source, target, "s")

    assert len(report.copied) == 1
    assert [(r.key, type(r.error)) for r in report.failures] == [(second, CollisionError)]
    assert second not in objects(target)


# Damage


def with_everything(codec: str) -> MemoryStore:
    """Return a store with a session of each kind of object that has content."""
    store = MemoryStore()
    off = Offloader(store, session="s", policy=POLICY, codec=codec, journal=True)
    for count in (1, 2, 3):
        off.offload(results(*TEXTS[:count]))
    key = CALLS.key(session="s", root="0" * 32, before="1" * 32, reply="2" * 32)
    data = undigested(b'{"steps":[],"marks":[],"unfounded":[]}')
    store.put(key, with_digest(data, name_of(key)))
    return store


def flip(store: MemoryStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    plant(store, key, bytes(data))


WAYS: dict[str, Any] = {
    "copy": lambda source, target, _: copy_session(source, target, "s", repair=True),
    "copy_sessions": lambda source, target, _: dict(copy_sessions(source, target, repair=True))["s"],
    "import": lambda source, target, file: (export_session(source, "s", file), import_session(target, file))[
        1
    ],
}
KINDS = {"zstd": "rjc", "raw": "rhjc"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("codec", "kind"), [(codec, kind) for codec in KINDS for kind in KINDS[codec]])
def test_no_damaged_object_is_copied_and_one_in_the_target_is_replaced(codec, kind, way, tmp_path):
    source, target = with_everything(codec), MemoryStore()
    sound = objects(source)
    key = next(key for key in sorted(sound) if key.startswith(kind))
    flip(source, key)

    report = WAYS[way](source, target, tmp_path / "bad.tar")

    [failure] = report.failures if way != "import" else WAYS["copy"](source, MemoryStore(), None).failures
    assert (failure.key[1:], type(failure.error)) == (
        key[1:].removesuffix(".json" * (kind == "h")),
        CorruptError,
    )
    assert (failure.ref is None) == (kind in "jc")
    assert key not in objects(target)
    plant(source, key, sound[key])
    assert WAYS[way](source, target, tmp_path / "sound.tar").failures == []
    assert objects(target) == sound

    flip(target, key)
    report = WAYS[way](source, target, tmp_path / "again.tar")

    assert (len(report.repaired), report.failures) == (1, [])
    assert objects(target) == sound
    assert WAYS[way](source, target, tmp_path / "more.tar").repaired == []


def test_an_archive_with_a_damaged_entry_is_imported_without_it_and_says_so(tmp_path):
    source, target = with_everything("zstd"), MemoryStore()
    export_session(source, "s", tmp_path / "s.tar")
    key = sorted(key for key in objects(source) if key.startswith("j/"))[1]
    whole = bytearray((tmp_path / "s.tar").read_bytes())
    whole[whole.index(source.get(key)) + 40] ^= 8
    (tmp_path / "s.tar").write_bytes(whole)

    [failure] = import_session(target, tmp_path / "s.tar").failures

    assert (failure.ref, failure.key, type(failure.error)) == (None, key, CorruptError)
    assert key not in objects(target)


def test_a_record_that_is_cut_in_the_target_is_replaced_without_being_asked():
    source, target = MemoryStore(), MemoryStore()
    filled(source)
    copy_session(source, target, "s")
    key = max(objects(target))
    for data in (source.get(key)[:-9], b""):
        plant(target, key, data)
        assert copy_session(source, target, "s").repaired == [key]
        assert objects(target) == objects(source)


def test_a_journal_that_both_sides_continued_is_not_copied_and_that_is_said():
    source, target = with_everything("zstd"), MemoryStore()
    copy_session(source, target, "s")
    for store in (source, target):
        Offloader(store, session="s", policy=POLICY, journal=True).offload(results(*TEXTS[:5]))
    before = {key: data for key, data in objects(target).items() if key.startswith("j/")}

    [failure] = copy_session(source, target, "s").failures

    assert (failure.ref, type(failure.error)) == (None, CollisionError)
    assert "continues with other entries" in str(failure.error)
    assert {key: data for key, data in objects(target).items() if key.startswith("j/")} == before
    assert copy_session(target, with_everything("zstd"), "s").failures != []


def test_a_journal_of_which_gc_deleted_a_branch_is_copied_on():
    source, target = with_everything("zstd"), MemoryStore()
    copy_session(source, target, "s")
    Offloader(source, session="s", policy=POLICY).rewind(1)
    gc(source, Retention(grace=0))
    off = Offloader(source, session="s", policy=POLICY, journal=True)
    sent = off.offload(results(*TEXTS[:1] + TEXTS[4:5])).messages

    assert copy_session(source, target, "s").failures == []

    assert opened(target).timeline().at(2) == sent


# A session that is not there


def test_a_session_that_is_not_there_is_neither_copied_nor_forked_nor_exported(tmp_path: Path) -> None:
    source, target = MemoryStore(), MemoryStore()
    filled(source)
    before = [found.key for found in source.keys()]

    for act in (
        lambda: copy_session(source, target, "nobody"),
        lambda: copy_session(source, source, "nobody", name="t"),
        lambda: export_session(source, "nobody", tmp_path / "file.tar"),
    ):
        with pytest.raises(NotFoundError, match=f"no session 'nobody' in {source.url}"):
            act()

    assert [found.key for found in source.keys()] == before
    assert list(target.keys()) == []
    assert list(tmp_path.iterdir()) == []


def test_an_offloader_may_fork_its_session_before_anything_is_stored_in_it() -> None:
    off = opened(MemoryStore()).fork("t")

    assert (off.session, off.records()) == ("t", [])


# Times


class Undated:
    """A store that cannot set times, as S3 cannot."""

    def __init__(self):
        self._inner = MemoryStore()
        self.url, self.is_shared, self.has_atomic_create, self.durability = "x://", False, True, "memory"
        self.put, self.get, self.keys, self.delete = (
            getattr(self._inner, verb) for verb in ("put", "get", "keys", "delete")
        )


def dated(store, ages, ttl=None):
    """Store a version of one file for each age in seconds; return their ids, the oldest first."""
    policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1, ttl=ttl)}, min_saving=0)
    refs: list[str] = []
    for number, age in enumerate(ages):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time", partial(float, time.time() - age))
            off = Offloader(store, session="s", policy=policy)
            off.offload_text(f"version {number}\n" * 900, tool_name="Read", tool_use_id=f"t{number}")
        [new] = {info.ref for info in off.records()} - set(refs)
        refs.append(new)
    return refs


TARGETS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryStore(),
    "local": lambda folder: LocalStore(str(folder / "target")),
    "encrypted": lambda folder: EncryptingStore(LocalStore(str(folder / "target")), b"k" * 32),
    "undated": lambda _: Undated(),
}


@pytest.mark.parametrize(
    ("way", "target", "ages"),
    every_pair(
        ["copy", "copy of a copy", "other name", "archive"],
        [*TARGETS],
        [(4000, 3000, 2000, 1000), (4e6, 3000, 2999.9, 2999.8)],
    ),
)
def test_a_copy_is_listed_in_the_order_and_with_the_times_of_the_original(way, target, ages, tmp_path):
    source, store = MemoryStore(), TARGETS[target](tmp_path)
    refs = dated(source, ages)
    if way == "archive":
        export_session(source, "s", tmp_path / "s.tar")
        import_session(store, tmp_path / "s.tar", name="t")
    elif way == "copy of a copy":
        copy_session(source, store, "s")
        copy_session(store, store, "s", name="t")
    else:
        copy_session(source, store, "s", name="t" if way == "other name" else "s")
    name = "s" if way == "copy" else "t"

    infos = opened(store, name).records()

    assert [info.ref for info in sorted(infos, key=lambda info: info.created_at)] == refs
    listed = opened(store, name).tools.list()
    assert sorted(refs, key=listed.index) == refs[::-1]
    for info, age in zip(sorted(infos, key=lambda info: info.created_at), ages, strict=True):
        assert time.time() - age - 60 < info.created_at < time.time() - age + 1
    assert list(opened(store, name).verify()) == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_time_to_live_counts_from_the_original_and_copying_old_records_again_reads_nothing(
    target, tmp_path
):
    source, store = MemoryStore(), TARGETS[target](tmp_path)
    dated(source, [4000, 1000], ttl=3600)
    copy_session(source, store, "s")
    reads = FaultyStore(source, nth=10**6, verb="get")

    report = copy_session(reads, store, "s")

    assert (len(report.copied), len(report.already_there), reads.operations) == (0, 2, 0)
    old, new = sorted(opened(store).records(), key=lambda info: info.created_at)
    assert (old.is_expired, new.is_expired) == (True, False)

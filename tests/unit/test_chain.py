"""The chain of a journal: what it says of forks, rewinds, deletions, copies, writers and older releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import runner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from forks import conversation, journaled, keys, played, run
from msgspec import structs

from offload import ConfigError, NotFoundError, Offloader, Retention
from offload.agent import ContextManager
from offload.codec._frames import SLOW_LEVEL, compress, decompress
from offload.errors import StoreUnavailableError
from offload.jobs import ChainReport, verify_chain
from offload.layout import JOURNAL
from offload.retention import collect, delete
from offload.store import OffloadStore
from offload.testing import FaultyStore
from offload.timeline import Checkpoint
from offload.transfer import copy as copy_session
from offload.transfer import export, import_
from offload.wrappers import EncryptingStore, WrapperStore
from offload_backends.memory import MemoryStore


def texts(report: ChainReport) -> tuple[list[str], list[str]]:
    assert report.failures == []
    return [found.text for found in report.problems], [found.text for found in report.notes]


def lines(store: OffloadStore, key: str) -> list[str]:
    match = JOURNAL.match(key)
    assert match is not None
    return decompress(store.get(key), int(match["bytes"])).decode().split("\n")


def test_a_session_that_several_processes_continued_is_one_chain() -> None:
    store = MemoryStore()
    for turns in (1, 2, 3):
        journaled(store).offload(conversation(turns))
    context = ContextManager(Offloader(store, session="loop"))
    for n in range(3):
        context.add({"role": "user", "content": f"question {n}"})
        context.before_model_call()
        context.after_model_call({"role": "assistant", "content": f"answer {n}"})
        if n == 1:
            context = ContextManager(Offloader(store, session="loop"))
            context.resume()
    report = verify_chain(store)

    assert texts(report) == ([], [])
    assert (report.sessions, report.entries, report.chained, report.records) == (2, 9, 9, 3)


def test_a_conversation_that_replaces_a_stored_one_is_chained_to_it() -> None:
    store = MemoryStore()
    for text in ("one", "two"):
        context = ContextManager(Offloader(store, session="a"))
        context.add({"role": "user", "content": text})
        context.before_model_call()
    report = verify_chain(store)

    assert texts(report) == ([], [])
    assert [key.split("~")[1] for key in sorted(keys(store, "j/"))] == ["begun", "begun"]
    [first] = [key for key in keys(store, "j/") if key.startswith("j/a/000000000")]
    store.delete(first)
    assert texts(verify_chain(store)) == (["entry 0 is missing"], [])


def test_a_conversation_after_a_damaged_one_is_chained_to_it_too() -> None:
    store = MemoryStore()
    for turns in range(3):
        journaled(store).offload(conversation(turns))
    first = min(keys(store, "j/"))
    store.put(first, b"damaged", overwrite=True)
    assert journaled(store).offload(conversation(3)).errors != []

    problems, notes = texts(verify_chain(store))
    assert [text.split(":")[0] for text in problems] == ["the entry is damaged"]
    assert notes == []


class LosingStore(WrapperStore):
    """Loses the answer to each write of a journal while `is_failing`: it is stored, or not."""

    is_failing = False
    stores = True

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if self.is_failing and key.startswith("j/"):
            if self.stores:
                self.inner.put(key, data)
            raise OSError("the connection was lost")
        self.inner.put(key, data, overwrite=overwrite)


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_a_write_whose_outcome_is_unknown_breaks_no_chain(*, stores: bool, first: int) -> None:
    store = LosingStore(MemoryStore())
    store.stores = stores
    off = journaled(store)
    for turns in range(4):
        store.is_failing = turns == first
        off.offload(conversation(turns))

    report = verify_chain(store)
    assert texts(report) == ([], [])
    assert report.entries == report.chained == 3 + stores


def test_what_gc_deleted_is_noted_and_is_no_cut() -> None:
    store, off, _ = played(5)
    off.rewind(2)
    off.offload(conversation(2))
    [info, *_] = off.records()
    delete(store, "a", refs=[info.ref])
    collect(store, Retention(grace=0))
    problems, notes = texts(verify_chain(store, session="a"))

    assert problems == []
    assert [re.sub(r"'\w+'|at .*", "…", text) for text in notes] == [
        "entries 2 to 4 are not there, which this rewind left: gc deletes such entries",
        "record … was deleted; marked for deletion …",
    ]
    fork = off.fork("b")
    fork.offload(conversation(4))
    delete(store, "a")
    assert texts(verify_chain(store, session="b"))[0] == []


def test_what_a_deletion_of_the_session_has_not_finished_is_no_cut() -> None:
    store, _, _ = played(4)
    store.put("g/a/closed", b"")
    store.delete(sorted(keys(store, "j/"))[1])

    assert texts(verify_chain(store)) == ([], ["entry 1 is not there: the session is being deleted"])


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_session_that_is_used_after_an_unfinished_deletion_continues_its_chain(nth: int) -> None:
    store, _, _ = played(4)
    with pytest.raises(StoreUnavailableError):
        delete(FaultyStore(store, nth=nth, verb="delete", is_lasting=True), "a")
    left = len(keys(store, "j/"))
    off = journaled(store)
    run(off, 3)
    collect(store, Retention(grace=0))

    assert left == 5 - nth
    assert len(off.timeline()) > left
    assert texts(verify_chain(store))[0] == []


def test_a_copy_and_an_archive_keep_the_chain_under_another_name_too(tmp_path: Path) -> None:
    store, other, third = MemoryStore(), EncryptingStore(MemoryStore(), b"k" * 32), MemoryStore()
    off = journaled(store)
    run(off, 4)
    fork = off.fork("b", at=3)
    fork.offload(conversation(5))
    for name in ("b", "c"):
        copy_session(store, other, "b", name=name)
    export(store, "a", tmp_path / "a.tar")
    import_(third, tmp_path / "a.tar")
    heads = verify_chain(store).heads

    assert verify_chain(other).heads == {"b": heads["b"], "c": heads["b"]}
    assert verify_chain(third).heads == {"a": heads["a"]}
    assert texts(verify_chain(other)) == texts(verify_chain(third)) == ([], [])


def test_two_writers_of_one_number_are_reported() -> None:
    store, _, _ = played(2)
    writers = [journaled(store), journaled(store)]
    for turns in (2, 3):
        for off in writers:
            off.offload(conversation(turns))
    problems, _ = texts(verify_chain(store))

    assert "two entries have this number: two writers, or one of them was added" in problems


def test_entries_of_an_older_release_are_not_chained_and_not_broken() -> None:
    store, old = MemoryStore(), MemoryStore()
    run(journaled(store), 3)
    for number, key in enumerate(sorted(keys(store, "j/"))):
        head, *rows = lines(store, key)
        plain = {
            name: value for name, value in json.loads(head).items() if name not in ("previous", "digests")
        }
        data = "\n".join([json.dumps(plain), *rows]).encode()
        old.put(re.sub(r"(?<=~)\d+(?=~)", str(len(data)), key, count=1), compress(data, SLOW_LEVEL))
        assert number < 3
    for key in keys(store, "r/"):
        old.put(key, store.get(key))

    note = "not chained: 3 of entries 0 to 2, by an older release"
    assert texts(verify_chain(old)) == ([], [note])
    journaled(old).offload(conversation(4))
    report = verify_chain(old)
    assert texts(report) == ([], [note])
    assert (report.entries, report.chained) == (4, 1)


def test_a_record_that_was_written_anew_with_fitting_checksums_is_found() -> None:
    store, forged = MemoryStore(), MemoryStore()
    run(journaled(store), 2)
    [info] = Offloader(store, session="a").records()
    # Another text of the same item, stored by the library itself.
    run(journaled(forged), 1)
    text = conversation(2)
    text[2]["content"][0]["content"] = text[2]["content"][0]["content"].replace("made", "done")
    journaled(forged).offload(text)
    [key] = [key for key in keys(forged, "r/") if "~tool_result~" in key][:1]
    store.delete(info.key)
    assert texts(verify_chain(store))[0] == ["the record is missing"]
    store.put(info.key, forged.get(key))
    assert len(texts(verify_chain(store))[0]) == 1


def test_a_record_has_the_digest_that_the_entry_cites() -> None:
    store, _, _ = played(2)
    key = max(keys(store, "j/"))
    [(ref, digest)] = json.loads(lines(store, key)[0])["digests"].items()
    text = "\n".join(lines(store, key)).replace(digest, digest[::-1])
    store.put(key, compress(text.encode(), SLOW_LEVEL), overwrite=True)

    [problem] = verify_chain(store).problems
    assert (problem.ref, problem.text) == (ref, "the record has another content than the one that was stored")


def test_a_cut_end_is_found_by_an_earlier_head() -> None:
    store, off, _ = played(3)
    head = verify_chain(store).heads["a"]
    off.offload(conversation(3))
    assert texts(verify_chain(store, session="a", head=head)) == ([], [])

    for key in sorted(keys(store, "j/"))[2:]:
        store.delete(key)
    assert texts(verify_chain(store, session="a")) == ([], [])
    [problem] = texts(verify_chain(store, session="a", head=head))[0]
    assert problem.startswith(f"no entry has the digest {head[:12]}…: the end of the journal was cut")


def pem(key: Ed25519PrivateKey) -> tuple[bytes, bytes]:
    """Return the files of a private key and of its public key."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_signed_checkpoint_is_proved_by_its_public_key_alone() -> None:
    store, key = MemoryStore(), Ed25519PrivateKey.generate()
    off = journaled(store)
    run(off, 3)
    private, public = pem(key)
    signed = off.timeline().checkpoint(private)
    assert Checkpoint.from_json(signed.to_json()) == signed
    assert (signed.entry, signed.digest) == (2, verify_chain(store).heads["a"])
    off.offload(conversation(3))

    accepted: list[Any] = [public, key.public_key()]
    for known in accepted:
        assert texts(verify_chain(store, session="a", head=signed, public_key=known)) == ([], [])
    [note] = texts(verify_chain(store, session="a", head=signed))[1]
    assert note == "the signature of the checkpoint was not checked, since no public key was given"
    plain = off.timeline().checkpoint()
    other = Ed25519PrivateKey.generate().public_key()
    refused: list[Any] = [
        (signed, other, "the checkpoint is not signed by this key"),
        (plain, public, "the checkpoint is not signed"),
        (
            structs.replace(signed, time="2026-01-01T00:00:00+00:00"),
            public,
            "the checkpoint is not signed by this key",
        ),
        (structs.replace(signed, signature="no base64"), public, "the checkpoint is not signed by this key"),
    ]
    for head, known, problem in refused:
        assert texts(verify_chain(store, session="a", head=head, public_key=known)) == ([problem], [])


def test_bad_keys_checkpoints_and_arguments_are_refused_without_a_quote_of_a_key() -> None:
    store, empty = played(1)[0], MemoryStore()
    timeline = Offloader(store, session="a").timeline()
    keys_: tuple[Any, ...] = (b"", b"-----BEGIN PRIVATE KEY-----", b"secret" * 9, "a text", 7)
    for key in keys_:
        with pytest.raises(ConfigError, match="must be an Ed25519 private key") as failed:
            timeline.checkpoint(key)
        assert "secret" not in str(failed.value)
        with pytest.raises(ConfigError, match="must be an Ed25519 public key"):
            timeline.checkpoint().is_signed_by(key)
    texts_: tuple[Any, ...] = ("", "[]", "{}", '{"session": "a"}', "[" * 100_000, b"\xff")
    for text in texts_:
        with pytest.raises(ConfigError, match="not a checkpoint"):
            Checkpoint.from_json(text)

    with pytest.raises(NotFoundError):
        verify_chain(empty, session="a")
    with pytest.raises(ConfigError, match="head must be"):
        verify_chain(empty, session="a", head="abc")
    with pytest.raises(ConfigError, match="one session"):
        verify_chain(empty, head="a" * 64)
    with pytest.raises(ConfigError, match="needs a checkpoint"):
        verify_chain(empty, session="a", head="a" * 64, public_key=b"")
    with pytest.raises(NotFoundError, match="no journal"):
        Offloader(empty, session="a").timeline().checkpoint()


def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offload = runner(capsys, monkeypatch)
    store = journaled(tmp_path).store
    run(journaled(tmp_path), 3)
    done = offload("verify", "--chain", "--store", tmp_path)
    head = verify_chain(store).heads["a"]
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith(
        "the chain holds: 3 journal entries and 2 cited records in 1"
    )
    assert f"head of a: {head}" in done.stdout

    for name, content in zip(("key", "public"), pem(Ed25519PrivateKey.generate()), strict=True):
        (tmp_path / f"{name}.pem").write_bytes(content)
    made = offload("checkpoint", "a", "--store", tmp_path, "--key", tmp_path / "key.pem")
    (tmp_path / "a.checkpoint").write_text(made.stdout)
    known = ("--head", tmp_path / "a.checkpoint", "--public-key", tmp_path / "public.pem")
    done = offload("verify", "--chain", "-s", "a", "--store", tmp_path, *known)
    assert (done.returncode, done.stdout.startswith("the chain holds: 3")) == (0, True)

    done = offload("verify", "--head", "abc", "-s", "a", "--store", tmp_path)
    assert (done.returncode, "abc cannot be read: No such file" in done.stderr) == (2, True)

    store.delete(sorted(keys(store, "j/"))[1])
    done = offload("verify", "--chain", "--store", tmp_path)
    assert (done.returncode, "entry 1 is missing" in done.stdout) == (3, True)
    printed: Any = json.loads(
        offload("verify", "--head", "a" * 64, "-s", "a", "--json", "--store", tmp_path).stdout
    )
    assert [(row["entry"], row["fault"]) for row in printed["findings"]] == [(2, "problem"), (2, "problem")]

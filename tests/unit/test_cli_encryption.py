"""Commands on stores that are encrypted, in clear, or in part one and in part the other."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from command import Done, Run
from forks import conversation, journaled, run

from offload import ConfigError, EncryptionError, Offloader, OffloadError, open_store
from offload.engine.settings.loader import load_config
from offload.maintenance import transfer
from offload.maintenance.jobs import verify
from offload.reading.timeline import Timeline
from offload.storage.layout import encode_part
from offload.storage.registry import open_with_key
from offload.storage.store import OffloadStore
from offload.storage.wrappers import EncryptingStore, RetryingStore, encryption_of

KEY, OTHER = bytes(range(32)), b"k" * 32
LONG = "研究" * 40
BIG = "a line of a secret\n" * 3000


@pytest.fixture
def offload(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | None], None]:
    """A function that sets `OFFLOAD_KEY`, or deletes it."""

    def put(secret: bytes | None) -> None:
        if secret is None:
            monkeypatch.delenv("OFFLOAD_KEY", raising=False)
        else:
            monkeypatch.setenv("OFFLOAD_KEY", base64.b64encode(secret).decode())

    return put


def raw() -> bytes:
    """Return the bytes of all files in the store."""
    return b"\n".join(file.read_bytes() for file in sorted(Path("store").rglob("*")) if file.is_file())


@pytest.fixture
def refs(tmp_path: Path) -> list[str]:
    """The ids of the session `a` of an encrypted store with a fork, a shared record and a long name."""
    store = EncryptingStore(open_store(tmp_path / "store"), KEY)
    off = journaled(store)
    run(off, 4)
    run(journaled(store, LONG), 2)
    off.fork("forked")
    found = [info.ref for info in off.records()]
    transfer.share(store, "a", found[0], "guest")
    return found


READS = {
    "verify": "verify",
    "verify of a session": "verify -s a",
    "verify by processes": "verify --workers 2",
    "show": "show {0} -s a",
    "cat": "cat {0} -s a",
    "cat of a shared record": "cat {0} -s guest",
    "cat of an inherited record": "cat {0} -s forked",
    "tail": "show {0} --tail 5 -s a",
    "grep": "grep made",
    "grep of a session": "grep made -s a",
    "search": "search made",
    "search of a session": "search made -s a",
    "diff": "diff {0} {1} -s a",
    "query": "query SQL {0} -s a",
    "evidence": "evidence text.txt -s a",
    "log": "log",
    "log of a request": "log a --at 3",
    "ls": "ls",
    "ls of a session": "ls -s a",
    "fork": "fork b -s a --at 2",
    "fork at the end": "fork b -s a",
    "rewind": "rewind 2 -s a",
    "share": "share {0} -s a --to reader",
    "copy": "copy store other",
    "copy of a session": "copy store other -s a",
    "copy under another name": "copy store store -s a --as b",
    "export": "export a.tar -s a",
    "doctor": "doctor store",
}
ALONE = ("copy", "copy of a session", "copy under another name", "doctor")


def done(offload: Run, refs: list[str], name: str) -> Done:
    Path("text.txt").write_text("step 2 is made\n")
    words = [word.format(*refs) for word in READS[name].split()]
    words = ["select count(*) from lines" if word == "SQL" else word for word in words]
    return offload(*words, *([] if name in ALONE else ["--store", "store"]))


@pytest.mark.parametrize("name", READS)
def test_each_command_works_on_an_encrypted_store_with_its_key(name, offload, refs, key):
    key(KEY)

    answer = done(offload, refs, name)

    assert (answer.returncode, "OFFLOAD_KEY" in answer.stderr) == (0, False), answer
    assert ("not encrypted" in answer.stderr) == (name == "export")
    assert b"is made" not in raw()


@pytest.mark.parametrize("secret", [None, OTHER], ids=["no key", "another key"])
@pytest.mark.parametrize("name", READS)
def test_without_its_key_each_command_says_that_the_store_is_encrypted(name, secret, offload, refs, key):
    key(secret)
    before = raw()

    answer = done(offload, refs, name)

    said = answer.stdout + answer.stderr
    assert "encrypted" in said
    assert "OFFLOAD_KEY" in " ".join(said.split())
    assert not any(word in said.lower() for word in ("damaged", "corrupt", "unexpected"))
    assert "is made" not in said
    assert name not in ("ls", "log") or "sessions cannot be read" in said
    if name not in (
        "log",
        "ls",
        "ls of a session",
        "grep",
        "grep of a session",
        "search of a session",
        "evidence",
    ):
        assert answer.returncode in (2, 3)
    # No command makes the store one that is partly in clear, or of two keys.
    assert raw() == before


def test_a_flipped_bit_is_damage_with_the_key_and_nothing_else_is(offload, tmp_path, refs, key):
    [file] = (tmp_path / "store" / "r" / "a").glob(f"{refs[0]}~*")
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    key(KEY)

    report = json.loads(offload("verify", "--store", "store", "-s", "a", "--json").stdout)

    assert [(fault["ref"], fault["fault"]) for fault in report["faults"]] == [(refs[0], "corrupt")]


@pytest.mark.parametrize("secret", [None, KEY], ids=["no key", "the key"])
def test_a_store_in_clear_and_in_cipher_says_so_and_reads_the_rest(secret, offload, tmp_path, refs, key):
    # One clear record in an encrypted session, and one whole session in clear.
    clear = open_store(tmp_path / "store")
    Offloader(clear, session="a").offload_text("needle in clear\n" * 3000, tool_use_id="c")
    run(journaled(clear, "open"), 3)
    key(secret)
    word = "it is encrypted" if secret is None else "stored in clear"

    for name in (
        "verify",
        "verify of a session",
        "ls",
        "ls of a session",
        "log",
        "grep",
        "grep of a session",
        "doctor",
    ):
        answer = done(offload, refs, name)
        assert word in " ".join((answer.stdout + answer.stderr).split()), name
        assert not {"damaged", "corrupt"} & {*(answer.stdout + answer.stderr).lower().split()}
    readable = "open" if secret is None else LONG
    assert offload("verify", "--store", "store", "-s", readable).returncode == 0
    found = offload("grep", "made", "--store", "store")
    assert "is made" in found.stdout
    assert word in found.stderr
    copied = json.loads(offload("copy", "store", "other", "--json").stdout)
    assert copied["copied"] >= 2
    assert {failure["fault"] for failure in copied["failures"]} == {"encrypted"}


def test_titles_of_a_session_in_clear_and_in_cipher_are_found_but_those_that_do_not_fit(tmp_path, refs):
    clear = open_store(tmp_path / "store")
    Offloader(clear, session="a").offload_text("in clear\n" * 3000, tool_use_id="c", title="make it")
    cases = ((clear, [""], 1), (EncryptingStore(clear, KEY), refs, len(refs)))
    for store, readable, titles in cases:
        tools = Offloader(store, session="a").tools
        found = tools.call("context_list", {"query": "make"})
        assert found.startswith(f"[{titles} title")
        assert "not all titles could be read" in found
        assert all(ref in found for ref in readable)
        assert "titles could not be read]" in tools.call("context_list", {})
    for name, arguments in (("read", {}), ("tail", {}), ("query", {"sql": "select 1 from lines"})):
        answer = Offloader(clear, session="a").tools.call(f"context_{name}", {"id": refs[0]} | arguments)
        assert "is encrypted" in answer
        assert "OFFLOAD_KEY" in answer


PAGES = {
    "sessions": "/",
    "titles of all": "/find?q=make",
    "texts of all": "/find?q=made&in=texts",
    "gc": "/retention?session_records=1",
    "session": "/s/a",
    "titles": "/s/a?q=make",
    "search": "/s/a/search?q=made",
    "conversation": "/s/a/conversation",
    "check": "/s/a/check",
    "record": "/s/a/r/{0}",
    "fork": "/s/forked",
    "long name": f"/s/{encode_part(LONG)}",
    "shared record": "/s/guest/r/{0}",
}


@pytest.mark.parametrize("page", PAGES)
def test_each_page_says_that_a_store_is_encrypted_unless_it_has_the_key(page, tmp_path, refs):
    pages = pytest.importorskip("pages")
    clear = open_store(tmp_path / "store")
    for secret in (None, OTHER, KEY):
        store = clear if secret is None else EncryptingStore(clear, secret)
        answer = pages.visitor(store).get(PAGES[page].format(*refs))
        is_open = secret == KEY
        assert ("OFFLOAD_KEY" in answer.text, "encrypted" in answer.text) == (not is_open, not is_open)
        assert not any(word in answer.text for word in ("damaged", "corrupt")) or page == "check"
        assert answer.status_code == 200 if is_open else answer.status_code in (200, 400, 403)


def test_a_page_of_titles_shows_those_that_fit_the_key(tmp_path, refs):
    pages = pytest.importorskip("pages")
    clear = open_store(tmp_path / "store")
    run(journaled(clear, "open"), 3)

    for store, other in ((clear, "a"), (EncryptingStore(clear, KEY), "open")):
        answer = pages.visitor(store).get("/find?q=make")
        assert answer.text.count(f'href="/s/{other}"') == 0
        assert answer.text.count("make 0") >= 1
        assert "Some titles could not be read" in answer.text


LINES = "for n in range(3000): print('a line of a secret')"
WRITERS: dict[str, Callable[[Run, Path], object]] = {
    "exec": lambda run, _: run("exec", "--store", "store", "-s", "w", "--", sys.executable, "-c", LINES),
    "exec with the store of the settings": lambda run, path: [
        Path("offload.toml").write_text(f'store = "{(path / "store").as_posix()}"'),
        run("--config", "offload.toml", "exec", "-s", "w", "--", sys.executable, "-c", LINES),
    ],
    "from_config": lambda _, path: Offloader.from_config(store=path / "store", session="w").offload_text(BIG),
    "from_config with an open store": lambda _, path: Offloader.from_config(
        store=RetryingStore(open_store(path / "store")), session="w"
    ).offload_text(BIG),
    "settings": lambda _, path: Offloader(
        load_config(arguments={"store": path / "store"}).settings.open_store(), session="w"
    ).offload_text(BIG),
    "import": lambda run, path: [
        Offloader("memory://plain", session="w").offload_text(BIG),
        transfer.export_session(open_store("memory://plain"), "w", path / "w.tar"),
        run("import", "w.tar", "--store", "store"),
    ],
    "copy": lambda run, _: run("copy", "source", "store"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_each_way_to_a_store_by_settings_encrypts_with_the_key(writer, offload, tmp_path, key):
    if writer == "copy":
        source = EncryptingStore(open_store(tmp_path / "source"), KEY)
        Offloader(source, session="w").offload_text(BIG)
    key(KEY)

    WRITERS[writer](offload, tmp_path)

    off = Offloader(EncryptingStore(open_store(tmp_path / "store"), KEY), session="w")
    [info] = off.records()
    assert b"".join(off.content(info.ref)).startswith(b"a line of a secret\n")
    assert off.verify() == []
    files = [file for file in (tmp_path / "store").rglob("*.zst") if file.is_file()]
    assert all(file.read_bytes()[-56:-52] == b"OFS1" for file in files)


BAD = {"short": "ab" * 31, "no hex": "zz" * 32, "a password": "correct horse battery staple", "empty": ""}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_key_is_an_error_that_names_the_variable_and_stores_nothing(
    text, offload, tmp_path, monkeypatch
):
    monkeypatch.setenv("OFFLOAD_KEY", text)

    for words in (("ls",), ("exec", "--", sys.executable, "-c", LINES), ("verify", "--store", "store")):
        answer = offload(*words)
        assert answer.returncode == 2
        assert "OFFLOAD_KEY must be 32 random bytes" in answer.stderr
        assert not text or text not in answer.stderr
    with pytest.raises(OffloadError, match="OFFLOAD_KEY must be 32 random bytes"):
        Offloader.from_config(store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_an_offloader_with_a_store_as_argument_reads_no_variable(tmp_path, key):
    key(KEY)

    Offloader(tmp_path / "store", session="w").offload_text(BIG)

    assert Offloader(open_store(tmp_path / "store"), session="w").verify() == []


def test_processes_with_another_key_in_their_environment_are_refused(tmp_path, refs, key):
    key(OTHER)
    store = EncryptingStore(open_store(tmp_path / "store"), KEY)

    with (
        ProcessPoolExecutor(1) as executor,
        pytest.raises(ConfigError, match="give each worker its OFFLOAD_KEY"),
    ):
        verify(store, executor=executor)


def test_a_store_that_is_encrypted_already_is_not_encrypted_twice(tmp_path, key):
    store = RetryingStore(EncryptingStore(open_store(tmp_path / "store"), OTHER))
    key(KEY)

    assert Offloader.from_config(store=store).store is store
    assert encryption_of(open_with_key("memory://x")) is not None


@pytest.mark.parametrize("writes_in_clear", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        ("exec", "-s", "w", "--", sys.executable, "-c", LINES),
        ("wrap", "--upstream", "http://127.0.0.1:9", "-s", "w", sys.executable, "-c", "1"),
        ("gateway", "--upstream", "http://127.0.0.1:9", "--session", "w"),
        ("mcp-proxy", "-s", "w", "--", sys.executable, "-c", "1"),
        ("import", "w.tar"),
    ],
    ids=lambda words: words[0],
)
def test_no_command_writes_to_a_session_that_does_not_fit_the_key(
    words, writes_in_clear, offload, tmp_path, key
):
    if words[0] == "mcp-proxy":
        pytest.importorskip("mcp")
    store: OffloadStore = open_store(tmp_path / "store")
    Offloader("memory://other-items", session="w").offload_text(BIG * 2)
    transfer.export_session(open_store("memory://other-items"), "w", tmp_path / "w.tar")
    Offloader(EncryptingStore(store, KEY) if writes_in_clear else store, session="w").offload_text(BIG)
    before = raw()
    key(None if writes_in_clear else KEY)

    answer = offload(words[0], "--store", "store", *words[1:])

    assert answer.returncode == 2
    assert "OFFLOAD_KEY" in answer.stderr
    assert raw() == before


def test_a_new_session_beside_others_of_another_key_is_noted(offload, refs, key):
    answer = offload("exec", "--store", "store", "-s", "new", "--", sys.executable, "-c", "print(1)")

    assert (answer.returncode, answer.stdout) == (0, "1\n")
    assert "session new is stored in clear, but others are not: " in answer.stderr
    key(KEY)
    # Damage of another session is none of this one's.
    for file in Path("store").rglob("*.zst"):
        file.chmod(0o600)
        file.write_bytes(b"\xff" + file.read_bytes()[1:])
    again = offload("exec", "--store", "store", "-s", "new", "--", sys.executable, "-c", "print(1)")
    assert (again.returncode, again.stdout, again.stderr) == (0, "1\n", "")


def test_a_folder_whose_layout_has_files_in_clear_is_refused_with_a_key(offload, tmp_path, key):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "tool-result-1.md").write_text("a result")
    key(KEY)

    answer = offload("ls", "--store", "store")

    assert answer.returncode == 2
    assert "unset OFFLOAD_KEY" in answer.stderr


def test_the_library_says_encrypted_as_the_commands_do(tmp_path, refs):
    clear = open_store(tmp_path / "store")

    for call in (
        lambda: Offloader(clear, session="a").verify(),
        lambda: Offloader(clear, session="forked").records(),
        lambda: Timeline(clear, "a").at(3),
        lambda: transfer.fork(clear, "a", "b", at=2),
        lambda: transfer.rewind(clear, "a", 2),
        lambda: transfer.copy_session(clear, open_store("memory://none"), "a"),
        lambda: transfer.export_session(clear, "a", tmp_path / "a.tar"),
    ):
        with pytest.raises(EncryptionError, match="it is encrypted"):
            call()
    assert not (tmp_path / "a.tar").exists()
    Offloader(clear, session="a").offload_text("in clear\n" * 9000, tool_use_id="c")
    for store, copied in ((clear, 1), (EncryptingStore(clear, KEY), len(refs))):
        report = transfer.copy_session(store, open_store(f"memory://copies-{copied}"), "a")
        assert len(report.copied) == copied
        assert {failure.error.kind for failure in report.failures} == {"encrypted"}
    off = Offloader(clear, session="a")
    out = off.offload(conversation(3))
    assert {error.kind for error in out.errors} == {"encrypted"}
    assert out.messages == conversation(3)

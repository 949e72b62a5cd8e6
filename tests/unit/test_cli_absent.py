"""Commands on a missing store, session or record, and on an empty store."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import prepared
import pytest
from command import Run, is_one_line_from_us
from rich.console import Console

from offload import Offloader, open_store
from offload.base.text import size_text
from offload.cli import catalog, config, tables, terminal
from offload.cli.app import COMMANDS, GROUPS

UNKNOWN = "zzzzzzzzzz"
TEXT = "".join(f"{n} needle\n" for n in range(3000))

# Commands that need a session, without the session option; R is replaced by an id.
OF_A_SESSION = [
    *("show R", "show R --tail 9", "cat R", "grep needle", "grep needle R", "verify", "ls"),
    "doctor --reindex",
    *("gc", "gc --dry-run", "rm", "rm R", "rm --dry-run", "rm --yes", "pin", "pin R", "unpin", "unpin R"),
    *("fork other", "export FILE", "share R --to other", "revoke R --to other", "copy STORE COPY"),
]
OF_A_STORE = ["ls", "verify", "du", "gc", "doctor --reindex"]


@pytest.fixture(autouse=True)
def _away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a record each in the sessions `s` and `t`."""
    for session in ("s", "t"):
        Offloader(str(tmp_path / "store"), session=session).offload_text(TEXT, tool_name="Bash")
    return tmp_path / "store"


def ref_in(store: Path, session: str) -> str:
    [path] = (p for p in (store / "r" / session).iterdir() if p.suffix == ".zst")
    return path.name.partition("~")[0]


def call(command: str, store: Path, session: str | None, ref: str = UNKNOWN) -> list[str]:
    words = {"R": ref, "STORE": str(store), "COPY": "copy", "FILE": "file.tar"}
    call = [words.get(word, word) for word in command.split()]
    call += [] if session is None else ["--session", session]
    return call if command.startswith("copy") else [*call, "--store", str(store)]


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def folders_under(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_dir()}


# Missing stores, sessions and records


@pytest.mark.parametrize("command", OF_A_SESSION)
def test_a_missing_store_and_a_missing_session_are_named_and_not_made(
    run: Run, store: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    before, folders = files_under(tmp_path), folders_under(tmp_path)

    for place, session, said in [
        (tmp_path / "nosuch", "s", f"no store at {tmp_path}/nosuch: there is no such folder"),
        (tmp_path / "empty", "s", f"no session 's' in {tmp_path}/empty, which has no session"),
        (store, "nosuch", f"no session 'nosuch' in {store}, which has 's', 't'"),
    ]:
        done = run(*call(command, place, session))
        assert (done.returncode, done.stdout) == (1, "")
        assert is_one_line_from_us(done.stderr)
        assert said in done.stderr
    assert (files_under(tmp_path), folders_under(tmp_path)) == (before, folders)


def test_a_place_with_nothing_is_named_with_what_may_be_meant(run: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "stor").mkdir()

    export = ("export", tmp_path / "no" / "a.tar", "--store", store, "--session", "s")
    for line, said in [
        (("ls", "--store", tmp_path / "stroe"), "/stroe: there is no such folder; did you mean 'store'?\n"),
        (("ls", "--store", "memory://nothing"), "no store at memory://nothing: nothing is stored there"),
        (export, f"folder not found: {tmp_path}/no\n"),
    ]:
        done = run(*line)
        assert done.returncode == 1
        assert said in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up and take back its rights")
def test_a_store_that_may_not_be_read_says_what_it_needs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not below tmp_path, whose parents let no other user in.
    monkeypatch.chdir("/")
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "/nosuch")
    with TemporaryDirectory() as folder:
        run("ls", "--store", folder)  # loads what another user may not read
        os.seteuid(65534)
        try:
            done = run("ls", "--store", folder)
        finally:
            os.seteuid(0)

    assert done.returncode == 1
    assert is_one_line_from_us(done.stderr)
    assert "Permission denied; the folder must belong to this user and be writable" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up and take back its rights")
@pytest.mark.parametrize("is_file", [Path.is_file, os.path.isfile], ids=["Python 3.11", "Python 3.14"])
def test_settings_that_may_not_be_read_are_named_with_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_file: Callable[[Path], bool]
) -> None:
    monkeypatch.setattr(Path, "is_file", is_file)
    monkeypatch.setenv("HOME", "/nosuch")
    run("ls", "--store", "/nosuch")
    for folder_mode, file_mode, said in [
        (0o755, 0, "/offload.toml cannot be read: Permission denied; make it readable"),
        (0o700, 0o644, ", which cannot be searched: Permission denied; change to another folder"),
    ]:
        with TemporaryDirectory() as folder:
            file = Path(folder, "offload.toml")
            file.touch()
            file.chmod(file_mode)
            Path(folder).chmod(folder_mode)
            monkeypatch.chdir(folder)
            os.seteuid(65534)
            try:
                done = run("ls", "--store", "/nosuch")
            finally:
                os.seteuid(0)
        assert done.returncode == 2
        assert is_one_line_from_us(done.stderr)
        assert f"{folder}{said}" in done.stderr


@pytest.mark.parametrize("command", [command for command in OF_A_SESSION if "R" in command.split()])
def test_a_foreign_a_malformed_and_an_unknown_ref_get_the_same_answer(
    run: Run, store: Path, command: str
) -> None:
    before = files_under(store)
    mine, foreign = ref_in(store, "s"), ref_in(store, "t")

    for ref in (UNKNOWN, foreign, "no"):
        done = run(*call(command, store, "s", ref))

        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"offload: no record '{ref}' in session 's' of {store}, which has {mine}\n"
    assert files_under(store) == before


@pytest.mark.parametrize("command", OF_A_STORE)
def test_an_empty_store_is_counted_and_named_and_a_missing_one_is_not_made(
    run: Run, tmp_path: Path, command: str
) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)

    done = run(*command.split(), "--store", tmp_path / "empty")
    missing = run(*command.split(), "--store", tmp_path / "nosuch", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/empty" in done.stdout
    assert re.search(r"\b0 records|Nothing to delete", done.stdout)
    assert json.loads(run(*command.split(), "--store", tmp_path / "empty", "--json").stdout) is not None
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"no store at {tmp_path}/nosuch" in missing.stderr
    assert not (tmp_path / "nosuch").exists()


def test_who_has_no_store_of_the_settings_is_told_of_the_one_in_this_folder(run: Run, tmp_path: Path) -> None:
    alone = run("ls")
    assert alone.returncode == 1
    assert f"no store at {tmp_path}/home/offload/context" in alone.stderr
    assert "name another by its path or URL" in alone.stderr
    assert not (tmp_path / "home").exists()

    Offloader("./context", session="s").offload_text(TEXT, tool_name="Bash")

    assert "./context is one too: name it" in run("ls").stderr


@pytest.mark.parametrize("command", ["show", "cat", "query 1"])
def test_a_store_alone_is_no_id(run: Run, store: Path, command: str) -> None:
    done = run(*command.split(), store)
    assert (done.returncode, "Missing argument 'ID" in done.stderr) == (2, True)
    assert f"{store} is a store" in done.stderr


@pytest.mark.parametrize("command", ["shadow", "log", "du"])
def test_a_folder_that_is_not_there_is_a_store_and_no_session(run: Run, tmp_path: Path, command: str) -> None:
    for there in (tmp_path / "nosuch", "./nosuch", "../nosuch"):
        said = run(command, there).stderr
        assert "/nosuch: there is no such folder" in said
        assert "the store of the settings" not in said


def test_of_several_sessions_one_must_be_named_and_of_many_some_are_shown(run: Run, store: Path) -> None:
    done = run("evidence", os.devnull, "--store", store)
    assert done.returncode == 2
    assert f"{store} has 's', 't': name one with --session" in done.stderr

    for number in range(5):
        Offloader(str(store), session=f"s-{number}").offload_text(TEXT)
    said = run("du", "nosuch", "--store", store).stderr
    assert "has 's-0', 's-1', 's-2', 's-3', 's-4', others" in said


def test_neither_pages_nor_checks_of_a_store_create_its_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o700)

    served = run("serve", tmp_path / "nosuch")
    checked = [run("doctor", tmp_path / folder, "--json") for folder in ("nosuch/b", "kept")]

    assert (served.returncode, served.stdout) == (1, "")
    assert f"no store at {tmp_path}/nosuch" in served.stderr
    assert [done.returncode for done in checked] == [0, 0]
    assert not (tmp_path / "nosuch").exists()
    assert list((tmp_path / "kept").iterdir()) == []


# Summaries


def test_workers_copy_and_index_all_sessions(run: Run, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    for copied in ("2 copied, 0", "0 copied, 2"):
        done = run("copy", store, target, "--workers", "1")
        assert f"{copied} already there, of 2 sessions: {store} to {target}" in done.stdout
    done = run("doctor", "--reindex", "--store", target, "--workers", "1")
    assert f"indexed: 2 records in 2 sessions of {target}" in done.stdout
    shutil.rmtree(target / "r" / "t")
    (target / "r" / "t").touch()
    done = run("copy", store, target)
    assert done.returncode == 3
    assert "; records that 1 failed session got are not counted" in done.stdout
    (target / "r" / "t").unlink()
    broken = next((store / "r" / "t").iterdir())
    broken.chmod(0o600)
    broken.write_bytes(b"x" * broken.stat().st_size)
    shutil.rmtree(target)
    done = run("copy", store, target, "--json")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert [document[name] for name in ("sessions", "copied", "already_there")] == [2, 1, 0]
    assert [(f["session"], f["fault"]) for f in document["failures"]] == [("t", "corrupt")]


def test_a_copy_of_a_store_says_what_of_it_is_no_session(run: Run, store: Path, tmp_path: Path) -> None:
    open_store(store).put("f/crew/report", b"x")
    done = run("copy", store, tmp_path / "copy")
    assert (done.returncode, "not copied: f/, which frameworks have stored" in done.stderr) == (0, True)
    assert not (tmp_path / "copy" / "f").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("copy STORE COPY --as t", "--as renames one session"),
        ("copy STORE COPY --session s --workers 2", "omit --session"),
        ("doctor --reindex --session s --workers 2", "omit --session"),
    ],
)
def test_options_of_one_session_and_of_all_exclude_each_other(
    run: Run, store: Path, tmp_path: Path, options: str, said: str
) -> None:
    words = {"STORE": str(store), "COPY": str(tmp_path / "copy")}
    line = [words.get(word, word) for word in options.split()]
    done = run(*line, *(() if line[0] == "copy" else ("--store", str(store))))
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ls", "1 record in session s of STORE"),
        ("verify", "all records are intact: 1 record in 1 session of STORE"),
        ("doctor --reindex", "indexed: 1 record in 1 session of STORE"),
        ("gc", "Nothing to delete in session s of STORE."),
        ("pin", "pinned: session s, records 1, store file://STORE"),
        ("pin R", "pinned: session s, id R, records 1, store file://STORE"),
        ("unpin R", "was not pinned: session s, id R, records 1, store file://STORE"),
        ("share R --to t", "shared: id R, session s, to t, store file://STORE"),
        ("share R --to u", "session u has no other records yet"),
        ("revoke R --to u", "was not shared: id R, session s, to u, store file://STORE"),
        ("fork u", "1 copied, 0 already there: session s of STORE to session u of the same store"),
        ("export FILE", "1 copied, 0 already there: session s of STORE to file file.tar"),
        ("copy STORE COPY", "1 copied, 0 already there: session s of STORE to session s of HERE/copy"),
    ],
)
def test_each_command_says_how_much_and_where(run: Run, store: Path, command: str, said: str) -> None:
    ref = ref_in(store, "s")
    words = {"STORE": str(store), "HERE": str(Path.cwd()), r"\bR\b": ref}
    for word, meant in words.items():
        said = re.sub(word, meant, said)

    done = run(*call(command, store, "s", ref))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == said


def test_unpin_and_revoke_confirm_their_effect(run: Run, store: Path) -> None:
    ref = ref_in(store, "s")
    there = ("--store", store, "--session", "s")
    for words in (("pin",), ("pin", ref), ("share", ref, "--to", "t")):
        run(*words, *there)

    assert "no longer pinned" in run("unpin", *there).stdout
    assert "no longer pinned" in run("unpin", ref, *there).stdout
    assert "no longer shared" in run("revoke", ref, "--to", "t", *there).stdout
    assert not any((store / "g" / "s").iterdir())


PART = {"store", "session", "ref", "title", "chars", "lines", "start", "end", "start_line", "text"}
DELETED = {"store", "session", "is_dry_run", "bytes_freed", "entries", "entries_lost", "records"}
FIELDS = {
    "show R": PART,
    "show R --tail 9": PART,
    "grep needle": {"matches", "is_more", "unsearched"},
    "search needle": {"store", "passages", "records", "chars", "unsearched"},
    f"evidence {os.devnull}": {
        *{"store", "session", "values", "request", "records", "chars"},
        *{"checked_chars", "unsearched"},
    },
    "query SQL R": {"store", "session", "refs", "columns", "rows", "total", "is_more", "notes"},
    "log": {"store", "session", "requests", "is_more"},
    "du s": {"store", "session", "records", "chars", "tokens", "stored_bytes", "by_type", "by_tool"},
    "gc": DELETED,
    "rm --dry-run": DELETED,
    "pin": {"done", "store", "session", "ref", "records"},
    "unpin R": {"done", "store", "session", "ref", "records"},
    "share R --to u": {"done", "store", "session", "ref", "to"},
    "fork u": {"session", "copied", "already_there", "failures"},
    "ls": {"store", "session", "records", "is_more"},
    "doctor --reindex": {"store", "sessions"},
    "verify": {"store", "sessions", "records", "links", "entries", "gateway_objects", "faults", "lost"},
    "doctor STORE": {"store", "checks"},
    "config show": {"settings"},
}


@pytest.mark.parametrize("command", FIELDS)
def test_json_has_the_documented_fields_with_names_in_snake_case(run: Run, store: Path, command: str) -> None:
    def check(value: object) -> None:
        if isinstance(value, dict):
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in value), value
            assert all(name.startswith("is_") for name, each in value.items() if isinstance(each, bool))
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(each)

    words = {"R": ref_in(store, "s"), "STORE": str(store), "SQL": "select 1 as one"}
    line = [words.get(word, word) for word in command.split()]
    if line[0] not in ("doctor", "config") or "--reindex" in line:
        named = {"log": ["s"], "du": []}.get(line[0], ["--session", "s"])
        line += [*named, "--store", str(store)]
    done = run(*line, "--json")
    document = json.loads(done.stdout)

    assert done.stdout.isascii()
    assert set(document) == FIELDS[command]
    document.pop("by_tool", None)  # counts by names from outside
    check(document)


@pytest.mark.parametrize("wrong", [("--max-matches", "-5"), ("--max-matches", "0"), ("--max-matches", "x")])
def test_a_number_of_matches_is_at_least_one(run: Run, store: Path, wrong: tuple[str, str]) -> None:
    assert run("grep", "needle", "--store", store, "--session", "s", *wrong).returncode == 2


# Deleting


def records_of(store: Path, session: str) -> list[str]:
    return [info.ref for info in Offloader(str(store), session=session).records()]


@pytest.mark.parametrize("command", ["rm", "rm R"])
def test_without_a_terminal_and_without_yes_or_in_a_dry_run_nothing_is_deleted(
    run: Run, store: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_under(store)
    [size] = [len(data) for key, data in before.items() if key.startswith("r/s/")]
    line = call(command, store, "s", ref_in(store, "s"))
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        done, dry = run(*line), run(*line, "--dry-run")

    assert (done.returncode, done.stdout) == (2, "")
    assert is_one_line_from_us(done.stderr)
    asked = ("nothing was deleted", "1 record,", str(store), "--yes", "--dry-run")
    assert all(word in done.stderr for word in asked)
    assert dry.returncode == 0
    assert dry.stdout.endswith(f"would be deleted: 1 record, {size_text(size)} in session s of {store}\n")
    assert files_under(store) == before


def test_a_deletion_is_made_once_and_prints_a_command_that_undoes_it(run: Run, store: Path) -> None:
    before = files_under(store / "r")
    rm = ("rm", "--session", "s", "--store", store, "--yes")

    done, again = run(*rm), run(*rm)

    assert (done.returncode, again.returncode) == (0, 1)
    assert "1 hour" in done.stdout
    assert f"session s of {store} has no record" in again.stderr
    assert records_of(store, "s") == []
    [undo] = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    undone = run(*shlex.split(undo)[1:])
    assert f"readable again: 1 record in session s of {store}" in undone.stdout
    assert records_of(store, "s") == [ref_in(store, "s")]
    assert files_under(store / "r") == before


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 12), (b"y\n", 1)])
def test_in_a_terminal_gc_asks_before_it_marks_many_records(store: Path, answer: bytes, left: int) -> None:
    off = Offloader(str(store), session="many")
    for number in range(12):
        off.offload_text(f"{number}{TEXT}", tool_use_id=str(number))
    gc = ("gc", "--store", store, "--session", "many", "--session-records", "1", "--live-for", "0s")

    _, said = in_a_terminal(*gc, typed=answer, COLUMNS="200")

    assert f"Mark 11 records in session many of {store} for deletion?" in said
    assert len(records_of(store, "many")) == left


@pytest.mark.parametrize("sure", [(), ("--yes",)])
def test_without_a_terminal_gc_says_what_it_marked_and_that_can_be_undone(
    run: Run, store: Path, sure: tuple[str, ...]
) -> None:
    off = Offloader(str(store), session="many")
    for number in range(12):
        off.offload_text(f"{number}{TEXT}", tool_use_id=str(number))

    done = run("gc", "--store", store, "--session-records", "1", "--live-for", "0s", *sure)
    undone = run("undelete", "--store", store, "--session", "many")

    assert done.returncode == 0
    assert ("11 records were marked for deletion without a question" in done.stderr) is not bool(sure)
    assert (f"offload undelete --store {store} --session NAME, for many" in done.stderr) is not bool(sure)
    assert f"readable again: 11 records in session many of {store}" in undone.stdout
    assert len(records_of(store, "many")) == 12
    again = run("undelete", "--store", store, "--session", "many")
    assert (again.returncode, "no deleted record that can be undeleted" in again.stderr) == (1, True)


def in_a_terminal(*arguments: object, typed: bytes = b"", **environ: str) -> tuple[int, str]:
    """Return the code of a command in a terminal, and what was shown without its colours."""
    code, seen = prepared.offload_in_a_terminal(*arguments, typed=typed, **environ)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "")


@pytest.mark.parametrize(
    ("answer", "code", "is_kept"), [(b"n\n", 1, True), (b"\n", 1, True), (b"y\n", 0, False)]
)
def test_in_a_terminal_it_asks_first(store: Path, answer: bytes, code: int, is_kept: bool) -> None:
    done, said = in_a_terminal("rm", "--session", "s", "--store", store, typed=answer, COLUMNS="200")

    assert (done, bool(records_of(store, "s"))) == (code, is_kept)
    assert re.search(rf"Delete 1 record, [\d.]+ kB in session s of {store}\?", said)
    assert ("nothing was deleted" in said) == is_kept


# On a narrow terminal

ROWS = [
    {
        "session": f"session_20261122_10420{n}_abcdef",
        "records": 10**n,
        "tokens": 10**12 + n,
        "marked": 7,
    }
    for n in range(6)
]


Table = Callable[..., list[str]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Table:
    """Return a function that returns the lines of a table in a terminal, or a pipe, of a width."""

    def lines(rows: list[dict[str, Any]], width: int, *, is_terminal: bool = True) -> list[str]:
        console = Console(width=width, force_terminal=is_terminal, color_system=None)
        monkeypatch.setattr(terminal, "out", console)
        monkeypatch.setattr(tables, "out", console)
        tables.print_table(rows)
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_no_digit_of_a_number_is_cut_off(width: int, table: Table) -> None:
    shown = "\n".join(table(ROWS, width))

    for row in ROWS:
        assert f"{row['records']:,}" in shown
        assert f"{row['tokens']:,}" in shown


def test_a_name_that_does_not_fit_is_shortened_in_the_middle_and_whole_in_a_pipe(table: Table) -> None:
    narrow = table(ROWS, 60)

    assert [line.split()[0] for line in narrow[1:]] == [f"session_2026…420{n}_abcdef" for n in range(6)]
    assert "…" not in "\n".join(table(ROWS, 60, is_terminal=False))


@pytest.mark.parametrize("width", [80, 60])
def test_two_names_that_differ_anywhere_are_not_shown_alike(width: int, table: Table) -> None:
    name = "an-agent-of-a-project-in-a-folder-with-a-long-name-and-a-number-9"
    for differs in range(0, 60, 4):
        names = [f"{name[:differs]}{letter}{name[differs:]}" for letter in "xyz"]

        rows = table([{**row, "session": each} for row, each in zip(ROWS, names, strict=False)], width)

        shown = [line.split()[0] for line in rows[1:]]
        assert len(set(shown)) == len(shown) == len(names)


def test_names_that_cannot_be_told_apart_when_shortened_are_shown_whole(table: Table) -> None:
    names = [f"session-{a}{'-' * 40}{b}{'-' * 40}end" for a in "12" for b in "12"]

    lines = table([{**row, "session": each} for row, each in zip(ROWS, names, strict=False)], 60)

    shown = "".join(line.split()[0] for line in lines[1:])
    assert all(name in shown for name in names)


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        *(
            (0, "now"),
            (59, "now"),
            (60, "1 min ago"),
            (33 * 60, "33 min ago"),
            (3 * 3600 + 59, "3 hours ago"),
        ),
        *((86_400 * 2, "2 days ago"), (-7200, "in 1 hour")),
    ],
)
def test_a_time_in_a_table_is_its_age_up_to_thirty_days(passed: int, said: str) -> None:
    assert terminal.age(datetime.now(UTC) - timedelta(seconds=passed)) == said
    assert terminal.age(datetime(2026, 1, 31, 12, tzinfo=UTC)) == "2026-01-31"


def test_the_newest_comes_first_and_ls_names_the_session_of_its_rows(run: Run, store: Path) -> None:
    # Two files made in one tick of the file system's clock have one time.
    for earlier in (store / "r").glob("*/*"):
        os.utime(earlier, (1, 1))
    Offloader(str(store), session="t").offload_text(TEXT * 2, tool_name="Bash")
    rows = json.loads(run("ls", "--store", store, "--json").stdout)["sessions"]
    assert [row["session"] for row in rows] == ["t", "s"]
    assert rows[0]["stored_at"] >= rows[1]["stored_at"]
    one = json.loads(run("ls", "--store", store, "--session", "t", "--json").stdout)
    assert (one["session"], [row["chars"] for row in one["records"]]) == ("t", [2 * len(TEXT), len(TEXT)])


def test_words_that_judge_have_colours_unless_no_color_is_set(store: Path) -> None:
    [path] = (store / "r" / "s").glob("*.zst")
    path.write_bytes(path.read_bytes()[:-1])
    verify = ("verify", "--store", store)
    _, shown = prepared.offload_in_a_terminal(*verify, TERM="xterm", COLUMNS="150")
    assert "\x1b[31mcorrupt" in shown
    _, plain = prepared.offload_in_a_terminal(*verify, TERM="xterm", COLUMNS="150", NO_COLOR="1")
    assert "corrupt" in plain
    assert "\x1b[31m" not in plain


def test_a_long_answer_is_shown_in_the_pager_of_the_user(store: Path, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\nhead -n 2 > {tmp_path}/paged\necho paged\n")
    pager.chmod(0o755)
    show = ("show", ref_in(store, "s"), "--store", store)
    _, shown = in_a_terminal(*show, PAGER=str(pager), LINES="24")
    assert shown.startswith("paged")
    assert (tmp_path / "paged").read_text() == "".join(TEXT.splitlines(keepends=True)[:2])
    _, short = in_a_terminal(*show, "--limit", "20", PAGER=str(pager), LINES="24", COLUMNS="200")
    assert "1 needle" in short
    assert f"{ref_in(store, 's')} (0 needle): characters 0 to 20 of {len(TEXT):,}" in short


def test_a_terminal_shows_matches_under_their_record_and_rows_as_a_table(store: Path) -> None:
    ref = ref_in(store, "s")
    _, found = in_a_terminal("grep", "12 needle", "--session", "s", "--store", store, COLUMNS="120")
    assert f"{ref}  0 needle  (session s)\n       13: 12 needle\n" in found
    sql = "select n, text from lines where n in (1, 12)"
    _, table = in_a_terminal("query", sql, ref, "--session", "s", "--store", store, COLUMNS="120")
    assert re.search(r" n  text\s+\n 1  0 needle\s+\n12  11 needle", table)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("ls --session research-24 --store STORE", "did you mean 'research-42'?"),
        ("savings FILE --policy economi", "did you mean 'economy'?"),
        ("savings FILE --model claude-opus-45", "did you mean 'claude-opus-4-5'?"),
        ("ls --store fil://x", "did you mean 'file'?"),
        ("ls --store memry://x", "did you mean 'memory'?"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_most_similar(
    run: Run, store: Path, call: str, hint: str
) -> None:
    for number in range(9):
        Offloader(str(store), session=f"other-{number}").offload_text(TEXT)
    Offloader(str(store), session="research-42").offload_text(TEXT)
    done = run(*call.replace("STORE", str(store)).replace("FILE", "chat.json").split())
    assert done.stderr.endswith(f"{hint}\n")


def test_a_narrow_terminal_leaves_out_columns_and_names_them(table: Table) -> None:
    row = {
        "ref": "kqzmwpxhva",
        "item_type": "tool_result",
        "tool": "mcp__github__list_issues",
        "title": "list the open issues of a repository with a long name",
        "chars": 123_456,
        "tokens": 45_678,
        "stored_bytes": 98_765,
        "stored_at": datetime.now(UTC) - timedelta(hours=3),
    }

    head, *rows, note = table([row, row], 80)

    assert head.split() == ["id", "type", "tool", "title", "tokens", "size", "stored", "at"]
    assert sum(line.startswith("kqzmwpxhva") for line in rows) == 2
    assert note == "not shown in 80 columns: chars"


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_shows_the_requests_of_a_session_as_a_table(table: Table, width: int) -> None:
    tokens = ("tokens", "offloaded", "records", "reads", "input", "cached", "predicted", "predicted_cached")
    row = {"request": 6, "sent_at": datetime.now(UTC), "messages": 11, **dict.fromkeys(tokens, 123_456)}
    row |= {"because": "content", "cold": 123_456}
    head, first, *_, note = table([{**row, "is_compacted": False, "model": "claude-sonnet-5"}], width)
    assert head.startswith("request  sent at")
    assert first.split()[0] == "6"
    assert note.startswith(f"not shown in {width} columns: model, messages, reads")


def test_the_store_is_named_once(run: Run, store: Path) -> None:
    for command in ("ls", "serve", "doctor"):
        done = run(command, store, "--store", store)
        assert (done.returncode, "name the store once" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *((call, 0) for call in ("ls", "ls --session s", "verify", "du", "du s", "log", "gc --dry-run")),
        *((call, 0) for call in ("show R", "cat R", "grep needle", "grep needle R", "pin R --session s")),
        *(("rm R --session s", 2), ("diff R Q", 1), ("diff Q R", 1), ("undelete R --session s", 1)),
    ],
)
def test_the_store_is_an_argument_or_an_option(run: Run, store: Path, call: str, code: int) -> None:
    words = {"R": ref_in(store, "s"), "Q": UNKNOWN}
    command, *more = [words.get(word, word) for word in call.split()]
    place = len(more) - more[::-1].index(words["R"]) - 1 if words["R"] in more else len(more)
    calls = [[*more, "--store", store], [*more, store], [*more[:place], store, *more[place:]]]
    asked, *others = [run(command, *args) for args in calls]
    assert asked.returncode == code
    for other in others:
        assert (other.returncode, other.stdout, other.stderr) == (code, asked.stdout, asked.stderr)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_960, "10 kB"),
        (24_691_356, "25 MB"),
        (999_600, "1.0 MB"),
        (3 * 10**15, "3,000 TB"),
    ],
)
def test_a_size_has_two_or_three_digits_and_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text


# The help


def function_of(name: str) -> Any:
    command = COMMANDS[name]
    return getattr(import_module(f"offload.cli.{command.module}"), command.name)


@pytest.mark.parametrize("columns", ["80", "40"])
def test_help_shows_every_word_of_a_docstring(
    run: Run, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERMINAL_WIDTH", columns)
    functions = {name: function_of(name) for name in COMMANDS.keys() - {"catalog", "config"}}
    assert len(functions) > 20
    functions |= {"config show": config.show}
    functions |= {f"catalog {name}": getattr(catalog, name) for name in ("export", "views")}

    for command, function in functions.items():
        shown = run(*command.split(), "--help").stdout
        assert "".join(str(function.__doc__).split()) in "".join(shown.split())
        assert "…" not in shown


def test_the_list_of_commands_has_each_in_one_group_and_on_one_line_and_so_has_the_page(run: Run) -> None:
    shown = run("--help").stdout.splitlines()

    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    for name, command in COMMANDS.items():
        assert [line.split() for line in shown].count([name, *command.summary.split()]) == 1
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert COMMANDS.keys() <= set(re.findall(r"`([a-z-]+)", " ".join(cells)))


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"config"}))
def test_help_is_short_for_h_and_names_no_python_type(run: Run, command: str) -> None:
    shown = run(command, "-h").stdout

    assert shown == run(command, "--help").stdout
    assert re.findall(r"<\w+|\bx[<>]=|[{}]", shown) == []


# Commands that run until they are stopped, and the demo: other tests run them.
ELSEWHERE = {"gateway", "serve", "mcp", "mcp-proxy", "demo"}


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a session of four requests and two records, one of them shared."""
    folder = tmp_path_factory.mktemp("research") / "store"
    off = Offloader(str(folder), session="research-42", journal=True)
    for count in range(1, 5):
        off.offload([{"role": "user", "content": f"{n}"} for n in range(count)])
    log = "".join(f'{{"level": "info", "text": "{n} timed out"}}\n' for n in range(3000))
    off.offload_text(log, tool_name="Bash", tool_use_id="c1")
    off.offload_text(log.replace("timed", "time"), tool_name="Bash", tool_use_id="c2")
    off.share(off.records()[0].ref, "review-7")
    return folder


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - ELSEWHERE))
def test_the_example_of_a_help_text_runs(
    run: Run, tmp_path: Path, research: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, home = tmp_path / "store", tmp_path / "home/.claude/projects"
    shutil.copytree(research, store)
    refs = records_of(store, "research-42")
    home.mkdir(parents=True)
    (home / "chat.json").write_text(json.dumps([{"role": "user", "content": "go"}]))
    if command == "undelete":
        run("rm", refs[0], "--session", "research-42", "--store", store, "--yes")
    if command == "import":
        run("export", "session.tar", "--session", "research-42", "--store", store)
    monkeypatch.setenv("OFFLOAD_STORE", str(store))
    (tmp_path / "claude").symlink_to(shutil.which("true") or "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    target = tmp_path / "copy" if command == "copy" else store
    words = {"kqzmwpxhva": refs[0], "ejwntwgzte": refs[1], "~/.claude/projects": str(home)}
    words |= {"./context": str(store), "s3://bucket/prefix": str(target), "answer.md": os.devnull}

    example = str(function_of(command).__doc__).partition("Example: ")[2] or "offload config show"
    arguments = [words.get(word, word) for word in shlex.split(example.partition(" >")[0])[1:]]
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        done = run(*arguments)

    # Without a terminal `rm` asks for --yes.
    assert done.returncode == (2 if command == "rm" else 0), done.stderr


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("verify", "2/2 -:--:-- 2 records in 2 sessions, "),
        ("verify --session s", "1/1 -:--:-- 1 record in 1 session, "),
        ("gc", "2/2 -:--:-- 0 marked"),
        ("gc --dry-run --workers 1", "2/2 -:--:-- 0 would be marked"),
        ("doctor --reindex", "100% -:--:--"),
        ("copy STORE COPY", "100% -:--:--"),
    ],
)
def test_a_bar_shows_how_much_is_done_and_left(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=shown, force_terminal=True, width=120, no_color=True))
    run(*call(command, store, None))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s+", " ", shown.getvalue())
    plain = re.sub(r"\s+", " ", last.replace("0:00:00", "-:--:--"))
    assert (" records " if "--session" in command else " sessions ") in plain
    assert text in plain

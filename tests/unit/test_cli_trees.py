"""Commands on the layouts of the presets: by their path, and with placeholders and paths in place of ids."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from command import Run
from kit.conversation import from_model, from_user, tool_turn
from kit.store import CountedStore

from offload import Offloader, open_store
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload.agent.presets.tool_results import offload_tool_results
from offload.storage.registry import with_layout
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore

LOG = "".join(f"{n} {'needle' if n == 700 else 'hay'}\n" for n in range(3000))
LAYOUTS = ("context_fs", "context_refs", "tool_results")


def conversation(log: str = LOG) -> list[dict[str, Any]]:
    return [from_user("go"), *tool_turn("toolu_1", log, "Bash", {"command": "make"}), from_model("done")]


class Made(NamedTuple):
    """A root of one layout, with one record: its session, its placeholder and its file."""

    root: Path
    session: str
    placeholder: str
    file: Path


def make(layout: str, root: Path) -> Made:
    if layout == "context_fs":
        messages = ContextFileSystem(root, "s").offload(conversation()).messages
        [file] = root.glob("tool_result/*/*.json")
        session = "s"
    elif layout == "context_refs":
        messages = ContextRefs(root, "s").offload(conversation()).messages
        [file] = root.glob("s/artifacts/*.txt")
        session = "s"
    else:
        messages = offload_tool_results(conversation(), root).messages
        [file] = root.glob("*.md")
        session = "tool-results"
    return Made(root, session, messages[2]["content"][0]["content"], file)


@pytest.fixture(params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return make(request.param, tmp_path / "context")


# Every command by the path of the root


def record_in(run: Run, made: Made) -> dict[str, Any]:
    """Return the only record of a root, as `ls` lists it."""
    listed = run("ls", "--store", made.root, "--session", made.session, "--json").stdout
    [record] = json.loads(listed)["records"]
    return dict(record)


def test_commands_that_read_find_the_record_and_doctor_adds_no_file(run: Run, made: Made) -> None:
    there = ("--store", made.root)

    [session] = json.loads(run("ls", *there, "--json").stdout)["sessions"]
    assert (session["session"], session["records"], session["chars"]) == (made.session, 1, len(LOG))
    path = record_in(run, made)["path"]
    assert made.root / path == made.file
    assert path in run("ls", *there, "--session", made.session).stdout
    assert "700 needle" in run("grep", "needle", *there).stdout
    assert "700 needle" in run("grep", "needle", made.file, *there).stdout
    assert json.loads(run("du", made.session, *there, "--json").stdout)["chars"] == len(LOG)
    assert json.loads(run("du", *there, "--json").stdout)["total"]["records"] == 1
    verified = run("verify", *there)
    assert verified.returncode == 0
    assert f"all records are intact: 1 record in 1 session of {made.root}" in verified.stdout
    assert ("have no checksums" in verified.stdout) == (made.session == "tool-results")
    before = {path for path in made.root.rglob("*") if path.is_file()}
    assert run("doctor", made.root, "--json").returncode == 0
    assert {path for path in made.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["show", "show --tail 20", "cat"])
def test_a_record_is_read_by_its_placeholder_path_or_id(run: Run, made: Made, command: str) -> None:
    relative = made.file.relative_to(made.root)

    for name in (made.placeholder, made.file, relative, record_in(run, made)["ref"]):
        done = run(*command.split(), name, "--store", made.root)
        assert done.returncode == 0
        assert (done.stdout == LOG) == (command == "cat")
        assert ("; more: offload show" in done.stderr) == (command == "show")
        assert ("2999 hay" if "--tail" in command else "0 hay") in done.stdout


@pytest.mark.parametrize("layout", ["context_fs", "context_refs"])
def test_a_record_is_pinned_and_deleted_by_its_path(run: Run, tmp_path: Path, layout: str) -> None:
    made = make(layout, tmp_path / "context")
    there = ("--session", "s", "--store", made.root)

    assert run("pin", made.file, *there).returncode == 0
    assert "1 pinned record kept" in run("rm", made.file, *there, "--yes").stdout
    assert run("unpin", made.placeholder, *there).stdout.startswith("no longer pinned")
    assert run("rm", made.file, *there, "--yes").returncode == 0
    assert json.loads(run("ls", *there, "--json").stdout)["records"] == []


@pytest.mark.parametrize("layout", ["context_fs", "context_refs"])
def test_verify_finds_damage_in_a_tree(run: Run, tmp_path: Path, layout: str) -> None:
    made = make(layout, tmp_path / "context")
    stored = next(p for p in (made.root / ".offload" / "r" / "s", made.file) if p.exists())
    path = next(stored.iterdir()) if stored.is_dir() else stored
    path.write_bytes(path.read_bytes()[:-1])

    assert run("verify", "--store", made.root).returncode == 3


def test_a_session_is_copied_and_exported_to_an_ordinary_store(run: Run, made: Made, tmp_path: Path) -> None:
    there, file = tmp_path / "copied", tmp_path / "file.tar"

    assert run("copy", made.root, there, "--session", made.session).returncode == 0
    assert run("export", file, "--session", made.session, "--store", made.root).returncode == 0

    off = Offloader(there, session=made.session)
    [info] = off.records()
    assert b"".join(off.content(info.ref)).decode() == LOG
    assert file.stat().st_size > 0


@pytest.mark.parametrize("layout", ["context_fs", "context_refs"])
def test_a_deletion_and_its_undoing_keep_the_files_for_people_in_step(
    run: Run, tmp_path: Path, layout: str
) -> None:
    made = make(layout, tmp_path / "context")
    index = made.root / ("index.json" if layout == "context_fs" else "s/manifest.json")

    deleted = run("rm", "--session", "s", "--store", made.root, "--yes")
    listed = json.loads(index.read_text())["items"]
    undo = [line.strip() for line in deleted.stdout.splitlines() if line.startswith("  ")]
    for line in undo:
        assert run(*shlex.split(line)[1:]).returncode == 0

    assert (deleted.returncode, listed) == (0, [])
    assert len(undo) == 1
    assert len(json.loads(index.read_text())["items"]) == 1
    assert made.file.exists()
    assert "0 hay" in run("show", made.file, "--store", made.root).stdout


@pytest.mark.parametrize("command", ["rm --yes", "pin", "fork other"])
def test_files_of_tool_results_are_not_changed_and_that_is_said(
    run: Run, tmp_path: Path, command: str
) -> None:
    made = make("tool_results", tmp_path / "context")
    before = {path: path.read_bytes() for path in made.root.iterdir()}

    done = run(*command.split(), "--session", "tool-results", "--store", made.root)

    is_fork = command.startswith("fork")
    assert done.returncode == (0 if is_fork else 1)
    assert ("can be read, copied and exported only" in done.stderr) is not is_fork
    assert is_fork or {path: path.read_bytes() for path in made.root.iterdir()} == before
    assert made.file.read_text() == LOG


# A path that is not the root


@pytest.mark.parametrize("place", ["..", "tool_result", "nothing/here", "index.json"])
def test_a_path_beside_the_root_is_answered_with_the_root(run: Run, tmp_path: Path, place: str) -> None:
    made = make("context_fs", tmp_path / "context")

    done = run("ls", "--store", made.root / place)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"the store is {made.root}\n" in done.stderr


def test_a_file_of_another_store_is_answered_with_that_store(run: Run, tmp_path: Path) -> None:
    mine, other = (make("context_refs", tmp_path / name) for name in ("mine", "other"))

    done = run("show", other.file, "--store", mine.root)

    assert done.returncode == 1
    assert f"use --store {other.root}" in done.stderr


# What chooses the layout


def test_a_path_opens_the_layout_reads_and_writes_it(tmp_path: Path) -> None:
    for layout in LAYOUTS[:2]:
        made = make(layout, tmp_path / layout)
        off = Offloader(made.root, session="s")
        assert len(off.records()) == 1
        before = len(list(made.root.rglob("*")))

        off.offload_text(LOG.upper(), tool_name="Bash")

        listed = made.root / ("index.json" if layout == "context_fs" else "s/manifest.json")
        assert len(json.loads(listed.read_text())["items"]) == 2
        assert len(list(made.root.rglob("*"))) > before
        assert not (made.root / "r").exists()


def test_a_store_beside_files_of_tool_results_works_and_shows_both(tmp_path: Path, run: Run) -> None:
    made = make("tool_results", tmp_path / "context")

    Offloader(made.root, session="s").offload_text(LOG, tool_name="Bash")

    rows = json.loads(run("ls", "--store", made.root, "--json").stdout)["sessions"]
    assert [row["session"] for row in rows] == ["s", "tool-results"]
    assert len(list((made.root / "r" / "s").iterdir())) == 1


def test_a_changed_file_of_a_tool_result_is_shown_as_it_is_now(tmp_path: Path) -> None:
    made = make("tool_results", tmp_path / "context")
    off = Offloader(made.root, session="tool-results")
    [before] = off.records()
    made.file.write_bytes(b"short \xff text")

    [after] = Offloader(open_store(made.root), session="tool-results").records()
    off = Offloader(made.root, session="tool-results")

    assert after.ref != before.ref
    assert b"".join(off.content(after.ref)).decode() == "short \ufffd text"


@pytest.mark.parametrize("name", [b"\xff", b"\x1b[31mred\n", b"a" * 230, b"..%2f..", "漢 é".encode()])
def test_a_file_of_any_name_is_shown(run: Run, tmp_path: Path, name: bytes) -> None:
    root = tmp_path / "context"
    root.mkdir()
    Path(os.fsdecode(os.fsencode(root) + b"/tool-result-" + name + b".md")).write_text(LOG)

    listed = run("ls", "--session", "tool-results", "--store", root, "--json").stdout
    [record] = json.loads(listed)["records"]

    assert run("cat", record["ref"], "--store", root).stdout == LOG
    assert run("verify", "--store", root).returncode == 0
    assert "\x1b" not in run("ls", "--session", "tool-results", "--store", root).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up and take back its rights")
def test_a_file_that_cannot_be_read_hides_no_other() -> None:
    # The folders above those of pytest are closed to other users.
    with TemporaryDirectory() as folder:
        made = make("tool_results", Path(folder))
        secret = made.root / "tool-result-secret.md"
        secret.write_text("x")
        secret.chmod(0)
        os.chown(made.file, 12345, 12345)
        made.root.chmod(0o755)
        os.seteuid(12345)
        try:
            listed = Offloader(open_store(made.root), session="tool-results").records()
        finally:
            os.seteuid(0)

    assert [info.tool_name for info in listed] == [made.file.name]


@pytest.mark.parametrize("mode", [0o775, 0o777], ids=oct)
def test_a_folder_that_others_may_write_to_is_shown(run: Run, tmp_path: Path, mode: int) -> None:
    made = make("tool_results", tmp_path / "context")
    made.root.chmod(mode)

    assert json.loads(run("ls", "--store", made.root, "--json").stdout)["sessions"][0]["records"] == 1


@pytest.mark.parametrize(
    "planted",
    [".offload", "~state", "conversation/artifacts/7b8k1.txt", "tool-result-x.md", "tool-result-.md"],
)
def test_a_link_chooses_no_layout(tmp_path: Path, planted: str) -> None:
    for layout in LAYOUTS:
        make(layout, tmp_path / layout)
    aims = {
        ".offload": tmp_path / "context_fs" / ".offload",
        "~state": tmp_path / "context_refs",
        "conversation/artifacts/7b8k1.txt": tmp_path / "context_refs" / "s" / "artifacts",
    }
    path = tmp_path / "root" / planted
    if "artifacts" in planted:
        path = path.parent
    path.parent.mkdir(parents=True)
    path.symlink_to(aims.get(planted, tmp_path / "tool_results" / "tool-result-toolu_1.md"))

    assert type(open_store(tmp_path / "root")) is LocalStore


@pytest.mark.parametrize(
    "names",
    [
        ["index.json"],
        ["manifest.json", "web/manifest.json"],
        ["build/artifacts/app.zip"],
        ["build/artifacts/report.txt", "build/headers/other.json"],
        ["build/artifacts/report.txt.zst"],
        [".offload/config"],
        ["r/artifacts/kqzmwpxhva~tool_result~~1~1.txt"],
        ["f/artifacts/notes.txt"],
        ["tool-result-x.txt", "results.md"],
    ],
    ids=str,
)
def test_files_of_other_programs_choose_no_layout(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"schema_version": "1.0", "items": []}')

    assert type(open_store(tmp_path)) is LocalStore


def test_a_folder_that_cannot_be_read_is_opened_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "absent"):
        assert type(open_store(path)) is LocalStore
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


# A root on a remote store


def test_an_ordinary_remote_store_is_recognized_by_one_listing_and_foreign_objects_are_none() -> None:
    store, other = CountedStore(), CountedStore()
    Offloader(store, session="s").offload_text(LOG, tool_name="Bash")
    store.requests.clear()
    other.put("readme", b"x")

    assert (with_layout(store), with_layout(other)) == (store, other)
    assert (store.count("keys"), other.count("keys")) == (1, 2)


def test_context_files_on_a_remote_store_are_found_by_its_first_key(run: Run) -> None:
    root = "memory://trees-of-the-command-line"
    refs = ContextRefs(root, "conv-1")
    refs.offload(conversation())

    [row] = json.loads(run("ls", "--store", root, "--json").stdout)["sessions"]
    [record] = json.loads(run("ls", "--store", root, "--session", "conv-1", "--json").stdout)["records"]

    assert (row["session"], row["records"]) == ("conv-1", 1)
    assert record["path"] == f"conv-1/artifacts/{record['ref']}.txt"
    assert "700 needle" in run("grep", "needle", "--store", root).stdout
    assert "0 hay" in run("show", f"[Bash output in context: {record['ref']}] (3KB)", "--store", root).stdout
    assert run("verify", "--store", root).returncode == 0
    assert with_layout(MemoryStore("memory://")) is None

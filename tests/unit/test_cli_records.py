"""`offload diff`, and records and searches in a store with several sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Run, runner

from offload import Offloader

LOG = "".join(f"{n} a line of the log\n" for n in range(2000))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return runner(capsys, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of the sessions `s` with two records, and `t` and `fork of t` with one that is the same."""
    folder = tmp_path / "store"
    off = Offloader(str(folder), session="s")
    off.offload_text(LOG + "needle\n", tool_name="Bash", tool_use_id="c1")
    off.offload_text(LOG.replace("7 a line", "7 another line"), tool_name="Bash", tool_use_id="c2")
    other = Offloader(str(folder), session="t")
    other.offload_text(LOG + "needle and thread\nneedle\n", tool_name="Bash", tool_use_id="c3")
    other.fork("fork of t")
    return folder


def refs(store: Path, session: str) -> list[str]:
    return [info.ref for info in Offloader(str(store), session=session).records()]


def test_a_record_is_found_in_any_session_by_the_beginning_of_its_id(run: Run, store: Path) -> None:
    for ref in refs(store, "s"):
        for text in (ref, ref[:9], f"[Offloaded: Bash result, id {ref}]"):
            done = run("show", text, "--limit", 20, "--store", store)
            assert (done.returncode, done.stderr) == (0, "")
            assert f"[{ref}: characters 0-20 of " in done.stdout
        assert run("cat", ref[:9], "--store", store).stdout.startswith("0 a line of the log\n1 a")
        assert f"[{ref}: " in run("tail", ref[:9], "--store", store, "--session", "s").stdout
        assert "item]" in run("grep", "line", ref[:9], "--store", store).stdout


def test_a_beginning_of_several_ids_lists_them_with_their_sessions(run: Run, store: Path) -> None:
    [ref] = refs(store, "t")
    done = run("show", ref[:3], "--store", store)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"'{ref[:3]}' names several records: " in done.stderr
    assert f"{ref} (session 't'" in done.stderr
    assert f"{ref} (session 'fork of t'" in done.stderr
    assert run("show", ref[:3], "--store", store, "--session", "t").returncode == 0


def test_share_and_revoke_find_a_record_by_the_beginning_of_its_id(run: Run, store: Path) -> None:
    ref = refs(store, "s")[0]
    place = ("--session", "s", "--to", "u", "--store", store)

    assert f"id {ref}," in run("share", ref[:6], *place).stdout
    assert refs(store, "u") == [ref]
    assert f"no longer shared: id {ref}," in run("revoke", ref[:6], *place).stdout
    assert refs(store, "u") == []


@pytest.mark.parametrize("command", ["rm", "pin", "unpin"])
def test_a_change_of_a_record_needs_its_whole_id(run: Run, store: Path, command: str) -> None:
    ref = refs(store, "s")[0]
    more = ["--yes"] if command == "rm" else []
    done = run(command, ref[:8], "--session", "s", "--store", store, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"offload: '{ref[:8]}' is only the beginning of {ref}: write the whole id\n"
    assert ref in refs(store, "s")
    assert run(command, ref, "--session", "s", "--store", store, *more).returncode == 0


def test_a_shared_record_is_found_in_its_own_session(run: Run, store: Path) -> None:
    ref = refs(store, "s")[0]
    assert run("share", ref, "--session", "s", "--to", "u", "--store", store).returncode == 0
    assert json.loads(run("show", ref, "--json", "--store", store).stdout)["session"] == "s"


def test_an_id_of_no_session_is_code_1(run: Run, store: Path) -> None:
    for text in ("zzzzzzzzzz", "z" * 30, "../x", "ZZ"):
        done = run("show", text, "--store", store)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"offload: no record '{text}' in any session of {store}\n"


def test_a_deleted_record_is_said_to_be_deleted(run: Run, store: Path) -> None:
    first, _ = refs(store, "s")
    assert run("rm", first, "--session", "s", "--store", store, "--yes").returncode == 0
    done = run("show", first, "--store", store)
    assert done.returncode == 1
    assert "was deleted" in done.stderr


def test_a_search_without_a_session_is_of_all_sessions(run: Run, store: Path) -> None:
    done = run("grep", "needle", "--store", store)
    assert done.returncode == 0
    assert done.stdout.count("session ") == 3
    assert "session s:\n[1 match shown, in 2 items]" in done.stdout
    assert "session t:\n[2 matches shown, in 1 item]" in done.stdout
    assert f"matches in 3 of 3 sessions of {store}" in done.stdout
    words = run("grep", "thread needle", "--words", "--store", store).stdout
    assert "session s:" not in words
    assert f"matches in 2 of 3 sessions of {store}" in words
    assert f"matches in 0 of 3 sessions of {store}" in run("grep", "no such", "--store", store).stdout
    found = json.loads(run("grep", "thread", "--json", "--store", store).stdout)
    assert {row["session"] for row in found["matches"]} == {"fork of t", "t"}
    assert not found["is_more"]


def test_matches_in_json_have_their_place_and_their_text(run: Run, store: Path) -> None:
    ref = refs(store, "t")[0]
    found = json.loads(
        run("grep", "needle", "--max-matches", 1, "--json", "--session", "t", "--store", store).stdout
    )
    [match] = found["matches"]
    content = run("cat", ref, "--session", "t", "--store", store).stdout
    assert (match["session"], match["ref"], found["is_more"]) == ("t", ref, True)
    assert content[match["character"] :].startswith("needle")
    assert content.splitlines()[match["line"] - 1] == match["text"]
    assert run("grep", "needle", "--cursor", f"{ref}:7", "--json", "--store", store).returncode == 2


def test_a_damaged_record_is_an_error_among_the_matches_in_json(run: Run, store: Path) -> None:
    ref = refs(store, "t")[0]
    [path] = (store / "r" / "t").glob(f"{ref}~*")
    path.write_bytes(path.read_bytes()[:-1])
    found = json.loads(run("grep", "needle", "--session", "t", "--json", "--store", store).stdout)
    assert [row.keys() for row in found["matches"]] == [{"session", "ref", "error"}]


def test_a_cursor_needs_its_session(run: Run, store: Path) -> None:
    done = run("grep", "line", "--cursor", "abcdefghij:7", "--store", store)
    assert done.returncode == 2
    assert "name it with --session" in done.stderr
    assert "not both" in run("grep", "a", "--regex", "--words", "--store", store).stderr


def test_diff_shows_what_differs_between_two_records(run: Run, store: Path) -> None:
    old, new = refs(store, "s")
    done = run("diff", old[:9], new[:9], "--store", store)
    assert done.returncode == 0
    assert "-7 a line of the log\n+7 another line of the log\n" in done.stdout
    more = run("diff", old, new, "--start-row", 100, "--json", "--store", store)
    document = json.loads(more.stdout)
    assert (document["old"], document["new"]) == (old, new)
    assert {row[0] for row in document["rows"]} <= {"@", "-", "+", " "}
    unknown = run("diff", old, "zzzzzzzzzz", "--store", store)
    assert unknown.returncode == 1
    assert "no record 'zzzzzzzzzz'" in unknown.stderr

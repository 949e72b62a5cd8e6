"""`offload diff`, and records and searches in a store with several sessions."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Run
from forks import journaled, keys, run as run_loop
from kit.conversation import from_model, from_user, one_turn
from kit.store import steps

from offload import Offloader, StoredObject, share
from offload.integrations._sessions import folder_session
from offload.records.session.reader import SessionReader
from offload.replay import replay_journal
from offload_backends.local import LocalStore

LOG = "".join(f"{n} a line of the log\n" for n in range(2000))


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
            assert (done.returncode, done.stdout, done.stderr) == (
                0,
                f"{LOG[:20]}\n".replace("\n\n", "\n"),
                "",
            )
        assert run("cat", ref[:9], "--store", store).stdout.startswith("0 a line of the log\n1 a")
        assert run("show", ref[:9], "--tail", 1, "--store", store, "--session", "s").stdout.count("\n") == 1
        found = run("grep", "line of", ref[:9], "--max-matches", 1, "--store", store)
        assert found.stdout == "1:0 a line of the log\n"
        assert "1 match in 1 record of 1 session of" in found.stderr
        assert "; there are more: --max-matches 10" in found.stderr


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
    assert json.loads(run("show", ref, "--json", "--store", store).stdout)["session"] == "s"
    assert f"no longer shared: id {ref}," in run("revoke", ref[:6], *place).stdout
    assert refs(store, "u") == []
    own = run("share", ref, "--session", "s", "--to", "s", "--store", store)
    assert own.stdout.startswith(f"not shared, since it is its own record: id {ref},")


@pytest.mark.parametrize("command", ["rm", "pin", "unpin"])
def test_a_change_of_a_record_needs_its_whole_id(run: Run, store: Path, command: str) -> None:
    ref = refs(store, "s")[0]
    more = ["--yes"] if command == "rm" else []
    done = run(command, ref[:8], "--session", "s", "--store", store, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"offload: '{ref[:8]}' is only the beginning of {ref}: write the whole id\n"
    assert ref in refs(store, "s")
    assert run(command, ref, "--session", "s", "--store", store, *more).returncode == 0


def test_an_id_of_no_session_and_a_deleted_one_are_code_1(run: Run, store: Path) -> None:
    for text in ("zzzzzzzzzz", "z" * 30, "../x", "ZZ"):
        done = run("show", text, "--store", store)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"offload: no record '{text}' in any session of {store}\n"
    first, _ = refs(store, "s")
    assert run("rm", first, "--session", "s", "--store", store, "--yes").returncode == 0
    done = run("show", first, "--store", store)
    assert (done.returncode, "was deleted" in done.stderr) == (1, True)


def test_a_session_whose_fork_is_damaged_costs_no_other(run: Run, store: Path) -> None:
    run_loop(journaled(store, "t"), 2)
    fork = journaled(store, "t").fork("u")
    [branch] = keys(fork.store, "r/u/from~")
    fork.store.put(branch, b"{", overwrite=True)

    searched, found = run("search", "needle", "--store", store), run("grep", "needle", "--store", store)
    listed = run("ls", "--json", "--store", store)

    for done in (searched, found, listed):
        assert (done.returncode, "u: " in done.stderr) == (0, True)
    assert all(place in searched.stdout for place in ("(session s)", "(session t)"))
    assert " of 3 sessions of " in found.stderr
    counts = {row["session"]: row["records"] for row in json.loads(listed.stdout)["sessions"]}
    assert counts == {"fork of t": 1, "s": 2, "t": 2, "u": 0}
    assert run("grep", "needle", "--session", "u", "--store", store).returncode == 1
    assert run("show", refs(store, "s")[0], "--limit", 20, "--store", store).returncode == 0


def test_a_session_with_a_damaged_journal_can_be_deleted_after_its_forks(run: Run, store: Path) -> None:
    run_loop(journaled(store, "t"), 2)
    journaled(store, "t").fork("u")
    entry = next((store / "j" / "t").iterdir())
    entry.write_bytes(b"")

    done = run("rm", "--session", "t", "--yes", "--store", store)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("offload: delete the fork 'u' first; ")
    assert f": j/t/{entry.name}: " in done.stderr
    for session in ("u", "t"):
        assert run("rm", "--session", session, "--yes", "--store", store).returncode == 0


def test_a_search_without_a_session_is_of_all_sessions(run: Run, store: Path) -> None:
    done = run("grep", "needle", "--store", store)
    [other] = refs(store, "t")
    assert done.returncode == 0
    assert f"s:{refs(store, 's')[0]}:2001:needle\n" in done.stdout
    assert f"t:{other}:2001:needle and thread\nt:{other}:2002:needle\n" in done.stdout
    assert f"5 matches in 4 records of 3 sessions of {store}" in done.stderr
    words = run("grep", "thread needle", "--words", "--store", store)
    assert words.stdout.count("needle and thread") == words.stdout.count("\n") == 2
    none = run("grep", "no such", "--store", store)
    assert (none.returncode, none.stdout) == (0, "")
    assert f"0 matches in 4 records of 3 sessions of {store}" in none.stderr
    found = json.loads(run("grep", "thread", "--json", "--store", store).stdout)
    assert {row["session"] for row in found["matches"]} == {"fork of t", "t"}
    assert not found["is_more"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [("x.*", "; PATTERN was read as literal text: -E reads"), ("no such", "; --words finds"), ("zebra", "")],
)
def test_a_search_without_a_match_names_the_option_that_may_find_more(
    run: Run, store: Path, pattern: str, hint: str
) -> None:
    done = run("grep", pattern, "--session", "s", "--store", store)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"of {store}{hint}" in done.stderr
    assert hint or done.stderr.endswith(f"of {store}\n")


@pytest.mark.parametrize("command", ["grep", "search"])
def test_a_search_of_all_sessions_opens_its_store_once(run: Run, tmp_path: Path, command: str) -> None:
    def search(sessions: int) -> int:
        folder = tmp_path / str(sessions)
        for number in range(sessions):
            Offloader(str(folder), session=f"s{number}").offload_text(LOG, tool_name="Bash")
        return steps(run, command, "needle", "--store", folder)

    search(1)
    assert search(6) - search(2) < 4 * 5000


def test_matches_in_json_have_their_place_their_text_and_the_lines_around_it(run: Run, store: Path) -> None:
    place = ("--session", "t", "--store", store)
    ref = refs(store, "t")[0]
    found = json.loads(run("grep", "needle", "--max-matches", 1, "-C", 2, "--json", *place).stdout)
    [match] = found["matches"]
    content = run("cat", ref, *place).stdout
    assert (match["session"], match["ref"], found["is_more"]) == ("t", ref, True)
    assert content[match["character"] :].startswith("needle")
    assert content.splitlines()[match["line"] - 1] == match["text"]
    assert match["before"] == ["1998 a line of the log", "1999 a line of the log"]
    assert match["after"] == ["needle"]

    [path] = (store / "r" / "t").glob(f"{ref}~*")
    path.write_bytes(path.read_bytes()[:-1])
    found = json.loads(run("grep", "needle", "--json", *place).stdout)
    assert (found["matches"], [*found["unsearched"]]) == ([], [f"t:{ref}"])
    for option in ((), ("-l",)):
        listed = run("grep", "needle", *option, *place)
        assert (listed.returncode, listed.stdout) == (0, "")
        assert listed.stderr.startswith(f"t:{ref}: not searched: ")
        assert "\n0 matches in 0 records of 1 session of " in listed.stderr


def test_grep_takes_what_people_know_of_grep(run: Run, store: Path) -> None:
    place = ("--session", "t", "--store", store)
    [ref] = refs(store, "t")
    assert run("grep", "NEEDLE AND", *place).stdout == ""
    assert run("grep", "-i", "NEEDLE AND", *place).stdout == f"t:{ref}:2001:needle and thread\n"
    assert run("grep", "-l", "needle", *place).stdout == f"{ref}\n"
    assert run("grep", "-C", 1, "needle and", ref, *place).stdout == (
        "2000-1999 a line of the log\n2001:needle and thread\n2002-needle\n"
    )
    assert run("grep", "-E", "^needle$", "-s", "t", "-S", store).stdout == f"t:{ref}:2002:needle\n"
    assert run("grep", "needle", "--tool", "ba*", *place).stdout.count("\n") == 2
    none = run("grep", "needle", "--tool", "Read", *place)
    assert (none.stdout, "0 matches in 0 records of 1 session" in none.stderr) == ("", True)
    assert "not both" in run("grep", "a", "--regex", "--words", *place).stderr
    assert run("grep", "a", ref, "--tool", "Bash", *place).returncode == 2


@pytest.mark.parametrize(
    "command", [("grep", "-l", "line"), ("grep", "line"), ("show", "last"), ("show", "last", "--tail", "9")]
)
def test_a_command_lists_a_session_as_often_whatever_its_size(
    run: Run, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    keys = LocalStore.keys

    def spied(store: LocalStore, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        listed.append(prefix)
        return keys(store, prefix, after=after)

    monkeypatch.setattr(LocalStore, "keys", spied)
    counts = []
    for records in (1, 12):
        off = Offloader(str(tmp_path / f"of-{records}"), session="s")
        for number in range(records):
            off.offload_text(f"{number}{LOG}", tool_use_id=str(number))
        listed.clear()
        assert run(*command, "--session", "s", "--store", tmp_path / f"of-{records}").returncode == 0
        counts.append(len(listed))
    assert counts[0] == counts[1]


def test_a_tail_is_no_longer_than_an_answer_and_names_the_rest(run: Run, tmp_path: Path) -> None:
    Offloader(str(tmp_path / "long"), session="s").offload_text("x" * 30_000 + "end")
    done = run("show", "last", "--tail", 20, "--session", "s", "--store", tmp_path / "long")
    assert (len(done.stdout.strip()), done.stdout.endswith("xend\n")) == (8192, True)
    assert "; more: offload show" in done.stderr
    assert "--offset 0 --session s" in done.stderr


def test_a_query_is_csv_in_a_pipe(run: Run, store: Path) -> None:
    sql = "select n, text || ',x' as t, null as none from lines where n between 7 and 8"
    done = run("query", sql, refs(store, "t")[0], "--session", "t", "--store", store)
    assert done.stdout == 'n,t,none\n7,"6 a line of the log,x",\n8,"7 a line of the log,x",\n'
    assert done.stderr.startswith("2 rows")
    newest = run("query", "select count(*) as n from lines", "last", "--session", "t", "--store", store)
    assert newest.stdout == "n\n2002\n"


def test_ls_selects_and_orders(run: Run, store: Path) -> None:
    place = ("--session", "s", "--store", store, "--json")
    old, new = refs(store, "s")

    def listed(*words: object) -> list[str]:
        return [row["ref"] for row in json.loads(run("ls", *place, *words).stdout)["records"]]

    assert listed("--tool", "bash") == listed("--since", "1h") == [new, old]
    assert listed("--tool", "Read") == listed("--since", "2099-01-01") == []
    assert listed("--limit", 1) == [new]
    assert listed("--sort", "tokens") == [new, old]
    said = run("ls", "--session", "s", "--store", store, "--limit", 1).stdout
    assert f"1 record in session s of {store}; 1 not listed" in said
    sessions = json.loads(run("ls", "--store", store, "--sort", "name", "--json").stdout)["sessions"]
    assert [row["session"] for row in sessions] == ["fork of t", "s", "t"]
    wrong = run("ls", "--store", store, "--since", "yesterday")
    assert (wrong.returncode, "--since must be a time such as" in wrong.stderr) == (2, True)
    assert run("ls", "--store", store, "--tool", "Bash").returncode == 2


def test_diff_shows_what_differs_between_two_records(run: Run, store: Path) -> None:
    old, new = refs(store, "s")
    done = run("diff", old[:9], new[:9], "--store", store)
    assert done.returncode == 0
    assert "-7 a line of the log\n+7 another line of the log\n" in done.stdout
    assert run("diff", old, "last", "--session", "s", "--store", store).stdout == done.stdout
    more = run("diff", old, new, "--start-row", 100, "--json", "--store", store)
    document = json.loads(more.stdout)
    assert (document["old"], document["new"]) == (old, new)
    assert {row[0] for row in document["rows"]} <= {"@", "-", "+", " "}
    unknown = run("diff", old, "zzzzzzzzzz", "--store", store)
    assert unknown.returncode == 1
    assert "no record 'zzzzzzzzzz'" in unknown.stderr


def test_last_is_the_newest_record_of_the_folder_or_else_of_the_store(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    refs = {}
    for when, session in enumerate([folder_session(), "a", "b"]):
        off = Offloader(str(store), session=session)
        off.offload_text(f"{session} {LOG}")
        [info] = off.records()
        refs[session] = info.ref
        file = next(store.rglob(f"{info.ref}~*"))
        os.utime(file, (when + 1e9, when + 1e9))

    assert refs[folder_session()] in run("show", "last", "--store", store).stderr
    monkeypatch.chdir(tmp_path)
    assert refs["b"] in run("show", "last", "--store", store).stderr
    assert refs["a"] in run("show", "last", "--store", store, "--session", "a").stderr
    (tmp_path / "empty").mkdir()
    done = run("show", "last", "--store", tmp_path / "empty")
    assert (done.returncode, "no record yet in" in done.stderr) == (1, True)


# Records that several sessions read, and sessions that were deleted


def test_a_record_that_other_sessions_read_too_counts_once_in_a_total(run: Run, tmp_path: Path) -> None:
    off = Offloader(str(tmp_path / "store"), session="a", journal=True)
    ref = off.offload(one_turn(LOG)).records[0].ref
    off.fork("b")
    Offloader(off.store, session="c").offload_text(f"own {LOG}", tool_name="Bash")
    share(off.store, "a", ref, to="c")

    rows = json.loads(run("ls", tmp_path / "store", "--json").stdout)["sessions"]
    assert {row["session"]: (row["records"], row["shared"]) for row in rows} == {
        "a": (1, 0),
        "b": (1, 1),
        "c": (2, 1),
    }
    for command in ("ls", "du"):
        assert "\n2 records in 3 sessions of " in run(command, tmp_path / "store").stdout
    counted = json.loads(run("log", tmp_path / "store", "--json").stdout)["sessions"]
    assert {row["session"]: row["requests"] for row in counted} == {"a": 1, "b": 1}


def test_log_lists_the_newest_requests_and_says_how_many_more_there_are(run: Run, tmp_path: Path) -> None:
    off = Offloader(str(tmp_path / "store"), session="a", journal=True)
    messages = [from_user("go")]
    for number in range(3):
        off.offload(messages)
        messages += [from_model(f"answer {number}"), from_user("on")]
    listed = json.loads(run("log", "a", "-n", 2, tmp_path / "store", "--json").stdout)["requests"]
    assert [row["request"] for row in listed] == [3, 2]
    shown = run("log", "a", "--limit", 2, tmp_path / "store").stdout
    assert "2 requests in session a of " in shown
    assert "; 1 not listed" in shown
    assert run("log", "a", "--at", 1, "-n", 2, tmp_path / "store").returncode == 2


def test_ls_names_a_deleted_session_with_its_undo_and_not_after_gc(run: Run, store: Path) -> None:
    session, before = "s", run("ls", store).stdout
    run("rm", "--session", session, "--yes", store)
    [row, *_] = re.findall(r"deleted: .*: (offload undelete .*)\n", run("ls", store).stdout)
    found = json.loads(run("ls", store, "--json").stdout)
    assert session not in [one["session"] for one in found["sessions"]]
    assert found["deleted"] == [session]
    assert run(*shlex.split(row)[1:]).returncode == 0
    assert run("ls", store).stdout.replace("now", "") == before.replace("now", "")
    run("rm", "--session", session, "--yes", store)
    assert run("gc", "--grace", "0s", "--yes", store).returncode == 0
    assert "; deleted: " not in run("ls", store).stdout


def test_the_last_word_of_a_search_is_its_store_if_it_is_one(run: Run, store: Path) -> None:
    named = run("search", "needle", "--store", store).stdout
    assert "needle" in named
    assert run("search", "needle", store).stdout == named
    assert run("search", "needle", "thread", "https://a.b", "--store", store).returncode == 0


def test_savings_of_a_store_are_those_of_its_requests_as_they_were_sent(run: Run, tmp_path: Path) -> None:
    off = Offloader(str(tmp_path / "store"), session="a", journal=True, model="claude-opus-5")
    messages = one_turn(LOG * 3)
    for number in range(3):
        off.offload(messages)
        messages = [*messages, from_model(f"answer {number}"), from_user("on")]
    account = replay_journal(SessionReader(off.store, "a"))
    found = json.loads(run("savings", tmp_path / "store", "--json").stdout)
    assert [(row["session"], row["requests"], row["dollars"]) for row in found["sessions"]] == [
        ("a", 3, account.dollars)
    ]
    assert account.saved > 0
    assert found["total"]["dollars_saved"] == pytest.approx(account.saved)
    assert f"Offloading saved ${account.saved:.3f} of " in run("savings", tmp_path / "store").stdout
    assert "name it alone" in run("savings", tmp_path / "store", "--policy", "economy").stderr
    entry = next(iter(off.store.keys("j/"))).key
    off.store.put(entry, b"damaged", overwrite=True)
    unread = run("savings", tmp_path / "store")
    assert (unread.returncode, "keeps its requests" in unread.stderr) == (1, False)
    assert "a: not counted: " in unread.stderr

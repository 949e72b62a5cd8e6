"""Forks and rewinds: a session goes on from any request, without a copy."""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import Run, runner
from forks import conversation, exchange, journaled, keys, played, run
from pairs import every_pair

from offload import (
    AgentConfig,
    CollisionError,
    ConfigError,
    ContextManager,
    NotFoundError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Retention,
    Rule,
    StoreUnavailableError,
)
from offload.maintenance.jobs import verify
from offload.maintenance.retention import collect, delete, undelete
from offload.maintenance.transfer import copy_session, export_session, import_session
from offload.records.index import reindex
from offload.storage.layout import CALLS, encode_part
from offload.storage.wrappers import EncryptingStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


# What it writes


@pytest.mark.parametrize("turns", [3, 60])
def test_a_fork_writes_three_small_objects_whatever_the_session_holds(turns: int) -> None:
    store, off, _ = played(turns)
    before = keys(store)
    off.fork("b", at=2)
    new = keys(store) - before
    assert len(new) == 3
    assert sum(len(store.get(key)) for key in new) < 200


def test_the_first_turn_of_a_fork_stores_no_item_and_keeps_every_placeholder() -> None:
    store, off, sent = played(8)
    records = keys(store, "r/a/")
    branch = off.fork("b", at=6)
    before = keys(store)

    out = branch.offload(conversation(5))
    assert out.messages == sent[5]
    assert keys(store) - before <= {key for key in keys(store) if key.startswith(("j/b/", "g/b/used"))}
    assert keys(store, "r/a/") == records
    assert branch.restore(out.messages) == conversation(5)
    further = branch.offload([*conversation(5), *exchange(77)])
    assert further.messages[: len(sent[5])] == sent[5]
    assert [key for key in keys(store, "r/b/") if "~tool_result~" in key]


def test_a_context_manager_of_a_fork_or_after_a_rewind_continues_at_the_request() -> None:
    store = MemoryStore()
    config = AgentConfig(window_tokens=2000, model="m")
    context = ContextManager(Offloader(store, session="a"), config)
    sent = []
    for n in range(30):
        context.add({"role": "user", "content": f"question {n} " + "word " * 80})
        sent.append(copy.deepcopy(context.before_model_call().messages))
        context.after_model_call({"role": "assistant", "content": f"answer {n} " * 40})
    assert context.compaction_count > 1
    for number in (1, 9, 17, 30):
        other = Offloader(store, session="a").fork(f"b{number}", at=number)
        resumed = ContextManager(other, config)
        assert resumed.resume() == len(sent[number - 1])
        assert resumed.before_model_call().messages == sent[number - 1]
        assert len(resumed.restore()) == 2 * number - 1

    assert context.rewind(12) == len(sent[11])
    context.add({"role": "user", "content": "otherwise"})
    request = context.before_model_call().messages
    assert request[:-1] == sent[11]
    resumed = ContextManager(Offloader(store, session="a"), config)
    resumed.resume()
    assert resumed.before_model_call().messages == request
    assert resumed.timeline().at(13) == request


# What it reads


def test_a_fork_reads_what_had_left_by_then_and_no_later_record() -> None:
    store, off, _ = played(6)
    refs = [info.ref for info in off.records()]
    off.fork("b", at=4)
    off.offload_text("another text\n" * 3000, tool_name="Bash")

    branch = Offloader(store, session="b")
    assert [info.ref for info in branch.records()] == refs[:3]
    assert "step 2 is made" in branch.tools.read(refs[2])
    assert refs[1] in branch.tools.grep(pattern="step 1 is")
    fresh = Offloader(store, session="b")
    with pytest.raises(NotFoundError):
        [*fresh.content(refs[3])]
    assert b"".join(fresh.content(refs[0])) == b"step 0 is made\n" * 2000
    assert branch.verify() == []


def test_a_fork_after_a_conversation_that_began_anew_reads_the_records_of_the_one_before() -> None:
    store, off, sent = played(3)
    other = journaled(store)
    other.offload(conversation(2))
    off.offload(conversation(3))
    other.offload(conversation(4))
    # The two wrote one entry each: the next process cannot tell which holds.
    anew = journaled(store)
    for number in (50, 51):
        anew.offload([*conversation(0), *exchange(number)])
    assert sum("~begun~" in key for key in keys(store, "j/a/")) == 2
    fork = Offloader(store, session="a").fork("b", at=len(off.timeline()))

    delete(store, "a")
    collect(store, Retention(grace=0))
    fork.rewind(3)

    assert fork.timeline().at(3) == sent[2]
    assert Offloader(store, session="b").restore(sent[2]) == conversation(2)


def test_a_record_that_a_fork_reads_is_not_deleted_there_and_the_error_names_its_session(
    command: Run, tmp_path: Path
) -> None:
    off = journaled(tmp_path)
    run(off, 3)
    [ref] = [info.ref for info in off.fork("b", at=2).fork("c", at=2).records()]
    before = keys(off.store)
    for session in ("b", "c"):
        with pytest.raises(ConfigError, match="belongs to session 'a'"):
            delete(off.store, session, [ref])
        done = command("rm", ref, "--session", session, "--yes", "--store", str(tmp_path))
        assert done.returncode == 2
        assert f"record {ref} belongs to session 'a'" in done.stderr
    assert keys(off.store) == before
    assert [info.ref for info in delete(off.store, "a", [ref]).protected["forked"]] == [ref]


def test_the_parent_goes_on_and_is_deleted_without_harm_to_the_fork() -> None:
    store, _, sent = played(8)
    Offloader(store, session="a").fork("b", at=5)
    refs = {info.ref for info in Offloader(store, session="b").records()}

    report = delete(store, "a")
    assert {info.ref for info in report.protected["forked"]} == refs
    assert report.forks == {"b"}
    collect(store, Retention(grace=0, session_records=1, live_for=0))
    branch = Offloader(store, session="b")
    assert branch.timeline().at(5) == sent[4]
    assert branch.restore(sent[4]) == conversation(4)
    assert len(keys(store, "r/a/")) >= len(refs)

    delete(store, "b")
    assert not keys(store, "j/b/")
    assert {info.ref for info in delete(store, "a").protected["forked"]} == refs
    collect(store, Retention(grace=0), session="b")
    assert delete(store, "a").protected == {}
    collect(store, Retention(grace=0))
    assert not [key for key in keys(store, "r/a/") if len(store.get(key))]
    assert not keys(store, "j/a/")


# Where it is refused


def test_a_fork_is_refused_with_the_reason() -> None:
    store, off, _ = played(3)
    off.fork("b", at=2).offload([*conversation(1), *exchange(9)])
    with pytest.raises(ConfigError, match="session 'b' exists"):
        off.fork("b", at=2)
    with pytest.raises(ConfigError, match="must have another name"):
        off.fork("a", at=2)
    with pytest.raises(NotFoundError, match="has requests 1 to 3, got 4"):
        off.fork("c", at=4)
    with pytest.raises(ConfigError, match="must be an integer, got '2'"):
        off.fork("c", at="2")  # type: ignore[arg-type]
    plain = Offloader(store, session="plain")
    plain.offload(conversation(2))
    with pytest.raises(NotFoundError, match="has no journal; see Offloader"):
        plain.fork("c", at=1)
    assert not keys(store, "r/c/") | keys(store, "j/c/")
    assert len(plain.fork("copied").records()) == 2


# Rewind


def test_a_fork_of_a_copy_under_another_name_keeps_every_placeholder() -> None:
    store, _, sent = played(3)
    copy_session(store, store, "a", name="b")
    journaled(store, "b").offload(conversation(2))
    before = keys(store, "r/")

    out = journaled(store, "b").fork("c").offload(conversation(2))

    assert out.messages == sent[2]
    assert [key for key in keys(store, "r/") - before if key.endswith(".zst")] == []


# Its seams


def test_a_fork_is_copied_and_exported_with_all_that_it_reads(tmp_path: Path) -> None:
    store, other, third = MemoryStore(), MemoryStore(), MemoryStore()
    sent = run(journaled(store), 5)
    Offloader(store, session="a").fork("b", at=4).with_options(journal=True).rewind(3)
    copy_session(store, other, "b")
    export_session(store, "b", tmp_path / "b.tar")
    import_session(third, tmp_path / "b.tar")
    for place in (other, third):
        moved = Offloader(place, session="b")
        assert [moved.timeline().at(n) for n in (1, 2, 3)] == sent[:3]
        assert moved.restore(sent[2]) == conversation(2)
        assert moved.offload(conversation(2)).messages == sent[2]
        assert not [key for key in keys(place) if "/from~" in key or "~from" in key]


def forked(off: Offloader, _: Path) -> Any:
    return off.fork("b").store


def copied(off: Offloader, _: Path) -> Any:
    copy_session(off.store, other := MemoryStore(), "a", name="b")
    return other


def imported(off: Offloader, folder: Path) -> Any:
    export_session(off.store, "a", folder / "a.tar")
    import_session(other := MemoryStore(), folder / "a.tar", name="b")
    return other


@pytest.mark.parametrize("moved", [forked, copied, imported])
def test_the_copy_of_a_session_without_a_journal_keeps_every_placeholder_and_stores_nothing_again(
    tmp_path: Path, moved: Any
) -> None:
    off = Offloader(MemoryStore(), session="a", policy=OffloadPolicy.preset("archive"))
    sent = run(off, 5)[-1]
    store = moved(off, tmp_path)
    records = keys(store, "r/b/")
    for _ in range(2):
        process = Offloader(store, session="b", policy=OffloadPolicy.preset("archive"))
        assert process.offload(conversation(4)).messages == sent
        assert keys(store, "r/b/") == records
        assert process.restore(sent) == conversation(4)

    further = process.offload(conversation(5)).messages
    assert further[: len(sent)] == sent
    assert len(keys(store, "r/b/") - records) == 1


class CountedReads(FaultyBulkStore):
    """A store that notes of how many objects each bulk read is."""

    reads: list[int]

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | OffloadError]:
        self.reads.append(len(keys))
        return super().get_many(keys)


def test_the_items_of_a_copied_session_are_found_in_as_many_requests_for_some_as_for_many() -> None:
    requests = []
    for turns in (12, 40):
        store = CountedReads(MemoryStore(), nth=10**9)
        store.reads = []
        off = Offloader(store, session="a", policy=OffloadPolicy.preset("archive"))
        sent = off.offload(conversation(turns)).messages
        off.fork("b")
        store.reads, store.operations = [], 0
        process = Offloader(store, session="b", policy=OffloadPolicy.preset("archive"))
        assert process.offload(conversation(turns)).messages == sent
        requests.append(len(store.reads) + store.operations - sum(store.reads))
    assert requests[0] == requests[1]


def test_a_fork_in_an_encrypted_store_and_in_a_local_folder_reads_its_parent(tmp_path: Path) -> None:
    for store in (EncryptingStore(MemoryStore(), key=bytes(32)), Offloader(tmp_path).store):
        name = "a session with a long name " * 10
        off = journaled(store, session=name)
        sent = run(off, 3)
        branch = off.fork("b", at=3)
        assert branch.restore(sent[2]) == conversation(2)
        assert reindex(store, "b") >= 0
        assert branch.offload(conversation(2)).messages == sent[2]


def test_a_fork_at_the_end_reads_every_record_and_shares_them_as_its_own() -> None:
    store, off, _ = played(3)
    # No request shows it.
    Offloader(store, session="a").offload_text("of another process\n" * 3000, tool_name="Bash")
    branch = off.fork("b")
    refs = [info.ref for info in branch.records()]
    assert {*refs} == {info.ref for info in off.records()}
    branch.share(refs[0], "c")
    assert "step 0" in Offloader(store, session="c").tools.read(refs[0])


def test_a_policy_of_its_own_keeps_the_placeholders_of_the_parent() -> None:
    store = MemoryStore()
    off = journaled(store, policy=OffloadPolicy.preset("archive"))
    sent = run(off, 4)
    branch = off.fork("b", at=4).with_options(policy=OffloadPolicy(exclude_tools=("*",)))
    assert branch.offload(sent[3]).messages == sent[3]


def test_the_command_forks_at_a_request(tmp_path: Path, command: Run) -> None:
    sent = run(journaled(tmp_path), 4)
    done = command("fork", "b", "--session", "a", "--at", "2", "--store", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout
    assert Offloader(tmp_path, session="b").timeline().at(2) == sent[1]
    removed = command("rm", "--yes", "--session", "a", "--store", tmp_path)
    assert "deleted: 2 records" in removed.stdout
    assert "(1 forked record kept, read by b)" in removed.stdout
    listed = command("ls", "--store", tmp_path, "--session", "b")
    assert "1 record in session b" in listed.stdout
    journaled(tmp_path, "c").offload(conversation(0))
    removed = command("rm", "--yes", "--session", "c", "--store", tmp_path)
    assert "deleted: 0 records, 0 B, 1 journal entry" in removed.stdout
    assert not keys(Offloader(tmp_path).store, "j/c/")


# What a rewind leaves


def test_what_a_rewind_left_is_a_branch_that_is_listed_read_and_forked() -> None:
    store, off, sent = played(6)
    assert off.timeline().branches == {}
    off.rewind(3)
    [(name, left)] = off.timeline().branches.items()
    assert [request.number for request in left] == [4, 5, 6]
    assert [request.messages for request in left] == [len(sent[n]) for n in (3, 4, 5)]
    branch = Offloader(store, session="a").timeline(branch=name)
    assert [branch.at(n) for n in range(1, 7)] == sent

    off.offload([*conversation(2), *exchange(50)])
    fork = off.fork("b", at=5, branch=name)
    assert [fork.timeline().at(n) for n in range(1, 6)] == sent[:5]
    assert fork.restore(sent[4]) == conversation(4)
    assert fork.offload(conversation(4)).messages == sent[4]
    for wrong in ("abcdefghij", "x"):
        with pytest.raises(NotFoundError, match=f"has no branch '{wrong}'; rewinds left {name}"):
            off.fork("c", at=5, branch=wrong)


def test_a_rewind_goes_back_to_a_branch_that_another_one_left() -> None:
    store, off, sent = played(6)
    off.rewind(2)
    [first] = off.timeline().branches
    later = copy.deepcopy(off.offload([*conversation(1), *exchange(70)]).messages)
    off.rewind(5, branch=first)
    assert [off.timeline().at(n) for n in range(1, 6)] == sent[:5]
    assert [[r.number for r in left] for left in off.timeline().branches.values()] == [[3], [6]]
    [second, _] = off.timeline().branches
    assert off.timeline(branch=second).at(3) == later
    config = AgentConfig(window_tokens=200_000)
    context = ContextManager(Offloader(store, session="a"), config)
    context.resume()
    assert context.rewind(3, branch=second) == len(later)
    assert context.before_model_call().messages == later


def test_a_request_that_two_branches_have_is_in_the_newest_alone() -> None:
    _, off, sent = played(3)
    off.rewind(1)
    [first] = off.timeline().branches
    off.rewind(3, branch=first)
    off.offload([*sent[2], *exchange(70)])
    off.rewind(1)

    assert [[r.number for r in left] for left in off.timeline().branches.values()] == [[2, 3, 4]]


def test_gc_deletes_what_rewinds_left_after_the_grace_period_but_for_what_a_fork_reads() -> None:
    store, off, sent = played(6)
    off.rewind(3)
    off.offload([*conversation(2), *exchange(60)])
    [name] = off.timeline().branches
    off.fork("b", at=5, branch=name)
    before = keys(store, "j/a/")

    assert collect(store, Retention(grace=3600)).entries == 0
    assert collect(store, Retention(grace=0), dry_run=True).entries == 1
    assert keys(store, "j/a/") == before
    report = collect(store, Retention(grace=0))
    assert report.entries == len(before - keys(store, "j/a/")) == 1
    assert [r.number for r in Offloader(store, session="a").timeline().branches[name]] == [4, 5]
    assert Offloader(store, session="b").timeline().at(5) == sent[4]

    delete(store, "b")
    assert collect(store, Retention(grace=0), session="a").entries == 0
    assert collect(store, Retention(grace=0), session="b").entries == 0
    assert collect(store, Retention(grace=0), session="a").entries == 2
    timeline = Offloader(store, session="a").timeline()
    assert timeline.branches == {}
    assert [timeline.at(n) for n in (1, 2, 3)] == sent[:3]
    assert len(timeline) == 4
    assert not keys(store, "g/a/closed")


def test_the_commands_list_the_branches_and_fork_from_one(tmp_path: Path, command: Run) -> None:
    off = journaled(tmp_path)
    sent = run(off, 5)
    off.rewind(2)
    assert "2 requests" in command("log", "a", "--store", tmp_path).stdout
    assert "1 branch left by a rewind, see --branches" in command("log", "a", "--store", tmp_path).stdout
    [row] = json.loads(command("log", "a", "--branches", "--json", "--store", tmp_path).stdout)["branches"]
    assert (row["first"], row["last"]) == (3, 5)
    listed = command("log", "a", "--branches", "--store", tmp_path).stdout
    assert row["branch"] in listed
    assert "offload fork NAME --session a --branch ID" in listed
    assert "5 requests" in command("log", "a", "--branch", row["branch"], "--store", tmp_path).stdout
    done = command("fork", "b", "--session", "a", "--branch", row["branch"], "--at", 4, "--store", tmp_path)
    assert done.returncode == 0, done.stderr
    assert Offloader(tmp_path, session="b").timeline().at(4) == sent[3]
    freed = command("gc", "--grace", "0s", "--store", tmp_path)
    assert "1 journal entry" in freed.stdout
    assert command("log", "--branches", "--store", tmp_path).returncode == 2


def test_the_command_rewinds_and_names_the_branch_that_it_leaves(tmp_path: Path, command: Run) -> None:
    sent = run(journaled(tmp_path), 5)

    def rewound(*arguments: object) -> Any:
        done = command("rewind", *arguments, "--session", "a", "--store", tmp_path, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    said = command("rewind", 2, "--session", "a", "--store", tmp_path).stdout
    timeline = journaled(tmp_path).timeline()
    assert timeline.at(2) == sent[1]
    [branch] = timeline.branches
    assert said.startswith(f"rewound: session a, request 2, branch {branch}\n")
    assert f"offload log a --branch {branch}" in said
    assert rewound(2) == {"done": "rewound", "session": "a", "request": 2, "branch": None}
    assert rewound(5, "--branch", branch)["branch"] is None
    assert journaled(tmp_path).timeline().at(5) == sent[4]
    assert "has requests 1 to 5, got 6" in command("rewind", 6, "--session", "a", "--store", tmp_path).stderr


# An item whose id another session drew


LONG = "a session with a long name " * 10


def by_fork(place: Any, source: str, name: str) -> Any:
    journaled(place, source, policy=EXPIRING).fork(name)
    return place


def by_copy(place: Any, source: str, name: str) -> Any:
    copy_session(place, place, source, name=name)
    return place


def by_copy_to_another_store(place: Any, source: str, name: str) -> Any:
    copy_session(place, other := MemoryStore(), source, name=name)
    return other


def by_import(place: Any, source: str, name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        export_session(place, source, Path(folder, "a.tar"))
        import_session(other := MemoryStore(), Path(folder, "a.tar"), name=name)
    return other


EXPIRING = OffloadPolicy(types={"tool_result": Rule(min_tokens=200, ttl=3600)})
WAYS: dict[str, Callable[[Any, str, str], Any]] = {
    "fork": by_fork,
    "copy": by_copy,
    "copy elsewhere": by_copy_to_another_store,
    "import": by_import,
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the clock of this machine, and of stores in memory, is ahead."""
    ahead, now = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead[0])
    return ahead


def lost(how: str, store: Any, session: str, clock: list[float]) -> None:
    """Let the records of a session be lost, as far as they can be: not those that it inherited."""
    own = [one.ref for one in Offloader(store, session=session).records() if is_own(store, session, one.ref)]
    if how == "deleted" and own:
        delete(store, session, own)
    for _ in range({"expired": 1, "collected": 2}.get(how, 0)):
        clock[0] += 7200
        if how == "collected":
            collect(store)


def is_own(store: Any, session: str, ref: str) -> bool:
    return any(f"/{ref}" in key for key in keys(store, f"r/{encode_part(session)}/"))


@pytest.mark.parametrize(
    ("first", "second", "name", "how"),
    every_pair([*WAYS], [*WAYS, None], ["b", LONG], ["kept", "deleted", "expired", "collected"]),
)
def test_an_item_of_a_fork_or_a_copy_is_stored_again_under_its_id_and_restores(
    clock: list[float], first: str, second: str | None, name: str, how: str
) -> None:
    store: Any = MemoryStore()
    sent = run(journaled(store, policy=EXPIRING), 4)[3]
    session = "a"
    for way, new in ((first, name), (second, "c")):
        if way is not None:
            store, session = WAYS[way](store, session, new), new
    live = journaled(store, session, policy=EXPIRING)
    assert live.offload(conversation(3)).messages == sent
    lost(how, store, session, clock)

    further = live.offload(conversation(4))
    assert further.messages[: len(sent)] == sent
    assert further.errors == []
    for _ in range(2):
        process = journaled(store, session, policy=EXPIRING)
        assert process.offload(conversation(4)).messages == further.messages
        assert process.restore(further.messages) == conversation(4)
        assert process.verify() == []
    clock[0] += 1
    alone = journaled(store, session, policy=EXPIRING)
    assert (
        alone.offload_text(exchange(0)[1]["content"][0]["content"], tool_name="Bash", tool_use_id="t0")
        == (sent[2]["content"][0]["content"])
    )


# Deleted sessions


def all_of(store: Any) -> dict[str, bytes]:
    """Return the objects of a store but the marks of use."""
    return {found.key: store.get(found.key) for found in store.keys() if not found.key.endswith("/used")}


def deletable(kind: str) -> tuple[Offloader, list[list[Any]]]:
    """Return a session with a journal and answered calls, and the lists that were sent in it."""
    store, off, sent = played(4)
    if kind == "fork":
        off = off.fork("b", at=3)
        sent = [*sent[:3], off.offload(conversation(5)).messages]
    elif kind == "journal alone":
        off = journaled(store, "b")
        sent = [off.offload([{"role": "user", "content": "short"}]).messages]
    store.put(CALLS.key(session=off.session, root="0" * 32, before="1" * 32), b"")
    return off, sent


@pytest.mark.parametrize("kind", ["session", "fork", "journal alone"])
def test_a_deleted_session_comes_back_whole_within_the_grace_period(kind: str) -> None:
    off, sent = deletable(kind)
    store, name = off.store, off.session
    before = all_of(store)

    assert delete(store, name).entries > 0
    assert len(Offloader(store, session=name).timeline()) == 0
    assert Offloader(store, session=name).records() == []
    assert verify(store).damaged_entries == []
    collect(store)
    undelete(store, name)

    assert all_of(store) == before
    timeline = Offloader(store, session=name).timeline()
    assert [timeline.at(number) for number in range(1, len(timeline) + 1)] == sent
    assert verify(store).damaged_entries == []
    with pytest.raises(NotFoundError, match="no deleted record"):
        undelete(store, name)


@pytest.mark.parametrize("kind", ["session", "fork", "journal alone"])
def test_after_the_grace_period_a_deleted_session_has_only_the_marks_of_its_records(kind: str) -> None:
    off, _ = deletable(kind)
    store, name = off.store, off.session

    delete(store, name)
    collect(store, Retention(grace=0))

    left = {key for key in keys(store) if key.split("/")[1] == name}
    assert all(key.startswith("r/") and not store.get(key) for key in left)
    with pytest.raises(NotFoundError):
        undelete(store, name)


@pytest.mark.parametrize("source", ["a", "研究会话二零二六年十一月构建失败分析"])
def test_of_a_deleted_copy_no_mark_of_its_origin_is_left_unless_a_fork_needs_it(source: str) -> None:
    store = MemoryStore()
    journaled(store, source).offload(conversation(3))
    for number in range(1, 4):
        journaled(store, source).offload(conversation(number))
    for name in ("copy", "kept"):
        copy_session(store, store, source, name=name)
    Offloader(store, session="kept").fork("fork")
    delete(store, source)
    for name in ("copy", "kept"):
        delete(store, name)
        undelete(store, name)
        assert keys(store, f"r/{name}/foreign~")
        delete(store, name)
    for _ in range(2):
        collect(store, Retention(grace=0))

    assert not keys(store, "r/copy/foreign~")
    assert keys(store, "r/kept/foreign~")
    assert Offloader(store, session="fork").verify() == []
    delete(store, "fork")
    for _ in range(2):
        collect(store, Retention(grace=0))
    assert not [key for key in keys(store) if "/foreign~" in key]


def test_a_session_with_a_new_journal_is_not_undeleted_over_it_and_says_so() -> None:
    store, _, _ = played(3)
    delete(store, "a")
    again = journaled(store)
    again.offload(conversation(1))
    before = all_of(store)

    with pytest.raises(CollisionError, match="has a new journal"):
        undelete(store, "a")

    assert all_of(store) == before
    sent = again.timeline().at(1)
    delete(store, "a")
    undelete(store, "a")
    timeline = Offloader(store, session="a").timeline()
    assert [timeline.at(number) for number in range(1, len(timeline) + 1)] == [sent]


@pytest.mark.parametrize("again", ["deleted", "rewound", "used again"])
def test_a_deleted_fork_comes_back_whole_after_its_parent_was_deleted_and_collected(again: str) -> None:
    store, off, sent = played(6)
    off.fork("b", at=5).fork("c", at=4)
    delete(store, "b")
    if again == "rewound":
        off.rewind(2)
        collect(store, Retention(grace=0), session="a")
    else:
        assert delete(store, "a").forks == {"b"}
    if again == "used again":
        journaled(store).offload(conversation(1))
    collect(store, Retention(live_for=0, session_records=1, grace=3000))
    delete(store, "c")
    collect(store)

    undelete(store, "b")
    undelete(store, "c")

    for name, number in ("b", 5), ("c", 4):
        fork = Offloader(store, session=name)
        assert [fork.timeline().at(n) for n in range(1, number + 1)] == sent[:number]
        assert fork.restore(sent[number - 1]) == conversation(number - 1)
    assert verify(store).damaged_entries == []


def of_parent(store: Any) -> dict[str, bytes]:
    return {key: data for key, data in all_of(store).items() if key.split("/")[1] == "a"}


def test_a_deleted_parent_that_forks_keep_comes_back_whole() -> None:
    store, off, sent = played(6)
    off.fork("b", at=2)
    store.put(CALLS.key(session="a", root="0" * 32, before="1" * 32), b"")
    before = of_parent(store)

    delete(store, "a")
    assert not {*keys(store, "c/a/"), *keys(store, "g/a/used")}
    undelete(store, "a")

    assert of_parent(store) == before | {"g/a/closed": b""}
    timeline = Offloader(store, session="a").timeline()
    assert [timeline.at(number) for number in range(1, 7)] == sent


def test_a_deleted_parent_keeps_only_what_each_of_its_forks_needs() -> None:
    store, off, sent = played(6)
    off.fork("b", at=2)
    off.fork("c", at=4)
    entries = sorted(keys(store, "j/a/"))
    refs = {info.ref for info in Offloader(store, session="b").records()}

    report = delete(store, "a", dry_run=True)
    assert delete(store, "a").entries == report.entries == len(entries) - 4
    assert sorted(keys(store, "j/a/")) == entries[:4]
    for gone, left in ("c", entries[:2]), ("b", []):
        delete(store, gone)
        collect(store, Retention(grace=0))
        assert sorted(keys(store, "j/a/")) == left
        if left:
            assert {key.split("/")[2].split("~")[0] for key in keys(store, "r/a/") if store.get(key)} == refs
            assert {key.split("~")[0] for key in keys(store, "g/a/")} == {"g/a/closed", "g/a/forked"}
            fork = Offloader(store, session="b")
            assert [fork.timeline().at(n) for n in (1, 2)] == sent[:2]
    assert not [key for key in keys(store) if not key.startswith("r/") or store.get(key)]


def test_a_second_deletion_says_before_and_after_that_the_journal_of_the_first_is_gone_for_good() -> None:
    store, _, _ = played(3)
    first = delete(store, "a")
    again = journaled(store)
    again.offload(conversation(1))

    plan = delete(store, "a", dry_run=True)
    report = delete(store, "a")

    assert first.entries_lost == 0
    assert plan.entries_lost == report.entries_lost == first.entries
    assert delete(store, "a").entries_lost == 0


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("verb", ["put", "delete", "get"])
def test_an_undeletion_that_fails_anywhere_is_repeated(verb: Any, nth: int) -> None:
    off, sent = deletable("fork")
    store, name = off.store, off.session
    before = all_of(store)
    delete(store, name)
    with suppress(StoreUnavailableError):
        undelete(FaultyStore(store, nth=nth, verb=verb, is_lasting=True), name)
    with suppress(NotFoundError):
        undelete(store, name)

    assert all_of(store) == before
    timeline = Offloader(store, session=name).timeline()
    assert [timeline.at(number) for number in range(1, len(timeline) + 1)] == sent


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("verb", ["put", "delete", "get"])
def test_a_deletion_that_fails_anywhere_loses_no_entry(verb: Any, nth: int) -> None:
    store, _, sent = played(4)
    with suppress(StoreUnavailableError):
        delete(FaultyStore(store, nth=nth, verb=verb, is_lasting=True), "a")
    delete(store, "a")
    undelete(store, "a")

    timeline = Offloader(store, session="a").timeline()
    assert [timeline.at(number) for number in range(1, 5)] == sent

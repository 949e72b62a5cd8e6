"""Forks and rewinds: a session goes on from any request, without a copy."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import runner

from offload import ConfigError, NotFoundError, Offloader, OffloadPolicy, Retention
from offload.agent import AgentConfig, ContextManager
from offload.index import reindex
from offload.retention import collect, delete
from offload.transfer import copy as copy_session
from offload.transfer import export, fork, import_
from offload.wrappers import EncryptingStore, WrapperStore
from offload_backends.memory import MemoryStore


def exchange(n: int, lines: int = 2000) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"command": f"make {n}"}}
    result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"step {n} is made\n" * lines}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def conversation(turns: int) -> list[Any]:
    return [{"role": "user", "content": "go"}, *(m for n in range(turns) for m in exchange(n))]


def journaled(store: Any, session: str = "a", **options: Any) -> Offloader:
    return Offloader(store, session=session, journal=True, **options)


def run(off: Offloader, turns: int) -> list[list[Any]]:
    """Return the lists that were sent in a loop of some turns."""
    return [copy.deepcopy(off.offload(conversation(n)).messages) for n in range(turns)]


def keys(store: Any, prefix: str = "") -> set[str]:
    return {found.key for found in store.keys(prefix)}


# What it writes


@pytest.mark.parametrize("turns", [3, 60])
def test_a_fork_writes_three_small_objects_whatever_the_session_holds(turns: int) -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, turns)
    before = keys(store)
    off.fork("b", at=2)
    new = keys(store) - before
    assert len(new) == 3
    assert sum(len(store.get(key)) for key in new) < 200


def test_the_first_turn_of_a_fork_stores_no_item_and_keeps_every_placeholder() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 8)
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


def test_a_context_manager_of_a_fork_continues_at_the_request() -> None:
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


# What it reads


def test_a_fork_reads_what_had_left_by_then_and_no_later_record() -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, 6)
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


def test_a_fork_at_the_end_reads_every_record_also_those_that_no_request_shows() -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, 3)
    Offloader(store, session="a").offload_text("of another process\n" * 3000, tool_name="Bash")
    branch = off.fork("b")
    assert {info.ref for info in branch.records()} == {info.ref for info in off.records()}


def test_forks_of_forks_have_the_timeline_and_the_records_of_all_their_parents() -> None:
    store = MemoryStore()
    sent = run(journaled(store), 5)
    second = Offloader(store, session="a").fork("b", at=4).with_options(journal=True)
    messages = [*conversation(3), *exchange(40), *exchange(41)]
    later = copy.deepcopy(second.offload(messages).messages)
    third = second.fork("c", at=5)
    timeline = third.timeline()
    assert [timeline.at(n) for n in range(1, 6)] == [*sent[:4], later]
    assert third.restore(later) == messages
    assert third.restore(timeline.at(3)) == conversation(2)
    fourth = third.fork("d", at=2)
    assert [info.tool_use_id for info in map(_detail, [fourth] * 1)] == ["t0"]
    assert len(fourth.timeline()) == 2


def _detail(off: Offloader) -> Any:
    [info] = off.records()
    [record] = [record for _, record in off._session.open_many([info])]  # the header of a record
    return record.header  # type: ignore[union-attr]


def test_the_parent_goes_on_and_is_deleted_without_harm_to_the_fork() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 8)
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
    assert delete(store, "a").protected == {}
    collect(store, Retention(grace=0))
    assert not [key for key in keys(store, "r/a/") if len(store.get(key))]
    assert not keys(store, "j/a/")


def test_a_killed_fork_is_repeated_and_its_mark_is_dropped_when_it_is_old() -> None:
    store = MemoryStore()
    sent = run(journaled(store), 4)
    for puts in (1, 2):
        stopped = _Stops(store, puts)
        with pytest.raises(ConnectionError):
            fork(stopped, "a", "b", at=3)
        assert delete(store, "a", dry_run=True).protected["forked"]
    fork(store, "a", "b", at=3)
    assert Offloader(store, session="b").timeline().at(3) == sent[2]


@pytest.mark.parametrize("puts", [0, 1, 2, 3])
@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_deletion_between_any_two_objects_of_a_fork_loses_no_record_that_it_reads(
    puts: int, is_repeated: bool
) -> None:
    store = MemoryStore()
    sent = run(journaled(store), 4)
    with suppress(ConnectionError):
        fork(_Stops(store, puts), "a", "b", at=3)
    delete(store, "a")
    collect(store, Retention(grace=0))
    if puts == 0:
        with pytest.raises(NotFoundError):
            fork(store, "a", "b", at=3)
        assert not keys(store, "r/b/") | keys(store, "j/b/")
        return
    if is_repeated:
        fork(store, "a", "b", at=3)
        branch = Offloader(store, session="b")
        assert branch.timeline().at(3) == sent[2]
        assert branch.restore(sent[2]) == conversation(2)
        delete(store, "b")
    if is_repeated or puts == 3:
        delete(store, "b")
        assert delete(store, "a").protected == {}


class _Stops(WrapperStore):
    def __init__(self, inner: Any, puts: int) -> None:
        super().__init__(inner)
        self._left = puts

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("killed")
        self.inner.put(key, data, overwrite=overwrite)


# Where it is refused


def test_a_fork_is_refused_with_the_reason() -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, 3)
    off.fork("b", at=2).offload([*conversation(1), *exchange(9)])
    with pytest.raises(ConfigError, match="session 'b' exists"):
        off.fork("b", at=2)
    with pytest.raises(ConfigError, match="must have another name"):
        off.fork("a", at=2)
    with pytest.raises(NotFoundError, match="has requests 1 to 3, got 4"):
        off.fork("c", at=4)
    with pytest.raises(ConfigError, match="is an int"):
        off.fork("c", at="2")  # type: ignore[arg-type]
    plain = Offloader(store, session="plain")
    plain.offload(conversation(2))
    with pytest.raises(NotFoundError, match="has no journal; see Offloader"):
        plain.fork("c", at=1)
    assert not keys(store, "r/c/") | keys(store, "j/c/")
    assert len(plain.fork("copied").records()) == 2


# Rewind


def test_a_rewind_goes_on_from_an_earlier_request() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 6)
    off.rewind(3)
    assert [off.timeline().at(n) for n in (1, 2, 3)] == sent[:3]
    assert len(off.timeline()) == 3
    messages = [*conversation(2), *exchange(50)]
    later = copy.deepcopy(off.offload(messages).messages)
    assert later[: len(sent[2])] == sent[2]
    for process in (off, Offloader(store, session="a")):
        timeline = process.timeline()
        assert [timeline.at(n) for n in (1, 2, 3, 4)] == [*sent[:3], later]
    with pytest.raises(NotFoundError, match="got 9"):
        off.rewind(9)


def test_a_context_manager_is_rewound_and_goes_on_in_another_process() -> None:
    store = MemoryStore()
    config = AgentConfig(window_tokens=2000, model="m")
    context = ContextManager(Offloader(store, session="a"), config)
    sent = []
    for n in range(20):
        context.add({"role": "user", "content": f"question {n} " + "word " * 80})
        sent.append(copy.deepcopy(context.before_model_call().messages))
        context.after_model_call({"role": "assistant", "content": "answer " * 40})
    assert context.rewind(12) == len(sent[11])
    context.add({"role": "user", "content": "otherwise"})
    request = context.before_model_call().messages
    assert request[:-1] == sent[11]
    resumed = ContextManager(Offloader(store, session="a"), config)
    resumed.resume()
    assert resumed.before_model_call().messages == request
    assert resumed.timeline().at(13) == request


# Its seams


def test_a_fork_is_copied_and_exported_with_all_that_it_reads(tmp_path: Path) -> None:
    store, other, third = MemoryStore(), MemoryStore(), MemoryStore()
    sent = run(journaled(store), 5)
    Offloader(store, session="a").fork("b", at=4).with_options(journal=True).rewind(3)
    copy_session(store, other, "b")
    export(store, "b", tmp_path / "b.tar")
    import_(third, tmp_path / "b.tar")
    for place in (other, third):
        moved = Offloader(place, session="b")
        assert [moved.timeline().at(n) for n in (1, 2, 3)] == sent[:3]
        assert moved.restore(sent[2]) == conversation(2)
        assert not [key for key in keys(place) if "/from~" in key or "~from" in key]


def test_a_fork_in_an_encrypted_store_and_in_a_local_folder_reads_its_parent(tmp_path: Path) -> None:
    for store in (EncryptingStore(MemoryStore(), key=bytes(32)), Offloader(tmp_path).store):
        name = "a session with a long name " * 10
        off = journaled(store, session=name)
        sent = run(off, 3)
        branch = off.fork("b", at=3)
        assert branch.restore(sent[2]) == conversation(2)
        assert reindex(store, "b") >= 0
        assert branch.offload(conversation(2)).messages == sent[2]


def test_a_record_of_the_parent_is_shared_by_the_fork_as_its_own() -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, 3)
    branch = off.fork("b", at=3)
    ref = branch.records()[0].ref
    branch.share(ref, "c")
    assert "step 0" in Offloader(store, session="c").tools.read(ref)


def test_a_policy_of_its_own_keeps_the_placeholders_of_the_parent() -> None:
    store = MemoryStore()
    off = journaled(store, policy=OffloadPolicy.preset("archive"))
    sent = run(off, 4)
    branch = off.fork("b", at=4).with_options(policy=OffloadPolicy(exclude_tools=("*",)))
    assert branch.offload(sent[3]).messages == sent[3]


def test_the_command_forks_at_a_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = run(journaled(tmp_path), 4)
    command = runner(capsys, monkeypatch)
    done = command("fork", "b", "--session", "a", "--at", "2", "--store", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout
    assert Offloader(tmp_path, session="b").timeline().at(2) == sent[1]
    removed = command("rm", "--yes", "--session", "a", "--store", tmp_path)
    assert "deleted: 2 records" in removed.stdout
    assert "(1 forked record kept, read by b)" in removed.stdout
    listed = command("ls", "--store", tmp_path, "--session", "b")
    assert "1 record in session b" in listed.stdout

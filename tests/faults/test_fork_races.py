"""Forks next to deletions, gc, rewinds and other forks: each between any two operations of the other.

And forks that are killed by `kill -9` between their objects.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import prepared
import pytest
from forks import conversation, journaled, keys, run
from pairs import each_in_turn
from retained import Paused

from offload import NotFoundError, Offloader, Retention, StoreUnavailableError
from offload.maintenance.retention import collect, delete, undelete
from offload.maintenance.transfer import fork, rewind
from offload.storage.layout import BRANCH
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

Action = Callable[[Any], object]
NOW = Retention(grace=0, live_for=0)


def forking(name: str, at: int | None = None, branch: str | None = None) -> Action:
    """Return a fork that may find its session deleted, which it says."""

    def action(store: Any) -> None:
        with suppress(NotFoundError):
            fork(store, "a", name, at=at, branch=branch)

    return action


def removing(session: str) -> Action:
    return lambda store: delete(store, session)


def gc(store: Any) -> None:
    collect(store, NOW)


def in_order(*actions: Action) -> Action:
    return lambda store: [action(store) for action in actions]


def check(store: Any, name: str, sent: list[list[Any]], at: int | None) -> bool:
    """Return whether there is a fork, which then has all that it reads; None is its last request."""
    gc(store)
    if not any(BRANCH.match(key) for key in keys(store, f"r/{name}/")):
        return False
    off = Offloader(store, session=name)
    at = at or len(off.timeline())
    assert off.timeline().at(at) == sent[at - 1]
    assert off.restore(sent[at - 1]) == conversation(at - 1)
    assert off.verify() == []
    return True


# A fork of request 4, one of a request that a rewind left, and one of the end.
PLACES = {"a request": (4, False), "a request that a rewind left": (5, True), "the end": (None, False)}
OTHERS = {
    "rm": removing("a"),
    "rm and gc": in_order(removing("a"), gc),
    "gc": gc,
    "rm of a fork, rm and gc": in_order(removing("old"), removing("a"), gc),
    "another fork, rm, gc, its rm and gc": in_order(
        forking("c", 2), removing("a"), gc, removing("c"), gc
    ),
    "rewind and gc": in_order(lambda store: rewind(store, "a", 1), gc),
}  # fmt: skip


@cache
def _a_fork(*, is_left: bool) -> tuple[MemoryStore, list[list[Any]], str | None]:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 5)
    off.fork("old", at=2)
    if is_left:
        off.rewind(3)
        return store, sent, next(iter(off.timeline().branches))
    return store, sent, None


def a_fork(*, is_left: bool) -> tuple[MemoryStore, list[list[Any]], str | None]:
    """Return a store of its own with a session and a fork of it, what was sent, and a branch that is left."""
    made, sent, branch = _a_fork(is_left=is_left)
    store = MemoryStore()
    for found in made.keys():
        store.put(found.key, made.get(found.key))
    return store, sent, branch


@pytest.mark.parametrize(("place", "other"), each_in_turn([*PLACES], [*OTHERS]))
def test_a_fork_is_whole_or_refused_whatever_happens_between_its_operations(place: str, other: str) -> None:
    number, is_left = PLACES[place]
    outcomes = set()
    for at in itertools.count(1):
        store, sent, branch = a_fork(is_left=is_left)
        paused = Paused(store, at, partial(OTHERS[other], store))
        try:
            fork(paused, "a", "b", at=number, branch=branch)
            is_told = True
        except NotFoundError:
            is_told = False
        assert check(store, "b", sent, number) == is_told, f"interrupted before operation {at}"
        outcomes.add(is_told)
        if not paused.is_over:
            break
    assert True in outcomes
    assert at > 8


@pytest.mark.parametrize(("place", "other"), each_in_turn([*PLACES], [*OTHERS]))
def test_a_fork_between_any_two_operations_of_a_deletion_is_whole_or_not_there(
    place: str, other: str
) -> None:
    number, is_left = PLACES[place]
    for at in itertools.count(1):
        store, sent, branch = a_fork(is_left=is_left)
        paused = Paused(store, at, partial(forking("b", number, branch), store))
        OTHERS[other](paused)
        check(store, "b", sent, number)
        if not paused.is_over:
            break
    assert at > 5


def test_gc_deletes_a_session_that_was_removed_after_the_rm_of_its_last_fork() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 5)
    for name, at in (("b", 3), ("c", 2)):
        off.fork(name, at=at)
    delete(store, "a")
    with pytest.raises(NotFoundError, match="is being deleted"):
        fork(store, "a", "d", at=2)
    for name in ("b", "c"):
        gc(store)
        assert check(store, name, sent, 2)
        assert keys(store, "j/a/")
        delete(store, name)
    gc(store)
    assert not keys(store, "j/") | keys(store, "g/a/")
    assert not [key for key in keys(store, "r/a/") if len(store.get(key))]


def test_a_session_that_is_used_after_its_rm_is_not_deleted_after_its_last_fork() -> None:
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 4)
    off.fork("b", at=3)
    delete(store, "a")
    later = run(journaled(store), 6)
    delete(store, "b")
    gc(store)
    again = Offloader(store, session="a")
    assert again.timeline().at(len(again.timeline())) == later[5]
    assert again.restore(later[5]) == conversation(5)
    assert sent[3] == later[3]
    fork(store, "a", "c", at=2)


def test_a_session_that_is_used_again_after_its_rm_is_forked_at_once_and_not_after_another_rm() -> None:
    store = MemoryStore()
    off = journaled(store)
    run(off, 4)
    off.fork("keeper", at=2)
    delete(store, "a")
    with pytest.raises(NotFoundError, match="is being deleted"):
        fork(store, "a", "b")
    later = run(journaled(store), 5)
    fork(store, "a", "b")
    gc(store)
    branch = Offloader(store, session="b")
    assert branch.timeline().at(len(branch.timeline())) == later[4]
    assert branch.restore(later[4]) == conversation(4)
    delete(store, "a")
    with pytest.raises(NotFoundError, match="is being deleted"):
        fork(store, "a", "c")


# Deleted ones


def a_deleted_fork() -> tuple[MemoryStore, list[list[Any]]]:
    """Return a store with a fork that was deleted, of a session that goes on, and the lists sent there."""
    store = MemoryStore()
    off = journaled(store)
    sent = run(off, 6)
    off.fork("b", at=5)
    delete(store, "b")
    return store, sent


def check_fork(store: Any, sent: list[list[Any]]) -> None:
    """Check that the fork has what it reads after its parent was deleted and collected."""
    delete(store, "a")
    gc(store)
    assert check(store, "b", sent, 5)


def test_a_fork_that_is_undeleted_while_gc_frees_it_has_all_that_it_reads_if_it_is_back() -> None:
    outcomes = set()
    for at in itertools.count(1):
        store, sent = a_deleted_fork()
        paused = Paused(store, at, partial(gc, store))
        with suppress(NotFoundError):
            undelete(paused, "b")
        is_back = any("/from~" in key for key in keys(store, "r/b/"))
        if is_back:
            check_fork(store, sent)
        outcomes.add(is_back)
        if not paused.is_over:
            break
    assert outcomes == {True, False}


def test_a_fork_that_was_repeated_keeps_what_it_reads_if_gc_dies_while_it_frees_the_first() -> None:
    for nth in itertools.count(1):
        store, sent = a_deleted_fork()
        Offloader(store, session="a").fork("b", at=5)
        faulty = FaultyStore(store, nth=nth, is_lasting=True)
        with suppress(StoreUnavailableError):
            collect(faulty, NOW)
        check_fork(store, sent)
        if not faulty.failures:
            break


# Killed between its objects

FORK = """
import os, signal, sys
from offload import open_store
from offload.maintenance.transfer import fork
from offload.storage.wrappers import WrapperStore

class Killed(WrapperStore):
    left = int(sys.argv[2])

    def put(self, key, data, *, overwrite=False):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.inner.put(key, data, overwrite=overwrite)

fork(Killed(open_store(sys.argv[1])), "a", "b", at=3)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("puts", [0, 1, 2, 3])
def test_a_fork_that_is_killed_between_its_objects_harms_nothing_and_is_repeated(
    tmp_path: Path, puts: int
) -> None:
    off = journaled(tmp_path)
    sent = run(off, 4)
    killed = prepared.run(FORK, tmp_path, puts)
    assert killed.returncode == -signal.SIGKILL
    assert len(keys(off.store, "g/a/forked")) + len(keys(off.store, "j/b/")) + len(
        keys(off.store, "r/b/")
    ) == (puts)

    delete(off.store, "a")
    # The clock of a file system ticks slowly, and a use in the tick of the deletion counts as a later one.
    for closed in tmp_path.glob("g/a/closed"):
        os.utime(closed, (closed.stat().st_mtime + 1,) * 2)
    gc(off.store)
    if puts == 0:
        with pytest.raises(NotFoundError):
            fork(off.store, "a", "b", at=3)
        return
    fork(off.store, "a", "b", at=3)
    assert check(off.store, "b", sent, 3)
    delete(off.store, "b")
    gc(off.store)
    assert not keys(off.store, "j/") | keys(off.store, "g/a/")

"""A journal whose agent is killed, or whose store fails, is gone on with: no entry of it is lost unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import prepared
import pytest
from kit.conversation import from_user
from strength import thinned

from offload import AgentConfig, ContextManager, Offloader, StoreUnavailableError
from offload.maintenance.jobs import verify
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

# Goes on with the conversation for ever, and prints what it was told is written down.
AGENT = """
import sys
from offload import Offloader
from offload import AgentConfig, ContextManager

m = ContextManager(Offloader(sys.argv[1], session="s"), AgentConfig(window_tokens=1500))
m.resume()
for n in range(len(m.restore()), 10**6, 2):
    m.add({"role": "user", "content": f"question {n} " + "please " * 20})
    assert m.before_model_call().errors == []
    assert m.after_model_call({"role": "assistant", "content": f"answer {n + 1} " + "well " * 40}) == []
    print(n + 1, flush=True)
"""
# After so many turns of each of them: in the midst of one, before and after compactions.
TURNS = (1, 4, 9, 2)


@pytest.mark.parametrize("delay", thinned([0, 1, 2], 3))
def test_an_agent_that_is_killed_again_and_again_is_gone_on_with(tmp_path: Path, delay: int) -> None:
    last = -1
    for turns in TURNS:
        with prepared.start(AGENT, tmp_path) as agent:
            for _ in range(turns + delay):
                last = int(agent.stdout.readline())
            agent.kill()
            last = max([last, *map(int, agent.stdout.read().split())])

    m = ContextManager(Offloader(tmp_path, session="s"), AgentConfig(window_tokens=1500))
    m.resume()
    told = [int(message["content"].split()[1]) for message in m.restore()]
    assert told == list(range(len(told)))
    assert len(told) > last
    report = verify(Offloader(tmp_path, session="s").store)
    assert (report.damaged, report.damaged_entries) == ([], [])


TURNS_SENT = 5


class Unsure(WrapperStore):
    """Fails writes while `fails`, and notes them; if it `lands`, only their answers are lost."""

    fails = lands = False

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.late: list[tuple[str, bytes]] = []

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if self.lands or not self.fails:
            super().put(key, data, overwrite=overwrite)
        if self.fails:
            self.late.append((key, data))
            raise StoreUnavailableError("no answer")


class Journaled:
    """A session whose store fails the writes of some turns, from 0."""

    def __init__(self, failed: set[int], *, lands: bool = False) -> None:
        self.store = store = Unsure()
        off, messages = Offloader(store, session="s", journal=True), list[Any]()
        for turn in range(TURNS_SENT):
            messages.append(from_user(f"question {turn}"))
            store.fails, store.lands = turn in failed, lands
            assert bool(off.offload(messages).errors) == (turn in failed and turn - 1 not in failed)
        store.fails = False

    def faults(self) -> list[str]:
        return [str(error) for _, error in verify(self.store).damaged_entries]

    def entries(self) -> list[str]:
        return [stored.key for stored in self.store.keys("j/s/")]

    def sent(self) -> list[int]:
        """Return how many messages each request has that a new process lists and reads."""
        timeline = Offloader(self.store, session="s").timeline()
        assert [len(timeline.at(one.number)) for one in timeline] == [one.messages for one in timeline]
        return [one.messages for one in timeline]


FAILED = [{0}, {1}, {4}, {0, 1}, {1, 2}, {1, 3}]


@pytest.mark.parametrize("failed", FAILED, ids=str)
@pytest.mark.parametrize("lands", [False, True])
def test_an_entry_that_was_never_stored_is_not_missing(failed: set[int], *, lands: bool) -> None:
    journal = Journaled(failed, lands=lands)

    assert journal.faults() == []
    assert journal.sent() == [turn + 1 for turn in range(TURNS_SENT) if lands or turn not in failed]


@pytest.mark.parametrize("failed", FAILED, ids=str)
def test_an_entry_that_lands_late_is_a_branch_and_no_second_writer(failed: set[int]) -> None:
    journal = Journaled(failed)
    before = journal.sent()
    for key, data in journal.store.late:
        journal.store.put(key, data)

    if max(failed) < TURNS_SENT - 1:
        assert journal.sent() == before
    assert journal.faults() == []


@pytest.mark.parametrize("failed", FAILED, ids=str)
def test_a_deleted_entry_beside_one_that_was_never_stored_is_missing(failed: set[int]) -> None:
    *places, _ = range(TURNS_SENT - len(failed))
    for place in places:
        journal = Journaled(failed)
        key = journal.entries()[place]
        journal.store.delete(key)

        number = int(key.split("/")[2].split("~")[0])
        [fault] = journal.faults()
        assert f"{number} " in fault
        assert fault.endswith(" missing in the journal")


@pytest.mark.parametrize("failed", FAILED, ids=str)
def test_a_session_is_rewound_and_forked_across_an_entry_that_was_never_stored(failed: set[int]) -> None:
    journal = Journaled(failed)
    sent = journal.sent()
    for at, messages in enumerate(sent, 1):
        Offloader(journal.store, session="s").fork(f"f{at}", at=at)
        assert len(Offloader(journal.store, session=f"f{at}").timeline().at(at)) == messages
    Offloader(journal.store, session="s").rewind(at=1)

    assert journal.sent() == sent[:1]
    assert journal.faults() == []

"""Offloaded answers of retrieval tools in forks, after rewinds and compactions, and in an agent's loop."""

from __future__ import annotations

from typing import Any

import compactions
import formats
import pytest
from kit.store import CountedStore
from reading import LOG, POLICY, Reading

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.engine.policy import Retention
from offload.maintenance.retention import collect, delete
from offload_backends.memory import MemoryStore


def journaled(store: MemoryStore, session: str = "s") -> Offloader:
    return Offloader(store, session=session, policy=POLICY, journal=True)


def read_in_fork(store: MemoryStore) -> tuple[Reading, Offloader, list[Any]]:
    """Return a conversation, a fork that read an inherited item, and its messages."""
    reading = Reading(store, journal=True)
    reading.off.fork("b")
    fork, messages = journaled(store, "b"), list(reading.messages)
    answer = fork.tools.call("context_read", {"id": reading.ref})
    for call in range(5):
        text = ("context_read", {"id": reading.ref}, answer) if call == 0 else ("Bash", {}, "done")
        for message in formats.exchange("anthropic", *text, f"f{call}"):
            messages.append(message)
            fork.offload(messages)
    return reading, fork, messages


def test_an_answer_of_a_fork_quotes_what_it_inherited_and_protects_it() -> None:
    store = MemoryStore()
    reading, fork, messages = read_in_fork(store)
    [answer] = [info for info in fork.records() if info.is_answer]
    assert answer.quotes == (reading.ref,)
    assert [info.ref for info in reading.opened().records()] == [reading.ref]

    delete(store, "s")
    for session in ("s", "b"):
        collect(store, Retention(grace=0), session=session)
    other = journaled(store, "b")
    assert other.restore(other.offload(messages).messages) == messages
    assert other.verify() == []


def test_a_rewind_before_an_answer_continues_and_restores() -> None:
    store = MemoryStore()
    reading = Reading(store, journal=True)
    at = len(reading.off.timeline())
    reading.read(id=reading.ref)
    reading.work()
    sent, before = reading.sent.messages, list(reading.messages)
    other = journaled(store)
    other.rewind(at)
    del reading.messages[3:]
    reading.off, reading.calls = journaled(store), 1
    reading.read(id=reading.ref)
    reading.work()

    assert reading.sent.messages == sent
    assert journaled(store).restore(sent) == before


def test_removed_messages_with_answers_are_restored() -> None:
    store = MemoryStore()
    reading = Reading(store)
    for offset in (0, 9000):
        reading.read(id=reading.ref, offset=offset)
    for _ in range(4):
        reading.work(2)
        reading.messages += [
            {"role": "assistant", "content": "It is done."},
            {"role": "user", "content": "Go on."},
        ]
    reading.work(1)
    config = RoundConfig(max_context_tokens=4000, keep_recent_rounds=2, require_confirmation=False)
    rounds = RoundCompactor(reading.off, lambda _: "It was read.", config)
    removed = rounds.compact(reading.sent.messages).new_messages
    assert len(removed) < len(reading.messages)
    assert reading.opened().restore(removed) == reading.messages

    context = compactions.context_of(reading.sent.messages)
    strategy = SelectiveCompaction(reading.off, threshold_tokens=100)
    strategy.compact(context)
    assert strategy.restore(context.conversation_messages) == reading.messages


def test_the_notice_of_a_compaction_names_the_record_and_not_its_answers() -> None:
    reading = Reading(MemoryStore(), log="nothing to see in this line of words\n" * 3000)
    reading.read(id=reading.ref, limit=3000)
    reading.work()
    roles = ("assistant", "user")
    talk = [{"role": role, "content": f"{n} some talk " * 60} for n in range(9) for role in roles]
    config = RoundConfig(max_context_tokens=4000, keep_recent_rounds=1, require_confirmation=False)
    sent = RoundCompactor(reading.off, None, config).compact([*reading.sent.messages, *talk]).new_messages
    _, _, stored = sent[0]["content"].partition("Stored items (id, title):\n")
    assert stored.startswith(f"* {reading.ref} cat log\nNames")


@pytest.mark.parametrize("window", [8_000, 100_000])
def test_an_agent_that_is_restarted_after_each_request_sends_the_same(window: int) -> None:
    def played(store: MemoryStore, *, renews: bool) -> list[list[Any]]:
        def opened() -> ContextManager:
            off = Offloader(store, session="s", policy=POLICY, clock=lambda: 0.0)
            manager = ContextManager(off, AgentConfig(window_tokens=window))
            manager.resume()
            return manager

        manager, sent = opened(), []
        manager.add({"role": "user", "content": "look at the log"})
        for call in range(9):
            # A process says in an answer what it has shown before.
            reader = Offloader(store, session="s")
            refs = [info.ref for info in reader.records() if not info.is_answer]
            arguments = {"id": refs[0], "offset": 1000 * call} if call % 4 == 1 else {}
            tool = "context_read" if arguments else "Bash"
            result = reader.tools.call(tool, arguments) if arguments else (LOG if call == 0 else "done")
            for message in formats.exchange("anthropic", tool, arguments, result, f"c{call}"):
                manager.add(message)
            sent.append(manager.before_model_call().messages)
            manager = opened() if renews else manager
        assert opened().restore() == manager.restore()
        return sent

    lasting = played(MemoryStore(), renews=False)
    assert played(MemoryStore(), renews=True) == lasting
    assert "Ask again" in str(lasting[-1]) or window == 8_000


def test_a_turn_after_an_answer_was_offloaded_asks_the_store_for_nothing() -> None:
    store = CountedStore()
    reading = Reading(store)
    reading.read(id=reading.ref)
    reading.work()
    store.requests.clear()
    reading.work(2)
    assert store.requests == []


def test_an_answer_waits_by_cost_while_the_model_reads_more_of_the_same_item() -> None:
    reading = Reading(MemoryStore(), policy=OffloadPolicy(history="editable"))

    def actions() -> list[str]:
        decisions = [d for d in reading.sent.decisions if d.item.tool_name == "context_read"]
        return [d.action for d in decisions if d.item.item_type == "tool_result"]

    reading.read(id=reading.ref, limit=6000)
    for start in range(6000, 24_000, 6000):
        reading.work(2)
        reading.read(id=reading.ref, offset=start, limit=6000)
    reading.add("Bash", {"command": "true"}, "done")
    assert actions() == ["wait"] * 4
    assert "reads more of the same item" in reading.off.explain()
    reading.add("Bash", {"command": "true"}, "done", cache="cold")
    reading.work(4)
    reading.add("Bash", {"command": "true"}, "done", cache="cold")
    assert actions() == ["offload"] * 4

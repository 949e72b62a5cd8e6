"""Sessions that are forked, rewound, copied, deleted, undeleted, collected, used again: in one store.

The oracle is what was sent: every request of a session that was not deleted is shown as it was sent, a new
process sends what the process that stayed sends, and every placeholder restores whose record no report names
as deleted. Any operation may fail in the store at any of its operations; it is then repeated.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit.conversation import tool_turn
from retained import clocked, text_of
from strength import examples

from offload import NotFoundError, Offloader, OffloadError, OffloadPolicy, Rule
from offload.engine.placeholder.forms import known_refs
from offload.engine.policy import Retention
from offload.maintenance.retention import GcReport, collect, delete, undelete
from offload.maintenance.transfer import copy_session, fork, rewind
from offload.records.index.objects import list_session
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

GRACE = 100
TTLS = (None, 50, 300)
POLICY = OffloadPolicy(
    tools={f"T{n}": Rule(min_chars=1, preview_chars=20, ttl=ttl) for n, ttl in enumerate(TTLS)}, min_saving=0
)
MOST_SESSIONS, MOST_ITEMS = 5, 7
faults = st.none() | st.tuples(st.integers(1, 12), st.sampled_from(["before", "after"]))
places = st.floats(0, 1, exclude_max=True)


def exchange(number: int) -> list[dict[str, Any]]:
    """Return a call and its result; those of a number are the same in every session."""
    return tool_turn(f"t{number}", text_of(number), f"T{number % len(TTLS)}")


def refs_in(messages: Sequence[Any]) -> set[str]:
    """Return the refs in the placeholders of messages that were sent."""
    results = [block for m in messages[1:] for block in m["content"] if block["type"] == "tool_result"]
    return {ref for block in results for ref in known_refs(block["content"])}


@dataclass
class Conversation:
    """A session as its host knows it: its messages, and for each request these and what was sent.

    `gone` has the refs that a report called deleted since an item was last stored under them. The first
    `before` requests were sent before the session was deleted, which it was at `removed_at`.
    """

    process: Offloader
    items: list[int] = field(default_factory=list)
    requests: list[tuple[list[int], list[Any]]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    before: int = 0
    removed_at: float = 0.0

    @property
    def messages(self) -> list[Any]:
        return originals(self.items)


def originals(items: Sequence[int]) -> list[Any]:
    return [{"role": "user", "content": "task"}, *(m for n in items for m in exchange(n))]


class Sessions(RuleBasedStateMachine):
    """A store of a few sessions; its clock is that of the machine too."""

    def __init__(self) -> None:
        super().__init__()
        self.store = clocked()
        self.clock = mock.patch.object(time, "time", self.now)
        self.clock.start()
        self.sessions: dict[str, Conversation] = {}
        self.removed: dict[str, Conversation] = {}
        self.freed: set[str] = set()
        self.names = iter(f"s{n}" for n in range(1000))

    def now(self) -> float:
        return self.store.now

    def teardown(self) -> None:
        try:
            for name, one in self.sessions.items():
                self.check(name, one, self.store, is_whole=True)
        finally:
            self.clock.stop()

    # Helpers

    def opened(self, name: str, store: Any = None) -> Offloader:
        return Offloader(self.store if store is None else store, session=name, policy=POLICY, journal=True)

    def drawn(self, place: float) -> tuple[str, Conversation]:
        return [*self.sessions.items()][int(place * len(self.sessions))]

    def repeated(self, action: Callable[[Any], Any], fault: tuple[int, Any] | None) -> Any:
        """Do an operation; one that fails in the store is done again."""
        self.store.now += 1
        if fault is not None:
            with suppress(OffloadError):
                return action(FaultyStore(self.store, nth=fault[0], moment=fault[1]))
            self.what_was_sent_is_shown_and_restores()
        return action(self.store)

    def note(self, report: GcReport) -> None:
        for infos in report.marked.values():
            for info in infos:
                for known in (self.sessions, self.removed):
                    if info.session in known:
                        known[info.session].gone.add(info.ref)

    # Turns

    @initialize(turns=st.integers(1, 3))
    def begin(self, turns: int) -> None:
        name = next(self.names)
        self.sessions[name] = Conversation(self.opened(name))
        for number in range(turns):
            self.turn(0, number)

    @precondition(lambda self: self.sessions)
    @rule(place=places, number=st.integers(0, MOST_ITEMS - 1))
    def turn(self, place: float, number: int) -> None:
        name, one = self.drawn(place)
        self.store.now += 1
        if number not in one.items:
            one.items.append(number)
        out = one.process.offload(one.messages)
        assert out.errors == []
        again = self.opened(name).offload(one.messages)
        assert again.errors == []
        assert again.messages == out.messages
        if one.requests:
            items, sent = one.requests[-1]
            assert items == one.items[: len(items)]
            assert out.messages[: len(sent)] == sent
        if not one.requests or one.requests[-1][0] != one.items:
            one.requests.append(([*one.items], copy.deepcopy(out.messages)))
        one.gone -= refs_in(out.messages)

    @precondition(lambda self: self.sessions)
    @rule(place=places)
    def restart(self, place: float) -> None:
        name, one = self.drawn(place)
        one.process = self.opened(name)

    # Forks, rewinds, copies

    @precondition(lambda self: 0 < len(self.sessions) < MOST_SESSIONS)
    @rule(place=places, at=places, back=st.none() | places, fault=faults)
    def fork(self, place: float, at: float, back: float | None, fault: Any) -> None:
        name, one = self.drawn(place)
        number = int(at * len(one.requests)) + 1
        child = next(self.names)
        self.repeated(lambda store: fork(store, name, child, at=one.before + number), fault)
        items, sent = one.requests[number - 1]
        self.sessions[child] = Conversation(
            self.opened(child),
            [*items],
            [*one.requests[:number]],
            one.gone & refs_in(sent),
            before=one.before,
        )
        if back is not None:
            self.rewind(self.last, back, None)

    @property
    def last(self) -> float:
        """The place of the newest session."""
        return (len(self.sessions) - 0.5) / len(self.sessions)

    @precondition(lambda self: 0 < len(self.sessions) < MOST_SESSIONS)
    @rule(place=places, at=places, seconds=st.sampled_from([60, 400]), number=st.integers(0, MOST_ITEMS - 1))
    def fork_goes_on_later(self, place: float, at: float, seconds: int, number: int) -> None:
        self.fork(place, at, None, None)
        self.store.now += seconds
        self.turn(self.last, number)

    @precondition(lambda self: 0 < len(self.sessions) < MOST_SESSIONS - 1)
    @rule(place=places, at=places, number=st.integers(0, MOST_ITEMS - 1), fault=faults)
    def parent_is_deleted_and_used_again(self, place: float, at: float, number: int, fault: Any) -> None:
        self.fork(place, at, None, None)
        self.rm(place * (len(self.sessions) - 1) / len(self.sessions), fault)
        self.use_again(number)
        self.fork(self.last, 0.99, None, None)

    @precondition(lambda self: 0 < len(self.sessions) < MOST_SESSIONS)
    @rule(place=places, at=places, seconds=st.sampled_from([1, GRACE // 2]), fault=faults)
    def fork_and_parent_are_deleted(self, place: float, at: float, seconds: int, fault: Any) -> None:
        """The fork first; within the grace period it comes back."""
        self.fork(place, at, None, None)
        self.rm(self.last, fault)
        if len(self.sessions) > 1:
            child = self.removed.popitem()
            self.rm(place, None)
            self.removed.update([child])
        self.gc(seconds, None)
        self.undelete_a_session(fault)

    @precondition(lambda self: self.sessions)
    @rule(place=places, at=places, fault=faults)
    def rewind(self, place: float, at: float, fault: Any) -> None:
        name, one = self.drawn(place)
        number = int(at * len(one.requests)) + 1
        self.store.now += 1
        if fault is not None:
            broken = FaultyStore(self.store, nth=fault[0], moment=fault[1])
            with suppress(OffloadError):
                rewind(broken, name, one.before + number)
        rewind(self.store, name, one.before + number)
        del one.requests[number:]
        one.items = [*one.requests[-1][0]]
        one.process = self.opened(name)

    @precondition(lambda self: 0 < len(self.sessions) < MOST_SESSIONS)
    @rule(place=places, fault=faults)
    def copy(self, place: float, fault: Any) -> None:
        name, one = self.drawn(place)
        new = next(self.names)
        self.repeated(lambda store: copy_session(store, store, name, name=new), fault)
        self.sessions[new] = Conversation(
            self.opened(new), [*one.items], [*one.requests], {*one.gone}, before=one.before
        )

    @precondition(lambda self: self.sessions)
    @rule(place=places, fault=faults)
    def copy_elsewhere(self, place: float, fault: Any) -> None:
        name, one = self.drawn(place)
        other = MemoryStore()
        report = self.repeated(lambda store: copy_session(store, other, name), fault)
        assert report.failures == []
        self.check(name, one, other, is_whole=True)

    # Deletion

    @rule(seconds=st.sampled_from([1, 30, GRACE, 400]))
    def wait(self, seconds: int) -> None:
        self.store.now += seconds

    @rule(seconds=st.sampled_from([1, 2 * GRACE, 7200]), fault=faults)
    def gc(self, seconds: int, fault: Any) -> None:
        self.store.now += seconds
        if fault is not None:
            self.note(collect(self.store, Retention(grace=GRACE), dry_run=True))
            with suppress(OffloadError):
                collect(FaultyStore(self.store, nth=fault[0], moment=fault[1]), Retention(grace=GRACE))
            self.what_was_sent_is_shown_and_restores()
        self.note(collect(self.store, Retention(grace=GRACE)))
        over = self.store.now - GRACE
        self.freed.update(name for name, one in self.removed.items() if one.removed_at <= over)

    @precondition(lambda self: self.sessions)
    @rule(place=places, which=places, fault=faults)
    def delete_a_record(self, place: float, which: float, fault: Any) -> None:
        name, _ = self.drawn(place)
        own = [i for i in self.opened(name).records() if not i.key.endswith(".link")]
        if own:
            ref = own[int(which * len(own))].ref
            plan = delete(self.store, name, [ref], dry_run=True)
            self.note(plan)
            with suppress(NotFoundError):
                self.note(self.repeated(lambda store: delete(store, name, [ref]), fault))

    @precondition(lambda self: self.sessions)
    @rule(place=places, fault=faults)
    def undelete_records(self, place: float, fault: Any) -> None:
        name, one = self.drawn(place)
        with suppress(NotFoundError):
            self.repeated(partial(undelete, session=name, refs=[*self.deleted_of(name, one)]), fault)
        one.gone -= self.readable(name)

    def readable(self, name: str) -> set[str]:
        return {info.ref for info in self.opened(name).records()}

    def deleted_of(self, name: str, one: Conversation) -> set[str]:
        """Return the refs of the records that are marked for deletion, and that have bytes."""
        objects = list_session(self.store, name).deleted
        return {record.info.ref for record in objects if record.info.stored_bytes} & one.gone

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(place=places, fault=faults)
    def rm(self, place: float, fault: Any) -> None:
        name, _ = self.drawn(place)
        one = self.removed[name] = self.sessions.pop(name)
        self.note(self.repeated(partial(delete, session=name), fault))
        one.removed_at = self.store.now

    @precondition(lambda self: self.removed)
    @rule(fault=faults)
    def undelete_a_session(self, fault: Any) -> None:
        name, one = self.removed.popitem()
        if name in self.freed:
            return
        try:
            self.repeated(partial(undelete, session=name), fault)
        except NotFoundError:
            assert fault is not None  # the attempt that failed did it all
        one.gone -= self.readable(name)
        one.process = self.opened(name)
        self.sessions[name] = one
        self.check(name, one, self.store, is_whole=True)

    @precondition(lambda self: self.removed)
    @rule(number=st.integers(0, MOST_ITEMS - 1))
    def use_again(self, number: int) -> None:
        name, old = self.removed.popitem()
        self.freed.discard(name)
        process = self.opened(name)
        self.sessions[name] = Conversation(process, gone=old.gone, before=len(process.timeline()))
        self.turn(self.last, number)
        one = self.sessions[name]
        # The list that was sent last before is no new request.
        one.before = len(process.timeline()) - 1

    # The oracle

    @invariant()
    def what_was_sent_is_shown_and_restores(self) -> None:
        for name, one in self.sessions.items():
            self.check(name, one, self.store)

    def check(self, name: str, one: Conversation, store: Any, *, is_whole: bool = False) -> None:
        process = self.opened(name, store)
        assert process.verify() == []
        timeline = process.timeline()
        assert len(timeline) == one.before + len(one.requests), name
        for number, (_, sent) in [*enumerate(one.requests, one.before + 1)][:: -1 if is_whole else -3]:
            assert timeline.at(number) == sent, (name, number)
        # The lists before it are its beginnings.
        for items, sent in one.requests[-1:]:
            if refs_in(sent).isdisjoint(one.gone):
                assert process.restore(sent) == originals(items), name
            else:
                with suppress(NotFoundError):
                    assert process.restore(sent) == originals(items), name


Sessions.TestCase.settings = examples(48, stateful_step_count=30)
TestSessions = Sessions.TestCase

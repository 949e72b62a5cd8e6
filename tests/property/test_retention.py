"""Items that are stored, read, pinned, deleted, collected and stored again, against a plain model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from retained import clocked, got_back, message, opened, put, ref_of, text_of
from strength import examples

from offload import ExpiredError, NotFoundError, OffloadError
from offload.engine.policy import Retention
from offload.maintenance.retention import collect, delete, pin, unpin
from offload.records.index.floors import SETTLED_SECONDS
from offload.testing import FaultyStore

GRACE = 100
RULES = Retention(grace=GRACE)
TTLS = {"a": None, "b": 50, "c": 300, "d": 300}
names = st.sampled_from(sorted(TTLS))


@dataclass
class Generation:
    """One time that an item was stored."""

    stored_at: float
    marked_at: float | None = None
    reason: str = ""
    is_emptied: bool = False

    @property
    def is_alive(self):
        return self.marked_at is None


class Session(RuleBasedStateMachine):
    """One session of four items; the clock is the store's."""

    @initialize(codec=st.sampled_from(["zstd", "json", "raw"]))
    def begin(self, codec):
        self.store = clocked()
        self.codec = codec
        self.stored: dict[str, list[Generation]] = {}
        self.placeholders: dict[str, str] = {}
        self.pins: set[str] = set()
        self.session_pin: float | None = None
        self.stayed = opened(self.store)

    def is_alive(self, name):
        return any(generation.is_alive for generation in self.stored.get(name, ()))

    def is_pinned(self, name):
        return self.session_pin is not None or name in self.pins

    def error(self, name):
        """Return the error of a read: gc forgets a deleted record after two weeks at the earliest."""
        marked_at = max(generation.marked_at or 0 for generation in self.stored[name])
        return ExpiredError if self.store.now - marked_at < 2 * SETTLED_SECONDS else NotFoundError

    @rule(name=names)
    def offload(self, name):
        placeholder = put(opened(self.store, ttl=TTLS[name], codec=self.codec), name)
        assert self.placeholders.setdefault(name, placeholder) == placeholder
        # By the clock of this machine every record is expired, so the item is stored as the next generation.
        if not self.is_alive(name) or TTLS[name] is not None:
            self.stored.setdefault(name, []).append(Generation(self.store.now))

    @rule(seconds=st.sampled_from([1, 20, 50, GRACE, 300, SETTLED_SECONDS]))
    def wait(self, seconds):
        self.store.now += seconds

    @rule(fault=st.none() | st.tuples(st.integers(1, 12), st.sampled_from(["before", "after"])))
    def gc(self, fault):
        now = self.store.now
        if fault is not None:
            # A gc that failed is completed by the next one.
            with suppress(OffloadError):
                collect(FaultyStore(self.store, nth=fault[0], moment=fault[1]), RULES)
        collect(self.store, RULES)
        for name, generations in self.stored.items():
            for generation in generations:
                self.collected(name, generation, now)

    def collected(self, name, generation, now):
        ttl = TTLS[name]
        if generation.is_alive:
            is_over = ttl is not None and generation.stored_at + ttl <= now
            if is_over and not self.is_pinned(name):
                generation.marked_at, generation.reason = now, "expired"
        elif not generation.is_emptied and now - generation.marked_at >= GRACE:
            is_pinned = self.session_pin is not None and self.session_pin <= generation.marked_at + GRACE / 2
            if is_pinned and generation.reason == "expired":
                generation.marked_at = None
            else:
                generation.is_emptied = True

    @precondition(lambda self: self.placeholders)
    @rule(data=st.data())
    def pin(self, data):
        name = data.draw(st.sampled_from(sorted(self.placeholders)))
        if self.is_alive(name):
            pin(self.store, "s", ref_of(self.placeholders[name]))
            self.pins.add(name)
        else:
            with pytest.raises(self.error(name)):
                pin(self.store, "s", ref_of(self.placeholders[name]))

    @precondition(lambda self: self.placeholders)
    @rule(data=st.data())
    def unpin(self, data):
        name = data.draw(st.sampled_from(sorted(self.placeholders)))
        unpin(self.store, "s", ref_of(self.placeholders[name]))
        self.pins.discard(name)

    @rule()
    def pin_session(self):
        pin(self.store, "s", must_exist=False)
        self.session_pin = self.session_pin or self.store.now

    @rule()
    def unpin_session(self):
        unpin(self.store, "s", must_exist=False)
        self.session_pin = None

    @precondition(lambda self: any(map(self.is_alive, self.stored)))
    @rule(data=st.data())
    def delete(self, data):
        name = data.draw(st.sampled_from(sorted(filter(self.is_alive, self.stored))))
        delete(self.store, "s", [ref_of(self.placeholders[name])])
        for generation in self.stored[name]:
            if generation.is_alive and not self.is_pinned(name):
                generation.marked_at, generation.reason = self.store.now, "deleted"

    @rule()
    def reopen(self):
        self.stayed = opened(self.store)

    @precondition(lambda self: self.placeholders)
    @rule(data=st.data())
    def read_by_one_who_stayed(self, data):
        name = data.draw(st.sampled_from(sorted(self.placeholders)))
        try:
            [restored] = self.stayed.restore([message(name, self.placeholders[name])])
        except NotFoundError:
            assert not self.is_alive(name)
        else:
            assert restored == message(name, text_of(name))

    @invariant()
    def what_is_alive_is_read_and_the_rest_is_told(self):
        if not hasattr(self, "store"):
            return
        alive = {ref_of(p) for name, p in self.placeholders.items() if self.is_alive(name)}
        assert {info.ref for info in opened(self.store).records()} == alive
        for name, placeholder in self.placeholders.items():
            if self.is_alive(name):
                assert got_back(self.store, name, placeholder)
            else:
                with pytest.raises(self.error(name)):
                    got_back(self.store, name, placeholder)


Session.TestCase.settings = examples(60, stateful_step_count=40)
TestSession = Session.TestCase

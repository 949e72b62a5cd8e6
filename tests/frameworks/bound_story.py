"""The story of an agent whose model binds its thinking: tests of a framework derive from `BoundStory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from frameworks.bound import UNBOUND, models_told, outputs
from frameworks.bound_server import CALLS, Server, check, serving

from offload.messages.thinking import signed_thinking, with_thinking, without_thinking

RUNS = 3


class BoundStory:
    """The tests; `ask` is one run of an agent, which goes on from the messages of the runs before it."""

    # How a run can be made.
    ways: ClassVar[Sequence[Any]] = (None,)
    # Whether the framework sends thinking back that is not shown.
    redacts: ClassVar[bool] = True
    # The model that is told before there is a reply.
    told_first: ClassVar[str | None] = UNBOUND
    # The tests that have no meaning there.
    left_out: ClassVar[tuple[str, ...]] = ()

    server: Server
    store: Any
    # The system prompt.
    instructions = "You sell."

    def __init_subclass__(cls) -> None:
        for name in cls.left_out:
            assert callable(getattr(cls, name))
            setattr(cls, name, None)

    def restart(self) -> None:
        """Make the integration and the agent, at first or as another process from what the host saved."""
        raise NotImplementedError

    def ask(self, text: str, way: Any) -> None:
        """Run the agent, whose tools return what `output` does."""
        raise NotImplementedError

    def restored(self) -> Any:
        """Return the framework's messages with all that left."""
        raise NotImplementedError

    def results(self, messages: Any) -> list[str]:
        """Return the results of the tools."""
        raise NotImplementedError

    def thinking(self, messages: Any) -> int:
        """Return how many blocks of thinking messages have."""
        raise NotImplementedError

    def edit(self) -> None:
        """Change the first result of a tool, as a host may."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "way" in metafunc.fixturenames:
            metafunc.parametrize("way", self.ways)

    def begin(self, server: Server, store: Any) -> None:
        self.server, self.store, self.made = server, store, list[str]()
        self.output = outputs(self.made)
        self.restart()

    @pytest.mark.parametrize("restarts", [False, True])
    def test_nothing_that_was_sent_changes_and_all_is_restored(self, store, way, restarts):
        with serving(redacts=self.redacts) as server:
            self.begin(server, store)
            for n in range(RUNS):
                if restarts and n:
                    self.restart()
                self.ask(f"Question {n}?", way)
            check(server, requests=RUNS * CALLS, thinking=10)
            restored = self.restored()

        assert self.results(restored) == self.made
        assert self.thinking(restored) >= server.thinking_sent()

    def test_a_change_by_the_host_removes_the_thinking_behind_it_and_restore_returns_it(self, store):
        with serving(redacts=self.redacts) as server:
            self.begin(server, store)
            for _ in range(2):
                self.ask("Question?", self.ways[0])
            before = server.thinking_sent()
            self.edit()
            self.ask("Question?", self.ways[0])
            restored = self.restored()

        assert server.refusals == []
        assert 0 < server.thinking_sent() < before
        assert self.thinking(restored) >= before + server.thinking_sent()
        assert self.results(restored)[1:] == self.made[1:]

    def test_the_model_of_the_request_is_told(self, store, monkeypatch):
        told = models_told(monkeypatch)
        with serving(redacts=self.redacts, model=UNBOUND) as server:
            self.begin(server, store)
            self.ask("Question?", self.ways[0])

        assert told == [self.told_first, *[UNBOUND] * (len(told) - 1)]
        assert len(told) >= CALLS


class ConvertedStory:
    """The tests of a framework whose messages are converted to blocks: `module` does it."""

    module: ClassVar[Any]
    # Messages with signed thinking, and how many signatures each has.
    signed: ClassVar[Sequence[tuple[Any, int]]]
    # Messages with thinking that is bound to nothing.
    unsigned: ClassVar[Sequence[Any]]

    def compared(self, message: Any) -> Any:
        """Return what of a message can be compared."""
        return message

    def test_thinking_that_was_removed_comes_back_as_it_was(self):
        for message, count in self.signed:
            old = self.module._blocks_of(message)
            bare, removed = without_thinking(old, signed_thinking(old))
            without = self.module._message_of(message, old, bare)
            assert len(signed_thinking(old)) == count
            assert signed_thinking(self.module._blocks_of(without)) == []
            restored = self.module._message_of(without, bare, with_thinking(bare, removed))
            assert self.compared(restored) == self.compared(message) != self.compared(without)

    def test_thinking_of_models_that_bind_nothing_is_not_signed(self):
        for message in self.unsigned:
            assert signed_thinking(self.module._blocks_of(message)) == []


class RepairedStory(BoundStory):
    """The tests of a framework that shows the error of a provider to a hook, which may ask again."""

    def ask_after_refusal(self, way: Any) -> None:
        """Run the agent; its first request is refused."""
        self.ask("Question?", way)

    def test_thinking_that_a_provider_refuses_is_removed_once_and_restore_returns_it(self, store, way):
        with serving(redacts=self.redacts) as server:
            self.begin(server, store)
            self.ask("Question?", way)
            before = server.thinking_sent()
            self.instructions = "You buy."
            self.restart()
            self.ask_after_refusal(way)
            restored = self.restored()

        # Some clients send a refused request twice themselves.
        [refusal] = {*server.refusals}
        assert "bound to a different conversation" in refusal
        asked = CALLS + len(server.refusals)
        refused, repaired = map(server.signatures, server.requests[asked - 1 : asked + 1])
        assert refused
        assert not repaired
        assert server.thinking_sent()
        assert self.thinking(restored) >= before + server.thinking_sent()

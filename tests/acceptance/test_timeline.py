"""Recorded sessions with restarts, compactions, rewinds and forks: every request is shown as it was sent."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import recorded

from offload import AgentConfig, ContextManager, Offloader
from offload_backends.memory import MemoryStore

pytestmark = recorded.needed

CONFIG = AgentConfig(window_tokens=20_000)


class Run:
    """A loop that is restarted, forked and rewound at random requests, and what each session sent."""

    def __init__(self, session: Any, seed: str) -> None:
        self.store = MemoryStore()
        self.sent: dict[str, list[list[Any]]] = {}
        self._system = session["system"] or ""
        self._messages = session["messages"]
        self._random = random.Random(seed)  # noqa: S311 # no secret

    def play(self) -> None:
        self._continue("s0", Offloader(self.store, session="s0"), [])
        for number in range(1, 4):
            parent = self._random.choice([*self.sent])
            at = self._random.randint(1, len(self.sent[parent]))
            fork = Offloader(self.store, session=parent).fork(f"s{number}", at=at)
            self._continue(f"s{number}", fork, self.sent[parent][:at])

    def _continue(self, name: str, off: Offloader, sent: list[list[Any]]) -> None:
        sent = self.sent[name] = [*sent]
        context = ContextManager(off, CONFIG)
        if sent:
            context.resume()
            assert context.messages == sent[-1]
        for message in self._messages[: self._random.randint(20, 60)]:
            if message["role"] == "assistant":
                if not context.messages:
                    continue
                request = context.before_model_call(system_prompt=self._system)
                if not sent or request.messages != sent[-1]:
                    sent.append(copy.deepcopy(request.messages))
                context.after_model_call(message)
            else:
                context.add(message)
            chance = self._random.random()
            if chance < 0.1 and sent:
                context = ContextManager(Offloader(self.store, session=name), CONFIG)
                context.resume()
            elif chance < 0.13 and sent:
                at = self._random.randint(1, len(sent))
                del sent[at:]
                context.rewind(at)


@pytest.mark.parametrize("path", recorded.each(every=3))
def test_every_request_of_every_session_is_as_it_was_sent(path: Path) -> None:
    run = Run(recorded.load(path), path.stem)
    run.play()
    for name, sent in run.sent.items():
        timeline = Offloader(run.store, session=name).timeline()
        assert len(timeline) == len(sent)
        for number in range(1, len(sent) + 1):
            assert timeline.at(number) == sent[number - 1], (name, number)

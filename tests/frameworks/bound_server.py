"""The Messages API on the loopback interface, of a model that binds its thinking, for clients that name it.

Its model calls the tools of a run one after another, with thinking before most calls, and ends each run with
a text.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from binding import Binding
from frameworks import anthropic_server, bound
from frameworks.scenario import Script, Turn

# The replies of a run.
CALLS = 6


class Server(anthropic_server.Server):
    """The server of a model `model`."""

    model = bound.BOUND

    def answer(self, request: Any) -> Any:
        number = sum(message["role"] == "assistant" for message in request["messages"])
        turn: Turn = bound.call(number)
        if number % CALLS == CALLS - 1 or not request.get("tools"):
            turn = lambda _: f"The answer {number}."  # noqa: E731 # a turn like the others
        self.script = Script([turn])
        return super().answer(request)

    def thinking_sent(self) -> int:
        """Return the blocks of thinking in the last request."""
        return len(self.signatures(self.requests[-1]))

    def signatures(self, request: Any) -> list[str]:
        """Return the signatures of the thinking in a request."""
        assert self.binding is not None
        return self.binding.signatures(request["messages"])

    def blocks(self, number: int) -> int:
        return int(number % 5 != 3)

    def thought(self, number: int, signature: str) -> Any:
        # Some clients send no thinking back whose text is empty.
        made = super().thought(number, signature)
        return made | {"thinking": f"I call number {number}."} if made["type"] == "thinking" else made


@contextmanager
def serving(*, redacts: bool = True, model: str = bound.BOUND) -> Iterator[Server]:
    """Run a server for as long as the block takes; Anthropic's clients that are made meanwhile ask it."""
    given = {"ANTHROPIC_API_KEY": "k"}
    with Server(Script([]), Binding(), redacts=redacts) as server, patch.dict(os.environ, given):
        os.environ["ANTHROPIC_BASE_URL"] = server.url
        server.model = model
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def check(server: Server, *, requests: int, thinking: int) -> None:
    """Check that nothing was refused, that thinking was sent back, and that large results had left."""
    assert server.refusals == []
    assert server.binding is not None
    assert server.binding.checked == len(server.requests) >= requests
    assert server.thinking_sent() >= thinking
    assert "[Offloaded:" in json.dumps(server.requests[-1])

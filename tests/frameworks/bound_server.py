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
from frameworks import anthropic_server
from frameworks.bound import BOUND
from frameworks.scenario import Call, Script

# Tools of a run: one that reads files, which other policies show first, and one that does not.
TOOLS = ("read_report", "query_sales")
# Some results are small, some large.
LINES = (5, 120, 30, 700)
# The replies of a run.
CALLS = 6


def result(n: int) -> str:
    """Return the result of call `n` of a tool; some are small, and none is equal to another."""
    return "\n".join(f"{line}: value_{n}_{line} = {line * 7 % 1000}" for line in range(LINES[n % len(LINES)]))


class Server(anthropic_server.Server):
    """The server of a model `model`."""

    model = BOUND

    def answer(self, request: Any) -> Any:
        number = sum(message["role"] == "assistant" for message in request["messages"])
        call: Call | str = Call(TOOLS[number % len(TOOLS)], {"n": number}, f"toolu_{number}")
        if number % CALLS == CALLS - 1 or not request.get("tools"):
            call = f"The answer {number}."
        self.script = Script([lambda _: call])
        return super().answer(request)

    def thinking_sent(self) -> int:
        """Return the blocks of thinking in the last request."""
        assert self.binding is not None
        return len(self.binding.signatures(self.requests[-1]["messages"]))

    def blocks(self, number: int) -> int:
        return int(number % 5 != 3)

    def thought(self, number: int, signature: str) -> Any:
        # Some clients send no thinking back whose text is empty.
        made = super().thought(number, signature)
        return made | {"thinking": f"I call number {number}."} if made["type"] == "thinking" else made


@contextmanager
def serving(*, redacts: bool = True) -> Iterator[Server]:
    """Run a server for as long as the block takes; Anthropic's clients that are made meanwhile ask it."""
    given = {"ANTHROPIC_API_KEY": "k"}
    with Server(Script([]), Binding(), redacts=redacts) as server, patch.dict(os.environ, given):
        os.environ["ANTHROPIC_BASE_URL"] = server.url
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

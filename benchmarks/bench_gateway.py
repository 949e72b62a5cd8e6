"""A gateway before a provider with a prompt cache: input cost of recorded sessions.

Each recorded session is sent three times to a provider that charges by the published rules of its cache
(`_provider.py`): directly, directly with the retrieval tools in every request, and with them through a
gateway. Those with the provider's usage are sent at their recorded times, and with its recorded misses. The
others have no times; they are in the format of OpenAI and are sent to both of its caches. A model that binds
its thinking signs a block in each reply, and refuses a changed conversation; no request may be refused.

Sessions of a few replies and of many, each with one small result, show what it costs where little can be
saved: they are sent without pauses, and with a system prompt of 12,000 tokens.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple
from unittest.mock import patch

import uvicorn
from _measure import Figure, run
from _provider import CHARS_PER_TOKEN, Provider, serving
from _replay import ANTHROPIC, Replay
from bench_cost import extra_of, gone_of
from peers._conversations import folder
from peers._tables import markdown

from offload import CacheModel, Offloader
from offload.gateway import _turns, gateway_app
from offload.messages import Usage
from offload.replay import Answer, Bill, Recording, Transcript, load

QUICK_MESSAGES = 110
# A session that costs up to this part of its cost without the gateway is not dearer.
_SAME = 1.0005
_PATIENCE = 300.0
# Replies of the sessions with small results, the tokens of a result, and of the system prompt.
_REPLIES, _SMALL, _SYSTEM = (1, 4, 12, 30, 200), 600, 12_000
_WORDS = ["module", "passed", "checks", "finish", "build", "folder", "return", "update", "source", "result"]


class Cost(NamedTuple):
    """What one session cost, in uncached input tokens.

    Attributes:
        name: the session.
        requests: its requests, without read-backs.
        plain: the cost without a gateway.
        with_tools: the cost without a gateway, with the retrieval tools in every request.
        through: the cost through the gateway, with the tools.
        unread: the same if the model reads nothing back.
        bill: the texts that were replaced, the quotes that were gone, and the requests that read back.
        tokens: mean tokens of a request through the gateway, relative to those without it.
    """

    name: str
    requests: int
    plain: float
    with_tools: float
    through: float
    unread: float
    bill: Bill
    tokens: float


@dataclass(frozen=True)
class Way:
    """A provider's cache; `mark` is that of requests to Anthropic, None for OpenAI."""

    name: str
    model: str
    mark: dict[str, str] | None = None


WAYS = (
    Way("Anthropic, marks of 5 minutes", "claude-opus-5", {"type": "ephemeral"}),
    Way("Anthropic, marks of 1 hour", "claude-opus-5", {"type": "ephemeral", "ttl": "1h"}),
    Way("Anthropic, thinking is bound, marks of 5 minutes", "claude-opus-5-5", {"type": "ephemeral"}),
    Way(
        "Anthropic, thinking is bound, marks of 1 hour", "claude-opus-5-5", {"type": "ephemeral", "ttl": "1h"}
    ),
    Way("OpenAI before GPT-5.6", "gpt-5"),
    Way("OpenAI from GPT-5.6 on", "gpt-5.6"),
)


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    yield from _costs(is_quick)
    sessions = [_small(replies) for replies in _REPLIES if not is_quick or replies <= QUICK_MESSAGES]
    costs = [_cost(session, WAYS[0]) for session in sessions]
    yield from _figures_of(replace(WAYS[0], name="Small results"), costs)
    yield Figure(
        "  the dearest / its cost without a gateway", max(c.through / c.plain for c in costs), at_most=1.02
    )


def _small(replies: int) -> Transcript:
    """Return a session in which each reply runs a command with a small result."""
    words = random.Random(replies)  # noqa: S311 # a benchmark repeats its numbers
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Run all steps."}]
    for number in range(replies):
        given = {"command": f"step {number}"}
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": given}
        text = " ".join(words.choices(_WORDS, k=round(_SMALL * CHARS_PER_TOKEN / 7)))
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    messages.append({"role": "assistant", "content": "Done."})
    usage = {1: Answer(0.0, Usage(_SYSTEM))}
    return Transcript(f"{replies} replies", ANTHROPIC, None, messages, usage)


# Cost


def _costs(is_quick: bool) -> Iterator[Figure]:
    files = sorted(folder().glob("trajectories/*/*.json"))
    sessions = [t for file in files for t in load(file) if not is_quick or len(t.messages) <= QUICK_MESSAGES]
    if not sessions:
        print(f"no transcripts in {folder()}: set OFFLOAD_TRANSCRIPTS to a folder of them")
    for way in WAYS:
        costs = [_cost(session, way) for session in sessions if _fits(session, way)]
        if costs:
            yield from _figures_of(way, costs)


def _fits(session: Transcript, way: Way) -> bool:
    return session.format != ANTHROPIC if way.mark is None else bool(session.usage)


def _cost(session: Transcript, way: Way) -> Cost:
    recording = Recording(session, CacheModel().ttl)
    plain, with_tools = (_direct(recording, way, has_tools=has_tools)[0] for has_tools in (False, True))
    unread, _ = _through(recording, way, reads_back=False)
    through, bill = _through(recording, way, reads_back=True)
    costs = (plain.cost, with_tools.cost, through.cost, unread.cost)
    tokens = fmean(c.tokens for c in through.charges) / fmean(c.tokens for c in with_tools.charges)
    return Cost(session.name, len(recording.requests), *costs, bill, tokens)


def _direct(recording: Recording, way: Way, *, has_tools: bool) -> tuple[Replay, Bill]:
    with serving(Provider(keeps=True)) as provider:
        replay = Replay(recording, provider, provider.url, way.model, has_tools, mark=way.mark or {})
        return replay, replay.run()


def _through(recording: Recording, way: Way, *, reads_back: bool) -> tuple[Replay, Bill]:
    with serving(Provider(keeps=True)) as provider:
        replay = Replay(recording, provider, "", way.model, has_tools=True, mark=way.mark or {})
        offloader = Offloader("memory://", session="gateway", clock=lambda: replay.now)
        replay.offloader = offloader if reads_back else None
        # On a busy machine, requests would pass unchanged, and the figures would be others.
        with patch.object(_turns, "DEADLINE", _PATIENCE), running(provider.url, offloader) as replay.url:
            return replay, replay.run()


@contextmanager
def running(upstream: str, offloader: Offloader) -> Iterator[str]:
    """Run a gateway in a thread; yield its URL."""
    app = gateway_app(upstream, offloader)
    config = uvicorn.Config(app, log_config=None, log_level="critical", access_log=False, ws="none")
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _figures_of(way: Way, costs: Sequence[Cost]) -> Iterator[Figure]:
    print(f"\n{way.name}\n")
    header = ["session", "requests", "cost", "without tools", "nor read backs", "tokens", "replaced"]
    header += ["quotes gone", "extra requests"]
    print(markdown(header, [_row(cost) for cost in costs]), flush=True)
    plain, through = sum(c.plain for c in costs), sum(c.through for c in costs)
    decided = through / sum(c.with_tools for c in costs)
    bills = [c.bill for c in costs]
    detail = (
        f"{decided:.3f} without tools, {gone_of(bills)} quotes gone, {extra_of(bills)} extra requests, "
        f"{len(costs)} sessions"
    )
    yield Figure(f"{way.name}: input cost / without a gateway", through / plain, detail=detail)
    yield _dearer("by what was replaced", [c.unread / c.with_tools for c in costs], at_most=0)
    yield _dearer("with read backs", [c.through / c.with_tools for c in costs])
    yield _dearer("with tools and prompt too", [c.through / c.plain for c in costs])


def _dearer(why: str, ratios: Sequence[float], at_most: float | None = None) -> Figure:
    count = sum(ratio > _SAME for ratio in ratios)
    worst = f"the dearest is {max(ratios):.3f} of its cost"
    return Figure(f"  sessions dearer {why}", count, "", at_most=at_most, detail=worst)


def _row(cost: Cost) -> list[str]:
    ratios = (
        cost.through / cost.plain,
        cost.through / cost.with_tools,
        cost.unread / cost.with_tools,
        cost.tokens,
    )
    bill = cost.bill
    counts = [str(len(bill.replaced)), gone_of([bill]), str(bill.reads)]
    return [cost.name, str(cost.requests), *(f"{r:.3f}" for r in ratios), *counts]


if __name__ == "__main__":
    run(__doc__, figures)

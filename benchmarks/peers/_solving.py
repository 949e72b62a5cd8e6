"""A scripted agent at its tasks with one candidate: requests are charged as a prompt cache does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from _provider import CHARS_PER_TOKEN, AnthropicCache
from peers._agent import Message, Step, next_step
from peers._families import Case, cases
from peers._peer import Peer

MOST_REQUESTS = 100
_VERBS = ("find", "lines", "chars", "query", "diff")
_SECONDS_BETWEEN_REQUESTS = 5

Open = Callable[..., Peer]


class WindowFullError(Exception):
    """A request is larger than the window."""


class Conversation:
    """One task of the agent; what a tool returns passes through the candidate before it is a message.

    Attributes:
        requests: the number of requests.
        tokens: their input tokens in all.
        cost: their price in uncached input tokens.
        sent: the messages of each request; the agent's next step follows from them alone.
    """

    def __init__(self, open_peer: Open, case: Case, window: int, without: tuple[str, ...] = ()) -> None:
        """Begin a task; `without` are verbs that the agent is not offered."""
        self._open, self._case, self._window = open_peer, case, window
        self._peer = open_peer()
        verbs = [verb for verb in _VERBS if self._offers(verb) and verb not in without]
        task = {"ops": case["ops"], "verbs": verbs, "page_chars": self._peer.page_chars}
        self._messages: list[Message] = [{"role": "user", "content": json.dumps(task)}]
        self._system = self._peer.instructions()
        self._cache = AnthropicCache()
        self.requests, self.tokens, self.cost = 0, 0.0, 0.0
        self.sent: list[list[Message]] = []

    def run(self) -> str:
        """Return the agent's answer, "" if it has none."""
        reopen_after = [n for n, op in enumerate(self._case["ops"]) if op["op"] == "reopen"]
        calls = 0
        while self.requests < MOST_REQUESTS:
            step = next_step(self._request())
            if "answer" in step:
                return str(step["answer"])
            if step["tool"] == "call":
                shown = self._peer.offload(self._case["outputs"][calls], f"call_{calls}")
                calls += 1
                if calls in reopen_after:
                    self._peer = self._open()
            else:
                shown = self._read_back(step)
            self._messages += [
                {"role": "assistant", "content": json.dumps(step)},
                {"role": "user", "content": shown},
            ]
        return ""

    def _request(self) -> list[Message]:
        results = self._peer.fit([message["content"] for message in self._messages[2::2]])
        sent = [
            {**message, "content": results[number // 2 - 1]} if number and number % 2 == 0 else message
            for number, message in enumerate(self._messages)
        ]
        if (
            len(self._system) + sum(len(message["content"]) for message in sent)
            > self._window * CHARS_PER_TOKEN
        ):
            raise WindowFullError
        *before, last = sent
        marked = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
        request = {"system": self._system, "messages": [*before, {**last, "content": [marked]}]}
        charge = self._cache.charge(request, self.requests * _SECONDS_BETWEEN_REQUESTS)
        self.requests += 1
        self.tokens += charge.tokens
        self.cost += charge.cost
        self.sent.append(sent)
        return sent

    def _read_back(self, step: Step) -> str:
        argument = step["argument"]
        try:
            ref = self._peer.ref(self._shown(step["of"]))
            match step["verb"]:
                case "lines":
                    return self._peer.lines(ref, argument + 1, 200)
                case "chars":
                    return self._peer.chars(ref, argument, 8_192)
                case "diff":
                    return self._peer.diff(self._peer.ref(self._shown(argument)), ref)
                case verb:
                    return str(getattr(self._peer, verb)(ref, argument))
        except Exception as error:  # noqa: BLE001 # whatever a tool raises, a model is shown
            return f"error: {error}"[:400]

    def _shown(self, result: int) -> str:
        steps = map(json.loads, (message["content"] for message in self._messages[1::2]))
        calls = [2 * n + 2 for n, step in enumerate(steps) if step["tool"] == "call"]
        return str(self._messages[calls[result]]["content"])

    def _offers(self, verb: str) -> bool:
        return getattr(type(self._peer), verb) is not getattr(Peer, verb)


def solving(open_peer: Open, task: dict[str, Any]) -> dict[str, Any]:
    """Do a case of each family with each seed, and return how each went."""
    return {"rows": list(_rows(open_peer, task))}


def _rows(open_peer: Open, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for family in task["families"]:
        for seed in task["seeds"]:
            case = cases(family, task["tokens"], seed)

            def opened(session: str = f"{family}-{seed}") -> Peer:
                return open_peer(session=session, least_chars=None)

            talk = Conversation(opened, case, task["window"], tuple(task.get("without", ())))
            try:
                answer = talk.run()
                state = "solved" if answer == case["answer"] else "wrong" if answer else "no answer"
            except WindowFullError:
                state = "window full"
            counted = {"requests": talk.requests, "tokens": talk.tokens, "cost": talk.cost}
            yield {"family": family, "seed": seed, "state": state, **counted}

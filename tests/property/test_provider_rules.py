"""What is sent keeps the rules of each provider: bindings, roles, reasoning items, signatures of calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from binding import Binding
from hypothesis import HealthCheck, given, strategies as st
from provider_rules import check_converse, check_gemini, check_responses
from strength import examples

from offload import Offloader
from offload.agent.compaction import RoundCompactor, RoundConfig

some = examples(15, suppress_health_check=[HealthCheck.too_slow])

LINES = (1, 60, 300, 2000)
TOOLS = ("Read", "Bash", "Grep")


class Step(NamedTuple):
    """A step of a conversation: the calls with the sizes of their results, or a text and a question."""

    results: tuple[int, ...]
    is_question: bool
    thinks: bool


steps = st.builds(
    Step,
    st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map(tuple),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([True, True, False]),
)
conversations = st.lists(steps, min_size=4, max_size=14)


def text(number: int, lines: int) -> str:
    return "\n".join(f"{line}: value_{number}_{line} = {line * 7}" for line in range(lines))


class Provider:
    """The messages of one format, as its model and its host make them, and its check."""

    def __init__(self) -> None:
        self.binding = Binding()
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def calls(self, step: Step) -> list[tuple[int, str]]:
        return [(n := self.next(), text(n, lines)) for lines in step.results]


class Converse(Provider):
    def ask(self) -> list[Any]:
        return [{"role": "user", "content": [{"text": f"question {self.next()}\n{text(self.number, 40)}"}]}]

    def check(self, sent: list[Any]) -> None:
        check_converse(sent)
        self.binding.check(sent)

    def step(self, sent: list[Any], step: Step) -> list[Any]:
        signatures = self.binding.sign(sent, blocks=1 + self.number % 2) if step.thinks else []
        thinking = [
            {"reasoningContent": {"reasoningText": {"text": "so", "signature": each}}} for each in signatures
        ]
        if step.is_question:
            reply = {"role": "assistant", "content": [*thinking, {"text": f"answer {self.next()}"}]}
            return [reply, *self.ask()]
        calls = self.calls(step)
        uses = [
            {"toolUse": {"toolUseId": f"c{n}", "name": TOOLS[n % 3], "input": {"n": n}}} for n, _ in calls
        ]
        results = [{"toolResult": {"toolUseId": f"c{n}", "content": [{"text": got}]}} for n, got in calls]
        return [{"role": "assistant", "content": [*thinking, *uses]}, {"role": "user", "content": results}]


class Responses(Provider):
    def __init__(self) -> None:
        super().__init__()
        self.followers: dict[str, str] = {}

    def ask(self) -> list[Any]:
        return [{"role": "user", "content": f"question {self.next()}\n{text(self.number, 40)}"}]

    def check(self, sent: list[Any]) -> None:
        check_responses(sent, self.followers)

    def step(self, sent: list[Any], step: Step) -> list[Any]:  # noqa: ARG002 # nothing before it is checked
        n = self.next()
        reasoning: dict[str, Any] = {
            "type": "reasoning",
            "id": f"rs_{n}",
            "summary": [],
            "encrypted_content": f"gAAA{n}",
        }
        if step.is_question:
            said = [{"type": "output_text", "text": "answer"}]
            made: list[Any] = [{"type": "message", "id": f"msg_{n}", "role": "assistant", "content": said}]
        else:
            calls = self.calls(step)
            made = [
                {"type": "function_call", "id": f"fc_{c}", "call_id": f"c{c}", "name": TOOLS[c % 3]}
                | {"arguments": f'{{"n": {c}}}'}
                for c, _ in calls
            ]
        if step.thinks:
            self.followers[reasoning["id"]] = made[0]["id"]
            made.insert(0, reasoning)
        if step.is_question:
            return [*made, *self.ask()]
        return [
            *made,
            *({"type": "function_call_output", "call_id": f"c{c}", "output": got} for c, got in calls),
        ]


class Gemini(Provider):
    def __init__(self) -> None:
        super().__init__()
        self.signatures: dict[str, str] = {}

    def ask(self) -> list[Any]:
        return [{"role": "user", "parts": [{"text": f"question {self.next()}\n{text(self.number, 40)}"}]}]

    def check(self, sent: list[Any]) -> None:
        check_gemini(sent, self.signatures)

    def step(self, sent: list[Any], step: Step) -> list[Any]:  # noqa: ARG002 # nothing before it is checked
        if step.is_question:
            return [{"role": "model", "parts": [{"text": "answer", "thoughtSignature": "t"}]}, *self.ask()]
        calls = self.calls(step)
        parts: list[Any] = [
            {"functionCall": {"id": f"c{n}", "name": TOOLS[n % 3], "args": {"n": n}}} for n, _ in calls
        ]
        self.signatures[parts[0]["functionCall"]["id"]] = f"signature {calls[0][0]}"
        parts[0]["thoughtSignature"] = f"signature {calls[0][0]}"
        responses = [
            {"functionResponse": {"id": f"c{n}", "name": TOOLS[n % 3], "response": {"result": got}}}
            for n, got in calls
        ]
        return [{"role": "model", "parts": parts}, {"role": "user", "parts": responses}]


formats = pytest.mark.parametrize("provider_of", [Converse, Responses, Gemini])


@formats
@some
@given(steps=conversations, restarts=st.booleans())
def test_every_request_keeps_the_rules_of_its_provider(
    provider_of: Callable[[], Any], steps: list[Step], restarts: bool
) -> None:
    provider = provider_of()
    off = Offloader("memory://", session="s")
    messages = provider.ask()
    for step in steps:
        off = Offloader(off.store, session="s") if restarts else off
        before = copy.deepcopy(messages)
        out = off.offload(messages)
        assert out.errors == []
        assert messages == before
        provider.check(out.messages)
        assert Offloader(off.store, session="s").restore(out.messages) == messages
        messages = [*messages, *provider.step(out.messages, step)]


@pytest.mark.parametrize("provider_of", [Responses, Gemini])
@some
@given(steps=conversations, at=st.integers(1, 12))
def test_the_rules_hold_after_a_compaction(
    provider_of: Callable[[], Any], steps: list[Step], at: int
) -> None:
    provider = provider_of()
    off = Offloader("memory://", session="s")
    compactor = RoundCompactor(
        off, lambda _: "what happened", RoundConfig(max_context_tokens=1000, require_confirmation=False)
    )
    messages = provider.ask()
    for number, step in enumerate(steps):
        if number == at % len(steps):
            messages = compactor.compact(messages).new_messages
        sent = off.offload(messages).messages
        provider.check(sent)
        messages = [*messages, *provider.step(sent, step)]

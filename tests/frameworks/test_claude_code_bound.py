"""The plugin in the real Claude Code, whose model binds its thinking to all that was sent before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from binding import Binding, BoundError
from frameworks.claude_code import Answer, Request, blocks_of, serving, text, tool
from frameworks.test_claude_code_plugin import GREP, project, ref_in

TURNS = 12
SIZES = (20, 6000, 900, 40_000)


class Provider:
    """Answers with calls of tools after signed thinking, and checks all that comes back."""

    def __init__(self, step: Callable[[Request], Answer]) -> None:
        self.step = step
        self.binding = Binding()
        self.refusals: list[str] = []
        self.sent: list[list[str]] = []

    def answer(self, request: Request) -> Answer:
        # What a text alone means, and that a deferred tool binds nothing, is the provider's business.
        messages = [{**message, "content": blocks_of(message)} for message in request.messages]
        tools = [each for each in request.json["tools"] if not each.get("defer_loading")]
        context: dict[str, Any] = {"system": request.json["system"], "tools": tools}
        try:
            self.binding.check(messages, **context)
        except BoundError as refusal:
            self.refusals.append(str(refusal))
        self.sent.append(request.results)
        signatures = self.binding.sign(messages, **context)
        blocks = tuple({"type": "thinking", "thinking": "So.", "signature": each} for each in signatures)
        return Answer(blocks) + self.step(request)


def step(grep: str) -> Callable[[Request], Answer]:
    """Return what a model does: commands with output of all sizes, and searches of what was stored."""

    def answer(request: Request) -> Answer:
        if request.step % (TURNS + 1) == TURNS:
            return text("done")
        if request.step % 4 == 2:
            return tool(grep, id=ref_in(request.results[-1]), pattern="59")
        return tool("Bash", command=f"seq {request.step} {SIZES[request.step % 4]}")

    return answer


def test_nothing_that_was_sent_changes_also_after_the_conversation_is_resumed(tmp_path: Path) -> None:
    provider = Provider(step(GREP))
    with serving(provider.answer) as api:
        made = project(tmp_path, api)
        ran = made.run()
        refusals = [*provider.refusals]
        thoughts = provider.binding.signatures(api.last.messages)
        # The program leaves thinking out of its first request then, and puts it back.
        made.run("And then?", resume=ran.session)

    assert refusals == []
    assert len(thoughts) == TURNS
    assert len(made.stored()) > 4
    assert len(provider.sent) == 2 * (TURNS + 1)
    for before, after in zip(provider.sent, provider.sent[1:], strict=False):
        assert after[: len(before)] == before

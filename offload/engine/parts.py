"""The parts of one message of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from offload.engine.items import Slot
from offload.messages import Thinking
from offload.messages.calls import Before, Made


class Kept(NamedTuple):
    """A part of a message that is never offloaded, and the tokens of its texts; see `Fixed`."""

    where: str
    kind: str
    tokens: int
    is_said: bool


class LatestTexts(NamedTuple):
    """The beginning of the latest text of each role, with tool-call arguments."""

    assistant: str = ""
    user: str = ""

    def after(self, role: str, text: str) -> LatestTexts:
        """Return the latest texts after a message with a text, which may be empty."""
        if not text or role not in self._fields:
            return self
        return LatestTexts(text, self.user) if role == "assistant" else LatestTexts(self.assistant, text)


class MessageState(msgspec.Struct, eq=False):
    """The parts of one message, and what the log knows at its place.

    Attributes:
        fixed_tokens: tokens of its parts that are not items, which are `kept`.
        calls: the tool calls that it makes.
        results: the tools that its results name, by the ids of their calls.
        text: the beginning of its text, with the arguments of its calls.
        thinking: the signed blocks of thinking in it.
        blocks: its content blocks, see `block_count`.
        answers: number of assistant messages up to and including this one.
        texts: the latest texts up to and including this message.
        left_out: tokens of its thinking that is left out of what the caller receives; None if it is not.
        before: what the log knew of calls before it.
        tokens: tokens of all its texts as they were passed.
    """

    slots: list[Slot]
    fixed_tokens: int
    calls: Sequence[Made]
    results: Mapping[str, Sequence[str | None]]
    role: str
    text: str = ""
    thinking: Sequence[Thinking] = ()
    kept: Sequence[Kept] = ()
    blocks: int = 1
    answers: int = 0
    texts: LatestTexts = LatestTexts()
    left_out: int | None = None
    before: Before | None = None
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.fixed_tokens + sum([slot.decision.item.tokens for slot in self.slots])

"""The parts of one message of the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from offload.engine.items import Slot
from offload.messages import Call, Thinking
from offload.messages.calls import CallId


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


class MessageState(msgspec.Struct, eq=False):
    """The parts of one message of the history.

    Attributes:
        fixed_tokens: tokens of its parts that are not items, which are `kept`.
        calls: the tool calls that it makes.
        answers: number of assistant messages up to and including this one.
        texts: the latest texts up to and including this message.
        thinking: the signed blocks of thinking in it.
        left_out: tokens of its thinking that is left out of what the caller receives; None if it is not.
        replaced_calls: the earlier calls of the same ids, to undo `calls`.
        tokens: tokens of all its texts as they were passed.
    """

    slots: list[Slot]
    fixed_tokens: int
    calls: dict[CallId, Call]
    answers: int
    role: str
    texts: LatestTexts = LatestTexts()
    thinking: Sequence[Thinking] = ()
    kept: Sequence[Kept] = ()
    left_out: int | None = None
    replaced_calls: dict[CallId, Call | None] = msgspec.field(default_factory=dict)
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.fixed_tokens + sum([slot.decision.item.tokens for slot in self.slots])

"""The input of a policy, facts about one item, and its output, a decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from offload.engine.policy.reasons import Reason, ReasonKind
from offload.messages.base import BlockIndex

Action = Literal["offload", "keep", "wait"]
Readers = Literal["offload", "keep"]
CostPlanItems = Literal["none", "small", "all"]
PolicyName = Literal["balanced", "economy", "verbatim", "archive"]
# Written by the model: sent back to the provider unchanged.
WRITTEN_BY_MODEL = ("assistant_message", "tool_call")


class ItemFacts(NamedTuple):
    """Facts about an item.

    Attributes:
        message: index of the message in the list.
        block: index of the block in the message's content; None if the content is one value, a pair for a
            block inside a tool result that is a block.
        item_type: type of the item.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        chars: number of characters.
        bytes: number of UTF-8 bytes; None unless a rule of the policy needs it.
        tokens: number of tokens by the offloader's counter.
        is_error: whether the tool reported a failure.
        is_stored: whether the item is already a placeholder.
        answers: number of assistant messages after it, that is, of replies with the item in view.
        newer: number of later items of the same type and tool.
        is_pinned: whether the caller pinned its tool call.
        is_pending: whether the item is not finished yet.
        was_stored: whether the session has a record of it, from an earlier offload.
        media_type: type of an image or document, whose `tokens` are an estimate and whose `bytes` are those
            of the file; None for a text.
        is_report: whether it is the report of a background task; its threshold decides before it is first
            sent, and the expected cost does not count.
        is_programmatic: whether code written by the model made the tool call and reads the result.
    """

    message: int
    block: BlockIndex
    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    chars: int
    bytes: int | None
    tokens: int
    is_error: bool = False
    is_stored: bool = False
    answers: int = 0
    newer: int = 0
    is_pinned: bool = False
    is_pending: bool = False
    was_stored: bool = False
    media_type: str | None = None
    is_programmatic: bool = False
    is_report: bool = False


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A decision on one item, with the reason.

    Attributes:
        item: the facts it is based on.
        action: "offload", "keep", or "wait": offload after later replies of the model.
        reason: the reason; `str(reason)` is its text for a person.
        preview_chars: maximum characters of preview in the placeholder.
        names_chars: maximum characters of names after the preview.
        ref: id of the record whose placeholder replaces the item; None while the message has the item.
        tokens_after: tokens of the text in the message: the item or its placeholder.
        ttl: minimum lifetime of the record in seconds; None is unlimited.
        is_exempt: whether the item is kept at any size, even above `OffloadPolicy.max_view_tokens`.
        is_by_cost: whether `Offloader.offload` decides by the expected cost instead.
    """

    item: ItemFacts
    action: Action
    reason: Reason
    preview_chars: int
    ref: str | None
    tokens_after: int
    ttl: int | None = None
    is_exempt: bool = False
    is_by_cost: bool = False
    names_chars: int = 0

    @property
    def is_below(self) -> bool:
        """Whether a text is kept only for its size or cost; a sweep may offload it."""
        return (
            self.action == "keep"
            and self.reason.kind in (ReasonKind.TOO_SMALL, ReasonKind.NOT_YET)
            and self.item.media_type is None
        )


def explain(decisions: Iterable[Decision]) -> str:
    """Return the decisions as a table of plain text, one line per item."""
    head = f"{'item':>8}  {'type':18} {'tool':20} {'tokens':>8} {'after':>8}  decision"
    lines = [
        f"{_position(d.item):>8}  {d.item.item_type:18} {(d.item.tool_name or '-')[:20]:20} "
        f"{d.item.tokens:8} {d.tokens_after:8}  {d.action}: {d.reason}"
        for d in decisions
    ]
    return "\n".join([head, *lines])


def _position(item: ItemFacts) -> str:
    block = item.block if isinstance(item.block, tuple) else (item.block,)
    return ".".join(str(n) for n in (item.message, *block) if n is not None)

"""What a policy decides on, and what it decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from offload.messages import Block

Action = Literal["offload", "keep", "wait"]


class ItemFacts(NamedTuple):
    """What a policy may know of an item.

    Attributes:
        message: index of the message in the list.
        block: index of the block in the message's content, None where the content is one value; a pair for
            a block in the content of a tool's result that is a block itself.
        item_type: what kind of part of a message it is.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        chars: its characters.
        bytes: its bytes as UTF-8; None where no rule of the policy asks for them.
        tokens: its tokens by the session's counter.
        is_error: whether the tool reported a failure.
        is_stored: whether it is a placeholder already.
        answers: how many assistant messages follow it: how often the model saw it and answered.
        newer: how many later items of the same type and tool there are.
        is_pinned: whether the caller wants it in view.
        is_pending: whether it is not finished yet.
        was_stored: whether the session holds a record of it: it left the messages before.
        is_standing: whether the placeholder of that record stands elsewhere in the list.
        media_type: type of an image or a document, whose tokens are an estimate and whose bytes are its own;
            None for a text.
        is_programmatic: whether code that the model wrote made the call, and reads what it returns.
    """

    message: int
    block: Block
    item_type: str
    tool_name: str | None
    tool_use_id: str | None
    chars: int
    bytes: int | None
    tokens: int
    is_error: bool
    is_stored: bool
    answers: int
    newer: int = 0
    is_pinned: bool = False
    is_pending: bool = False
    was_stored: bool = False
    is_standing: bool = False
    media_type: str | None = None
    is_programmatic: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one item, and why.

    Attributes:
        item: the facts that were decided on.
        action: "offload"; "keep"; "wait", which becomes "offload" once the model has seen the item.
        reason: the reason in words, for a person.
        preview_chars: how many characters of preview the placeholder may show.
        ref: the record that now stands for the item; None while it is in the message.
        tokens_after: tokens of what stands in the message.
        ttl: for how many seconds its record is kept at least; None for good.
        is_below: whether it is kept for its size alone, so that it may still leave with others.
        is_exempt: whether it stays whatever its size, above `OffloadPolicy.max_view_tokens` too.
    """

    item: ItemFacts
    action: Action
    reason: str
    preview_chars: int
    ref: str | None
    tokens_after: int
    ttl: int | None = None
    is_below: bool = False
    is_exempt: bool = False


def explain(decisions: Iterable[Decision]) -> str:
    """Return the decisions as a table of plain text, one item a line."""
    head = f"{'item':>8}  {'type':18} {'tool':20} {'tokens':>8} {'after':>8}  decision"
    lines = [
        f"{_place(d.item):>8}  {d.item.item_type:18} {(d.item.tool_name or '-')[:20]:20} "
        f"{d.item.tokens:8} {d.tokens_after:8}  {d.action}: {d.reason}"
        for d in decisions
    ]
    return "\n".join([head, *lines])


def _place(item: ItemFacts) -> str:
    block = item.block if isinstance(item.block, tuple) else (item.block,)
    return ".".join(str(n) for n in (item.message, *block) if n is not None)

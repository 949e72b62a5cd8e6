"""The parts of a framework's message as blocks of the Bedrock Converse format, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from offload.messages.bedrock import PART
from offload.messages.thinking import signed_thinking

Block = dict[str, Any]


def changed_parts(
    pairs: Sequence[tuple[Any, Sequence[Block]]],
    blocks: Sequence[Block],
    with_block: Callable[[Any, Block], Any],
    built: Callable[[Block], Any],
) -> list[Any]:
    """Return the parts of a message whose content is `blocks` now.

    Parts keep their order. Signed thinking may have been removed, and a text replaces it if all of it was; a
    restored message has the thinking again.

    Args:
        pairs: each part with its blocks: one, or those of `signed_blocks`.
        blocks: the content of the message after `offload` or `restore`.
        with_block: returns a part with another text, arguments or result.
        built: returns the part of a block that the message did not have: a text, or a block with `PART`.
    """
    plain = iter([(part, own[0]) for part, own in pairs if not _is_signed(own[0])])
    signed = [(part, own[0]) for part, own in pairs if _is_signed(own[0])]
    parts = []
    for block in blocks:
        if PART in block:
            parts.append(next((part for part, own in signed if own == block), None) or built(block))
        elif not _is_signed(block):
            part, before = next(plain, (None, None))
            parts.append(
                part if before == block else built(block) if part is None else with_block(part, block)
            )
    return parts


def _is_signed(block: Block) -> bool:
    return bool(signed_thinking({"content": [block]}))

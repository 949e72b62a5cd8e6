"""The parts of a framework's message as blocks of the Bedrock Converse format, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

    Parts keep their order; signed thinking may have left, and a text is there if all of it left, or the
    other way round, if the message is restored.

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


def paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[int | None, Any]]:
    """Yield each block of `new` and the index of the block of `old` in its place.

    `new` is what `offload` or `restore` made of `old`: signed thinking may be missing or may be back. The
    index is None for thinking that is back, and for the text in place of nothing but thinking.
    """
    before, after = _keys(old), _keys(new)
    stay = [i for i in range(len(old["content"])) if i not in before or before[i] in after.values()]
    indices = iter(stay)
    for at, block in enumerate(new["content"]):
        is_back = at in after and after[at] not in before.values()
        yield None if is_back else next(indices, None), block


def _keys(message: Mapping[str, Any]) -> dict[int, str]:
    return {int(one.path[-1]): one.key for one in signed_thinking(message)}

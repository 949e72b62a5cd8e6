"""Messages of frameworks in the Bedrock format: which of their parts a block is, once thinking has left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offload.messages import signed_thinking


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

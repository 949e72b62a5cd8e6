"""A tool's result as one text, whatever the shape: one string, or a list of blocks with texts among them.

The texts of several blocks become one item, joined by newlines, and so one placeholder; images and
other blocks stay where they are. How to take the text apart again is kept as the item's form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from offload.messages._base import blocks_of, changed, get, like, text_of, type_of


def read(content: Any, where: str) -> tuple[str, str | None] | None:
    """Return the text of a tool's result and its form, or None if it holds none that can leave.

    Raises `MessageError` if the content is malformed.
    """
    if content is None:
        return None
    if isinstance(content, str):
        return content, None
    blocks = blocks_of(content, where)
    kinds = [type_of(b, f"{where}[{i}]") for i, b in enumerate(blocks)]
    texts = [
        text_of(b, f"{where}[{i}]") if kind == "text" else None
        for i, (b, kind) in enumerate(zip(blocks, kinds, strict=True))
    ]
    found = [t for t in texts if t is not None]
    if not found:
        return None
    if len(found) == 1:
        return found[0], None
    form = _form(blocks, texts)
    return None if form is None else ("\n".join(found), form)


def replace(content: Any, text: str) -> Any:
    """Return `content` with `text` in the place of its first text, and without its other texts."""
    if isinstance(content, str):
        return text
    blocks: list[Any] = []
    is_placed = False
    for block in content:
        if get(block, "type") != "text":
            blocks.append(block)
        elif not is_placed:
            blocks.append(changed(block, "text", text))
            is_placed = True
    return like(content, blocks)


def restore(content: Any, text: str, form: str | None) -> Any:
    """Return what `content` was before `replace`; blocks that were added since stay at the end."""
    if isinstance(content, str) or form is None:
        return replace(content, text)
    placed = next(b for b in content if get(b, "type") == "text")
    others = (b for b in content if b is not placed)
    blocks = list(_rebuild(json.loads(form), text, placed, others))
    return like(content, [*blocks, *others])


def _form(blocks: list[Any], texts: list[str | None]) -> str | None:
    """Return, as JSON, null per block that stays and [characters, other fields] per text.

    None if a text block cannot be told in JSON: then nothing could rebuild it.
    """
    rows: list[list[Any] | None] = []
    for block, text in zip(blocks, texts, strict=True):
        if text is None:
            rows.append(None)
        elif not isinstance(block, dict):
            return None
        else:
            rows.append([len(text), {k: v for k, v in block.items() if k != "text"}])
    try:
        form = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
    return form if json.loads(form) == rows else None


def _rebuild(rows: list[Any], text: str, placed: Any, others: Iterator[Any]) -> Iterator[Any]:
    start, is_first = 0, True
    for row in rows:
        if row is None:
            yield from (b for b in [next(others, None)] if b is not None)
            continue
        chars, rest = row
        part = text[start : start + chars]
        start += chars + len("\n")
        # The first block never left: it may carry what the caller put on it since.
        yield changed(placed, "text", part) if is_first else {**rest, "text": part}
        is_first = False

"""Tool results as one text, from one string or from the text blocks of a list, joined by newlines.

Images and other blocks are kept. The item's form records how to split the text again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from offload.messages._shapes import ItemText, Shape
from offload.messages.access import (
    Path,
    blocks_of,
    built_like,
    fields_of,
    sequence_like,
    text_of,
    type_of,
    with_field,
)
from offload.messages.media import Media, media_ref


class ResultBlocks(Shape):
    """The content of a tool result, in blocks that name their type; that of text blocks is `text_type`."""

    def __init__(self, media: Media, text_type: str = "text") -> None:
        self.media = media
        self._text_type = text_type

    def read(self, content: Any, where: str) -> ItemText | None:
        """Return the text of a content and its form, None if its texts cannot be restored exactly."""
        if content is None:
            return None
        if isinstance(content, str):
            return ItemText(content)
        blocks = blocks_of(content, where)
        texts = [self._own_text(block, f"{where}[{i}]") for i, block in enumerate(blocks)]
        text_blocks = [(b, t) for b, t in zip(blocks, texts, strict=True) if t is not None]
        if not text_blocks:
            return None
        text = "\n".join(t for _, t in text_blocks)
        if len(text_blocks) == 1 and self.with_text(text_blocks[0][0], text) == text_blocks[0][0]:
            return ItemText(text)
        return self.proven(content, text, partial(self._form, content, texts))

    def places(self, content: Any) -> Iterable[Path]:
        if isinstance(content, str):
            return ((),)
        texts = ((i, b) for i, b in enumerate(content) if self._own_text(b, "content") is not None)
        return [(i,) if isinstance(b, str) else (i, *self.text_field(b)) for i, b in texts]

    def replace(self, content: Any, text: str) -> Any:
        """Return `content` with `text` in place of its first text, and without its other texts."""
        if isinstance(content, str):
            return text
        first, *others = (i for i, b in enumerate(content) if self._own_text(b, "content") is not None)
        blocks = list(content)
        blocks[first] = self.with_text(blocks[first], text)
        for index in reversed(others):
            del blocks[index]
        return sequence_like(content, blocks)

    def restore(self, content: Any, text: str, form: str | None) -> Any:
        """Return the content before `replace`; blocks that were added since are kept at the end."""
        if isinstance(content, str) or form is None:
            return self.replace(content, text)
        first = next(i for i, b in enumerate(content) if self._own_text(b, "content") is not None)
        others = iter([*content[:first], *content[first + 1 :]])
        blocks = list(self._rebuild(json.loads(form), text, content[first], others))
        return sequence_like(content, [*blocks, *others])

    def text(self, block: Any, where: str) -> str | None:
        """Return the text of a block, None if it has none. Raises `MessageError` if it is malformed."""
        return text_of(block, where) if type_of(block, where) == self._text_type else None

    def text_field(self, block: Any) -> Path:  # noqa: ARG002 # for formats with other texts
        """Return the path to the text in a block that is not a string."""
        return ("text",)

    def rest(self, block: Any, *, is_ordered: bool = False) -> Any:
        """Return the other fields of a text block, for JSON: none of a string, a string for other blocks.

        If ordered, the text's own field is among them.
        """
        return None if isinstance(block, str) else fields_of(block, without="text", is_ordered=is_ordered)

    def with_text(self, block: Any, text: str) -> Any:
        """Return a block with `text` in place of its own."""
        return text if isinstance(block, str) else with_field(block, "text", text)

    def build(self, rest: Any, text: str, like_block: Any) -> Any:
        """Return a block of `text` and the fields `rest`, of the same kind as `like_block`."""
        return text if rest is None else built_like(like_block, {**rest, "text": text})

    def _own_text(self, block: Any, where: str) -> str | None:
        """Return the text of a block, None for the placeholder of an image: that is an item of its own."""
        text = self.text(block, where)
        return None if text is not None and media_ref(text) else text

    def _form(self, content: Any, texts: list[str | None], *, is_ordered: bool) -> Any:
        """Return null per block that is kept and [characters, rest] per text."""
        return [
            None if text is None else [len(text), self.rest(block, is_ordered=is_ordered)]
            for block, text in zip(content, texts, strict=True)
        ]

    def _rebuild(self, rows: list[Any], text: str, placed: Any, others: Iterator[Any]) -> Iterator[Any]:
        start, is_first = 0, True
        for row in rows:
            if row is None:
                yield from (b for b in [next(others, None)] if b is not None)
                continue
            chars, rest = row
            part = text[start : start + chars]
            start += chars + len("\n")
            # The first text block was kept, unless it was none: the caller may have added fields to it since.
            is_kept = is_first and not isinstance(rest, str)
            yield self.with_text(placed, part) if is_kept else self.build(rest, part, placed)
            is_first = False

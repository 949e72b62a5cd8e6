"""Tool results as one text, from one string or from the text blocks of a list, joined by newlines.

Images and other blocks are kept. The item's form records how to split the text again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import is_
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
from offload.messages.marks import is_mark_block, marks_of, with_marks, without_marks
from offload.messages.media import Media, media_ref

# In a form, a block that is a mark of the cache.
_POINT = "mark"


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
        return self.proven(content, text, self._form, self._bare(content))

    def places(self, content: Any) -> Iterable[Path]:
        if isinstance(content, str):
            return ((),)
        texts = ((i, b) for i, b in enumerate(content) if self._own_text(b, "content") is not None)
        return [(i,) if isinstance(b, str) else (i, *self.text_field(b)) for i, b in texts]

    def replace(self, content: Any, text: str) -> Any:
        """Return `content` with `text` in place of its first text, and without its other texts.

        The last mark of the cache on one of them is on the new text.
        """
        if isinstance(content, str):
            return text
        first, *others = (i for i, b in enumerate(content) if self._own_text(b, "content") is not None)
        blocks = list(content)
        marks = [marks for i in (first, *others) if (marks := marks_of(blocks[i]))]
        blocks[first] = self.with_text(blocks[first], text)
        if others and marks:
            blocks[first] = with_marks(blocks[first], marks[-1])
        for index in reversed(others):
            del blocks[index]
        return sequence_like(content, blocks)

    def restore(self, content: Any, text: str, form: str | None) -> Any:
        """Return the content before `replace`; blocks that were added since are kept at the end.

        Marks of the cache that the form does not have are on the last text, and before the next block.
        """
        if isinstance(content, str) or form is None:
            return self.replace(content, text)
        all_rows = json.loads(form)
        rows = [row for row in all_rows if row != _POINT]
        blocks = [block for block in content if not is_mark_block(block)]
        first = next(i for i, b in enumerate(blocks) if self._own_text(b, "") is not None)
        others = iter([*blocks[:first], *blocks[first + 1 :]])
        restored = [*self._rebuild(rows, text, blocks[first], others), *others]
        if len(blocks) < len(content):
            _put_points(restored, content, all_rows, first)
        return sequence_like(content, restored)

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

    def _bare(self, content: Any) -> Any:
        """Return a content without the marks of its texts and blocks; itself if it has none."""
        bare = [b if self._own_text(b, "") is None else without_marks(b) for b in content]
        bare = [block for block in bare if not is_mark_block(block)]
        is_same = len(bare) == len(content) and all(map(is_, bare, content))
        return content if is_same else sequence_like(content, bare)

    def _form(self, content: Any, *, is_ordered: bool) -> Any:
        """Return [characters, rest] per text, `_POINT` per block that is a mark, null per other block."""
        texts = [(block, self._own_text(block, "")) for block in content]
        return [
            [len(text), self.rest(block, is_ordered=is_ordered)]
            if text is not None
            else _POINT
            if is_mark_block(block)
            else None
            for block, text in texts
        ]

    def _rebuild(self, rows: list[Any], text: str, placed: Any, others: Iterator[Any]) -> Iterator[Any]:
        marks = {i: marks_of(row[1]) for i, row in enumerate(rows) if row is not None}
        if not any(marks.values()):
            marks[max(marks)] = marks_of(placed)
        start, is_first = 0, True
        for place, row in enumerate(rows):
            if row is None:
                yield from islice(others, 1)
                continue
            chars, rest = row
            part = text[start : start + chars]
            start += chars + len("\n")
            # The first text block was kept, unless it was none: the caller may have added fields to it since.
            is_kept = is_first and not isinstance(rest, str)
            built = self.with_text(placed, part) if is_kept else self.build(rest, part, placed)
            yield with_marks(built, marks[place])
            is_first = False


def _put_points(restored: list[Any], content: Any, rows: Sequence[Any], first: int) -> None:
    """Put the blocks of a content that are marks into the restored one.

    They are where `rows` has them, else before the block that followed them; `first` is the index of the
    first text among the other blocks of the content.
    """
    points = [block for block in content if is_mark_block(block)]
    at = [place for place, row in enumerate(rows) if row == _POINT]
    if len(at) != len(points):
        rows = [row for row in rows if row != _POINT]
        texts = [place for place, row in enumerate(rows) if row is not None]
        kept = [place for place in range(len(restored)) if place not in texts]
        following = [*kept[:first], texts[0], *kept[first:], len(restored)]
        before = [
            sum(not is_mark_block(b) for b in content[:i]) for i, b in enumerate(content) if is_mark_block(b)
        ]
        at = [following[count] + number for number, count in enumerate(before)]
    for place, point in zip(at, points, strict=True):
        restored.insert(place, point)

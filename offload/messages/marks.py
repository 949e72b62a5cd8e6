"""Marks of the prompt cache: fields and blocks that a client adds, moves and removes between requests.

They are neither content nor part of an item. Anthropic and its routers have `cache_control` in a block,
OpenAI has `prompt_cache_breakpoint`, LangChain may keep either in `extras`; Bedrock has blocks `cachePoint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from offload.base.patterns import lazy_pattern
from offload.messages.access import built_like, fields_of, parts_of

# The name of a mark; a text is none, such as the HTTP header of that name.
_NAME = lazy_pattern(
    r"(?:prompt[_-]?)?cache[_-]?(?:control|(?:break|check)?point|mark(?:er)?|boundary|hint)", re.IGNORECASE
)
# No API has longer marks; a longer value is a text that somebody reads.
_MOST_CHARS = 256
# A field of a block with fields that its API does not define.
_EXTRAS = "extras"


def is_mark(name: Any, value: Any) -> bool:
    """Return whether a field of a block, or of a message, is a mark."""
    if not isinstance(name, str) or "ache" not in name:
        return False
    return not isinstance(value, str | list) and _NAME.fullmatch(name) is not None and _is_short(value)


def is_mark_block(block: Any) -> bool:
    """Return whether a block is nothing but a mark."""
    if not isinstance(block, Mapping) or not block:
        return False
    kind = block.get("type")
    is_named = isinstance(kind, str) and "ache" in kind and _NAME.fullmatch(kind) is not None
    return (is_named and _is_short(block)) or all(is_mark(name, value) for name, value in block.items())


def marks_of(block: Any) -> dict[str, Any]:
    """Return the marks in the fields of a block, and in its `extras`."""
    if isinstance(block, str | bytes) or block is None:
        return {}
    marks = {}
    for name, value in parts_of(block):
        if is_mark(name, value):
            marks[name] = value
        elif name == _EXTRAS and isinstance(value, Mapping) and (more := marks_of(value)):
            marks[name] = more
    return marks


def without_marks(block: Any) -> Any:
    """Return a block without its marks; itself if it has none."""
    return with_marks(block, {}) if marks_of(block) else block


def with_marks(block: Any, marks: Mapping[str, Any]) -> Any:
    """Return a block with `marks` in place of its own."""
    if isinstance(block, str) or marks_of(block) == marks:
        return block
    fields = _bare(block if isinstance(block, dict) else fields_of(block, without=""))
    extras = marks.get(_EXTRAS, {})
    merged = {_EXTRAS: {**fields.get(_EXTRAS, {}), **extras}} if extras else {}
    return built_like(block, {**fields, **marks, **merged})


def _is_short(value: Any) -> bool:
    return len(repr(value)) <= _MOST_CHARS


def _bare(fields: Mapping[str, Any]) -> dict[str, Any]:
    bare = {name: value for name, value in fields.items() if not is_mark(name, value)}
    extras = bare.get(_EXTRAS)
    if isinstance(extras, Mapping) and (left := _bare(extras)) != extras:
        if left:
            bare[_EXTRAS] = left
        else:
            del bare[_EXTRAS]
    return bare

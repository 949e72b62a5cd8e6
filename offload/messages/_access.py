"""Reading and changing what providers send: mappings and SDK objects alike, and never in place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from offload.errors import MessageError

Path = tuple[str | int, ...]


def get(thing: Any, name: str) -> Any:
    """Return the field `name` of a mapping or of an SDK's object, None if it has none."""
    if isinstance(thing, Mapping):
        return thing.get(name)
    return getattr(thing, name, None)


def changed(thing: Any, name: str, value: Any) -> Any:
    """Return a copy of a mapping or of an SDK's object with the field `name` set to `value`."""
    if hasattr(thing, "model_copy"):
        return thing.model_copy(update={name: value})
    copied = copy.copy(thing)
    if isinstance(thing, Mapping):
        copied[name] = value
    else:
        setattr(copied, name, value)
    return copied


def edited(thing: Any, path: Path, edit: Callable[[Any], Any]) -> Any:
    """Return a copy of `thing` with the value at `path` (fields and indices) as `edit` makes it."""
    if not path:
        return edit(thing)
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        return changed(thing, step, edited(get(thing, step), rest, edit))
    values = list(thing)
    values[step] = edited(values[step], rest, edit)
    return like(thing, values)


def like(content: Any, blocks: list[Any]) -> Any:
    """Return `blocks` as the kind of sequence that `content` is."""
    return tuple(blocks) if isinstance(content, tuple) else blocks


def count_blocks(content: Any) -> int:
    """Return how many blocks a content has: none if it is one string."""
    return len(content) if isinstance(content, list | tuple) else 0


def role_of(message: Any, where: str = "message") -> str:
    """Return the role of `message`. Raises `MessageError` if it has none."""
    role = get(message, "role")
    if not isinstance(role, str):
        raise MessageError(
            f'{where}: expected a message with a string "role", got {type(message).__name__} '
            f"with role {role!r:.40}"
        )
    return role


def text_of(block: Any, where: str) -> str:
    """Return the text of a text block. Raises `MessageError` if it is no string."""
    text = get(block, "text")
    if not isinstance(text, str):
        raise MessageError(f'{where}: a text block needs a string "text", got {type(text).__name__}')
    return text


def type_of(block: Any, where: str) -> str:
    """Return the type of a content block. Raises `MessageError` if it has none."""
    kind = get(block, "type")
    if not isinstance(kind, str):
        raise MessageError(
            f'{where}: expected a content block with a string "type", got {type(block).__name__} '
            f"with type {kind!r:.40}"
        )
    return kind


def blocks_of(content: Any, where: str) -> list[Any]:
    """Return the blocks of a content that is a list. Raises `MessageError` for anything else."""
    if not isinstance(content, list | tuple):
        raise MessageError(f"{where}: expected a string or a list of blocks, got {type(content).__name__}")
    return list(content)


def string_or_none(value: Any) -> str | None:
    """Return `value` if it is a string."""
    return value if isinstance(value, str) else None


def is_by_code(call: Any) -> bool:
    """Tell whether code that the model wrote made a tool call, and so reads what it returns."""
    caller = get(call, "caller") or get(get(call, "extras"), "caller")
    kind = get(caller, "type")
    return isinstance(kind, str) and kind != "direct"


def json_text(value: Any) -> str:
    """Return `value` as the model sees it; what has no JSON, which no API takes, counts as nothing."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""

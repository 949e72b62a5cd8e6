"""Access to provider messages: read, compare and copy mappings and SDK objects, and never change them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, count, pairwise
from operator import is_not
from typing import Any

from offload.errors import MessageError

Path = tuple[str | int, ...]


def get(thing: Any, name: str) -> Any:
    """Return the field `name` of a mapping or an SDK object, None if it has none."""
    # In this order: most are dicts, many are absent, and the check of a protocol is slow.
    if isinstance(thing, dict):
        return thing.get(name)
    if thing is None:
        return None
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def at(thing: Any, path: Path) -> Any:
    """Return the value at `path` in a message, None if it has none there."""
    for step in path:
        if isinstance(step, str):
            if isinstance(thing, dict):
                thing = thing.get(step)
            else:
                thing = None if isinstance(thing, str) else get(thing, step)
        else:
            thing = thing[step]
    return thing


def parts_of(thing: Any) -> Iterable[tuple[Any, Any]]:
    """Return the names or indices and the values in a container or an SDK object; none of a single value."""
    if isinstance(thing, dict):
        return thing.items()
    if isinstance(thing, list | tuple | set | frozenset):
        return enumerate(thing)
    if isinstance(thing, Mapping):
        return thing.items()
    fields = getattr(thing, "__dict__", None)
    if fields is None or isinstance(thing, type) or callable(thing):
        return ()
    more = getattr(thing, "__pydantic_extra__", None) or {}
    return ((name, value) for name, value in {**fields, **more}.items() if not name.startswith("_"))


def with_field(thing: Any, name: str, value: Any) -> Any:
    """Return a copy of a mapping or an SDK object with the field `name` set to `value`."""
    if hasattr(thing, "model_copy"):
        return thing.model_copy(update={name: value})
    copied = copy.copy(thing)
    if isinstance(thing, Mapping):
        copied[name] = value
    else:
        setattr(copied, name, value)
    return copied


def edit_at(thing: Any, path: Path, edit: Callable[[Any], Any]) -> Any:
    """Return a copy of `thing` in which `edit` was applied to the value at `path` (fields and indices)."""
    if not path:
        return edit(thing)
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        return with_field(thing, step, edit_at(get(thing, step), rest, edit))
    values = list(thing)
    values[step] = edit_at(values[step], rest, edit)
    return sequence_like(thing, values)


def fields_of(thing: Any, without: str, *, is_ordered: bool = False) -> dict[str, Any]:
    """Return the fields of a mapping or an SDK object, except one, for JSON; if ordered, that one is None."""
    fields = thing if isinstance(thing, dict) else thing.model_dump(exclude_unset=True, warnings=False)
    if is_ordered:
        return {name: None if name == without else value for name, value in fields.items()}
    return {name: value for name, value in fields.items() if name != without}


def built_like(thing: Any, fields: dict[str, Any]) -> Any:
    """Return `fields` as the same kind of mapping or SDK object as `thing`."""
    return type(thing).model_validate(fields) if hasattr(thing, "model_validate") else fields


def sequence_like(content: Any, blocks: list[Any]) -> Any:
    """Return `blocks` as the same kind of sequence as `content`."""
    return tuple(blocks) if isinstance(content, tuple) else blocks


def block_list(content: Any) -> list[Any] | tuple[Any, ...]:
    """Return the blocks of a content, none if it is not a list."""
    return content if isinstance(content, list | tuple) else ()


def block_count(message: Any) -> int:
    """Return the content blocks of a message; a run of tool calls counts as one, so does one of results."""
    blocks = block_list(get(message, "content"))
    if len(blocks) < 2:  # noqa: PLR2004 # a run has two
        return 1
    kinds = [get(block, "type") for block in blocks]
    repeated: int = sum(
        kind == last and kind in ("tool_use", "tool_result") for last, kind in pairwise(kinds)
    )
    return max(1, len(kinds) - repeated)


def blocks_of(content: Any, where: str) -> list[Any]:
    """Return the blocks of a content that is a list. Raises `MessageError` for anything else."""
    if not isinstance(content, list | tuple):
        raise MessageError(f"{where}: expected a string or a list of blocks, got {type(content).__name__}")
    return list(content)


def string_field(thing: Any, name: str, where: str, owner: str) -> str:
    """Return a field that must be a string; an error calls `thing` `owner`, and names its place `where`."""
    value = get(thing, name)
    if not isinstance(value, str):
        got = f"{type(thing).__name__} " + ("without it" if value is None else f"with {value!r:.40}")
        raise MessageError(f'{where}: {owner} must have a string "{name}", got {got}')
    return value


def text_of(block: Any, where: str) -> str:
    """Return the text of a text block. Raises `MessageError` if it has none."""
    return string_field(block, "text", where, "a text block")


def type_of(block: Any, where: str) -> str:
    """Return the type of a content block. Raises `MessageError` if it has none."""
    return string_field(block, "type", where, "a content block")


def role_of(message: Any, where: str = "message") -> str:
    """Return the field `role` of a message. Raises `MessageError` if it has none."""
    return string_field(message, "role", where, "a message")


def string_or_none(value: Any) -> str | None:
    """Return `value` if it is a string."""
    return value if isinstance(value, str) else None


def is_by_code(call: Any) -> bool:
    """Return whether code written by the model made a tool call, and so reads its result."""
    caller = get(call, "caller") or get(get(call, "extras"), "caller")
    if caller is None:
        return False
    kind = get(caller, "type")
    return isinstance(kind, str) and kind != "direct"


def json_text(value: Any, as_data: Callable[[Any], Any] | None = None) -> str:
    """Return `value` as JSON, as the model sees it; "" if it has none, since no API accepts it.

    `as_data` returns an SDK object as data.
    """
    try:
        data = value if as_data is None else as_data(value)
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two messages or lists of them are equal; False if they cannot be compared."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 # a message may be an object that raises anything
        return False


def edits(
    before: Sequence[Any], after: Sequence[Any], is_same: Callable[[Any, Any], bool] = are_equal
) -> Iterator[int]:
    """Yield the indices at which two lists have different values, then those that only one of them has.

    `is_same` is asked about different objects only, and not before the caller wants the next index.
    """
    others = compress(count(), map(is_not, before, after))
    yield from (at for at in others if not is_same(before[at], after[at]))
    yield from range(*sorted((len(before), len(after))))


def begins_with(messages: Sequence[Any], known: list[Any]) -> bool:
    """Return whether the first of `messages` are equal to all `known` ones.

    One comparison of lists compares by identity first, and copies nothing.
    """
    length = len(known)
    known.extend(messages[length:])
    try:
        return are_equal(messages, known)
    finally:
        del known[length:]


def are_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and have their fields in the same order."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(are_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and type(one) is type(other) and all(map(are_same, one, other))
    return bool(one == other)

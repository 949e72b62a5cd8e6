"""What an adapter does, and the few operations on a message that all of them share."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from offload.errors import MessageError
from offload.record import encodable


@dataclass(frozen=True, slots=True)
class Item:
    """One offloadable part of a message.

    Attributes:
        block: index of its block in the message's content, None where the content is one value.
        item_type: what kind of part it is.
        text: its whole text.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        is_error: whether the tool reported a failure.
        form: how the text was spread over blocks, as JSON; None where it stood in one.
    """

    block: int | None
    item_type: str
    text: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    is_error: bool = False
    form: str | None = None

    def __post_init__(self) -> None:
        """Make the names from outside fit to be stored; they are compared in that form only."""
        for name in ("tool_name", "tool_use_id"):
            value = getattr(self, name)
            if value is not None and not value.isascii():
                object.__setattr__(self, name, encodable(value))


@dataclass(slots=True)
class Scan:
    """What one message holds.

    Attributes:
        items: its offloadable parts, in order.
        texts: its other texts, which take tokens but never leave.
        calls: the tool calls that it makes, id → tool name.
    """

    items: list[Item] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)


class MessageAdapter(Protocol):
    """Finds, replaces and puts back the items of messages in one provider's format."""

    name: str

    def claims(self, message: Any) -> bool:
        """Tell whether `message` is certainly of this format."""
        ...

    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds.

        Args:
            message: the message, a mapping or an object with the same attributes.
            where: its place, for errors, such as `messages[3]`.
            tool_names: the tool calls of earlier messages, id → tool name.

        Raises:
            MessageError: the message is malformed; says where, and what was expected.
        """
        ...

    def replace(self, message: Any, block: int | None, text: str) -> Any:
        """Return a copy of `message` with the item at `block` replaced by `text`."""
        ...

    def restore(self, message: Any, block: int | None, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the item at `block` as it was, the inverse of `replace`."""
        ...


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


def like(content: Any, blocks: list[Any]) -> Any:
    """Return `blocks` as the kind of sequence that `content` is."""
    return tuple(blocks) if isinstance(content, tuple) else blocks


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


def json_text(value: Any) -> str:
    """Return `value` as the model sees it; what has no JSON, which no API takes, counts as nothing."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return ""

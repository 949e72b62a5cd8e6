"""What an adapter does: find the items of a message, and say where each stands and in what shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from offload.messages._access import Path, edited, json_text, role_of, string_or_none
from offload.record import encodable

TEXT_TYPES = {
    "user": "user_message",
    "assistant": "assistant_message",
    "system": "system_prompt",
    "developer": "system_prompt",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One offloadable part of a message.

    Attributes:
        block: index of its block in the message's content, None where the content is one value. What
            stands beside the content, as tool calls do in some formats, is counted on after its blocks.
        item_type: what kind of part it is.
        text: its whole text.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        is_error: whether the tool reported a failure.
        form: how the text was spread over blocks, or that it is the JSON of a value, as JSON; None where
            it stood in one string.
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


# A text and its form; None if there is none that could leave and come back equal.
Found = tuple[str, str | None] | None


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

    def add_call(self, block: int, call: Any, name: Any, found: Found, arguments: Any) -> None:
        """Note a tool call, and its arguments: an item if they were `found` to be one, else a text."""
        if isinstance(call, str) and isinstance(name, str):
            self.calls[call] = name
        if found is None:
            self.texts.append(json_text(arguments))
            return
        text, form = found
        self.items.append(
            Item(block, "tool_call", text, string_or_none(name), string_or_none(call), form=form)
        )

    def add_result(
        self, block: int | None, call: Any, name: Any, found: Found, *, is_error: bool = False
    ) -> None:
        """Note what a tool returned, if it was `found` to hold an item."""
        if found is None:
            return
        text, form = found
        name, call = string_or_none(name), string_or_none(call)
        self.items.append(Item(block, "tool_result", text, name, call, is_error, form))


class Shape(Protocol):
    """How a text stands in a value: as the value itself, in blocks, in an object."""

    def replace(self, value: Any, text: str, /) -> Any:
        """Return what stands for `value` once `text` took the place of its own."""
        ...

    def restore(self, value: Any, text: str, form: str | None, /) -> Any:
        """Return what was there before `value`, the inverse of `replace`."""
        ...


class MessageAdapter(ABC):
    """Finds, replaces and puts back the items of messages in one provider's format."""

    name: str

    @abstractmethod
    def claims(self, message: Any) -> bool:
        """Tell whether `message` is certainly of this format."""

    @abstractmethod
    def scan(self, message: Any, where: str, tool_names: Mapping[str, str]) -> Scan:
        """Return what `message` holds.

        Args:
            message: the message, a mapping or an object with the same attributes.
            where: its place, for errors, such as `messages[3]`.
            tool_names: the tool calls of earlier messages, id → tool name.

        Raises:
            MessageError: the message is malformed; says where, and what was expected.
        """

    @abstractmethod
    def place(self, message: Any, block: int | None) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""

    def role(self, message: Any, where: str) -> str:
        """Return the role of `message`: "assistant" for what a model made, else the format's own word.

        Raises `MessageError` if it has none.
        """
        return role_of(message, where)

    def replace(self, message: Any, block: int | None, text: str) -> Any:
        """Return a copy of `message` with the item at `block` replaced by `text`."""
        path, shape = self.place(message, block)
        return edited(message, path, lambda value: shape.replace(value, text))

    def restore(self, message: Any, block: int | None, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the item at `block` as it was, the inverse of `replace`."""
        path, shape = self.place(message, block)
        return edited(message, path, lambda value: shape.restore(value, text, form))

"""What an adapter does: find the items of a message, and say where each stands and in what shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from offload.messages._access import Path, edited, get, is_by_code, json_text, role_of, string_or_none
from offload.messages._media import Media, MediaFacts, media_facts
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
            stands beside the content, as tool calls do in some formats, is counted on after its blocks. A
            pair for a block in the content of a tool's result that is a block itself.
        item_type: what kind of part it is.
        text: its whole text.
        tool_name: the tool that produced it, or None.
        tool_use_id: the provider's id of the tool call, or None.
        is_error: whether the tool reported a failure.
        form: how the text was spread over blocks, or that it is the JSON of a value, as JSON; None where
            it stood in one string.
        is_pending: whether the format says that it is not finished yet.
        media: what is known of an image or a document, whose text is its data URL; None for all else.
    """

    block: Block
    item_type: str
    text: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    is_error: bool = False
    form: str | None = None
    is_pending: bool = False
    media: MediaFacts | None = None

    def __post_init__(self) -> None:
        """Make the names from outside fit to be stored; they are compared in that form only."""
        for name in ("tool_name", "tool_use_id"):
            value = getattr(self, name)
            if value is not None and not value.isascii():
                object.__setattr__(self, name, encodable(value))


Block = int | tuple[int, int] | None

# A text and its form; None if there is none that could leave and come back equal.
Found = tuple[str, str | None] | None


@dataclass(slots=True)
class Scan:
    """What one message holds.

    Attributes:
        items: its offloadable parts that are text, in order.
        media: its images and documents, and texts that look like what stands for one. Those in the content of
            one result are to be replaced, and put back, before its text: that changes how many blocks it has.
        texts: its other texts, which take tokens but never leave.
        calls: the tool calls that it makes, id → tool name.
        code_calls: ids of the tool calls of which it says that code made them: the result of such a call, in
            whatever message, is read by that code and not by the model.
    """

    items: list[Item] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    media: list[Item] = field(default_factory=list)
    code_calls: set[str] = field(default_factory=set)

    @property
    def found(self) -> list[Item]:
        """Everything that could leave, in the order in which it is to be replaced and put back."""
        return [*self.media, *self.items]

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

    def note_caller(self, call: Any, *names: str) -> None:
        """Note a tool call or a result, under the fields `names` that may hold its id, if it is by code."""
        if is_by_code(call):
            ids = (get(call, name) for name in names)
            self.code_calls |= {encodable(i) for i in ids if isinstance(i, str)}

    def add_result(
        self, block: int | None, call: Any, name: Any, found: Found, *, is_error: bool = False
    ) -> None:
        """Note what a tool returned, if it was `found` to hold an item."""
        if found is None:
            return
        text, form = found
        name, call = string_or_none(name), string_or_none(call)
        self.items.append(Item(block, "tool_result", text, name, call, is_error, form))

    def add_media(
        self, block: Block, item_type: str, found: Found, *, call: Any = None, name: Any = None
    ) -> bool:
        """Note an image or a document, if one was `found`; tell whether it was."""
        if found is None:
            return False
        text, form = found
        name, call = string_or_none(name), string_or_none(call)
        facts = None if form is None else media_facts(text)
        self.media.append(Item(block, item_type, text, name, call, form=form, media=facts))
        return True

    def add_result_media(
        self, content: Any, shape: Media, call: Any, name: Any, block: int | None = None
    ) -> None:
        """Note the images and documents in the content of a result; `block` is the result's own place."""
        for i, part in enumerate(content if isinstance(content, list | tuple) else ()):
            place = i if block is None else (block, i)
            self.add_media(place, "tool_result", shape.read(part), call=call, name=name)

    def mark_pending(self, first: int = 0) -> None:
        """Note that the items from index `first` on, and all images and documents, are not finished yet."""
        self.items[first:] = [replace(item, is_pending=True) for item in self.items[first:]]
        self.media = [replace(item, is_pending=True) for item in self.media]


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
    def place(self, message: Any, block: Block) -> tuple[Path, Shape]:
        """Return where the item at `block` stands in `message`, and in what shape."""

    def role(self, message: Any, where: str) -> str:
        """Return the role of `message`: "assistant" for what a model made, else the format's own word.

        Raises `MessageError` if it has none.
        """
        return role_of(message, where)

    def replace(self, message: Any, block: Block, text: str) -> Any:
        """Return a copy of `message` with the item at `block` replaced by `text`."""
        path, shape = self.place(message, block)
        return edited(message, path, lambda value: shape.replace(value, text))

    def restore(self, message: Any, block: Block, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the item at `block` as it was, the inverse of `replace`."""
        path, shape = self.place(message, block)
        return edited(message, path, lambda value: shape.restore(value, text, form))

"""Items: the parts of messages that can be offloaded."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from offload.base.identity import ItemIdentity
from offload.base.text import escape_surrogates
from offload.messages._shapes import PLAIN, Shape
from offload.messages.access import Path, edit_at
from offload.messages.calls import Call, Subject
from offload.messages.media import MediaFacts

SYSTEM_ROLES = ("system", "developer")

# Equal items have these in common: all that the model reads of them, wherever it is.
_read_of = attrgetter(
    *("block", "item_type", "text", "tool_name", "tool_use_id"),
    *("is_error", "form", "is_pending", "is_report", "media"),
)
# Index of an item's block in its message.
BlockIndex = int | tuple[int, int] | None


class Item(msgspec.Struct, frozen=True, eq=False):
    """One part of a message that can be offloaded.

    Attributes:
        block: index of its block in the message's content, None if the content is one value. Parts outside
            the content, such as the tool calls of some formats, are numbered after its blocks. A pair for a
            block in a tool result that is a block itself.
        form: how the text is split over blocks, or a mark that it is the JSON of a value, as JSON; None if
            it is one string.
        order: the form with fields in their order, for an exact copy; see `ItemText`.
        marked: the same with its marks of the cache, which are no part of it; see `ItemText`.
        is_pending: whether the format says that it is not finished yet.
        is_report: whether it is the report of a background task, a result outside the answer to its call.
        media: facts about an image or a document, whose text is its data URL.
        call: the tool call whose result or arguments it is, if the messages have it.
        title: a title that the caller gave; it precedes that of the call.
        path: the fields and indices that lead to its value in the message, which has the shape `shape`.
    """

    block: BlockIndex
    item_type: str
    text: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    is_error: bool = False
    form: str | None = None
    order: str | None = None
    marked: str | None = None
    is_pending: bool = False
    is_report: bool = False
    media: MediaFacts | None = None
    call: Call | None = None
    title: str | None = None
    path: Path = ()
    shape: Shape = PLAIN

    def __post_init__(self) -> None:
        """Escape outside names that UTF-8 cannot store; they are compared in that form only."""
        for name in ("tool_name", "tool_use_id"):
            value = getattr(self, name)
            if value is not None and not value.isascii():
                force_setattr(self, name, escape_surrogates(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and _read_of(self) == _read_of(other)

    def __hash__(self) -> int:
        return hash(_read_of(self))

    @property
    def subject(self) -> Subject | None:
        """Its source, named by the caller or by its tool call; None if neither names one."""
        if self.title:
            return Subject("text", self.title)
        return None if self.call is None else self.call.subject

    def replace_in(self, message: Any, text: str) -> Any:
        """Return a copy of `message` with this item replaced by `text`."""
        return edit_at(message, self.path, lambda value: self.shape.replace(value, text))

    def identity(self, sha256: bytes) -> ItemIdentity:
        """Return the identity of the item, given the digest of its stored content."""
        return ItemIdentity(self.item_type, self.tool_use_id, sha256, self.form, self.order)

    def restore_in(self, message: Any, text: str, form: str | None, marked: str | None = None) -> Any:
        """Return a copy of `message` with the value that this item replaced, the inverse of `replace_in`.

        `form` is that of the item, or its order if it has one; `marked` as in `Item`.
        """
        return edit_at(message, self.path, lambda value: self.shape.restored(value, text, form, marked))

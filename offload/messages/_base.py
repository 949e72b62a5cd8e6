"""Items and adapters: one adapter knows all of one provider's message format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offload.errors import MessageError
from offload.messages._access import (
    Path,
    block_list,
    blocks_of,
    edit_at,
    get,
    is_by_code,
    json_text,
    role_of,
    string_or_none,
)
from offload.messages._calls import Call, CallId, Subject
from offload.messages._media import MediaFacts, media_facts
from offload.messages._shapes import ARGUMENTS, PLAIN, Shape
from offload.record import ItemIdentity, escape_surrogates

SYSTEM_ROLES = ("system", "developer")
_TEXT_TYPES = {"assistant": "assistant_message", **dict.fromkeys(SYSTEM_ROLES, "system_prompt")}

# Index of an item's block in its message.
Block = int | tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a message that can be offloaded.

    Attributes:
        block: index of its block in the message's content, None if the content is one value. Parts outside
            the content, such as the tool calls of some formats, are numbered after its blocks. A pair for a
            block in a tool result that is a block itself.
        form: how the text is split over blocks, or a mark that it is the JSON of a value, as JSON; None if
            it is one string.
        is_pending: whether the format says that it is not finished yet.
        media: facts about an image or a document, whose text is its data URL.
        call: the tool call whose result or arguments it is, if the messages have it.
        title: a title that the caller gave; it precedes that of the call.
        path: the fields and indices that lead to its value in the message, which has the shape `shape`.
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
    call: Call | None = field(default=None, compare=False, repr=False)
    title: str | None = field(default=None, compare=False, repr=False)
    path: Path = field(default=(), compare=False, repr=False)
    shape: Shape = field(default=PLAIN, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Escape outside names that UTF-8 cannot store; they are compared in that form only."""
        for name in ("tool_name", "tool_use_id"):
            value = getattr(self, name)
            if value is not None and not value.isascii():
                object.__setattr__(self, name, escape_surrogates(value))

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
        return ItemIdentity(self.item_type, self.tool_use_id, sha256, self.form)

    def restore_in(self, message: Any, text: str, form: str | None) -> Any:
        """Return a copy of `message` with the value that this item replaced, the inverse of `replace_in`."""
        return edit_at(message, self.path, lambda value: self.shape.restore(value, text, form))


@dataclass(slots=True)
class Scan:
    """The parts of one message.

    Attributes:
        earlier_calls: the tool calls of earlier messages; `calls` has its own.
        text_type: the item type of the message's own texts.
        media: its images and documents, and texts that look like a placeholder of one. Those in one tool
            result are replaced, and restored, before its text: that changes how many blocks it has.
        texts: texts that are counted, never offloaded.
        open_calls: ids of its tool calls that the host must run, None for one without an id.
        code_calls: ids of its tool calls that code made: the result of such a call, in any message, is
            read by that code and not by the model.
        failed: the places of blocks that could not be read, and why; their items are missing.
    """

    earlier_calls: Mapping[CallId, Call] = field(default_factory=dict)
    text_type: str = "user_message"
    items: list[Item] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: dict[CallId, Call] = field(default_factory=dict)
    open_calls: list[str | None] = field(default_factory=list)
    media: list[Item] = field(default_factory=list)
    code_calls: set[str] = field(default_factory=set)
    failed: list[tuple[str, Exception]] = field(default_factory=list)
    _calls_without_id: Counter[str] = field(default_factory=Counter)
    _results_without_id: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_role(cls, role: str, earlier_calls: Mapping[CallId, Call]) -> Scan:
        """Return an empty scan of a message of `role`."""
        return cls(earlier_calls, _TEXT_TYPES.get(role, "user_message"))

    @property
    def offloadable(self) -> list[Item]:
        """All items, in the order in which they are replaced and restored."""
        return [*self.media, *self.items]

    @property
    def all_texts(self) -> list[str]:
        """The texts of the message: of its items, then all others."""
        return [*(item.text for item in self.items), *self.texts]

    def tokens(self, count: Callable[[str], int]) -> int:
        """Return the tokens of the message by the token counter `count`; those of media are estimated."""
        media = [item.media.tokens if item.media else count(item.text) for item in self.media]
        return sum(media) + sum(map(count, self.all_texts))

    def add_blocks(self, content: Any, path: Path, where: str, add: AddBlock, *, first: int = 0) -> None:
        """Add a content: one string, or a list of blocks that `add` adds, numbered from `first`."""
        if isinstance(content, str):
            self.add_text(None, path, content)
            return
        for i, block in enumerate(blocks_of(content, where)):
            try:
                add(self, first + i, (*path, i), block, f"{where}[{i}]")
            except MessageError:
                raise
            except Exception as error:  # noqa: BLE001 # a block that cannot be read costs no other
                self.failed.append((f"{where}[{i}]", error))

    def add_text(self, block: int | None, path: Path, text: str, shape: Shape = PLAIN) -> None:
        self.items.append(Item(block, self.text_type, text, path=path, shape=shape))

    def note_texts(self, *texts: Any) -> None:
        """Note texts that are counted, never offloaded; values that are no strings are ignored."""
        self.texts.extend(text for text in texts if isinstance(text, str))

    def add_call(
        self, block: int, path: Path, call: Any, name: Any, arguments: Any, *, shape: Shape = ARGUMENTS
    ) -> None:
        """Add a tool call, and its arguments: an item if they can be restored exactly, else a text."""
        made = self.note_call(call, name, arguments)
        name, call = string_or_none(name), string_or_none(call)
        self.open_calls.append(call)
        item_text = shape.read(arguments, "")
        if item_text is None:
            self.texts.append(json_text(arguments))
            return
        text, form = item_text
        self.items.append(
            Item(block, "tool_call", text, name, call, form=form, call=made, path=path, shape=shape)
        )

    def note_call(self, call: Any, name: Any, arguments: Any) -> Call | None:
        """Note a tool call for its results, and return it; one without a tool is none."""
        if not isinstance(name, str):
            return None
        made = Call(name, arguments)
        self.calls[_call_id(call, name, self._calls_without_id)] = made
        return made

    def note_caller(self, call: Any, *names: str) -> None:
        """Note a tool call or a result that code made, by the fields `names` that may hold its id."""
        if is_by_code(call):
            ids = (get(call, name) for name in names)
            self.code_calls |= {escape_surrogates(i) for i in ids if isinstance(i, str)}

    def add_result(
        self,
        block: int | None,
        path: Path,
        content: Any,
        where: str,
        *,
        call: Any,
        name: Any = None,
        shape: Shape = PLAIN,
        is_error: bool = False,
    ) -> None:
        """Add a tool result: its text, images and documents, read by `shape`.

        The call `call` of an earlier message names the tool; `name` is for results without such a call.
        """
        made = self._call_of(call, name)
        name, call = string_or_none(name if made is None else made.name), string_or_none(call)
        item_text = shape.read(content, where)
        if item_text is not None:
            text, form = item_text
            self.items.append(
                Item(
                    block, "tool_result", text, name, call, is_error, form, call=made, path=path, shape=shape
                )
            )
        media = shape.media
        for i, part in enumerate(block_list(content)):
            place = i if block is None else (block, i)
            self.add_media(
                place, (*path, i), part, media, item_type="tool_result", call=call, name=name, made=made
            )

    def _call_of(self, call: Any, name: Any) -> Call | None:
        """Return the call that a result answers, if this or an earlier message has it."""
        if not isinstance(call, str) and not isinstance(name, str):
            return None
        key = _call_id(call, name, self._results_without_id)
        return self.calls.get(key) or self.earlier_calls.get(key)

    def add_media(
        self,
        block: Block,
        path: Path,
        part: Any,
        shape: Shape | None,
        *,
        item_type: str = "user_message",
        call: str | None = None,
        name: str | None = None,
        made: Call | None = None,
    ) -> bool:
        """Add an image, a document or the placeholder of one; return whether `shape` reads one.

        It is part of a user message, or of a tool result if `item_type` says so.
        """
        if shape is None or item_type not in ("tool_result", self.text_type):
            return False
        item_text = shape.read(part, "")
        if item_text is None:
            return False
        text, form = item_text
        facts = None if form is None else media_facts(text)
        self.media.append(
            Item(
                block, item_type, text, name, call, form=form, media=facts, call=made, path=path, shape=shape
            )
        )
        return True

    def mark_pending(self, first: int = 0) -> None:
        """Mark the items from index `first` on, and all images and documents, as not finished yet."""
        self.items[first:] = [replace(item, is_pending=True) for item in self.items[first:]]
        self.media = [replace(item, is_pending=True) for item in self.media]


AddBlock = Callable[[Scan, int, Path, Any, str], None]


def _call_id(call: Any, name: str, without_id: Counter[str]) -> CallId:
    """Return the id of a call; a result without one answers the call to its tool with the same number."""
    if isinstance(call, str):
        return call
    without_id[name] += 1
    return name, without_id[name]


class MessageAdapter(ABC):
    """One provider's message format: a format is one subclass and one row of `FORMATS`."""

    name: str

    @abstractmethod
    def claims(self, message: Any) -> bool:
        """Return whether `message` is certainly in this format."""

    @abstractmethod
    def scan(self, message: Any, where: str, calls: Mapping[CallId, Call]) -> Scan:
        """Return the parts of `message`, a mapping or an object with the same attributes.

        `where` is its place, for errors, such as `messages[3]`; `calls` are the tool calls of earlier
        messages. Raises `MessageError` if the message is malformed.
        """

    def role(self, message: Any, where: str) -> str:
        """Return the role of `message`: "assistant" if a model wrote it, else the format's own word."""
        return role_of(message, where)

    def results(self, message: Any) -> Sequence[Any]:
        """Return the call id of each tool result in `message`, or None; also if it is malformed elsewhere."""
        try:
            items = self.scan(message, "message", {}).offloadable
        except MessageError:
            return []
        return [item.tool_use_id for item in items if item.item_type == "tool_result"]

    def needs_next(self, message: Any) -> bool:  # noqa: ARG002 # for formats that have such messages
        """Return whether the provider accepts `message` only directly before the message after it."""
        return False

    def user_message(self, text: str) -> Any:
        """Return `text` as a user message."""
        return {"role": "user", "content": text}

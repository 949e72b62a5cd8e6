"""Adapters: one knows all of one provider's message format, and returns the parts of its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from offload.base.text import escape_surrogates
from offload.errors import MessageError
from offload.messages._documents import DocumentKind
from offload.messages._shapes import ARGUMENTS, PLAIN, ItemText, Shape
from offload.messages.access import (
    Path,
    at,
    block_list,
    blocks_of,
    get,
    is_by_code,
    json_text,
    role_of,
    string_or_none,
)
from offload.messages.base import SYSTEM_ROLES, BlockIndex, Item
from offload.messages.calls import Asked, Call, Calls, Made
from offload.messages.media import MediaFacts, media_facts
from offload.messages.reports import REPORTING_TOOL, Report, ReportShape, reports_in
from offload.messages.rest import Fixed, Said, rest_of, tree_of
from offload.messages.stored import as_data

_TEXT_TYPES = {"assistant": "assistant_message", **dict.fromkeys(SYSTEM_ROLES, "system_prompt")}


class ResultSource(NamedTuple):
    """The source of a result: a tool, the id of its call, and the call if the messages have it."""

    tool: Any = None
    call: Any = None
    made: Call | None = None
    is_error: bool = False


class Scan(msgspec.Struct):
    """The parts of one message.

    Attributes:
        earlier_calls: the tool calls of earlier messages; `calls` has its own, with their ids.
        results: by the id of an earlier call, the tools that the results name, None for one that names none.
        text_type: the item type of the message's own texts.
        documents: the texts of its documents and search results. Those in one tool result are replaced, and
            restored, before its text, as media are.
        media: its images and other files, and texts that look like a placeholder of one. Those in one tool
            result are replaced, and restored, before its text: that changes how many blocks it has.
        fixed: the other parts of the message, which are counted, never offloaded.
        open_calls: ids of its tool calls that the host must run, None for one without an id.
        code_calls: ids of its tool calls that code made: the result of such a call, in any message, is
            read by that code and not by the model.
        failed: the places of blocks that could not be read, and why; their items are missing.
    """

    earlier_calls: Calls = msgspec.field(default_factory=Calls)
    text_type: str = "user_message"
    items: list[Item] = msgspec.field(default_factory=list)
    fixed: list[Fixed] = msgspec.field(default_factory=list)
    calls: list[Made] = msgspec.field(default_factory=list)
    results: dict[str, list[str | None]] = msgspec.field(default_factory=dict)
    open_calls: list[str | None] = msgspec.field(default_factory=list)
    documents: list[Item] = msgspec.field(default_factory=list)
    media: list[Item] = msgspec.field(default_factory=list)
    code_calls: set[str] = msgspec.field(default_factory=set)
    _leaves: list[tuple[Path, Said | None]] = msgspec.field(default_factory=list)
    failed: list[tuple[str, Exception]] = msgspec.field(default_factory=list)
    _own_results: dict[str, list[str | None]] = msgspec.field(default_factory=dict)

    @classmethod
    def of_role(cls, role: str, earlier_calls: Calls) -> Scan:
        """Return an empty scan of a message of `role`."""
        return cls(earlier_calls, _TEXT_TYPES.get(role, "user_message"))

    @classmethod
    def unread(cls, message: Any) -> Scan:
        """Return the scan of a message that its adapter cannot read: all of it is counted, if it can be."""
        scan = cls().with_rest(message)
        scan.failed.clear()
        return scan

    @property
    def is_reply(self) -> bool:
        """Whether the model wrote the message."""
        return self.text_type == "assistant_message"

    @property
    def texts(self) -> list[str]:
        """The texts of the model that are not items: thinking, code, arguments of built-in tools."""
        return [part.text for part in self.fixed if part.is_said]

    @property
    def offloadable(self) -> list[Item]:
        """All items, in the order in which they are replaced and restored."""
        return [*self.media, *self.documents, *self.items]

    @property
    def all_texts(self) -> list[str]:
        """The texts of the items of the message, then others that the model wrote."""
        return [*(item.text for item in (*self.documents, *self.items)), *self.texts]

    def tokens(self, count: Callable[[str], int]) -> int:
        """Return the tokens of the message by the token counter `count`; those of media are estimated."""
        media = [item.media.tokens if item.media else count(item.text) for item in self.media]
        texts = sum(count(item.text) for item in (*self.documents, *self.items))
        return sum(media) + texts + self.fixed_tokens(count)

    def fixed_tokens(self, count: Callable[[str], int]) -> int:
        """Return the tokens of what is never offloaded, by the token counter `count`."""
        return sum(part.read(count) + part.data for part in self.fixed)

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
        """Add a text of the message, or the reports of background tasks in it."""
        reports = () if self.text_type == "assistant_message" else reports_in(text)
        if not reports:
            self.items.append(Item(block, self.text_type, text, path=path, shape=shape))
            return
        self.items += [self._report(block, path, text, each, number) for number, each in enumerate(reports)]
        ends = [0, *(end for each in reports for end in (each.start, each.end)), len(text)]
        around = "".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))
        self.fixed.append(Fixed("content" if block is None else f"content[{block}]", "text", around))

    def _report(self, block: int | None, path: Path, text: str, report: Report, number: int) -> Item:
        asked = None if report.call is None else self.earlier_calls.get(report.call)
        # The task may have been started in any earlier turn.
        made = asked.calls[0] if asked is not None and len(asked.calls) == 1 else None
        tool = REPORTING_TOOL if made is None else made.name
        return Item(
            block,
            "tool_result",
            text[report.start : report.end],
            tool,
            report.call,
            is_report=True,
            call=made,
            path=path,
            shape=ReportShape(number),
        )

    def say(self, path: Path, value: Any) -> None:
        """Note a value that the model wrote: a text, or data as JSON. It is counted, never offloaded."""
        text = value if isinstance(value, str) else json_text(value, as_data)
        if text:
            self._leaves.append((path, Said(text)))

    def say_texts(self, holder: Any, path: Path, *names: str) -> None:
        """Note the fields of `holder` that are texts of the model."""
        for name in names:
            if isinstance(value := get(holder, name), str):
                self.say((*path, name), value)

    def leave_out(self, path: Path) -> None:
        """Note a value that no model reads, or that is counted elsewhere."""
        self._leaves.append((path, None))

    def with_rest(self, message: Any, envelope: Path = ()) -> Scan:
        """Count all of `message` that is neither an item nor noted, and return the scan.

        `envelope` leads to the fields of the message. What cannot be counted is in `failed`, without a place.
        """
        try:
            self._count_rest(message, envelope)
        except Exception as error:  # noqa: BLE001 # what cannot be counted costs no item
            self.failed.append(("", error))
        return self

    def _count_rest(self, message: Any, envelope: Path) -> None:
        read = [
            ((*item.path, *place), None)
            for item in self.offloadable
            for place in item.shape.places(at(message, item.path))
        ]
        tree = tree_of([*self._leaves, *read])
        for step in envelope:
            self.fixed += rest_of({name: value for name, value in message.items() if name != step}, {})
            message, tree = get(message, str(step)), tree.get(step, {})
        self.fixed += rest_of(message, tree)
        self._leaves.clear()

    def add_call(
        self, block: int, path: Path, call: Any, name: Any, arguments: Any, *, shape: Shape = ARGUMENTS
    ) -> None:
        """Add a tool call, and its arguments: an item if they can be restored exactly, else a text."""
        self.open_calls.append(string_or_none(call) or None)
        self.add_arguments(block, path, call, name, arguments, shape=shape)

    def add_arguments(
        self, block: int, path: Path, call: Any, name: Any, arguments: Any, *, shape: Shape = ARGUMENTS
    ) -> None:
        """Add a tool call as `add_call` does, but as one without an id to wait for."""
        made = self.note_call(call, name, arguments)
        item_text = shape.read(arguments, "")
        if item_text is None:
            self.say(path, arguments)
            return
        source = ResultSource(name, call, made)
        self.items.append(_item("tool_call", block, path, item_text, shape=shape, source=source))

    def note_call(self, call: Any, name: Any, arguments: Any) -> Call | None:
        """Note a tool call for its results, and return it; one without a tool is ignored."""
        if not isinstance(name, str):
            return None
        made = Call(name, arguments)
        self.calls.append((string_or_none(call) or "", made))
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
        documents: Sequence[DocumentKind] = (),
    ) -> ResultSource:
        """Add a tool result: its text, images and documents, read by `shape` and `documents`.

        Returns its source. The call `call` of an earlier message names the tool; `name` is for
        results without such a call.
        """
        made = self._call_of(call, name)
        source = ResultSource(name if made is None else made.name, call, made, is_error)
        item_text = shape.read(content, where)
        self.add_parts(block, path, content, documents, media=shape.media, source=source)
        if item_text is not None:
            item = _item("tool_result", block, path, item_text, shape=shape, source=source)
            self.items.append(item)
        return source

    def add_parts(
        self,
        block: int | None,
        path: Path,
        content: Any,
        documents: Sequence[DocumentKind],
        *,
        source: ResultSource,
        media: Shape | None = None,
    ) -> None:
        """Add the documents and images among the blocks of a result."""
        for i, part in enumerate(block_list(content)):
            place = i if block is None else (block, i)
            if not self.add_document(place, (*path, i), part, documents, source):
                self.add_media(place, (*path, i), part, media, source)

    def _call_of(self, call: Any, name: Any) -> Call | None:
        """Return the call that a result answers, if this or an earlier message has it."""
        call_id, tool = string_or_none(call) or "", string_or_none(name)
        if call is None and tool is None:
            return None
        own = tuple(made for made_id, made in self.calls if made_id == call_id)
        asked = Asked(0, own) if own else self.earlier_calls.get(call_id)
        results = (self._own_results if own else self.results).setdefault(call_id, [])
        made = None if asked is None else asked.answered(call_id, tool, results)
        results.append(tool)
        return made

    def add_media(
        self,
        block: BlockIndex,
        path: Path,
        part: Any,
        shape: Shape | None,
        source: ResultSource | None = None,
    ) -> bool:
        """Add an image, a document or the placeholder of one; return whether `shape` reads one.

        It is part of a tool result if it has a source, else of a user message.
        """
        if shape is None or not (source or self.text_type == "user_message"):
            return False
        item_text = shape.read(part, "")
        if item_text is None:
            return False
        facts = None if item_text.form is None else media_facts(item_text.text)
        kind = "user_message" if source is None else "tool_result"
        item = _item(kind, block, path, item_text, shape=shape, source=source, media=facts)
        self.media.append(item)
        return True

    def add_document(
        self,
        block: BlockIndex,
        path: Path,
        part: Any,
        documents: Sequence[DocumentKind],
        source: ResultSource | None = None,
    ) -> bool:
        """Add the text of a document, see `add_media`; return whether one of `documents` reads it."""
        if isinstance(part, str) or not (source or self.text_type == "user_message"):
            return False
        for document in documents:
            try:
                item_text = document.read(part)
            except MessageError:  # A block in it is malformed: it is counted.
                continue
            if item_text is not None:
                kind = "user_message" if source is None else "tool_result"
                place = (*path, *document.path)
                item = _item(kind, block, place, item_text, shape=document.shape, source=source)
                self.documents.append(item)
                return True
        return False

    def mark_pending(self, first: int = 0) -> None:
        """Mark the items from index `first` on, and all media and documents, as not finished yet."""
        self.items[first:] = [replace(item, is_pending=True) for item in self.items[first:]]
        self.media = [replace(item, is_pending=True) for item in self.media]
        self.documents = [replace(item, is_pending=True) for item in self.documents]


AddBlock = Callable[[Scan, int, Path, Any, str], None]


def _item(
    item_type: str,
    block: BlockIndex,
    path: Path,
    read: ItemText,
    *,
    shape: Shape,
    source: ResultSource | None,
    media: MediaFacts | None = None,
) -> Item:
    source = source or ResultSource()
    return Item(
        block,
        item_type,
        read.text,
        string_or_none(source.tool),
        string_or_none(source.call) or None,
        source.is_error,
        read.form,
        read.order,
        read.marked,
        media=media,
        call=source.made,
        path=path,
        shape=shape,
    )


class MessageAdapter(ABC):
    """One provider's message format: a format is one subclass and one row of `FORMATS`."""

    name: str

    @abstractmethod
    def claims(self, message: Any) -> bool:
        """Return whether `message` is certainly in this format."""

    @abstractmethod
    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        """Return the parts of `message`, a mapping or an object with the same attributes.

        `where` is its place, for errors, such as `messages[3]`; `calls` are the tool calls of earlier
        messages. `Scan.with_rest` counts all that the adapter does not know. Raises `MessageError` if the
        message is malformed.
        """

    def role(self, message: Any, where: str) -> str:
        """Return the role of `message`: "assistant" if a model wrote it, else the format's own word."""
        return role_of(message, where)

    def results(self, message: Any) -> Sequence[Any]:
        """Return the call id of each tool result in `message`, or None; also if it is malformed elsewhere."""
        try:
            items = self.scan(message, "message", Calls()).offloadable
        except MessageError:
            return []
        results = (item for item in items if item.item_type == "tool_result" and not item.is_report)
        return [item.tool_use_id for item in results]

    def needs_next(self, message: Any) -> bool:  # noqa: ARG002 # for formats that have such messages
        """Return whether the provider accepts `message` only directly before the message after it."""
        return False

    def user_message(self, text: str) -> Any:
        """Return `text` as a user message."""
        return {"role": "user", "content": text}

    def must_join(self, message: Any, other: Any) -> bool:  # noqa: ARG002 # most providers join them
        """Return whether the provider refuses these two messages in a row, and `join` makes them one."""
        return False

    def join(self, messages: Sequence[Any]) -> Any:
        """Return one message with the blocks of `messages`, for which `must_join` is true."""
        raise NotImplementedError

    def split(self, message: Any, block: Any) -> list[Any]:  # noqa: ARG002 # without `join` there is no part
        """Return the messages that `join` made one: those before `block`, its own, and those after it."""
        return [message]

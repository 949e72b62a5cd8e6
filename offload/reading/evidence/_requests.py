"""The texts that the requests of a session showed, folded from its journal entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from offload.engine.placeholder import Notice
from offload.engine.placeholder.forms import known_refs
from offload.engine.policy.tool_names import is_read_back
from offload.messages.adapter import Scan
from offload.messages.calls import Calls
from offload.messages.context import ItemType
from offload.messages.context.ir import NOTICES
from offload.messages.formats import scan_next
from offload.reading.evidence._texts import MAX_CHARS, Texts
from offload.records.journal.reader import JournalChange, JournalMessage

# "notice" is a text that a model or a program made of others; it has no evidence of its own.
TextRole = Literal["message", "read_back", "notice", "call"]
# The model's own texts, and what a model made of others.
SILENT = ("assistant_message", "compaction_summary")


@dataclass(eq=False, slots=True)
class ShownMessage:
    """A message of a conversation.

    Attributes:
        count: how often it is among the messages now.
        request: the last request that had it, if no message has it now.
        index: its index in that request.
        has_refs: whether it has placeholders.
    """

    count: int = 0
    request: int = 0
    index: int = 0
    has_refs: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class MessageText:
    """A text of a message, for its role as a source."""

    message: ShownMessage
    role: TextRole


class Requests:
    """The messages of a conversation, request by request, and the texts of all of them.

    Attributes:
        number: how many requests there were.
        texts: the texts of all messages that any of them had.
        left_out: why some texts are missing; None if none are.
    """

    def __init__(self) -> None:
        self.number = 0
        self.texts: Texts[MessageText] = Texts()
        self.left_out: str | None = None
        self._messages: list[ShownMessage] = []
        self._known: dict[tuple[tuple[str, str], ...], ShownMessage] = {}
        self._calls = Calls()

    def add(self, change: JournalChange) -> None:
        """Apply the changes of a journal entry."""
        new = [self._message(line) for line in change.new]
        before = self._messages
        messages = change.after(before, new)
        for message in new:
            message.count += 1
        for start, removed, _ in [(0, len(before), 0)] if change.is_whole else change.edits:
            for index in range(start, min(start + removed, len(before))):
                before[index].count -= 1
                before[index].request, before[index].index = self.number, index
        self._messages = messages
        self.number += change.entry.sent is not None

    def add_request(self, messages: Sequence[Any]) -> None:
        """Add the messages of a request that has no journal."""
        self._messages = [
            self._message(JournalMessage(ItemType.USER_MESSAGE, message)) for message in messages
        ]
        for message in self._messages:
            message.count += 1
        self.number += 1

    def places(self) -> dict[ShownMessage, int]:
        """Return the messages now with their indexes."""
        return {message: index for index, message in enumerate(self._messages)}

    def _message(self, line: JournalMessage) -> ShownMessage:
        try:
            texts = (*texts_of(line.message, self._calls, line.item_type),)
        except Exception:  # noqa: BLE001 # an unreadable message costs only its texts
            self.left_out = "a message could not be read"
            return ShownMessage()
        if texts in self._known:
            return self._known[texts]
        message = self._known[texts] = ShownMessage(
            has_refs=any(next(known_refs(text), None) for _, text in texts)
        )
        for role, text in texts:
            if self.texts.chars + len(text) > MAX_CHARS:
                self.left_out = f"only {self.texts.chars:,} characters of messages were searched"
            else:
                self.texts.add(MessageText(message, role), text)
        return message


def _texts(scan: Scan, item_type: str) -> Iterator[tuple[TextRole, str]]:
    """Yield the texts of a message that are sources, each with its role; the assistant's are none."""
    for item in (*scan.documents, *scan.items):
        is_notice = item_type in NOTICES or Notice().find_ref(item.text) is not None
        if is_notice and item.item_type != "tool_result":
            yield "notice", item.text
        elif item.item_type == "tool_call":
            yield "call", item.text
        elif item.item_type == "tool_result" and item.tool_name and is_read_back(item.tool_name):
            # The placeholder of an answer has the model's own call.
            yield "read_back" if next(known_refs(item.text), None) is None else "call", item.text
        elif item.item_type not in SILENT:
            yield "message", item.text


def texts_of(message: Any, calls: Calls, item_type: str = "") -> list[tuple[TextRole, str]]:
    """Return the texts of a message that are sources, each with its role; add its tool calls to `calls`.

    Raises the exception of a block that cannot be read.
    """
    return [*_texts(scan_next(message, calls), item_type)]

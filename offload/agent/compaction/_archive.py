"""Storage of the messages that a compaction removes: one record, and one notice in their place.

The notice is the placeholder of that record: only the whole stored text restores the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from offload.engine.placeholder import Notice, NoticeRenderer
from offload.engine.placeholder.notice import NOTICE_TOOL, NOTICE_TYPE, notice_number
from offload.engine.policy import ItemFacts, OffloadPolicy, ReasonKind, Rule
from offload.engine.results import OffloadResult
from offload.engine.rows import RemovedMessage
from offload.errors import ContextFullError, StoreError
from offload.messages.formats import adapter_for, scan_of
from offload.offloader import Offloader

_ALL = OffloadPolicy(types={NOTICE_TYPE: Rule(min_chars=1, preview_chars=0)}, tools={}, min_saving=0)
_MAX_NUMBER = 999_999_999


class MessageArchive:
    """Stores messages of a conversation in the session of `offloader`, an attribute too, and restores them.

    The `redact` of the offloader is applied to each text separately.
    """

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader

    def notice(self, messages: Sequence[Any]) -> Notice:
        """Return the next notice of the conversation `messages`, to which text and count are added.

        Raises `OffloadError` if the store cannot be listed, to find which notices are of this session.
        """
        numbers = {ref: number for message in messages for ref, number in _notices(message)}
        stored = {info.ref for info in self.offloader.records()} if numbers else set[str]()
        latest = max((number for ref, number in numbers.items() if ref in stored), default=0)
        renderer = self.offloader.options.placeholder
        wording = renderer if isinstance(renderer, NoticeRenderer) else None
        return Notice(min(latest + 1, _MAX_NUMBER), wording=wording)

    def store(self, messages: Sequence[Any], removed: Sequence[int], notice: Notice) -> tuple[str, Any]:
        """Store the messages at the indices `removed`; return the record's ref and the notice as a message.

        That message must replace the first of them. Each item of theirs that the session's policy offloads,
        at once or later, gets a record of its own first, and so do texts of all messages that only look like
        placeholders. Raises `MessageError` if JSON cannot restore one of the removed messages exactly, and
        `ContextFullError` for a notice that is no shorter than they are.
        """
        self.offloader.keep_look_alikes(messages)
        notice, small = self._redacted(notice), self._without_items(messages, removed)
        offloader, edit = self._open(notice), self._edit(small)
        found: tuple[str, Any] | None = None
        # A long summary may be shorter than the messages, and longer than what is left of them.
        for rows in (small.messages, _with_items(messages, small)):
            content = "\n".join(RemovedMessage(index, rows[index]).line(edit) for index in removed)
            text = offloader.offload_text(
                content, tool_name=NOTICE_TOOL, item_type=NOTICE_TYPE, title=_title(notice, len(removed))
            )
            if text == content:
                continue
            found = notice.find_ref(text) or "", adapter_for(messages[removed[0]]).user_message(text)
            # An earlier compaction of the same messages stored them under its own notice.
            if notice.summary.strip() in text:
                return found
        if found is not None:
            return found
        raise ContextFullError(f"the notice would be longer than the {len(removed)} messages")

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as they were before any compaction or offload; see `Offloader.restore`."""
        return self.offloader.restore(messages)

    def _without_items(self, messages: Sequence[Any], removed: Sequence[int]) -> OffloadResult:
        """Offload the items of the removed messages that are due at any time."""
        options, chosen = self.offloader.options, frozenset(removed)

        def should_offload(item: ItemFacts) -> bool:
            return item.message in chosen and options.approves(item)

        offloader = self.offloader.with_options(
            policy=options.policy.at_once(), should_offload=should_offload, on_error="keep", journal=False
        )
        result = offloader.offload(list(messages[: removed[-1] + 1]))
        for error in result.errors:
            # An item that is not stored is whole in its row, but a look-alike without proof is not restored.
            if isinstance(error, StoreError):
                raise error
        return result

    def _redacted(self, notice: Notice) -> Notice:
        task, summary, ledger = map(
            self.offloader.options.redacted, (notice.task, notice.summary, notice.ledger)
        )
        return replace(notice, task=task, summary=summary, ledger=ledger)

    def _edit(self, result: OffloadResult) -> Callable[[str], str] | None:
        """Return a function that redacts the texts of messages, except placeholders: a change breaks them."""
        options = self.offloader.options
        if options.redact is None:
            return None
        stored = {(d.item.message, d.item.block) for d in result.decisions if d.ref or d.item.is_stored}
        placeholders = {
            item.text
            for index in {index for index, _ in stored}
            for item in scan_of(result.messages[index]).items
            if (index, item.block) in stored
        }
        return lambda text: text if text in placeholders else options.redacted(text)

    def _open(self, notice: Notice) -> Offloader:
        return self.offloader.with_options(
            policy=_ALL,
            placeholder=notice,
            redact=None,
            should_offload=None,
            summarizer=None,
            on_error="raise",
        )


def _with_items(messages: Sequence[Any], small: OffloadResult) -> list[Any]:
    """Return the messages as they were, but for look-alikes: in a row their own text has no proof."""
    look_alikes = {d.item.message for d in small.decisions if d.reason.kind is ReasonKind.LOOK_ALIKE}
    return [small.messages[i] if i in look_alikes else message for i, message in enumerate(messages)]


def _title(notice: Notice, count: int) -> str:
    task = " ".join(notice.task.split())
    return f"{count} message{'s' * (count != 1)} of compaction {notice.number}{': ' * bool(task)}{task}"


def _notices(message: Any) -> list[tuple[str, int]]:
    """Return ref and number of each text of a message that looks like a notice."""
    texts = [item.text for item in scan_of(message).items if item.item_type == NOTICE_TYPE]
    named = [(Notice().find_ref(text), notice_number(text)) for text in texts]
    return [(ref, number) for ref, number in named if ref is not None]

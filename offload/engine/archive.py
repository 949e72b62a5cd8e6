"""Storage of the messages that a compaction removes: one record, and one notice in their place.

The notice is the placeholder of that record: only the whole stored text restores the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from offload.engine.conversation import Conversation
from offload.engine.placeholder import Notice
from offload.engine.policy import ReasonKind
from offload.engine.results import OffloadResult
from offload.engine.rows import RemovedMessage
from offload.engine.settings.options import Options
from offload.errors import ContextFullError, StoreError
from offload.messages.formats import adapter_for, scan_of


def store_removed(
    conversation: Conversation,
    options: Options,
    messages: Sequence[Any],
    removed: Sequence[int],
    notice: Notice,
) -> tuple[str, Any]:
    """Store the messages at the indices `removed`; see `Offloader.store_removed`."""
    conversation.look_alikes.keep(messages)
    small = conversation.offload_aside(messages[: removed[-1] + 1], removed)
    for error in small.errors:
        # An item that is not stored is whole in its row, but a look-alike without proof is not restored.
        if isinstance(error, StoreError):
            raise error
    task, summary, ledger = map(options.redacted, (notice.task, notice.summary, notice.ledger))
    notice, edit = replace(notice, task=task, summary=summary, ledger=ledger), _edit(small, options)
    found: tuple[str, Any] | None = None
    # A long summary may be shorter than the messages, and longer than what is left of them.
    for rows in (small.messages, _with_items(messages, small)):
        content = "\n".join(RemovedMessage(index, rows[index]).line(edit) for index in removed)
        stored = conversation.store_notice(content, notice, _title(notice, len(removed)))
        if stored is None:
            continue
        found = stored.info.ref, adapter_for(messages[removed[0]]).user_message(stored.placeholder)
        # An earlier compaction of the same messages stored them under its own notice.
        if notice.summary.strip() in stored.placeholder:
            return found
    if found is not None:
        return found
    raise ContextFullError(f"the notice would be longer than the {len(removed)} messages")


def _edit(result: OffloadResult, options: Options) -> Callable[[str], str] | None:
    """Return a function that redacts the texts of messages, except placeholders: a change breaks them."""
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


def _with_items(messages: Sequence[Any], small: OffloadResult) -> list[Any]:
    """Return the messages as they were, but for look-alikes: in a row their own text has no proof."""
    look_alikes = {d.item.message for d in small.decisions if d.reason.kind is ReasonKind.LOOK_ALIKE}
    return [small.messages[i] if i in look_alikes else message for i, message in enumerate(messages)]


def _title(notice: Notice, count: int) -> str:
    task = " ".join(notice.task.split())
    return f"{count} message{'s' * (count != 1)} of compaction {notice.number}{': ' * bool(task)}{task}"

"""The messages that compactions remove: stored in a session, and restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.engine.placeholder import Notice, NoticeRenderer
from offload.engine.placeholder.notice import NOTICE_TYPE, notice_number
from offload.messages.formats import scan_of
from offload.offloader import Offloader

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
        """Store the messages at the indices `removed`; see `Offloader.store_removed`."""
        return self.offloader.store_removed(messages, removed, notice)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as they were before any compaction or offload; see `Offloader.restore`."""
        return self.offloader.restore(messages)


def _notices(message: Any) -> list[tuple[str, int]]:
    """Return ref and number of each text of a message that looks like a notice."""
    texts = [item.text for item in scan_of(message).items if item.item_type == NOTICE_TYPE]
    named = [(Notice().find_ref(text), notice_number(text)) for text in texts]
    return [(ref, number) for ref, number in named if ref is not None]

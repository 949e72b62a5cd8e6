"""Storage of the messages that a compaction removes: one record, and one notice in their place.

The record holds one message per line, as JSON, with its place in the conversation. The notice is the
placeholder of that record (rule R6): only the whole stored text restores the messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from offload.errors import MessageError, NotFoundError, OffloadError
from offload.messages import adapter_for, as_data, from_json, map_texts, scan_of, to_json
from offload.offloader import Offloader
from offload.placeholder import (
    NOTICE_TOOL,
    NOTICE_TYPE,
    Notice,
    NoticeRenderer,
    notice_number,
)
from offload.policy import OffloadPolicy, Rule

_ALL = OffloadPolicy(types={NOTICE_TYPE: Rule(min_chars=1, preview_chars=0)}, tools={}, min_saving=0)


class MessageArchive:
    """Stores messages of a conversation in its session, and restores them.

    Args:
        offloader: the session. Its `redact` is applied to each text separately.
    """

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader

    def notice(self, messages: Sequence[Any]) -> Notice:
        """Return the next notice of the conversation `messages`, without a summary and a count.

        Raises `OffloadError` if the store cannot prove the earlier notices.
        """
        latest = max((number for _, number, _ in self._proven(messages, {})), default=0)
        renderer = self._offloader.options.placeholder
        return Notice(latest + 1, wording=renderer if isinstance(renderer, NoticeRenderer) else None)

    def store(self, messages: Sequence[Any], removed: Sequence[int], notice: Notice) -> tuple[str, Any]:
        """Store the messages at the indices `removed`; return the record's ref and the notice as a message.

        That message must replace the first of them.

        Raises:
            MessageError: JSON cannot restore one of them exactly.
            OffloadError: the notice is no shorter than the messages, or the store failed.
        """
        content = "\n".join(self._line(index, messages[index]) for index in removed)
        text = self._open(notice).offload_text(content, tool_name=NOTICE_TOOL, item_type=NOTICE_TYPE)
        if text == content:
            raise OffloadError(f"the notice for {len(removed)} messages would be longer than they are")
        return notice.find_ref(text) or "", adapter_for(messages[removed[0]]).user_message(text)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as they were before any compaction, from the notices among them.

        Raises `OffloadError` if a record is damaged, was deleted or cannot be read.
        """
        out = list(messages)
        contents: dict[str, str | None] = {}
        while notices := self._proven(out, contents):
            index, _, content = max(notices, key=lambda notice: notice[1])
            # Messages added before the notice since, such as system messages, do not change the distances.
            out = [*out[:index], *_merged(out[index + 1 :], content)]
        return out

    def _proven(self, messages: Sequence[Any], contents: dict[str, str | None]) -> list[tuple[int, int, str]]:
        """Return index, number and content of each notice with a record; `contents` caches them by text."""
        notices = []
        for index, message in enumerate(messages):
            text = _sole_text(message) or ""
            if Notice().find_ref(text) is None:
                continue
            if text not in contents:
                contents[text] = self._content_of(message)
            content = contents[text]
            if content is not None:
                notices.append((index, notice_number(text), content))
        return notices

    def _content_of(self, message: Any) -> str | None:
        """Return the content of the record of a notice; None if the session has no such record."""
        restored = self._open(Notice()).restore([message], on_missing="keep")
        for missing in restored.missing:
            if type(missing.error) is not NotFoundError:
                raise missing.error
        content = _sole_text(restored[0])
        return None if content == _sole_text(message) else content

    def _open(self, notice: Notice) -> Offloader:
        return self._offloader.with_options(
            policy=_ALL,
            placeholder=notice,
            refs="letters",
            redact=None,
            should_offload=None,
            summarizer=None,
            on_error="raise",
        )

    def _line(self, index: int, message: Any) -> str:
        row = {"at": index, "message": to_json(message)}
        line = json.dumps(row, ensure_ascii=False)
        if json.loads(line, object_hook=from_json)["message"] != as_data(message):
            raise MessageError(f"messages[{index}]: JSON cannot restore it exactly, so it cannot be stored")
        options = self._offloader.options
        if options.redact is None:
            return line
        return json.dumps(map_texts(row, options.redacted), ensure_ascii=False)


def _sole_text(message: Any) -> str | None:
    items = scan_of(message).items
    return items[0].text if len(items) == 1 and items[0].item_type == NOTICE_TYPE else None


def _merged(kept: list[Any], content: str) -> list[Any]:
    """Return the stored messages at their places from the first on, with the kept ones at all others."""
    rows = [json.loads(line, object_hook=from_json) for line in content.split("\n")]
    first = rows[0]["at"]
    out: list[Any] = []
    used = 0
    for row in rows:
        others = kept[used : used + max(0, row["at"] - first - len(out))]
        out += [*others, row["message"]]
        used += len(others)
    return [*out, *kept[used:]]

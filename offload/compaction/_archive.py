"""Storage of the messages that a compaction removes: one record, and one notice in their place.

The record holds one message per line, as JSON, with its place in the conversation. The notice is the
placeholder of that record (rule R6): only the whole stored text restores the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offload.errors import MessageError, NotFoundError, OffloadError
from offload.layout import REF_PATTERN
from offload.messages import adapter_for, as_data, from_json, map_texts, scan_of, to_json
from offload.offloader import Offloader
from offload.placeholder import PlaceholderFacts, escape_placeholders
from offload.policy import OffloadPolicy, Rule
from offload.record import SAMPLE_REF

# Matches the notices of every release.
_FIRST_LINE = re.compile(rf"\[Compacted (\d{{1,9}}): [^\n]{{1,200}} id ({REF_PATTERN})\]\n")
_ALL = OffloadPolicy(types={"user_message": Rule(min_chars=1, preview_chars=0)}, tools={}, min_saving=0)


@dataclass(frozen=True, slots=True)
class Notice:
    """The text that replaces removed messages, as a placeholder renderer.

    Attributes:
        number: the number of the compaction in its conversation; the latest is undone first.
        messages: how many messages were removed.
        summary: a model's summary of them; empty if no model was asked.
    """

    number: int = 1
    messages: int = 0
    summary: str = ""

    def text(self, ref: str = SAMPLE_REF) -> str:
        """Return the notice for the record `ref`; any other ref has about the same number of tokens."""
        noun = "message" if self.messages == 1 else "messages"
        lines = [f"[Compacted {self.number}: {self.messages} earlier {noun} moved to storage, id {ref}]"]
        if self.summary:
            lines += ["[Summary by a model, not the user's words:]", escape_placeholders(self.summary)]
        lines.append(f'[Stored as JSON, one message per line. Read: context_read(id="{ref}", offset=0)]')
        return "\n".join(lines)

    def render(self, facts: PlaceholderFacts) -> str:
        """Return the placeholder of a record."""
        return self.text(facts.ref)

    def find_ref(self, text: str) -> str | None:
        """Return the ref in `text` if it looks like a notice, else None."""
        match = _FIRST_LINE.match(text)
        return match[2] if match else None


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
        return Notice(latest + 1)

    def store(self, messages: Sequence[Any], removed: Sequence[int], notice: Notice) -> tuple[str, Any]:
        """Store the messages at the indices `removed`; return the record's ref and the notice as a message.

        That message must replace the first of them.

        Raises:
            MessageError: JSON cannot restore one of them exactly.
            OffloadError: the notice is no shorter than the messages, or the store failed.
        """
        content = "\n".join(self._line(index, messages[index]) for index in removed)
        text = self._open(notice).offload_text(content, tool_name="conversation", item_type="user_message")
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
            match = _FIRST_LINE.match(text)
            if match is None:
                continue
            if text not in contents:
                contents[text] = self._content_of(message)
            content = contents[text]
            if content is not None:
                notices.append((index, int(match[1]), content))
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
    return items[0].text if len(items) == 1 and items[0].item_type == "user_message" else None


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

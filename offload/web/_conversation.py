"""The journal of an agent as pages: the conversation as the model saw it, and the check of a reply."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from offload.base.tokens import estimate_tokens
from offload.engine.settings.hooks import Hooks
from offload.errors import NotFoundError
from offload.messages.adapter import Scan
from offload.messages.base import Item
from offload.messages.formats import role_or_none, scan_of, scans_of
from offload.reading.evidence import Value
from offload.reading.evidence.session import SessionEvidence
from offload.reading.timeline import Timeline
from offload.reading.timeline.timeline import differences
from offload.records.record import RecordInfo
from offload.records.session.reader import SessionReader
from offload.replay import costs_of
from offload.replay._journal import RecordsByRef, proven, records_of
from offload.web._paging import PAGE_ROWS, list_page, number_in
from offload.web._timeline import check_size


def evidence(reader: SessionReader, timeline: Timeline, query: Mapping[str, str]) -> dict[str, Any]:
    """Return for a template the reply to request `at` with the places of its values.

    Raises:
        ConfigError: the journal is too large, or has no such request.
        CollisionError: two agents continued the conversation.
        CorruptError: an entry of the journal is damaged.
        NotFoundError: the next request, which has the reply, was not sent.
        StoreError: the store failed.
    """
    check_size(timeline)
    at = number_in(query, "at", 1)
    if at >= len(timeline):
        raise NotFoundError(f"the reply to request {at} is in no later request")
    found = SessionEvidence(reader, Hooks()).check(_reply(timeline, at), at=at, messages=None)
    pieces = [(text, value, value and _address(value)) for text, value in found.pieces() if text]
    return {"at": at, "found": found, "pieces": pieces}


def _address(value: Value) -> str | None:
    """Return the address of the place of a value below that of the session."""
    if value.ref is not None:
        return f"/r/{value.ref}?line={value.line}"
    if value.request is None or value.message is None:
        return None
    page = value.message // PAGE_ROWS + 1
    return f"/conversation?at={value.request}&page={page}#M{value.message + 1}"


def _reply(timeline: Timeline, at: int) -> str:
    """Return what the model said between a request and the next one."""
    before, after = timeline.pair(at + 1)
    changes = differences(before, after, is_compacted=timeline[at].is_compacted)
    new = [each.after for each in changes if each.kind == "added"]
    replies = takewhile(lambda message: role_or_none(message) == "assistant", new)
    items = [item for message in replies for item in scan_of(message).offloadable]
    return "\n".join(item.text for item in items if item.item_type == "assistant_message")


_PART_CHARS, _PARTS = 4000, 40
# The characters of a line in a narrow window, and the lines that fit the box of a part.
_NARROW_CHARS, _BOX_LINES = 30, 15


class MessagePart(NamedTuple):
    """A part of a message; `record` is the entry of its record if its text is a placeholder.

    Of a longer text, `hidden` characters are not in `text`.
    """

    kind: str
    tool: str | None
    text: str
    hidden: int
    is_error: bool = False
    record: RecordInfo | None = None

    @property
    def scrolls(self) -> bool:
        """Whether the text may need more lines than its box has, in a narrow window."""
        return self.text.count("\n") + len(self.text) // _NARROW_CHARS >= _BOX_LINES


def _request(reader: SessionReader, timeline: Timeline, number: int, branch: str | None) -> dict[str, Any]:
    """Return the messages of a request, and how each differs from the request before, by its index."""
    found = timeline if branch is None else Timeline(reader.store, reader.name, branch=branch)
    before, after = found.pair(number)
    changes = [*differences(before, after, is_compacted=found[number - 1].is_compacted)]
    return {
        "messages": after,
        "changes": {each.index: each.kind for each in changes if each.after is not None},
        "removed": sum(each.after is None for each in changes),
        "at": number,
        "branch": branch,
        "sent": found[number - 1],
        "cost": [*costs_of(found[max(0, number - 2) : number])][-1],
        "last": len(found),
        "compactions": 0,
    }


def conversation(reader: SessionReader, timeline: Timeline, query: Mapping[str, str]) -> dict[str, Any]:
    """Return for a template a page of the conversation of a session with this timeline.

    The parameter `at` shows the request with this number as it was sent; `branch` one of a branch that a
    rewind left.

    Raises:
        ConfigError: the journal is too large to show.
        CollisionError: two agents continued the conversation.
        CorruptError: an entry of the journal is damaged, or encrypted with a key that the store lacks.
        NotFoundError: the session has no conversation.
        StoreError: the store failed.
    """
    check_size(timeline)
    if "at" in query:
        shown = _request(reader, timeline, number_in(query, "at", 0), query.get("branch"))
    else:
        state = timeline.latest()
        messages = [line.message for line in state.messages]
        facts = {"changes": {}, "removed": 0, "at": None, "branch": None}
        shown = facts | {"messages": messages, "compactions": state.compactions}
    if not shown["messages"]:
        raise NotFoundError(f"session {reader.name!r} has no conversation of an agent")
    rows = list_page(shown.pop("messages"), query)
    scans = scans_of(rows["shown"])
    records = records_of(reader, [item for scan in scans for item in scan.offloadable[:_PARTS]])
    rows["shown"] = [_message(one, scan, records) for one, scan in zip(rows["shown"], scans, strict=True)]
    return {"rows": rows, **shown}


def _message(message: Any, scan: Scan, records: RecordsByRef) -> dict[str, Any]:
    parts = [MessagePart("thinking or code", None, *_cut(text)) for text in scan.texts[:_PARTS]]
    parts += [_part(item, records) for item in scan.offloadable[:_PARTS]]
    return {
        "role": role_or_none(message) or "unknown",
        "tokens": scan.tokens(estimate_tokens),
        "parts": [part for part in parts if part.text.strip()],
        "hidden": max(0, len(scan.offloadable) - _PARTS) + max(0, len(scan.texts) - _PARTS),
    }


def _part(item: Item, records: RecordsByRef) -> MessagePart:
    tool = item.tool_name or (item.call.name if item.call else None)
    if item.media is not None:
        return MessagePart("media", tool, item.text[:40] + "…", max(0, len(item.text) - 40))
    return MessagePart(
        item.item_type, tool, *_cut(item.text), item.is_error, next(proven(item, records), None)
    )


def _cut(text: str) -> tuple[str, int]:
    return text[:_PART_CHARS], max(0, len(text) - _PART_CHARS)

"""The check of a reply in the journal: where the session has its exact values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from offload.errors import NotFoundError
from offload.evidence import Value
from offload.evidence.session import SessionEvidence
from offload.messages.formats import role_or_none, scan_of
from offload.session.reader import SessionReader
from offload.settings.hooks import Hooks
from offload.timeline import Timeline
from offload.timeline.timeline import differences
from offload.web._paging import PAGE_ROWS, number_in
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

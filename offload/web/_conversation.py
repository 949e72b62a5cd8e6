"""The conversation of an agent as the model saw it: the messages of its journal, placeholders included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offload.context.ir import item_type_of
from offload.errors import ConfigError, NotFoundError
from offload.layout import JOURNAL
from offload.messages.base import Item
from offload.messages.formats import role_or_none, scan_of
from offload.record import RecordInfo
from offload.replay._journal import Records, proven, records_of
from offload.session.reader import SessionReader
from offload.settings.hooks import Hooks
from offload.timeline import SentRequest, Timeline
from offload.timeline.journal import Journal, JournalMessage
from offload.timeline.timeline import differences
from offload.tokens import estimate_tokens
from offload.web._paging import list_page, number_in
from offload.web._plot import curves

# Of a journal, uncompressed: all of its entries are read to show any message.
_MOST_BYTES = 64 * 1024 * 1024
_PART_CHARS, _PARTS = 4000, 40


class Part(NamedTuple):
    """A part of a message; `record` is the entry of its record if its text is a placeholder.

    Of a longer text, `hidden` characters are not in `text`.
    """

    kind: str
    tool: str | None
    text: str
    hidden: int
    is_error: bool = False
    record: RecordInfo | None = None


def timeline(reader: SessionReader, query: Mapping[str, str]) -> dict[str, Any]:
    """Return for a template a page of the requests of a session, newest first, and their curves.

    Raises `StoreError` if the store failed.
    """
    requests = Timeline(reader.store, reader.name)[:]
    return {"rows": list_page(requests[::-1], query), "curves": curves_of(requests)}


def curves_of(requests: Sequence[SentRequest]) -> dict[str, Any] | None:
    """Return the curves of the tokens of requests for a template, with the compactions as marks."""
    compacted = [index for index, request in enumerate(requests) if request.is_compacted]
    return curves([(each.tokens, each.tokens_offloaded) for each in requests], compacted)


def _request(reader: SessionReader, number: int) -> dict[str, Any]:
    """Return the messages of a request, and how each differs from the request before, by its index."""
    found = Timeline(reader.store, reader.name)
    after = found.at(number)
    before = found.at(number - 1) if number > 1 else []
    changes = differences(before, after, is_compacted=found[number - 1].is_compacted)
    messages = [JournalMessage(item_type_of(message), message) for message in after]
    return {
        "messages": messages,
        "changes": {each.index: each.kind for each in changes if each.after is not None},
        "at": number,
        "last": len(found),
        "compactions": 0,
    }


def conversation(reader: SessionReader, part: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return for a template a page of the conversation of a session with the key part `part`.

    With the parameter `at` it is the request with this number, as it was sent.

    Raises:
        ConfigError: the journal is too large to show.
        CollisionError: two agents continued the conversation.
        CorruptError: an entry of the journal is damaged, or encrypted with a key that the store lacks.
        NotFoundError: the session has no conversation.
        StoreError: the store failed.
    """
    check_size(reader, part)
    if "at" in query:
        shown = _request(reader, number_in(query, "at", 0))
    else:
        state = Journal(reader.store, reader.name, Hooks()).read()
        shown = {"messages": state.messages, "changes": {}, "at": None, "compactions": state.compactions}
    if not shown["messages"]:
        raise NotFoundError(f"session {reader.name!r} has no conversation of an agent")
    rows = list_page(shown.pop("messages"), query)
    items = [_items(line.message) for line in rows["shown"]]
    records = records_of(reader, [item for each in items for item in each])
    rows["shown"] = [_message(line, each, records) for line, each in zip(rows["shown"], items, strict=True)]
    return {"rows": rows, **shown}


def check_size(reader: SessionReader, part: str) -> None:
    """Raise `ConfigError` if the journal of a session with the key part `part` is too large to show."""
    matches = filter(None, (JOURNAL.match(found.key) for found in reader.store.keys(JOURNAL.prefix(part))))
    size = sum(int(match["bytes"]) for match in matches)
    if size > _MOST_BYTES:
        raise ConfigError(f"the conversation has {size:,} bytes; a page shows one of at most {_MOST_BYTES:,}")


def _items(message: Any) -> list[Item]:
    """Return the parts of a message that a record may replace, the first ones of many."""
    return scan_of(message).offloadable[:_PARTS]


def _message(line: Any, items: Sequence[Item], records: Records) -> dict[str, Any]:
    scan = scan_of(line.message)
    parts = [_part(item, records) for item in items]
    parts += [Part("other", None, *_cut(text)) for text in scan.texts[:_PARTS]]
    return {
        "role": role_or_none(line.message) or "unknown",
        "type": line.item_type.value,
        "tokens": scan.tokens(estimate_tokens),
        "parts": parts,
        "hidden": max(0, len(scan.offloadable) - _PARTS) + max(0, len(scan.texts) - _PARTS),
    }


def _part(item: Item, records: Records) -> Part:
    tool = item.tool_name or (item.call.name if item.call else None)
    if item.media is not None:
        return Part("media", tool, item.text[:40] + "…", max(0, len(item.text) - 40))
    return Part(item.item_type, tool, *_cut(item.text), item.is_error, next(proven(item, records), None))


def _cut(text: str) -> tuple[str, int]:
    return text[:_PART_CHARS], max(0, len(text) - _PART_CHARS)

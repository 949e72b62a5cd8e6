"""Items on the way into a session: before they are stored, and with their records."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from offload.messages.base import Item
from offload.records.codec.content import TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header, RecordInfo


class Draft(msgspec.Struct, frozen=True):
    """An item before it is stored: the `content` of its text, with `ttl`, `summary`, `title`, `agent`.

    `ref` is its first draw, with the `placeholder`, and `render` returns that of any other; `is_redacted` if
    content was removed from the text. `quotes` are the refs of the records that have parts of the content,
    and `encoding` is that of its bytes if it is not UTF-8.
    """

    item: Item
    content: TextContent | SpooledContent
    ref: str
    placeholder: str
    render: Callable[[str], str]
    ttl: int | None = None
    summary: str | None = None
    is_redacted: bool = False
    title: str | None = None
    agent: str | None = None
    quotes: tuple[str, ...] = ()
    encoding: str | None = None

    def header(self, ref: str, session: str, origin: str | None) -> Header:
        """Return the header of its record in a session, under a ref that it drew in the session `origin`."""
        item, counts = self.item, self.content.counts
        return Header(
            ref=ref,
            origin=origin,
            session=session,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            created_at=time.time(),
            sha256=counts.sha256,
            placeholder=self.placeholder if ref == self.ref else self.render(ref),
            form=item.form,
            order=item.order,
            marked=item.marked,
            ttl=self.ttl,
            summary=self.summary,
            redacted=self.is_redacted,
            title=self.title,
            agent=self.agent,
            quotes=self.quotes,
            encoding=self.encoding,
        )


class OffloadedItem(msgspec.Struct, frozen=True):
    """A durable record, and the placeholder of its item."""

    info: RecordInfo
    placeholder: str

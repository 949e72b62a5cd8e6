"""Records of texts, as a codec encodes them."""

from __future__ import annotations

from offload.records.codec.content import TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header


def header_of(content: TextContent | SpooledContent, ref: str = "abcdefghij", session: str = "s") -> Header:
    return Header(
        ref=ref,
        session=session,
        item_type="tool_result",
        tool_name="Bash",
        tool_use_id="toolu_1",
        created_at=1.5,
        sha256=content.counts.sha256,
        placeholder="[Offloaded]",
    )


def facts(text: str, ref: str = "abcdefghij", session: str = "s") -> tuple[Header, TextContent]:
    """Return what a record of a text is made from."""
    content = TextContent.of(text, 5)
    return header_of(content, ref, session), content

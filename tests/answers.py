"""Shared by the tests of the tools: a session with one record, and the body of an answer."""

from __future__ import annotations

from offload.messages.base import Item
from offload.reading.tools import Tools
from offload.reading.tools.answers import REPEATED
from offload.records.codec import get_codec
from offload.records.codec.content import TextContent
from offload.records.session import Draft, Session
from offload.records.session.drafts import OffloadedItem
from offload.storage.store import OffloadStore
from offload_backends.memory import MemoryStore

MAX_ANSWER = 8192


def session(store: OffloadStore | None = None, name: str = "s") -> Session:
    return Session(store or MemoryStore(), name, get_codec("zstd"))


def put(
    into: Session, text: str, *, tool: str | None = "Bash", call: str = "t1", item_type: str = "tool_result"
) -> str:
    """Store `text` and return its ref."""
    item, content = Item(None, item_type, text, tool, call), TextContent.of(text, 1)
    ref = into.ref_of(item.identity(content.counts.sha256))
    draft = Draft(item, content, ref, f"[{ref}]", lambda ref: f"[{ref}]")
    [placed] = into.write([draft])
    assert isinstance(placed, OffloadedItem)
    return placed.info.ref


def damage(store: OffloadStore, ref: str = "") -> None:
    """Flip a bit in the middle of the record of `ref`; without one, of the only record."""
    [key] = [stored.key for stored in store.keys("r/") if f"/{ref}" in stored.key]
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data), overwrite=True)


def tools_for(text: str) -> tuple[Tools, str]:
    into = session()
    ref = put(into, text)
    return Tools(into), ref


def body(answer: str) -> str:
    """Return an answer without its first and its last line, and without the note on a repetition."""
    return answer.split("\n", 1)[1].rsplit("\n", 1)[0].removesuffix(f"\n{REPEATED}")

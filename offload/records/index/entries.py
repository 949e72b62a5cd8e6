"""Keys of a listing as catalog entries and tombstones."""

from __future__ import annotations

from typing import NamedTuple, cast

from offload.errors import InvalidKeyError
from offload.records.record import Header, RecordInfo
from offload.records.record.header import Counts
from offload.storage.layout import (
    LINK,
    RECORD,
    TOMBSTONE,
    DeletionReason,
    decode_part,
    encode_part,
    item_type_of,
)
from offload.storage.store import StoredObject

# Its milliseconds have 15 digits.
_LAST_SECOND = 10**12 - 1


class Tombstone(NamedTuple):
    """The mark of a deleted record: its key and ref, and why and when it was marked, by the store's clock."""

    key: str
    ref: str
    reason: DeletionReason
    at: float

    @property
    def item_type(self) -> str:
        """Type of the deleted item."""
        return item_type_of(self.key)


def record_key(
    header: Header, counts: Counts, suffix: str, generation: int = 1, *, is_copy: bool = False
) -> str:
    """Return the key of a record, which shows everything that a listing needs.

    That of a copy has the time of creation, since the time of its object is that of the copy.
    """
    is_timed = is_copy and 0 <= header.created_at < _LAST_SECOND
    return RECORD.key(
        session=encode_part(header.session),
        ref=header.ref,
        generation=generation if generation > 1 else None,
        item_type=header.item_type,
        tool="" if header.tool_name is None else encode_part(header.tool_name),
        chars=counts.chars,
        tokens=counts.tokens,
        ttl=header.ttl,
        quotes=".".join(header.quotes) or None,
        created=round(header.created_at * 1000) if is_timed else None,
        suffix=suffix,
    )


def parse_key(stored: StoredObject) -> RecordInfo | Tombstone | None:
    """Return the record, shared record or tombstone at a listed key, None for any other object."""
    if not (match := RECORD.match(stored.key) or LINK.match(stored.key)):
        if not (match := TOMBSTONE.match(stored.key)):
            return None
        reason = cast("DeletionReason", match["reason"])
        return Tombstone(stored.key.removesuffix(f".{reason}"), match["ref"], reason, stored.modified)
    try:
        session, tool = decode_part(match["session"]), decode_part(match["tool"])
    except InvalidKeyError:
        return None
    created_at = _created_at(stored, match["created"])
    return RecordInfo(
        ref=match["ref"],
        session=session,
        item_type=match["item_type"],
        tool_name=tool if match["tool"] else None,
        chars=int(match["chars"]),
        tokens=int(match["tokens"]),
        stored_bytes=stored.size,
        created_at=created_at,
        expires_at=created_at + int(match["ttl"]) if match["ttl"] else None,
        key=stored.key,
        quotes=tuple(match["quotes"].split(".")) if match["quotes"] else (),
    )


def _created_at(stored: StoredObject, milliseconds: str | None) -> float:
    """Return the time of creation: that in the key of a copy, but none after the object's own time."""
    if milliseconds is None:
        return stored.modified
    created = int(milliseconds) / 1000
    return min(created, stored.modified) if stored.modified else created

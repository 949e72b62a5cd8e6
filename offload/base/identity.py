"""The identity of an item, which messages and records share."""

from __future__ import annotations

from typing import NamedTuple


class ItemIdentity(NamedTuple):
    """The identity of an item: two items with the same one share one ref and one record.

    All but the `category` are fields of `Header`, and all but that and the `order` draw the ref. The category
    is the one that the session's placeholders name, if they name one, else the tool of a result without a
    call id. Two items that differ in one of these alone get two refs, as after a collision.
    """

    item_type: str
    tool_use_id: str | None
    sha256: bytes
    form: str | None
    order: str | None = None
    category: str | None = None

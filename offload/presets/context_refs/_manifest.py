"""`manifest.json`: the context files of a conversation as a list, for a person and for a quick start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from offload.errors import NotFoundError
from offload.store import OffloadStore

MANIFEST = "manifest.json"


def update(
    store: OffloadStore, part: str, conversation: str, list_items: Callable[[], list[dict[str, Any]]]
) -> None:
    """Make the manifest of a conversation say what its tree holds, also while others write to both.

    The tree is listed again after each write until it is as written. Whoever writes last has therefore
    seen the tree as it was after that write, so that no writer's files are missing from what stays.

    Args:
        store: where it is.
        part: key part of the conversation.
        conversation: its name.
        list_items: returns the entries, from a fresh listing.

    Raises:
        StoreError: the store failed; the next update makes up for it.
    """
    path = f"{part}/{MANIFEST}"
    try:
        written = _items_of(store.get(path))
    except NotFoundError:
        written = []  # There is nothing to write where nothing was stored.
    while (items := list_items()) != written:
        store.put(path, _rendered(conversation, items), overwrite=True)
        written = items


def time_of(seconds: float) -> str:
    """Return a time as the manifest shows it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def record_keys(manifest: bytes) -> Iterator[str]:
    """Yield the record keys that a manifest names; one that is damaged names none."""
    for item in _items_of(manifest) or ():
        key = item.get("record") if isinstance(item, dict) else None
        if isinstance(key, str):
            yield key


def _items_of(manifest: bytes) -> list[Any] | None:
    """Return the entries of a manifest; None if it is damaged."""
    try:
        document = json.loads(manifest)
    except (ValueError, RecursionError):
        return None
    items = document.get("items") if isinstance(document, dict) else None
    return items if isinstance(items, list) else None


def _rendered(conversation: str, items: Sequence[Any]) -> bytes:
    """Return a manifest as JSON, an entry per line."""
    head = f'{{"schema_version": "1.0", "conversation": {json.dumps(conversation)}, "items": ['
    return "\n".join([head, ",\n".join(map(json.dumps, items)), "]}", ""]).encode()

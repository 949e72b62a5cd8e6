"""`manifest.json`: the list of a conversation's context files, for people and for a quick start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

MANIFEST = "manifest.json"


def render_manifest(conversation: str, items: Sequence[Any]) -> bytes:
    """Return a manifest as JSON, one entry per line."""
    head = f'{{"schema_version": "1.0", "conversation": {json.dumps(conversation)}, "items": ['
    return "\n".join([head, ",\n".join(map(json.dumps, items)), "]}", ""]).encode()


def time_of(seconds: float) -> str:
    """Return a time as the manifest shows it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def record_keys(manifest: bytes) -> Iterator[str]:
    """Yield the record keys in a manifest; a damaged manifest has none."""
    try:
        document = json.loads(manifest)
    except (ValueError, RecursionError):
        return
    items = document.get("items") if isinstance(document, dict) else None
    for item in items if isinstance(items, list) else ():
        key = item.get("record") if isinstance(item, dict) else None
        if isinstance(key, str):
            yield key

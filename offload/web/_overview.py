"""What a store holds, session by session, from one listing of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from offload.errors import InvalidKeyError, NotFoundError
from offload.index import Tombstone, parse_key, sessions
from offload.layout import RECORD, decode_part, encode_part, is_hashed, session_part
from offload.record import RecordInfo
from offload.store import OffloadStore, StoredObject


@dataclass(frozen=True, slots=True)
class Summary:
    """What one session holds.

    Attributes:
        part: its key part, which stands for it in addresses.
        name: its name; one too long for a key ends in an ellipsis.
        records: how many records can be read.
        tokens: tokens of their content.
        stored_bytes: their bytes in the store.
        collected: how many records are collected and still remembered.
        newest: when the newest was stored, 0 without one.
        points: when each was stored, and its tokens.
    """

    part: str
    name: str
    records: int
    tokens: int
    stored_bytes: int
    collected: int
    newest: float
    points: list[tuple[float, int]]


def summaries(store: OffloadStore) -> Iterator[Summary]:
    """Yield what each session of `store` holds, in the order of their keys."""
    listed = (found for found in store.keys(RECORD.prefix()) if found.key.count("/") > 1)
    for part, objects in groupby(listed, key=lambda found: session_part(found.key)):
        try:
            name = decode_part(part)
        except InvalidKeyError:
            continue
        yield _summary(part, name, objects)


def tombstones(store: OffloadStore, part: str) -> list[Tombstone]:
    """Return what is left of the collected records of a session, the latest first."""
    found = map(parse_key, store.keys(RECORD.prefix(part)))
    return sorted((f for f in found if isinstance(f, Tombstone)), key=lambda t: (-t.at, t.key))


def name_of(store: OffloadStore, part: str) -> str:
    """Return the name of the session with this key part. Raises `NotFoundError` if no name has it."""
    if is_hashed(part):
        name = next((name for name in sessions(store) if encode_part(name) == part), None)
        if name is not None:
            return name
    else:
        try:
            name = decode_part(part)
        except InvalidKeyError:
            name = None
        if name and encode_part(name) == part:
            return name
    raise NotFoundError(f"no session has the address {part[:80]!r} in {store.url}")


def _summary(part: str, name: str, objects: Iterable[StoredObject]) -> Summary:
    infos: dict[str, RecordInfo] = {}
    collected: set[str] = set()
    for found in map(parse_key, objects):
        if isinstance(found, Tombstone):
            collected.add(found.key)
        elif found is not None:
            infos[found.key] = found
    # Of several records under one ref the first counts.
    first = {info.ref: info for key, info in reversed(infos.items()) if key not in collected}
    points = [(info.created_at, info.tokens) for info in first.values()]
    return Summary(
        part=part,
        name=name,
        records=len(first),
        tokens=sum(info.tokens for info in first.values()),
        stored_bytes=sum(info.stored_bytes for info in first.values()),
        collected=len(collected),
        newest=max((at for at, _ in points), default=0.0),
        points=points,
    )

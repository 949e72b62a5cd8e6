"""The sessions of a store, by the keys of their records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

from offload.codec import find_codec
from offload.errors import InvalidKeyError, OffloadError
from offload.layout import RECORD, decode_part, is_hashed, session_part, sidecar_key
from offload.store import OffloadStore

# The maximum number of records that are opened to find a session's name.
_MAX_TRIES = 20


def sessions(store: OffloadStore) -> Iterator[str]:
    """Yield the name of each session in `store`, with one short listing per session."""
    after = ""
    while True:
        first = next(store.keys(RECORD.prefix(), after=after), None)
        if first is None:
            return
        if first.key.count("/") == 1:
            after = first.key  # Records are one level deeper.
            continue
        part = session_part(first.key)
        with suppress(InvalidKeyError):
            yield session_name(store, part)
        # "0" follows "/": this is the next key after all keys of this session.
        after = f"{RECORD.prefix()}{part}0"


def session_name(store: OffloadStore, part: str) -> str:
    """Return the name of the session with this key part.

    The name behind a hashed part is read from the header of a record; without one it ends in an ellipsis.
    Raises `InvalidKeyError` if `part` encodes no name.
    """
    for stored in islice(store.keys(RECORD.prefix(part)), _MAX_TRIES if is_hashed(part) else 0):
        codec = find_codec(stored.key)
        if codec is not None and stored.size:
            with suppress(OffloadError):
                sidecar = partial(store.get, sidecar_key(stored.key))
                return codec.open(partial(store.get, stored.key), sidecar).session
    return decode_part(part)

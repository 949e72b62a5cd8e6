"""What a session holds, told by the keys of its store. A cache: the records themselves are the truth."""

from offload.index._catalog import Catalog, sessions
from offload.index._keys import (
    LINK_SUFFIX,
    RECORDS,
    Reason,
    Tombstone,
    generation_of,
    parse_key,
    record_key,
    session_prefix,
    sidecar_key,
    tombstone_key,
)

__all__ = [
    "LINK_SUFFIX",
    "RECORDS",
    "Catalog",
    "Reason",
    "Tombstone",
    "generation_of",
    "parse_key",
    "record_key",
    "session_prefix",
    "sessions",
    "sidecar_key",
    "tombstone_key",
]

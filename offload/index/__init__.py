"""The contents of a session according to the keys of its store; derived from the records at any time."""

from offload.index._catalog import Catalog, reindex
from offload.index._entries import Tombstone, parse_key, record_key
from offload.index._objects import (
    DeletedRecord,
    SessionObjects,
    list_session,
    list_sessions,
    session_name,
    sessions,
)

__all__ = [
    "Catalog",
    "DeletedRecord",
    "SessionObjects",
    "Tombstone",
    "list_session",
    "list_sessions",
    "parse_key",
    "record_key",
    "reindex",
    "session_name",
    "sessions",
]

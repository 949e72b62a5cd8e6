"""The contents of a session, derived from the keys of its store."""

from offload.records.index.catalog import reindex
from offload.records.index.objects import sessions

__all__ = [
    "reindex",
    "sessions",
]

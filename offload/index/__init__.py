"""The contents of a session, derived from the keys of its store."""

from offload.index.catalog import reindex
from offload.index.objects import sessions

__all__ = [
    "reindex",
    "sessions",
]

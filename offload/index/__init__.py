"""The contents of a session according to the keys of its store; derived from the records at any time."""

from offload.index.catalog import reindex
from offload.index.objects import sessions

__all__ = [
    "reindex",
    "sessions",
]

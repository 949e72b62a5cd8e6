"""What a session holds, told by the keys of its store. A cache: the records themselves are the truth."""

from offload.index._catalog import Catalog, reindex
from offload.index._entries import Tombstone, parse_key, record_key
from offload.index._listing import Page
from offload.index._sessions import sessions

__all__ = ["Catalog", "Page", "Tombstone", "parse_key", "record_key", "reindex", "sessions"]

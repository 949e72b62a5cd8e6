"""What a session holds, told by the keys of its store. A cache: the records themselves are the truth."""

from offload.index._catalog import Catalog, reindex
from offload.index._keys import (
    JOURNALS,
    LINK_SUFFIX,
    MARKS,
    RECORDS,
    SIDECARS,
    Reason,
    Tombstone,
    generation_of,
    journal_key,
    journal_prefix,
    marks_prefix,
    parse_journal_key,
    parse_key,
    record_key,
    session_prefix,
    sidecar_key,
    tombstone_key,
    used_key,
)
from offload.index._listing import Page
from offload.index._sessions import sessions

__all__ = [
    "JOURNALS",
    "LINK_SUFFIX",
    "MARKS",
    "RECORDS",
    "SIDECARS",
    "Catalog",
    "Page",
    "Reason",
    "Tombstone",
    "generation_of",
    "journal_key",
    "journal_prefix",
    "marks_prefix",
    "parse_journal_key",
    "parse_key",
    "record_key",
    "reindex",
    "session_prefix",
    "sessions",
    "sidecar_key",
    "tombstone_key",
    "used_key",
]

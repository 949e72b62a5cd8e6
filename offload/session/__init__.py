"""The records of one session in one store: written once and read by ref."""

from offload.session._create import NewRecord, create_records
from offload.session._names import check_known, check_name, is_ref, new_name
from offload.session._reader import Damage, Link, SessionReader
from offload.session._session import Draft, OffloadedItem, Session, note_deletions
from offload.session._titles import MAX_READS, FoundTitles, find_titles, read_titles, with_titles

__all__ = [
    "MAX_READS",
    "Damage",
    "Draft",
    "FoundTitles",
    "Link",
    "NewRecord",
    "OffloadedItem",
    "Session",
    "SessionReader",
    "check_known",
    "check_name",
    "create_records",
    "find_titles",
    "is_ref",
    "new_name",
    "note_deletions",
    "read_titles",
    "with_titles",
]

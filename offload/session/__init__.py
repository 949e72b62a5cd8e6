"""The records of one session on one store: written once, found by ref, read back or refused."""

from offload.session._marked import note_marked
from offload.session._names import check_known, check_name, is_ref, new_name
from offload.session._reader import Damage, Link, SessionReader
from offload.session._session import Draft, OffloadedItem, Session

__all__ = [
    "Damage",
    "Draft",
    "Link",
    "OffloadedItem",
    "Session",
    "SessionReader",
    "check_known",
    "check_name",
    "is_ref",
    "new_name",
    "note_marked",
]

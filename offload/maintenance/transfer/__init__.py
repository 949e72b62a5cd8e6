"""Transfer of sessions between stores, names and files, and sharing of records."""

from offload.maintenance.transfer._archive import export_session, import_session
from offload.maintenance.transfer._copy import copy_session, copy_sessions
from offload.maintenance.transfer._fork import fork, rewind
from offload.maintenance.transfer._report import CopyFailure, CopyProgress, CopyReport
from offload.maintenance.transfer._sharing import revoke, share, share_each

__all__ = [
    "CopyFailure",
    "CopyProgress",
    "CopyReport",
    "copy_session",
    "copy_sessions",
    "export_session",
    "fork",
    "import_session",
    "revoke",
    "rewind",
    "share",
    "share_each",
]

"""Transfer of sessions between stores, names and files, and sharing of records."""

from offload.transfer._archive import export, import_
from offload.transfer._copy import CopyFailure, CopyProgress, CopyReport, copy, copy_sessions
from offload.transfer._fork import fork, rewind
from offload.transfer._sharing import revoke, share, share_each

__all__ = [
    "CopyFailure",
    "CopyProgress",
    "CopyReport",
    "copy",
    "copy_sessions",
    "export",
    "fork",
    "import_",
    "revoke",
    "rewind",
    "share",
    "share_each",
]

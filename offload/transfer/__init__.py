"""Transfer of sessions between stores, names and files, and sharing of records."""

from offload.transfer._archive import TarStore, export, import_
from offload.transfer._copy import CopyFailure, CopyReport, copy, fork
from offload.transfer._sharing import revoke, share

__all__ = ["CopyFailure", "CopyReport", "TarStore", "copy", "export", "fork", "import_", "revoke", "share"]

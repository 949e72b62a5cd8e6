"""Moving sessions: from store to store, under another name, into a file and back; sharing records."""

from offload.transfer._archive import TarStore, export, import_
from offload.transfer._copy import CopyFailure, CopyReport, copy, fork
from offload.transfer._sharing import revoke, share

__all__ = ["CopyFailure", "CopyReport", "TarStore", "copy", "export", "fork", "import_", "revoke", "share"]

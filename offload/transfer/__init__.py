"""Moving sessions: from store to store, under another name, into a file and back; sharing records."""

from offload.transfer._archive import Archive, export, import_
from offload.transfer._copy import Copied, Refused, copy, fork
from offload.transfer._sharing import revoke, share

__all__ = ["Archive", "Copied", "Refused", "copy", "export", "fork", "import_", "revoke", "share"]
